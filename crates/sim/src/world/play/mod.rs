//! The event loop of a world: requests, responses and the states of tasks.
//!
//! Faults and takeovers of domains are in [`handover`], the clocks of the processes in [`clocks`].

mod clocks;
mod handover;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use comity_core::decision::Permit;
use comity_core::dispatch::{Dispatch, Next};
use comity_core::domain::{Domain, Pattern};
use comity_core::guard::ReachGuard;
use comity_core::headers::PacingHints;
use comity_core::intent::Intent;
use comity_core::line::{Lane, Ticket, Waiter};
use comity_core::outcome::{Answer, Reach, TransportFailure};
use comity_core::pace::{Departure, SavedLimits, Terms};
use comity_core::paces::DomainId;
use comity_core::retry::{self, RetriesUsed};
use comity_core::rule::{Fields, Profile, Rule, RuleTable};
use comity_core::task::{JobId, TaskState, TaskStep};
use comity_core::time::{Span, Timestamp};

use clocks::Clocks;

use super::{Change, Entry, HostSpec, Report, Takeover, TaskEnd, WorldSpec};
use crate::site::Site;

/// Plays a world to its end.
pub(super) fn play(spec: &WorldSpec) -> Report {
    let mut play = Play::new(spec);
    play.begin();
    while let Some(Reverse((at, _, event))) = play.events.pop() {
        if at > END || play.unsettled == 0 {
            break;
        }
        if let Some(wake) = play.clocks.suspended_until(at) {
            play.post(wake, event);
            continue;
        }
        play.now = at;
        play.happen(event);
    }
    play.report()
}

/// A task in line.
#[derive(Debug, Clone)]
struct QueuedTask {
    task: usize,
    rule: Arc<Rule>,
    crawl_delay: Span,
}

impl Waiter for QueuedTask {
    fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.rule, crawl_delay: self.crawl_delay }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answered(usize),
    Connected(usize),
    Fault(usize),
    Revive(usize),
    Take { domain: usize, process: usize, kind: TakeoverKind },
    Pump(usize),
}

/// In which state a new holder gets a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TakeoverKind {
    Lost,
    Restarted,
    HandedOver,
}

struct Process {
    dispatch: Option<Dispatch<QueuedTask>>,
    free_workers: u32,
    stopping: bool,
    pump_at: Option<Timestamp>,
}

/// A domain: hosts of a group share one.
struct DomainState {
    name: Domain,
    hosts: Vec<usize>,
    holder: Option<usize>,
    /// The process that wants to take it over.
    wanted: Option<usize>,
    saved: Saved,
    /// Counts consecutive attempts for which the host was unreachable.
    unreached: ReachGuard,
}

/// What the store has saved for a domain.
#[derive(Default)]
struct Saved {
    limits: SavedLimits,
    pace: Option<Vec<u8>>,
}

struct Task {
    host: usize,
    intent: Intent,
    used: RetriesUsed,
    /// When a retry is ready; the next holder respects it too.
    ready_at: Timestamp,
    state: TaskState,
    ended: Option<Timestamp>,
}

/// An attempt in progress.
struct Attempt {
    process: usize,
    domain: usize,
    id: DomainId,
    ticket: Ticket,
    queued: QueuedTask,
    permit: Permit,
    /// Its index in the log, once it has started.
    entry: Option<usize>,
    answer: Option<Answer>,
    over: bool,
}

struct Play<'a> {
    spec: &'a WorldSpec,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    posted: u64,
    sites: Vec<Site>,
    rules: RuleTable,
    processes: Vec<Process>,
    domains: Vec<DomainState>,
    domain_of: Vec<usize>,
    tasks: Vec<Task>,
    attempts: Vec<Attempt>,
    unsettled: usize,
    log: Vec<Entry>,
    changes: Vec<Change>,
    takeovers: Vec<Takeover>,
    clocks: Clocks,
}

impl<'a> Play<'a> {
    fn new(spec: &'a WorldSpec) -> Self {
        let rules = rules(spec);
        let mut domains: BTreeMap<Domain, DomainState> = BTreeMap::new();
        for host in 0..spec.hosts.len() {
            let name = rules.domain(&host_domain(host));
            let state = || DomainState {
                name: name.clone(),
                hosts: vec![],
                holder: None,
                wanted: None,
                saved: Saved::default(),
                unreached: ReachGuard::default(),
            };
            domains.entry(name.clone()).or_insert_with(state).hosts.push(host);
        }
        let domains: Vec<DomainState> = domains.into_values().collect();
        let place = |host| domains.iter().position(|domain| domain.hosts.contains(&host)).unwrap_or_default();
        let domain_of = (0..spec.hosts.len()).map(place).collect();
        let mut tasks = Vec::new();
        let most = spec.hosts.iter().map(|host| host.tasks).max().unwrap_or_default();
        for nth in 0..most {
            for (host, of) in spec.hosts.iter().enumerate().filter(|(_, of)| nth < of.tasks) {
                let intent = if of.searches && nth % 3 == 2 { Intent::Search } else { Intent::Fetch };
                tasks.push(Task {
                    host,
                    intent,
                    used: RetriesUsed::default(),
                    ready_at: Timestamp::MIN,
                    state: TaskState::Waiting,
                    ended: None,
                });
            }
        }
        let process = || Process { dispatch: None, free_workers: 0, stopping: false, pump_at: None };
        let site = |(nth, host): (usize, &HostSpec)| Site::new(&host.site, spec.seed ^ nth as u64);
        Self {
            spec,
            now: BEGIN,
            events: BinaryHeap::new(),
            posted: 0,
            sites: spec.hosts.iter().enumerate().map(site).collect(),
            rules,
            processes: (0..spec.processes).map(|_| process()).collect(),
            domains,
            domain_of,
            unsettled: tasks.len(),
            tasks,
            attempts: Vec::new(),
            log: Vec::new(),
            changes: Vec::new(),
            takeovers: Vec::new(),
            clocks: Clocks::new(spec, BEGIN),
        }
    }

    fn begin(&mut self) {
        for process in 0..self.processes.len() {
            self.revive(process);
        }
        for domain in 0..self.domains.len() {
            self.take(domain, domain % self.processes.len(), TakeoverKind::HandedOver);
        }
        for fault in 0..self.spec.faults.len() {
            self.post(BEGIN + self.spec.faults[fault].at, Event::Fault(fault));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Pump(process) => {
                self.processes[process].pump_at = None;
                self.pump(process);
            }
            Event::Connected(attempt) => self.connected(attempt),
            Event::Answered(attempt) => self.answered(attempt),
            Event::Fault(fault) => self.fault(fault),
            Event::Revive(process) => self.revive(process),
            Event::Take { domain, process, kind } => self.take(domain, process, kind),
        }
    }

    /// Lets a process start all attempts that may go now.
    fn pump(&mut self, process: usize) {
        loop {
            let this = &mut self.processes[process];
            if this.stopping || this.free_workers == 0 {
                return;
            }
            let Some(dispatch) = &mut this.dispatch else { return };
            match dispatch.next(self.clocks.read(process, self.now)) {
                Next::Idle => return,
                Next::Sleep { until } => return self.pump_at(process, self.clocks.real(process, until)),
                Next::Go(grant) => {
                    this.free_workers -= 1;
                    let task = grant.waiter.task;
                    let host = self.tasks[task].host;
                    self.tasks[task].state = step(self.tasks[task].state, TaskStep::Claim);
                    self.attempts.push(Attempt {
                        process,
                        domain: self.domain_of[host],
                        id: grant.domain,
                        ticket: grant.ticket,
                        queued: grant.waiter,
                        permit: grant.permit,
                        entry: None,
                        answer: None,
                        over: false,
                    });
                    let connected = self.now + self.spec.hosts[host].connect;
                    self.post(connected, Event::Connected(self.attempts.len() - 1));
                }
            }
        }
    }

    /// The connection is open: the request is written, or has to wait after all.
    fn connected(&mut self, nth: usize) {
        let attempt = &mut self.attempts[nth];
        let (process, now) = (attempt.process, self.clocks.read(attempt.process, self.now));
        if attempt.over {
            return;
        }
        let Some(dispatch) = &mut self.processes[attempt.process].dispatch else { return };
        let Some(pace) = dispatch.pace_of(attempt.id, now) else { return };
        match pace.depart(attempt.queued.terms(), &mut attempt.permit, now) {
            Departure::Go => self.sent(nth),
            Departure::Wait { until, .. } if until.since(now) <= PATIENCE => {
                self.post(self.clocks.real(process, until), Event::Connected(nth));
            }
            Departure::Wait { .. } => {
                pace.abandon(&attempt.permit, now);
                let (id, ticket, queued) = (attempt.id, attempt.ticket, attempt.queued.clone());
                dispatch.ended(id, &ticket, now);
                self.tasks[queued.task].state = step(self.tasks[queued.task].state, TaskStep::Postpone);
                // The task is back in its old place before the line is checked again.
                if dispatch.rejoin(id, ticket, queued, now).is_err() {
                    unreachable!("the job runs as long as its process");
                }
                self.over(nth);
            }
        }
    }

    fn sent(&mut self, nth: usize) {
        let attempt = &mut self.attempts[nth];
        let task = attempt.queued.task;
        self.tasks[task].state = step(self.tasks[task].state, TaskStep::Send);
        let (host, intent) = (self.tasks[task].host, self.tasks[task].intent);
        let answer = self.sites[host].arrive(self.now);
        let has_response = answer.status.is_some() || answer.refused;
        let after = if has_response { answer.after.min(TIMEOUT) } else { TIMEOUT };
        let refused = answer.refused && answer.after <= TIMEOUT;
        let status = answer.status.filter(|_| answer.after <= TIMEOUT);
        let received = self.now + after;
        let headers = answer.headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        attempt.entry = Some(self.log.len());
        attempt.answer = Some(match status {
            Some(status) => {
                let read_at = self.clocks.read(attempt.process, received);
                Answer::of_status(status, PacingHints::read(headers, read_at))
            }
            None if refused => Answer::of_failure(TransportFailure::Unreachable),
            None => Answer::of_failure(TransportFailure::TimedOut),
        });
        let stated = answer.stated.filter(|_| status.is_some());
        let process = attempt.process;
        self.log.push(Entry {
            host,
            task,
            process,
            intent,
            start: self.now,
            end: None,
            status,
            refused,
            received: false,
            stated,
        });
        self.post(received, Event::Answered(nth));
    }

    /// The response arrived: it is recorded and saved, and the task moves on.
    fn answered(&mut self, nth: usize) {
        let attempt = &self.attempts[nth];
        let now = self.clocks.read(attempt.process, self.now);
        let (Some(entry), Some(answer), false) = (attempt.entry, attempt.answer, attempt.over) else {
            return;
        };
        let (task, host) = (attempt.queued.task, self.log[entry].host);
        (self.log[entry].end, self.log[entry].received) = (Some(self.now), true);
        let Some(dispatch) = &mut self.processes[attempt.process].dispatch else { return };
        let terms = attempt.queued.terms();
        let Some(recorded) = dispatch.record(attempt.id, terms, &attempt.permit, &answer, now) else {
            return;
        };
        let Some(pace) = dispatch.paces().pace(attempt.id) else { return };
        let saved = &mut self.domains[attempt.domain].saved;
        if let Some(until) = recorded.server_until {
            saved.limits.server = Some((until, now));
        }
        let learned = pace.learned();
        (saved.limits.delay, saved.limits.floor) = (learned.delay(), learned.floor());
        saved.limits.floor_at = learned.floor_confirmed_at();
        if let Some(change) = recorded.delay {
            self.changes.push(Change { host, at: self.now, task, from: change.from, to: change.to });
        }
        let retry_at = pace.retry_at(terms, self.tasks[task].intent, now);
        dispatch.ended(attempt.id, &attempt.ticket, now);
        let (used, retries_max) = (self.tasks[task].used, self.spec.retries_max);
        let in_a_row = self.domains[attempt.domain].unreached.attempted(answer.reach);
        let verdict = match answer.reach {
            Reach::Unreachable => retry::judge_unreachable(in_a_row, used, retries_max),
            Reach::Reached => retry::judge(answer.outcome, recorded.freshness, used, retries_max),
        };
        self.tasks[task].used = verdict.used;
        self.tasks[task].state = step(self.tasks[task].state, verdict.step);
        self.over(nth);
        if verdict.step == TaskStep::Retry {
            self.wait(task, retry_at);
        } else {
            self.tasks[task].ended = Some(self.now);
            self.unsettled -= 1;
        }
    }

    /// An attempt no longer occupies its worker.
    fn over(&mut self, nth: usize) {
        let (now, attempt) = (self.now, &mut self.attempts[nth]);
        attempt.over = true;
        let (process, domain) = (attempt.process, attempt.domain);
        self.processes[process].free_workers += 1;
        self.pump_at(process, now);
        self.hand_over_if_free(domain);
        self.stop_if_idle(process);
    }

    /// Puts a task into the line of its domain's holder; if there is none, the next holder will do so.
    fn wait(&mut self, task: usize, ready_at: Timestamp) {
        self.tasks[task].ready_at = ready_at;
        let (host, intent) = (self.tasks[task].host, self.tasks[task].intent);
        let domain = &self.domains[self.domain_of[host]];
        let Some(holder) = domain.holder else { return };
        let Some(dispatch) = &mut self.processes[holder].dispatch else { return };
        let rule = Arc::clone(self.rules.rule(&host_domain(host)));
        let queued = QueuedTask { task, rule, crawl_delay: self.spec.hosts[host].crawl_delay };
        let lane = Lane { job: Some(JOB), intent };
        if dispatch.join(&domain.name, lane, ready_at, queued).is_err() {
            unreachable!("the job runs as long as its process");
        }
        self.pump_at(holder, self.clocks.real(holder, ready_at));
    }

    fn pump_at(&mut self, process: usize, at: Timestamp) {
        let at = at.max(self.now);
        if self.processes[process].pump_at.is_none_or(|planned| at < planned) {
            self.processes[process].pump_at = Some(at);
            self.post(at, Event::Pump(process));
        }
    }

    fn post(&mut self, at: Timestamp, event: Event) {
        self.posted += 1;
        self.events.push(Reverse((at, self.posted, event)));
    }

    fn report(self) -> Report {
        let end = |task: &Task| TaskEnd { host: task.host, state: task.state, at: task.ended };
        Report {
            tasks: self.tasks.iter().map(end).collect(),
            log: self.log,
            changes: self.changes,
            takeovers: self.takeovers,
            wakes: self.clocks.wakes,
            forgotten: Vec::new(),
            ended: self.now,
            domains: self.domain_of.iter().map(|domain| self.domains[*domain].name.clone()).collect(),
            rules: self.rules,
        }
    }
}

pub(crate) fn rules(spec: &WorldSpec) -> RuleTable {
    let profile = Profile::named(spec.profile).unwrap_or_else(|error| panic!("{error}"));
    let row = |(nth, host): (usize, &HostSpec)| {
        let pattern = Pattern::parse(&WorldSpec::host(nth)).unwrap_or_else(|error| panic!("{error}"));
        (pattern, host.fields.clone())
    };
    let rows: Vec<(Pattern, Fields)> = spec.hosts.iter().enumerate().map(row).collect();
    RuleTable::new(&profile, &Fields::default(), &rows, None).unwrap_or_else(|error| panic!("{error}"))
}

fn host_domain(host: usize) -> Domain {
    Domain::parse(&WorldSpec::host(host)).unwrap_or_else(|error| panic!("{error}"))
}

/// The next state of a task; an illegal step is a bug in the simulator.
fn step(state: TaskState, step: TaskStep) -> TaskState {
    state.after(step).unwrap_or_else(|error| panic!("{error}"))
}

const JOB: JobId = JobId(1);
/// 2026-01-01.
pub(crate) const BEGIN: Timestamp = Timestamp::from_secs(1_767_225_600);
/// Everything is over by then, unless something starves.
const END: Timestamp = Timestamp::from_secs(1_767_225_600 + 400 * 86_400);
const TIMEOUT: Span = Span::from_secs(10);
/// How long a request waits on its open connection before it goes back into line.
const PATIENCE: Span = Span::from_secs(1);

//! The event loop of a fleet: messages between machines and the database, and the faults. What processes do is in `processes`.
//!
//! Every machine's own clock runs at the speed of the true time, so the true time stands for it; the store's time as a process reads it is
//! off by what the database's clock was off when it first asked.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::SavedLimits;
use comity_core::retry::RetriesUsed;
use comity_core::rule::RuleTable;
use comity_core::task::TaskState;
use comity_core::time::{Span, Timestamp};
use fastrand::Rng;

use super::database::{Database, DomainRow, Take, TaskRow};
use super::processes::{Attempt, Process};
use super::{Direction, FleetFaultKind, FleetSpec};
use crate::site::Site;
use crate::world::{BEGIN, Change, Entry, Report, Takeover, TaskEnd, WorldSpec, rules};

/// Plays a fleet to its end.
pub(super) fn play(spec: &FleetSpec) -> Report {
    let mut play = Play::new(spec);
    for process in 0..spec.world.processes {
        play.register(process);
    }
    for nth in 0..spec.faults.len() {
        let at = BEGIN + spec.faults[nth].at;
        play.post(at, Event::Fault(nth));
        if let FleetFaultKind::Failover { lag, .. } = spec.faults[nth].kind {
            play.post(at.max(BEGIN + lag) - lag, Event::Replicate);
        }
    }
    while let Some(Reverse((at, _, event))) = play.events.pop() {
        if at > END || play.is_calm(at) && play.database.is_over() {
            break;
        }
        if let Some(resumes) = play.stopped_until(&event).filter(|resumes| *resumes > at) {
            play.post(resumes, event);
            continue;
        }
        play.now = at;
        play.happen(event);
    }
    play.report()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Pump(usize),
    Connected(usize),
    Answered(usize),
    /// It is time for a heartbeat, or for looking for work, of the process in this life.
    Beat(usize, u32),
    Look(usize, u32),
    /// A transaction runs on the database.
    AtDatabase(usize),
    /// Its answer arrives, or nobody waits for it any longer.
    Back(usize),
    GivenUp(usize),
    Revive(usize),
    Fault(usize),
    /// The standby has everything up to now, and nothing later.
    Replicate,
    /// The database answers again.
    Up,
}

/// A transaction that a process runs.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) process: usize,
    pub(super) life: u32,
    pub(super) sent_at: Timestamp,
    pub(super) asks: Asks,
    pub(super) answer: Option<Answer>,
    pub(super) is_over: bool,
    /// When it was committed.
    pub(super) committed_at: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub(super) enum Asks {
    Register,
    Beat,
    Look,
    Settle(Box<Settle>),
    Release { domain: usize, epoch: u64, pace: Vec<u8> },
}

/// The result of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Settle {
    pub(super) domain: usize,
    pub(super) epoch: u64,
    pub(super) task: usize,
    pub(super) entry: usize,
    pub(super) row: TaskRow,
    pub(super) limits: SavedLimits,
    /// The server stated a deadline.
    pub(super) is_stated: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Registered {
        holder: u64,
        offset: i64,
    },
    Beaten {
        wanted: Vec<usize>,
    },
    Taken(Vec<Taken>),
    Done,
    /// This holder is dead, or its commits may be lost.
    Lost,
}

/// A domain that was taken, with what is saved of it.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    pub(super) domain: usize,
    pub(super) epoch: u64,
    pub(super) take: Take,
    pub(super) limits: SavedLimits,
    /// Its tasks that wait.
    pub(super) tasks: Vec<(usize, TaskRow)>,
}

pub(super) struct Play<'a> {
    pub(super) spec: &'a FleetSpec,
    pub(super) rng: Rng,
    pub(super) now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    posted: u64,
    pub(super) sites: Vec<Site>,
    pub(super) rules: RuleTable,
    pub(super) domains: Vec<(Domain, Vec<usize>)>,
    pub(super) domain_of: Vec<usize>,
    /// The host and the intent of each task.
    pub(super) tasks: Vec<(usize, Intent)>,
    pub(super) processes: Vec<Process>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) calls: Vec<Call>,
    pub(super) database: Database,
    standby: Option<(Timestamp, Database)>,
    down_until: Timestamp,
    pub(super) log: Vec<Entry>,
    pub(super) changes: Vec<Change>,
    pub(super) takeovers: Vec<Takeover>,
    wakes: Vec<Timestamp>,
    pub(super) forgotten: Vec<usize>,
    /// Deadlines whose commits were lost: the request, its process and its domain.
    pub(super) unstated: Vec<(usize, usize, usize)>,
    calm_at: Timestamp,
}

impl<'a> Play<'a> {
    fn new(spec: &'a FleetSpec) -> Self {
        let world = &spec.world;
        let rules = rules(world);
        let mut by_name: BTreeMap<Domain, Vec<usize>> = BTreeMap::new();
        for host in 0..world.hosts.len() {
            let host_name = Domain::parse(&WorldSpec::host(host)).unwrap_or_else(|error| panic!("{error}"));
            by_name.entry(rules.domain(&host_name)).or_default().push(host);
        }
        let domains: Vec<(Domain, Vec<usize>)> = by_name.into_iter().collect();
        let place = |host| domains.iter().position(|(_, hosts)| hosts.contains(&host)).unwrap_or_default();
        let domain_of = (0..world.hosts.len()).map(place).collect();
        let tasks: Vec<(usize, Intent)> = (0..world.hosts.len())
            .flat_map(|host| (0..world.hosts[host].tasks).map(move |nth| (host, nth)))
            .map(|(host, nth)| {
                let searches = world.hosts[host].searches && nth % 3 == 2;
                (host, if searches { Intent::Search } else { Intent::Fetch })
            })
            .collect();
        let row = TaskRow {
            state: TaskState::Waiting,
            used: RetriesUsed::default(),
            ready_at: Timestamp::MIN,
            ended: None,
        };
        let database = Database {
            history: 1,
            started: 1,
            ahead: spec.clock_ahead * 1_000_000,
            holders: BTreeMap::new(),
            domains: vec![DomainRow { history: 1, ..DomainRow::default() }; domains.len()],
            tasks: vec![row; tasks.len()],
        };
        let ends = spec.faults.iter().map(|fault| BEGIN + fault.at + length(fault.kind));
        let site =
            |(nth, host): (usize, &crate::world::HostSpec)| Site::new(&host.site, world.seed ^ nth as u64);
        Self {
            spec,
            rng: Rng::with_seed(world.seed),
            now: BEGIN,
            events: BinaryHeap::new(),
            posted: 0,
            sites: world.hosts.iter().enumerate().map(site).collect(),
            rules,
            domains,
            domain_of,
            tasks,
            processes: (0..world.processes).map(|_| Process::new()).collect(),
            attempts: Vec::new(),
            calls: Vec::new(),
            database,
            standby: None,
            down_until: Timestamp::MIN,
            log: Vec::new(),
            changes: Vec::new(),
            takeovers: Vec::new(),
            wakes: Vec::new(),
            forgotten: Vec::new(),
            unstated: Vec::new(),
            calm_at: ends.max().unwrap_or(BEGIN) + SETTLED,
        }
    }

    /// Whether nothing can fail any more.
    pub(super) fn is_calm(&self, now: Timestamp) -> bool {
        now > self.calm_at
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Pump(process) => {
                self.processes[process].pump_at = None;
                self.pump(process);
            }
            Event::Connected(attempt) => self.connected(attempt),
            Event::Answered(attempt) => self.answered(attempt),
            Event::Beat(process, life) if self.processes[process].life == life => {
                self.call(process, Asks::Beat);
                let every = if self.is_calm(self.now) { CALM } else { HEARTBEAT };
                self.post(self.now + every, Event::Beat(process, life));
            }
            Event::Look(process, life) if self.processes[process].life == life => {
                self.look(process);
                let every = if self.is_calm(self.now) { CALM } else { LOOK };
                self.post(self.now + every, Event::Look(process, life));
            }
            Event::Beat(..) | Event::Look(..) => {}
            Event::AtDatabase(call) => self.at_database(call),
            Event::Back(call) => self.back(call),
            Event::GivenUp(call) => self.given_up(call),
            Event::Revive(process) => self.register(process),
            Event::Fault(nth) => self.fault(nth),
            Event::Replicate => self.standby = Some((self.now, self.database.clone())),
            Event::Up => {}
        }
    }

    /// When the process that an event belongs to continues, if it is stopped.
    fn stopped_until(&self, event: &Event) -> Option<Timestamp> {
        let process = match *event {
            Event::Pump(process) | Event::Beat(process, _) | Event::Look(process, _) => process,
            Event::Revive(process) => process,
            Event::Connected(attempt) | Event::Answered(attempt) => self.attempts[attempt].process,
            Event::Back(call) | Event::GivenUp(call) => self.calls[call].process,
            Event::AtDatabase(_) | Event::Fault(_) | Event::Replicate | Event::Up => return None,
        };
        Some(self.processes[process].stopped_until)
    }

    /// Looks for work, unless the last look is not over.
    fn look(&mut self, process: usize) {
        let life = self.processes[process].life;
        let is_open = |call: &Call| (call.process, call.life) == (process, life) && !call.is_over;
        let recent = self.calls.iter().rev().take_while(|call| call.sent_at + GIVES_UP >= self.now);
        if !recent.clone().any(|call| matches!(call.asks, Asks::Look) && is_open(call)) {
            self.call(process, Asks::Look);
        }
    }

    /// Sends a transaction.
    pub(super) fn call(&mut self, process: usize, asks: Asks) {
        let (life, sent_at) = (self.processes[process].life, self.now);
        self.calls.push(Call {
            process,
            life,
            sent_at,
            asks,
            answer: None,
            is_over: false,
            committed_at: None,
        });
        let nth = self.calls.len() - 1;
        self.post(self.now + WAY, Event::AtDatabase(nth));
        self.post(self.now + GIVES_UP, Event::GivenUp(nth));
    }

    fn at_database(&mut self, nth: usize) {
        let (process, life) = (self.calls[nth].process, self.calls[nth].life);
        let this = &self.processes[process];
        let is_there = this.life == life && this.stopped_until <= self.now;
        if self.now < self.down_until || this.requests_cut_until > self.now || !is_there {
            return;
        }
        let hears = this.answers_cut_until <= self.now;
        let slow = if this.slow_until > self.now { this.slow_by } else { Span::ZERO };
        let answer = self.transact(nth, hears);
        self.calls[nth].answer = answer;
        if hears && self.calls[nth].answer.is_some() {
            self.post(self.now + WAY + slow, Event::Back(nth));
        }
    }

    fn fault(&mut self, nth: usize) {
        match self.spec.faults[nth].kind {
            FleetFaultKind::Kill { process } => self.kill(process),
            FleetFaultKind::Stop { process, length } => {
                self.processes[process].stopped_until = self.now + length;
                self.wakes.push(self.now + length);
            }
            FleetFaultKind::Cut { process, direction, length } => {
                let (this, until) = (&mut self.processes[process], self.now + length);
                if direction != Direction::Answers {
                    this.requests_cut_until = until;
                }
                if direction != Direction::Requests {
                    this.answers_cut_until = until;
                }
                self.wakes.push(until);
            }
            FleetFaultKind::Slow { process, by, length } => {
                let this = &mut self.processes[process];
                (this.slow_by, this.slow_until) = (by, self.now + length);
                self.wakes.push(self.now + length + by);
            }
            FleetFaultKind::Restart { down } => {
                self.database.started += 1;
                self.go_down(down);
            }
            FleetFaultKind::Failover { down, clock_by, .. } => self.fail_over(down, clock_by),
            FleetFaultKind::Step { by } => self.database.ahead += by * 1_000_000,
        }
    }

    fn go_down(&mut self, length: Span) {
        self.down_until = self.now + length;
        self.wakes.push(self.down_until);
        self.post(self.down_until, Event::Up);
    }

    /// The standby becomes the primary: what it lacks never happened.
    fn fail_over(&mut self, down: Span, clock_by: i64) {
        let Some((known_at, standby)) = self.standby.take() else { return };
        let (started, history) = (self.database.started + 1, self.database.history + 1);
        let ahead = self.database.ahead + clock_by * 1_000_000;
        self.database = Database { started, history, ahead, ..standby };
        let lost = |call: &&Call| call.committed_at.is_some_and(|at| at >= known_at);
        for call in self.calls.iter().filter(lost) {
            let Asks::Settle(settle) = &call.asks else { continue };
            self.log[settle.entry].received = false;
            self.forgotten.push(settle.entry);
            self.unstated.push((settle.entry, call.process, settle.domain));
        }
        self.go_down(down);
    }

    pub(super) fn post(&mut self, at: Timestamp, event: Event) {
        self.posted += 1;
        self.events.push(Reverse((at, self.posted, event)));
    }

    fn report(self) -> Report {
        let end = |(task, row): (&(usize, Intent), &TaskRow)| TaskEnd {
            host: task.0,
            state: row.state,
            at: row.ended,
        };
        Report {
            tasks: self.tasks.iter().zip(&self.database.tasks).map(end).collect(),
            log: self.log,
            changes: self.changes,
            takeovers: self.takeovers,
            wakes: self.wakes,
            forgotten: self.forgotten,
            ended: self.now,
            domains: self.domain_of.iter().map(|domain| self.domains[*domain].0.clone()).collect(),
            rules: self.rules,
        }
    }
}

fn length(kind: FleetFaultKind) -> Span {
    match kind {
        FleetFaultKind::Kill { .. } | FleetFaultKind::Step { .. } => Span::ZERO,
        FleetFaultKind::Stop { length, .. } | FleetFaultKind::Cut { length, .. } => length,
        FleetFaultKind::Slow { by, length, .. } => length + by,
        FleetFaultKind::Restart { down } | FleetFaultKind::Failover { down, .. } => down,
    }
}

/// Everything is over by then, unless something starves.
const END: Timestamp = Timestamp::from_secs(1_767_225_600 + 400 * 86_400);
/// One way between a machine and the database.
const WAY: Span = Span::from_millis(2);
/// How long an answer is waited for before the transaction is repeated.
pub(super) const GIVES_UP: Span = Span::from_secs(3);
const HEARTBEAT: Span = Span::from_secs(2);
const LOOK: Span = Span::from_secs(1);
/// This long after the last fault, its consequences are over, and nothing can fail any more.
const SETTLED: Span = Span::from_secs(60);
/// How often heartbeats are sent and work is looked for then; leases need not be renewed.
const CALM: Span = Span::from_secs(10);

//! The processes of a fleet: what they remember, what they ask of the database, and what they do with its answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_core::decision::Permit;
use comity_core::dispatch::{Dispatch, Next};
use comity_core::domain::Domain;
use comity_core::guard::ReachGuard;
use comity_core::headers::PacingHints;
use comity_core::line::{Lane, Ticket, Waiter};
use comity_core::outcome::{self, TransportFailure};
use comity_core::pace::{Departure, LastHolder, Pace, Terms};
use comity_core::paces::DomainId;
use comity_core::retry;
use comity_core::task::{JobId, TaskState, TaskStep};
use comity_core::time::{Span, Timestamp};

use super::Rule;
use super::database::{HolderRow, LEASE, Observer, Seen, Take, TaskRow, moved};
use super::play::{Answer, Asks, Event, Play, Settle, Taken};
use crate::world::{Change, Entry, Takeover, WorldSpec};

/// A process, alone on its machine.
pub(super) struct Process {
    /// Changes whenever it has lost everything it held.
    pub(super) life: u32,
    holder: Option<u64>,
    dispatch: Option<Dispatch<QueuedTask>>,
    held: BTreeMap<usize, Held>,
    free_workers: u32,
    /// By how much its clock is ahead of the true time, once it knows the store's.
    offset: Option<i64>,
    /// It sends nothing after this.
    valid_until: Timestamp,
    /// The timeline and start of the server that answered last, and since when it knows this timeline.
    server: Option<(u32, u32)>,
    history_since: Timestamp,
    seen: Seen,
    /// Its holder was registered on an older timeline, so its commits may be lost.
    may_have_lost: bool,
    /// Deadlines that it may have to state again, also those of domains that it has handed over: that may be lost too.
    stated: BTreeMap<usize, (Timestamp, Timestamp)>,
    pub(super) pump_at: Option<Timestamp>,
    pub(super) stopped_until: Timestamp,
    pub(super) requests_cut_until: Timestamp,
    pub(super) answers_cut_until: Timestamp,
    pub(super) slow_by: Span,
    pub(super) slow_until: Timestamp,
}

impl Process {
    pub(super) fn new() -> Self {
        Self {
            life: 0,
            holder: None,
            dispatch: None,
            held: BTreeMap::new(),
            free_workers: 0,
            offset: None,
            valid_until: Timestamp::MIN,
            server: None,
            history_since: Timestamp::MIN,
            seen: Seen::new(),
            may_have_lost: false,
            stated: BTreeMap::new(),
            pump_at: None,
            stopped_until: Timestamp::MIN,
            requests_cut_until: Timestamp::MIN,
            answers_cut_until: Timestamp::MIN,
            slow_by: Span::ZERO,
            slow_until: Timestamp::MIN,
        }
    }
}

/// A domain as its holder knows it.
struct Held {
    id: DomainId,
    epoch: u64,
    /// Requests that did not end, and results that are not saved.
    pending: u32,
    /// Deadlines that are not saved.
    unsaved: u32,
    is_wanted: bool,
    is_released: bool,
    unreached: ReachGuard,
}

/// A task in line.
#[derive(Debug, Clone)]
struct QueuedTask {
    task: usize,
    row: TaskRow,
    rule: Arc<comity_core::rule::Rule>,
    crawl_delay: Span,
}

impl Waiter for QueuedTask {
    fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.rule, crawl_delay: self.crawl_delay }
    }
}

/// An attempt in progress.
pub(super) struct Attempt {
    pub(super) process: usize,
    life: u32,
    domain: usize,
    id: DomainId,
    ticket: Ticket,
    queued: QueuedTask,
    permit: Permit,
    /// Its index in the log, once it has started.
    entry: Option<usize>,
    answer: Option<outcome::Answer>,
    /// Its process was killed, and its connection closed.
    is_cut_off: bool,
}

impl Play<'_> {
    fn breaks(&self, rule: Rule) -> bool {
        self.spec.without == Some(rule)
    }

    /// The time as a process reads it.
    fn clock(&self, process: usize) -> Timestamp {
        moved(self.now, self.processes[process].offset.unwrap_or_default())
    }

    /// The true time at which a process reads `at`.
    fn real(&self, process: usize, at: Timestamp) -> Timestamp {
        moved(at, -self.processes[process].offset.unwrap_or_default())
    }

    fn may_send(&self, process: usize) -> bool {
        let this = &self.processes[process];
        this.holder.is_some() && (self.now < this.valid_until || self.is_calm(self.now))
    }

    pub(super) fn register(&mut self, process: usize) {
        self.call(process, Asks::Register);
    }

    pub(super) fn kill(&mut self, process: usize) {
        let life = self.processes[process].life + 1;
        let this = &mut self.processes[process];
        let Process { requests_cut_until, answers_cut_until, slow_by, slow_until, .. } = *this;
        // The network of its machine is as it was.
        *this =
            Process { life, requests_cut_until, answers_cut_until, slow_by, slow_until, ..Process::new() };
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.process == process) {
            let Some(entry) = attempt.entry.filter(|_| !attempt.is_cut_off) else { continue };
            attempt.is_cut_off = true;
            self.log[entry].end.get_or_insert(self.now);
        }
        // What it would have stated again is gone with it.
        self.unstated.retain(|(_, by, _)| *by != process);
        self.post(self.now + DOWNTIME, Event::Revive(process));
    }

    /// The process has lost everything it held, and registers again. It remembers what servers stated.
    fn lose(&mut self, process: usize) {
        let this = &mut self.processes[process];
        this.dispatch = None;
        this.held.clear();
        this.life += 1;
        this.holder = None;
        self.register(process);
    }

    /// Compares the server with the one that answered last. False if everything that was held is lost.
    fn meet(&mut self, process: usize) -> bool {
        let server = (self.database.history, self.database.started);
        let this = &mut self.processes[process];
        let known = this.server.replace(server);
        let Some(known) = known else {
            this.history_since = self.now;
            return true;
        };
        if self.spec.without == Some(Rule::Timeline) || known == server {
            return true;
        }
        this.seen.clear();
        if known.0 == server.0 {
            return true;
        }
        this.history_since = self.now;
        this.may_have_lost = this.holder.is_some();
        !this.may_have_lost
    }

    /// Runs a transaction; the process sees what is in it if it hears the database.
    pub(super) fn transact(&mut self, nth: usize, hears: bool) -> Option<Answer> {
        let call = self.calls[nth].clone();
        let process = call.process;
        let known = self.processes[process].server;
        let server = (self.database.history, self.database.started);
        if hears {
            if !self.meet(process) {
                return Some(Answer::Lost);
            }
        } else if known != Some(server) {
            // It waits for the first answer in vain.
            return None;
        }
        let holder = match (&call.asks, self.processes[process].holder) {
            (Asks::Register, _) => return Some(self.do_register(process)),
            (_, None) => return None,
            (_, Some(holder)) => holder,
        };
        let is_fenced = matches!(call.asks, Asks::Settle(_)) && self.breaks(Rule::FencedSettles);
        if self.processes[process].may_have_lost || !self.database.is_alive(holder) && !is_fenced {
            return Some(Answer::Lost);
        }
        Some(match call.asks {
            Asks::Register => return None,
            Asks::Beat => {
                let (until, ahead) = (self.database.clock(self.now) + LEASE, self.database.ahead);
                let offset = self.processes[process].offset.unwrap_or_default() - ahead;
                if let Some(row) = self.database.holders.get_mut(&holder) {
                    (row.beat, row.until, row.offset) = (row.beat + 1, until, offset);
                }
                let wanted = |domain: &usize| {
                    let row = &self.database.domains[*domain];
                    row.holder == Some(holder) && row.wanted_by.is_some()
                };
                Answer::Beaten { wanted: (0..self.domains.len()).filter(wanted).collect() }
            }
            Asks::Look => Answer::Taken(self.do_look(process, holder)),
            Asks::Settle(settle) => self.do_settle(nth, holder, &settle),
            Asks::Release { domain, epoch, pace } => {
                let history = self.database.history;
                let row = &mut self.database.domains[domain];
                if (row.holder, row.epoch) == (Some(holder), epoch) {
                    (row.holder, row.pace, row.history) = (None, Some(pace), history);
                }
                Answer::Done
            }
        })
    }

    fn do_register(&mut self, process: usize) -> Answer {
        let holder = self.rng.u64(1..);
        let offset = self.processes[process].offset;
        let others = self.database.offset().unwrap_or_default();
        let offset = offset.unwrap_or(self.database.ahead + others);
        let until = self.database.clock(self.now) + LEASE;
        let row = HolderRow { beat: 0, is_dead: false, offset: offset - self.database.ahead, until };
        self.database.holders.insert(holder, row);
        if !self.breaks(Rule::StateAgain) {
            for (domain, server) in self.processes[process].stated.clone() {
                let limits = &mut self.database.domains[domain].limits;
                limits.server = limits.server.max(Some(server));
            }
        }
        // What it received before the failover counts as received, unless somebody else has sent something since.
        for (entry, by, domain) in std::mem::take(&mut self.unstated) {
            let of_others = |other: &Entry| {
                other.process != by
                    && Some(other.start) > self.log[entry].end
                    && self.domain_of[other.host] == domain
            };
            match by == process {
                true => self.log[entry].received = !self.log.iter().any(of_others),
                false => self.unstated.push((entry, by, domain)),
            }
        }
        Answer::Registered { holder, offset }
    }

    fn do_look(&mut self, process: usize, holder: u64) -> Vec<Taken> {
        let mut taken = Vec::new();
        for domain in 0..self.domains.len() {
            let held = self.processes[process].held.contains_key(&domain);
            let waits = |task: &usize| self.domain_of[self.tasks[*task].0] == domain;
            let waiting = (0..self.tasks.len()).filter(waits);
            let waiting: Vec<(usize, TaskRow)> = waiting
                .map(|task| (task, self.database.tasks[task].clone()))
                .filter(|(_, row)| row.ended.is_none())
                .collect();
            if held || waiting.is_empty() || taken.len() >= TAKEN_MAX {
                continue;
            }
            let epoch = self.rng.u64(1..);
            let this = &mut self.processes[process];
            let mut observer = Observer {
                holder,
                seen: &mut this.seen,
                history_since: this.history_since,
                now: self.now,
                without: self.spec.without,
            };
            let take = self.database.take(domain, epoch, &mut observer);
            match take {
                Take::TooSoon => {}
                Take::Held => {
                    if self.rng.u8(..8) == 0 {
                        self.database.domains[domain].wanted_by = Some(holder);
                    }
                }
                _ => {
                    let limits = self.database.domains[domain].limits;
                    taken.push(Taken { domain, epoch, take, limits, tasks: waiting });
                }
            }
        }
        taken
    }

    fn do_settle(&mut self, nth: usize, holder: u64, settle: &Settle) -> Answer {
        let fenced = !self.breaks(Rule::FencedSettles);
        let row = &mut self.database.domains[settle.domain];
        if (row.holder, row.epoch) != (Some(holder), settle.epoch) && fenced {
            return Answer::Lost;
        }
        row.limits = settle.limits;
        self.database.tasks[settle.task] = settle.row.clone();
        // If the answer to a settle was lost, it is repeated.
        if !std::mem::replace(&mut self.log[settle.entry].received, true) {
            self.calls[nth].committed_at = Some(self.now);
        }
        Answer::Done
    }

    pub(super) fn back(&mut self, nth: usize) {
        let call = &mut self.calls[nth];
        let (process, sent_at) = (call.process, call.sent_at);
        if call.is_over || self.processes[process].life != call.life {
            return;
        }
        call.is_over = true;
        let (asks, answer) = (call.asks.clone(), call.answer.clone());
        match (asks, answer) {
            (_, None) => {}
            (_, Some(Answer::Lost)) => self.lose(process),
            (_, Some(Answer::Registered { holder, offset })) => {
                self.registered(process, holder, offset, sent_at)
            }
            (_, Some(Answer::Beaten { wanted })) => {
                let trusted_from = if self.breaks(Rule::LeaseFromSending) { self.now } else { sent_at };
                let this = &mut self.processes[process];
                this.valid_until = this.valid_until.max(trusted_from + LEASE.less(MARGIN));
                for domain in wanted {
                    self.want(process, domain);
                }
                self.pump_at(process, self.now);
            }
            (_, Some(Answer::Taken(taken))) => {
                taken.into_iter().for_each(|taken| self.install(process, taken))
            }
            (Asks::Settle(settle), Some(Answer::Done)) => self.settled(process, &settle),
            (Asks::Release { domain, .. }, Some(Answer::Done)) => {
                self.processes[process].held.remove(&domain);
            }
            (_, Some(Answer::Done)) => {}
        }
    }

    /// Nobody answered in time: what has to be done is tried again.
    pub(super) fn given_up(&mut self, nth: usize) {
        let call = &mut self.calls[nth];
        let process = call.process;
        if call.is_over || self.processes[process].life != call.life {
            return;
        }
        match call.asks.clone() {
            // A late answer still counts.
            Asks::Beat => {}
            Asks::Look => call.is_over = true,
            Asks::Settle(mut settle) => {
                call.is_over = true;
                // What was learned since must not be overwritten.
                let this = &self.processes[process];
                let pace = this.held.get(&settle.domain).zip(this.dispatch.as_ref());
                let pace = pace.and_then(|(held, dispatch)| dispatch.paces().pace(held.id));
                settle.limits = pace.map_or(settle.limits, Pace::saved_limits);
                self.call(process, Asks::Settle(settle));
            }
            asks => {
                call.is_over = true;
                self.call(process, asks);
            }
        }
    }

    fn registered(&mut self, process: usize, holder: u64, offset: i64, sent_at: Timestamp) {
        let mut dispatch = Dispatch::new(self.spec.world.seed);
        dispatch.job(JOB, self.spec.world.concurrency);
        let trusted_from = if self.breaks(Rule::LeaseFromSending) { self.now } else { sent_at };
        let this = &mut self.processes[process];
        (this.holder, this.dispatch, this.offset) = (Some(holder), Some(dispatch), Some(offset));
        this.may_have_lost = false;
        this.free_workers = self.spec.world.workers;
        this.valid_until = trusted_from + LEASE.less(MARGIN);
        let life = this.life;
        self.post(self.now + BEAT_FIRST, Event::Beat(process, life));
        self.post(self.now, Event::Look(process, life));
    }

    fn install(&mut self, process: usize, taken: Taken) {
        let Taken { domain, epoch, take, limits, tasks } = taken;
        let now = self.clock(process);
        let (name, hosts) = self.domains[domain].clone();
        let rule = Arc::clone(self.rules.rule(&host_domain(hosts[0])));
        let terms = Terms { rule: &rule, crawl_delay: self.spec.world.hosts[hosts[0]].crawl_delay };
        let last_holder = match &take {
            Take::Released(bytes) => LastHolder::HandedOver(bytes),
            Take::New => LastHolder::None,
            _ => LastHolder::Died { latest: now },
        };
        let inherited = Pace::inherit(terms, &limits, last_holder, now);
        let pace = inherited.unwrap_or_else(|error| panic!("{error}"));
        let delay = pace.learned().delay();
        let Some(dispatch) = &mut self.processes[process].dispatch else { return };
        if let Some(fresh) = dispatch.pace_mut(&name, now) {
            *fresh = pace;
        }
        let Some(id) = dispatch.paces().find(&name) else { return };
        let unreached = ReachGuard::default();
        let held =
            Held { id, epoch, pending: 0, unsaved: 0, is_wanted: false, is_released: false, unreached };
        self.processes[process].held.insert(domain, held);
        if take == Take::Died {
            self.takeovers.extend(hosts.iter().map(|host| Takeover { host: *host, at: self.now }));
        }
        // What was learned last may not have been saved.
        for host in hosts {
            let last = self.changes.iter().rev().find(|change| change.host == host).map(|change| change.to);
            if let Some(from) = last.filter(|last| *last != delay) {
                self.changes.push(Change { host, at: self.now, task: Change::FORGOTTEN, from, to: delay });
            }
        }
        for (task, row) in tasks {
            self.wait(process, task, row);
        }
    }

    fn want(&mut self, process: usize, domain: usize) {
        let this = &mut self.processes[process];
        let (Some(held), Some(dispatch)) = (this.held.get_mut(&domain), &mut this.dispatch) else { return };
        held.is_wanted = true;
        dispatch.drain(held.id);
        self.release_if_free(process, domain);
    }

    fn release_if_free(&mut self, process: usize, domain: usize) {
        let this = &mut self.processes[process];
        let (Some(held), Some(dispatch)) = (this.held.get_mut(&domain), &mut this.dispatch) else { return };
        if !held.is_wanted || held.is_released || held.pending > 0 {
            return;
        }
        let Some((pace, _)) = dispatch.release(held.id) else { return };
        held.is_released = true;
        let (epoch, pace) = (held.epoch, pace.encode());
        self.call(process, Asks::Release { domain, epoch, pace });
    }

    /// Lets a process start all attempts that may go now.
    pub(super) fn pump(&mut self, process: usize) {
        while self.may_send(process) && self.processes[process].free_workers > 0 {
            let now = self.clock(process);
            let Some(dispatch) = &mut self.processes[process].dispatch else { return };
            match dispatch.next(now) {
                Next::Idle => return,
                Next::Sleep { until } => return self.pump_at(process, self.real(process, until)),
                Next::Go(grant) => {
                    let this = &mut self.processes[process];
                    this.free_workers -= 1;
                    let host = self.tasks[grant.waiter.task].0;
                    let domain = self.domain_of[host];
                    if let Some(held) = this.held.get_mut(&domain) {
                        held.pending += 1;
                    }
                    self.attempts.push(Attempt {
                        process,
                        life: this.life,
                        domain,
                        id: grant.domain,
                        ticket: grant.ticket,
                        queued: grant.waiter,
                        permit: grant.permit,
                        entry: None,
                        answer: None,
                        is_cut_off: false,
                    });
                    let connected = self.now + self.spec.world.hosts[host].connect;
                    self.post(connected, Event::Connected(self.attempts.len() - 1));
                }
            }
        }
    }

    /// The connection is open: the request is written, or has to wait after all.
    pub(super) fn connected(&mut self, nth: usize) {
        let process = self.attempts[nth].process;
        let (now, may_send) = (self.clock(process), self.may_send(process));
        let attempt = &mut self.attempts[nth];
        let this = &mut self.processes[process];
        if attempt.life != this.life {
            return;
        }
        let Some(dispatch) = &mut this.dispatch else { return };
        let Some(pace) = dispatch.pace_of(attempt.id, now) else { return };
        let departure = match may_send {
            true => pace.depart(attempt.queued.terms(), &mut attempt.permit, now),
            false => return self.go_back(nth, now),
        };
        match departure {
            Departure::Go => self.sent(nth),
            Departure::Wait { until, .. } if until.since(now) <= PATIENCE => {
                self.post(self.real(process, until), Event::Connected(nth));
            }
            Departure::Wait { .. } => self.go_back(nth, now),
        }
    }

    /// An attempt gives its permit back, and its task returns to its place in line.
    fn go_back(&mut self, nth: usize, now: Timestamp) {
        let attempt = &mut self.attempts[nth];
        let process = attempt.process;
        let Some(dispatch) = &mut self.processes[process].dispatch else { return };
        if let Some(pace) = dispatch.pace_of(attempt.id, now) {
            pace.abandon(&attempt.permit, now);
        }
        let (id, ticket, queued) = (attempt.id, attempt.ticket, attempt.queued.clone());
        dispatch.ended(id, &ticket, now);
        if dispatch.rejoin(id, ticket, queued, now).is_err() {
            unreachable!("the job runs as long as its process");
        }
        self.over(nth);
        self.settle_one(process, self.attempts[nth].domain);
    }

    fn sent(&mut self, nth: usize) {
        let attempt = &mut self.attempts[nth];
        let task = attempt.queued.task;
        let (host, intent) = self.tasks[task];
        let answer = self.sites[host].arrive(self.now);
        let has_response = answer.status.is_some() || answer.refused;
        let after = if has_response { answer.after.min(TIMEOUT) } else { TIMEOUT };
        let refused = answer.refused && answer.after <= TIMEOUT;
        let status = answer.status.filter(|_| answer.after <= TIMEOUT);
        let received = self.now + after;
        let headers = answer.headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        attempt.entry = Some(self.log.len());
        let (process, offset) = (attempt.process, self.processes[attempt.process].offset.unwrap_or_default());
        attempt.answer = Some(match status {
            Some(status) => {
                outcome::Answer::of_status(status, PacingHints::read(headers, moved(received, offset)))
            }
            None if refused => outcome::Answer::of_failure(TransportFailure::Unreachable),
            None => outcome::Answer::of_failure(TransportFailure::TimedOut),
        });
        let stated = answer.stated.filter(|_| status.is_some());
        let (start, end, received_too) = (self.now, None, false);
        let entry = Entry {
            host,
            task,
            process,
            intent,
            start,
            end,
            status,
            refused,
            received: received_too,
            stated,
        };
        self.log.push(entry);
        self.post(received, Event::Answered(nth));
    }

    /// The response arrived: it is recorded, and saved if this process still holds the domain.
    pub(super) fn answered(&mut self, nth: usize) {
        let attempt = &self.attempts[nth];
        let (process, domain, task) = (attempt.process, attempt.domain, attempt.queued.task);
        let (Some(entry), Some(answer), false) = (attempt.entry, attempt.answer, attempt.is_cut_off) else {
            return;
        };
        self.log[entry].end = Some(self.now);
        let (now, host) = (self.clock(process), self.log[entry].host);
        let this = &mut self.processes[process];
        let (true, Some(dispatch)) = (attempt.life == this.life, &mut this.dispatch) else { return };
        let Some(held) = this.held.get_mut(&domain) else { return };
        let terms = attempt.queued.terms();
        let Some(recorded) = dispatch.record(attempt.id, terms, &attempt.permit, &answer, now) else {
            return;
        };
        let Some(pace) = dispatch.paces().pace(attempt.id) else { return };
        if let Some(change) = recorded.delay {
            self.changes.push(Change { host, at: self.now, task, from: change.from, to: change.to });
        }
        let mut limits = pace.saved_limits();
        let (intent, retries_max) = (self.tasks[task].1, self.spec.world.retries_max);
        let retry_at = pace.retry_at(terms, intent, now);
        let mut row = attempt.queued.row.clone();
        let in_a_row = held.unreached.attempted(answer.reach);
        let verdict = match answer.reach {
            outcome::Reach::Unreachable => retry::judge_unreachable(in_a_row, row.used, retries_max),
            outcome::Reach::Reached => {
                retry::judge(answer.outcome, recorded.freshness, row.used, retries_max)
            }
        };
        let state = TaskState::Waiting.after(TaskStep::Claim).and_then(|state| state.after(TaskStep::Send));
        let state =
            state.and_then(|state| state.after(verdict.step)).unwrap_or_else(|error| panic!("{error}"));
        (row.used, row.state) = (verdict.used, state);
        match verdict.step {
            TaskStep::Retry => row.ready_at = retry_at,
            _ => row.ended = Some(self.now),
        }
        dispatch.ended(attempt.id, &attempt.ticket, now);
        let is_stated = recorded.server_until.is_some();
        if let Some(until) = recorded.server_until {
            let stated = this.stated.entry(domain).or_insert((until, now));
            *stated = (*stated).max((until, now));
        }
        if is_stated {
            held.unsaved += 1;
            if self.spec.without != Some(Rule::SavedBeforeGrant) {
                dispatch.save(attempt.id);
            } else {
                // It is saved a while later, with something else.
                limits.server = None;
            }
        }
        let epoch = held.epoch;
        self.over(nth);
        let settle = Settle { domain, epoch, task, entry, row, limits, is_stated };
        self.call(process, Asks::Settle(Box::new(settle)));
    }

    fn settled(&mut self, process: usize, settle: &Settle) {
        let now = self.clock(process);
        let this = &mut self.processes[process];
        if let (Some(held), Some(dispatch)) = (this.held.get_mut(&settle.domain), &mut this.dispatch)
            && settle.is_stated
        {
            held.unsaved -= 1;
            if held.unsaved == 0 {
                dispatch.saved(held.id, now);
            }
        }
        self.settle_one(process, settle.domain);
        if settle.row.ended.is_none() {
            self.wait(process, settle.task, settle.row.clone());
        }
        self.pump_at(process, self.now);
    }

    fn settle_one(&mut self, process: usize, domain: usize) {
        if let Some(held) = self.processes[process].held.get_mut(&domain) {
            held.pending = held.pending.saturating_sub(1);
        }
        self.release_if_free(process, domain);
    }

    /// An attempt no longer occupies its worker.
    fn over(&mut self, nth: usize) {
        let process = self.attempts[nth].process;
        self.processes[process].free_workers += 1;
        self.pump_at(process, self.now);
    }

    /// Puts a task into the line of its domain, unless that was released meanwhile.
    fn wait(&mut self, process: usize, task: usize, row: TaskRow) {
        let (host, intent) = self.tasks[task];
        let domain = self.domain_of[host];
        let rule = Arc::clone(self.rules.rule(&host_domain(host)));
        let ready_at = row.ready_at;
        let queued = QueuedTask { task, row, rule, crawl_delay: self.spec.world.hosts[host].crawl_delay };
        let this = &mut self.processes[process];
        let (Some(held), Some(dispatch)) = (this.held.get(&domain), &mut this.dispatch) else { return };
        if held.is_released {
            return;
        }
        let lane = Lane { job: Some(JOB), intent };
        if dispatch.join(&self.domains[domain].0, lane, ready_at, queued).is_err() {
            unreachable!("the job runs as long as its process");
        }
        self.pump_at(process, self.real(process, ready_at));
    }

    fn pump_at(&mut self, process: usize, at: Timestamp) {
        let at = at.max(self.now);
        if self.processes[process].pump_at.is_none_or(|planned| at < planned) {
            self.processes[process].pump_at = Some(at);
            self.post(at, Event::Pump(process));
        }
    }
}

fn host_domain(host: usize) -> Domain {
    Domain::parse(&WorldSpec::host(host)).unwrap_or_else(|error| panic!("{error}"))
}

const JOB: JobId = JobId(1);
const TIMEOUT: Span = Span::from_secs(10);
/// How long a request waits on its open connection before it goes back into line.
const PATIENCE: Span = Span::from_secs(1);
/// A holder sends nothing in this last part of its lease.
const MARGIN: Span = Span::from_secs(2);
const BEAT_FIRST: Span = Span::from_secs(1);
/// How long a killed process is down.
const DOWNTIME: Span = Span::from_secs(3);
/// How many domains are taken at once.
const TAKEN_MAX: usize = 2;

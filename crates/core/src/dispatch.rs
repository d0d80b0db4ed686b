//! Which request goes next, over all domains and jobs.
//!
//! A pure state machine, used by the engine and by the simulator. They add waiters, record responses, call
//! [`Dispatch::next`] whenever a worker is free, and sleep until the time it returns. A domain with waiters costs one
//! entry in the list of wake-ups, however many wait for it. Waiting for one domain never delays another, and neither do
//! requests to hosts that hang (see `capacity`). Workers, sockets and stores don't exist here, and `now` must never
//! step back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use foldhash::fast::FixedState;

use crate::capacity::{Capacity, Flight, Flights};
use crate::decision::{Decision, Limit, Permit, Reason};
use crate::domain::Domain;
use crate::guard;
use crate::intent::Intent;
use crate::line::{Lane, Line, Ticket, Turn, Waiter};
use crate::outcome::{Answer, Outcome};
use crate::pace::{Pace, Recorded, Terms};
use crate::paces::{DomainId, Paces};
use crate::task::JobId;
use crate::time::{Span, Timestamp};

pub use crate::capacity::{IN_FLIGHT_FACTOR, SILENT_AFTER, SOURCE_FACTOR};

/// The result of [`Dispatch::next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Next<W> {
    /// This waiter goes now.
    Go(Grant<W>),
    /// Nobody may go before `until`, unless a response is recorded, a waiter joins or a task ends.
    Sleep {
        /// When to ask again.
        until: Timestamp,
    },
    /// Nobody waits, or all waiters need a task of their job to end first.
    Idle,
}

/// A waiter that may go.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant<W> {
    /// The waiter.
    pub waiter: W,
    /// Its domain.
    pub domain: DomainId,
    /// Its ticket.
    pub ticket: Ticket,
    /// Its permit.
    pub permit: Permit,
}

/// The lines of all domains, and the capacities of all jobs.
#[derive(Debug)]
pub struct Dispatch<W> {
    paces: Paces,
    lines: HashMap<DomainId, Queue<W>, FixedState>,
    /// Domains that are about to be handed over to another process; they grant no permits.
    draining: BTreeSet<DomainId>,
    /// Domains that grant no permits until something is saved.
    saving: BTreeSet<DomainId>,
    /// When to check which domain.
    wakes: BTreeSet<(Timestamp, DomainId)>,
    jobs: BTreeMap<JobId, Capacity>,
    /// How many waiters have joined so far.
    arrivals: u64,
    /// How many are in line now.
    waiters: usize,
    /// Tasks in flight per job and domain.
    running: Running,
    flights: Flights,
    /// Domains that are tried last, because their latest request timed out, or because they never answered and are
    /// silent now.
    hanging: HashSet<DomainId, FixedState>,
    /// Requests that should be given up.
    recalls: VecDeque<Ticket>,
}

type Running = HashMap<(JobId, DomainId), u32, FixedState>;

#[derive(Debug)]
struct Queue<W> {
    line: Line<W>,
    wake_at: Option<Timestamp>,
}

impl<W: Waiter> Dispatch<W> {
    /// An empty dispatch; `seed` is passed to [`Paces::new`].
    pub fn new(seed: u64) -> Self {
        Self {
            paces: Paces::new(seed),
            // The keys are numbers, not names from strangers; a fixed seed keeps simulated worlds deterministic.
            lines: HashMap::with_hasher(FixedState::with_seed(seed)),
            running: HashMap::with_hasher(FixedState::with_seed(seed)),
            flights: HashMap::with_hasher(FixedState::with_seed(seed)),
            hanging: HashSet::with_hasher(FixedState::with_seed(seed)),
            recalls: VecDeque::new(),
            draining: BTreeSet::new(),
            saving: BTreeSet::new(),
            wakes: BTreeSet::new(),
            jobs: BTreeMap::new(),
            arrivals: 0,
            waiters: 0,
        }
    }

    /// The paces of all domains.
    pub fn paces(&self) -> &Paces {
        &self.paces
    }

    /// The pace of one domain, to seed, restore or control it. Its line is checked again immediately.
    pub fn pace_mut(&mut self, domain: &Domain, now: Timestamp) -> Option<&mut Pace> {
        let id = self.paces.enter(domain);
        self.pace_of(id, now)
    }

    /// Like [`Self::pace_mut`], by number: to depart with a permit, or to give it up.
    pub fn pace_of(&mut self, domain: DomainId, now: Timestamp) -> Option<&mut Pace> {
        self.wake(domain, now);
        self.paces.pace_mut(domain)
    }

    /// Starts a job, or changes its concurrency.
    pub fn job(&mut self, job: JobId, concurrency: u32) {
        let flights = &self.flights;
        let capacity = self.jobs.entry(job).or_insert_with(|| Capacity::new(job, concurrency, flights));
        let more = concurrency.max(1) > capacity.concurrency();
        capacity.set_concurrency(concurrency);
        if more {
            // Lanes that were closed may be open now.
            self.wake_all();
        }
    }

    /// Adds a waiter to the line of `domain`; it may go from `ready_at` on. The waiter is returned if its job has ended
    /// or was never started.
    pub fn join(
        &mut self,
        domain: &Domain,
        lane: Lane,
        ready_at: Timestamp,
        waiter: W,
    ) -> Result<(DomainId, Ticket), W> {
        if lane.job.is_some_and(|job| !self.jobs.contains_key(&job)) {
            return Err(waiter);
        }
        let id = self.paces.enter(domain);
        let queue = self.lines.entry(id).or_insert_with(|| Queue { line: Line::default(), wake_at: None });
        self.arrivals += 1;
        self.waiters += 1;
        let ticket = queue.line.join(self.arrivals, lane, ready_at, waiter);
        self.wake(id, ready_at);
        Ok((id, ticket))
    }

    /// Puts a waiter back into its old place because it could not go after all: a hold began between permit and
    /// departure. Call [`Self::ended`] for its grant first. The waiter is returned if its job has ended or its domain
    /// was released.
    pub fn rejoin(&mut self, domain: DomainId, ticket: Ticket, waiter: W, now: Timestamp) -> Result<(), W> {
        let ended = ticket.lane().job.is_some_and(|job| !self.jobs.contains_key(&job));
        if ended || self.paces.pace(domain).is_none() {
            return Err(waiter);
        }
        let queue =
            self.lines.entry(domain).or_insert_with(|| Queue { line: Line::default(), wake_at: None });
        queue.line.rejoin(ticket, waiter);
        self.waiters += 1;
        self.wake(domain, now);
        Ok(())
    }

    /// Removes a waiter that gives up. Nothing is charged.
    pub fn leave(&mut self, domain: DomainId, ticket: &Ticket) -> Option<W> {
        let waiter = self.lines.get_mut(&domain)?.line.leave(ticket);
        self.waiters -= usize::from(waiter.is_some());
        // The waiter that is first now may be able to go earlier.
        self.wake(domain, Timestamp::MIN);
        waiter
    }

    /// Who goes next?
    pub fn next(&mut self, now: Timestamp) -> Next<W> {
        loop {
            self.check_silent(now);
            let due = self.wakes.first().copied().filter(|(at, _)| *at <= now).map(|(_, id)| id);
            // Parked domains go before domains that are due. Otherwise, a domain whose task just ended would get the
            // capacity again every time.
            let Some(id) = self.unpark().or(due) else {
                let looks = self.jobs.values().filter_map(Capacity::check_at);
                let until = self.wakes.first().map(|(at, _)| *at).into_iter().chain(looks).min();
                return until.map_or(Next::Idle, |until| Next::Sleep { until });
            };
            if let Some(grant) = self.try_domain(id, now) {
                return Next::Go(grant);
            }
        }
    }

    /// May a caller that isn't in line go now? Not while others are ahead.
    pub fn check(&mut self, domain: &Domain, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Decision {
        let id = self.paces.enter(domain);
        let saving = || {
            // Any other reason to wait is more informative.
            let pace = self.paces.pace(id).filter(|_| self.saving.contains(&id))?;
            pace.peek(terms, intent, now).or_else(|| self.being_saved(id, now))
        };
        if let Some(reason) = self.changing_hands(id, now).or_else(saving) {
            return Decision::Wait { until: reason.until, reason };
        }
        let limits =
            JobLimits { jobs: &self.jobs, running: &self.running, hangs: self.hanging.contains(&id), id };
        match (self.paces.pace_mut(id), self.lines.get(&id)) {
            (Some(pace), Some(queue)) => {
                let open = |lane: &Lane, waiter: &W, pace: &Pace| limits.may_send(lane, waiter, pace);
                queue.line.check(pace, terms, intent, now, open)
            }
            (Some(pace), None) => pace.admit(terms, intent, now),
            (None, _) => Pace::default().admit(terms, intent, now),
        }
    }

    /// What would delay a caller that isn't in line now, or `None`. Nothing is reserved.
    pub fn peek(&self, domain: &Domain, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        let id = self.paces.find(domain)?;
        let pace = self.paces.pace(id)?;
        let limits =
            JobLimits { jobs: &self.jobs, running: &self.running, hangs: self.hanging.contains(&id), id };
        let open = |lane: &Lane, waiter: &W, pace: &Pace| limits.may_send(lane, waiter, pace);
        let line = self.lines.get(&id).and_then(|queue| queue.line.before(pace, terms, intent, now, open));
        let closed = self.changing_hands(id, now).or(line).or_else(|| pace.peek(terms, intent, now));
        closed.or_else(|| self.being_saved(id, now))
    }

    fn changing_hands(&self, id: DomainId, now: Timestamp) -> Option<Reason> {
        let until = now + HANDOVER;
        let reason = Reason { limit: Limit::ChangingHands, until, asked_at: now };
        self.draining.contains(&id).then_some(reason)
    }

    fn being_saved(&self, id: DomainId, now: Timestamp) -> Option<Reason> {
        let reason = Reason { limit: Limit::Saving, until: now + SAVED_IN, asked_at: now };
        self.saving.contains(&id).then_some(reason)
    }

    /// Records a response. The line of the domain is checked again immediately.
    pub fn record(
        &mut self,
        domain: DomainId,
        terms: Terms<'_>,
        permit: &Permit,
        answer: &Answer,
        now: Timestamp,
    ) -> Option<Recorded> {
        let recorded = self.paces.pace_mut(domain)?.record(terms, permit, answer, now);
        match answer.outcome {
            Outcome::Timeout => drop(self.hanging.insert(domain)),
            // There was no response, but the host didn't hang either.
            Outcome::NetworkError => {}
            _ => drop(self.hanging.remove(&domain)),
        }
        self.wake(domain, now);
        Some(recorded)
    }

    /// A task that was granted a permit is no longer in flight, whatever the outcome.
    pub fn ended(&mut self, domain: DomainId, ticket: &Ticket, now: Timestamp) {
        if let Some(job) = ticket.lane().job {
            if let Some(flight) = self.flights.remove(&ticket.arrival())
                && let Some(capacity) = self.jobs.get_mut(&job)
            {
                capacity.leave(&flight);
            }
            if let Some(running) = self.running.get_mut(&(job, domain)) {
                *running = running.saturating_sub(1);
                if *running == 0 {
                    self.running.remove(&(job, domain));
                }
            }
        }
        self.wake(domain, now);
    }

    /// A request in flight made progress: response headers or a good part of the body arrived. It takes a slot of its
    /// job again, until it has been silent for too long.
    pub fn note_progress(&mut self, ticket: &Ticket, now: Timestamp) {
        let Some(flight) = self.flights.get_mut(&ticket.arrival()) else { return };
        self.hanging.remove(&flight.domain);
        if let Some(capacity) = self.jobs.get_mut(&flight.job) {
            capacity.note_progress(flight, now);
        }
    }

    /// The next request that should be given up, because it has been silent for long and others wait. It counts as in
    /// flight until it is [ended](Self::ended); a sender that cannot give it up may continue.
    pub fn next_recalled(&mut self) -> Option<Ticket> {
        self.recalls.pop_front()
    }

    /// Whether a request in flight should be given up.
    pub fn is_recalled(&self, ticket: &Ticket) -> bool {
        self.flights.get(&ticket.arrival()).is_some_and(|flight| flight.recalled)
    }

    /// Whether a domain is known to hang, so that it is tried last.
    pub fn hangs(&self, domain: DomainId) -> bool {
        self.hanging.contains(&domain)
    }

    /// Ends a job and returns its waiters. Its tasks in flight still have to be [ended](Self::ended).
    pub fn end_job(&mut self, job: JobId) -> Vec<W> {
        self.jobs.remove(&job);
        let gone: Vec<W> = self.lines.values_mut().flat_map(|queue| queue.line.leave_job(job)).collect();
        self.waiters -= gone.len();
        self.wake_all();
        gone
    }

    /// A job gives up a domain: returns its waiters there. Its tasks in flight still have to be [ended](Self::ended).
    pub fn leave_domain(&mut self, job: JobId, domain: &Domain) -> Vec<W> {
        let Some(id) = self.paces.find(domain) else { return Vec::new() };
        let gone = self.lines.get_mut(&id).map(|queue| queue.line.leave_job(job)).unwrap_or_default();
        self.waiters -= gone.len();
        self.wake(id, Timestamp::MIN);
        gone
    }

    /// Whether a request of the job is in flight.
    pub fn is_in_flight(&self, job: JobId) -> bool {
        self.running.keys().any(|(running, _)| *running == job)
    }

    /// Whether a request of the job is in line.
    pub fn is_in_line(&self, job: JobId) -> bool {
        self.lines.values().any(|queue| queue.line.has_job(job))
    }

    /// Number of waiters of a domain.
    pub fn waiting(&self, domain: DomainId) -> usize {
        self.lines.get(&domain).map_or(0, |queue| queue.line.len())
    }

    /// Number of waiters of all domains.
    pub fn waiting_in_total(&self) -> usize {
        self.waiters
    }

    /// Number of domains that have waiters, and perhaps some that had a moment ago.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The domains that wait for a certain time, the longest wait first.
    pub fn longest_waits(&self) -> impl Iterator<Item = DomainId> {
        self.wakes.iter().rev().map(|(_, id)| *id)
    }

    /// Grants no more permits for the domain until it is released, because another process wants it.
    pub fn drain(&mut self, domain: DomainId) {
        if self.paces.pace(domain).is_some() {
            self.draining.insert(domain);
        }
    }

    /// Grants no more permits for the domain until [`Self::saved`], because something has to be saved first.
    pub fn save(&mut self, domain: DomainId) {
        if self.paces.pace(domain).is_some() {
            self.saving.insert(domain);
        }
    }

    /// What had to be saved for the domain is saved.
    pub fn saved(&mut self, domain: DomainId, now: Timestamp) {
        self.saving.remove(&domain);
        self.wake(domain, now);
    }

    /// Removes a domain and returns its pace and its waiters, to hand it over to another process.
    ///
    /// `None` while one of its tasks is in flight, because the response has to be recorded first. Lent permits don't
    /// matter: they are part of the pace, and recorded later with the next holder. The domain's number and tickets
    /// become invalid.
    pub fn release(&mut self, domain: DomainId) -> Option<(Pace, Vec<W>)> {
        if self.running.keys().any(|(_, id)| *id == domain) {
            return None;
        }
        let mut waiters = Vec::new();
        if let Some(mut queue) = self.lines.remove(&domain) {
            queue.wake_at.map(|at| self.wakes.remove(&(at, domain)));
            waiters = queue.line.leave_all();
            self.waiters -= waiters.len();
        }
        self.draining.remove(&domain);
        self.saving.remove(&domain);
        self.hanging.remove(&domain);
        self.jobs.values_mut().for_each(|capacity| capacity.forget(domain));
        Some((self.paces.remove(domain)?, waiters))
    }

    /// Lets a waiter of one domain go, or schedules the next check of the domain.
    fn try_domain(&mut self, id: DomainId, now: Timestamp) -> Option<Grant<W>> {
        let queue = self.lines.get_mut(&id)?;
        if let Some(at) = queue.wake_at.take() {
            self.wakes.remove(&(at, id));
        }
        if self.draining.contains(&id) || self.saving.contains(&id) {
            return None;
        }
        let pace = self.paces.pace_mut(id)?;
        let hangs = self.hanging.contains(&id);
        let limits = JobLimits { jobs: &self.jobs, running: &self.running, hangs, id };
        let open = |lane: &Lane, waiter: &W, pace: &Pace| limits.may_send(lane, waiter, pace);
        match queue.line.turn(pace, now, open) {
            Turn::Go { waiter, ticket, permit } => {
                self.waiters -= 1;
                if let Some(job) = ticket.lane().job {
                    *self.running.entry((job, id)).or_default() += 1;
                    let owner = waiter.owner();
                    if let Some(capacity) = self.jobs.get_mut(&job) {
                        let slot_use = capacity.enter(hangs, owner, now);
                        let recalled = false;
                        let flight =
                            Flight { job, domain: id, ticket, owner, slot_use, progress_at: now, recalled };
                        self.flights.insert(ticket.arrival(), flight);
                    }
                }
                self.wake(id, now);
                Some(Grant { waiter, domain: id, ticket, permit })
            }
            Turn::Wait { until, closed, .. } => {
                if let Some(until) = until {
                    self.wake(id, until);
                }
                for (lane, owner) in closed {
                    // If only the limit per domain closes the lane, it opens again when a task on this domain ends.
                    if let Some(capacity) = lane.job.and_then(|job| self.jobs.get_mut(&job))
                        && !capacity.admits(hangs, owner)
                    {
                        capacity.park(id, hangs, owner);
                    }
                }
                None
            }
            Turn::Empty => {
                self.lines.remove(&id);
                None
            }
        }
    }

    /// The next parked domain for which its job has capacity now.
    fn unpark(&mut self) -> Option<DomainId> {
        let hanging = &self.hanging;
        self.jobs.values_mut().find_map(|capacity| capacity.unpark(|id| hanging.contains(&id)))
    }

    /// Frees the slots of silent requests, and recalls requests if necessary.
    fn check_silent(&mut self, now: Timestamp) {
        let (paces, hanging, recalls) = (&self.paces, &mut self.hanging, &mut self.recalls);
        for (job, capacity) in &mut self.jobs {
            let silent = |id| {
                // A domain that has answered before is only slow; one that never has may never answer.
                if paces.pace(id).is_none_or(|pace| pace.last_success().is_none()) {
                    hanging.insert(id);
                }
            };
            capacity.check_silent(*job, &mut self.flights, now, silent, |ticket| recalls.push_back(ticket));
        }
    }

    /// Checks all domains that have waiters.
    fn wake_all(&mut self) {
        let ids: Vec<DomainId> = self.lines.keys().copied().collect();
        ids.into_iter().for_each(|id| self.wake(id, Timestamp::MIN));
    }

    /// Schedules a check of a domain that has waiters, at `at` or at an earlier time that is already planned.
    fn wake(&mut self, id: DomainId, at: Timestamp) {
        let Some(queue) = self.lines.get_mut(&id) else { return };
        if let Some(planned) = queue.wake_at.filter(|planned| *planned > at) {
            self.wakes.remove(&(planned, id));
            queue.wake_at = None;
        }
        if queue.wake_at.is_none() {
            queue.wake_at = Some(at);
            self.wakes.insert((at, id));
        }
    }
}

/// The limits on requests in flight, per job and per domain.
struct JobLimits<'a> {
    jobs: &'a BTreeMap<JobId, Capacity>,
    running: &'a Running,
    id: DomainId,
    hangs: bool,
}

impl JobLimits<'_> {
    /// Whether the waiter's job may have one more task in flight, in total and on this domain.
    fn may_send<W: Waiter>(&self, lane: &Lane, waiter: &W, pace: &Pace) -> bool {
        let Some(job) = lane.job else { return true };
        let Some(capacity) = self.jobs.get(&job) else { return false };
        let running = self.running.get(&(job, self.id)).copied().unwrap_or(0);
        // While other domains wait, a hanging domain gets one request at a time.
        let cap = match self.hangs && capacity.has_parked() {
            true => 1,
            false => {
                let terms = waiter.terms();
                guard::concurrency(capacity.concurrency(), pace.spacing(terms), terms.baseline())
            }
        };
        running < cap && capacity.admits(self.hangs, waiter.owner())
    }
}

/// About how long a handover takes.
const HANDOVER: Span = Span::from_secs(1);
/// About how long saving takes.
const SAVED_IN: Span = Span::from_millis(100);

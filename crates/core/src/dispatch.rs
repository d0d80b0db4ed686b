//! Which task goes next: the lines of all domains, the jobs they belong to, and one list of times to look.
//!
//! A pure state machine. The engine and the simulator drive the same one: they tell it who waits and what was
//! answered, ask [`Dispatch::next`] whenever a worker is free, and sleep until the time it names. A domain that
//! waits costs one entry in the list of times, however many wait for it; waiting on one never delays another
//! (B10), and neither do requests that nobody answers: how they make way for others is in `room`. Workers, sockets
//! and stores are not known here, and `now` does not step back, as the engine's clock does not (B7).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use foldhash::fast::FixedState;

use crate::decision::{Decision, Limit, Permit, Reason};
use crate::domain::Domain;
use crate::guard;
use crate::intent::Intent;
use crate::line::{Lane, Line, Place, Turn, Waiter};
use crate::outcome::{Answer, Outcome};
use crate::pace::{Pace, Recorded, Terms};
use crate::paces::{DomainId, Paces};
use crate::room::{Flight, Flights, Room};
use crate::task::JobId;
use crate::time::{Span, Timestamp};

pub use crate::room::{PATIENCE, SHARE, WHOLE};

/// What [`Dispatch::next`] says.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<W> {
    /// This one goes now.
    Go(Grant<W>),
    /// Nobody before `until`, unless something is recorded, joins or ends.
    Sleep {
        /// When to ask again.
        until: Timestamp,
    },
    /// Nobody waits, or all who do wait for a task of their job to end.
    Idle,
}

/// Somebody may go.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant<W> {
    /// Who.
    pub waiter: W,
    /// On which domain.
    pub domain: DomainId,
    /// From which place in line.
    pub place: Place,
    /// The right to send.
    pub permit: Permit,
}

/// The lines of all domains and the jobs they belong to.
#[derive(Debug)]
pub struct Dispatch<W> {
    paces: Paces,
    lines: HashMap<DomainId, Queue<W>, FixedState>,
    /// Domains that are about to be handed to another process: nobody is granted anything on them.
    draining: BTreeSet<DomainId>,
    /// Domains on which nobody is granted anything until something is saved.
    saving: BTreeSet<DomainId>,
    /// When to look at which domain.
    wakes: BTreeSet<(Timestamp, DomainId)>,
    jobs: BTreeMap<JobId, Room>,
    /// How many joined so far: the number of the next place.
    arrivals: u64,
    /// Tasks in flight of each job on each domain.
    running: Running,
    flights: Flights,
    /// Domains whose latest request got no answer in time, or that never answered and are silent now: tried last.
    hanging: HashSet<DomainId, FixedState>,
    /// Requests that are to be given up.
    recalls: VecDeque<Place>,
}

type Running = HashMap<(JobId, DomainId), u32, FixedState>;

#[derive(Debug)]
struct Queue<W> {
    line: Line<W>,
    wake_at: Option<Timestamp>,
}

impl<W: Waiter> Dispatch<W> {
    /// An empty dispatch; `seed` is that of [`Paces::new`].
    pub fn new(seed: u64) -> Self {
        Self {
            paces: Paces::new(seed),
            // Numbers, not strangers' names, and the same order in every run of a simulated world.
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
        }
    }

    /// The paces of all domains.
    pub fn paces(&self) -> &Paces {
        &self.paces
    }

    /// The pace of one domain, to seed, restore or steer. It is looked at again at once.
    pub fn pace_mut(&mut self, domain: &Domain, now: Timestamp) -> Option<&mut Pace> {
        let id = self.paces.enter(domain);
        self.pace_of(id, now)
    }

    /// The same by number, to depart with a permit or to give it up.
    pub fn pace_of(&mut self, domain: DomainId, now: Timestamp) -> Option<&mut Pace> {
        self.wake(domain, now);
        self.paces.pace_mut(domain)
    }

    /// A job begins, or its concurrency changes.
    pub fn job(&mut self, job: JobId, concurrency: u32) {
        let flights = &self.flights;
        let room = self.jobs.entry(job).or_insert_with(|| Room::new(job, concurrency, flights));
        let more = concurrency.max(1) > room.concurrency();
        room.set_concurrency(concurrency);
        if more {
            // Lanes that were closed may be open now.
            self.wake_all();
        }
    }

    /// Joins the line of `domain`; the waiter may go from `ready_at` on. A job that ended, or never began,
    /// takes no tasks: the waiter comes back (B49).
    pub fn join(
        &mut self,
        domain: &Domain,
        lane: Lane,
        ready_at: Timestamp,
        waiter: W,
    ) -> Result<(DomainId, Place), W> {
        if lane.job.is_some_and(|job| !self.jobs.contains_key(&job)) {
            return Err(waiter);
        }
        let id = self.paces.enter(domain);
        let queue = self.lines.entry(id).or_insert_with(|| Queue { line: Line::default(), wake_at: None });
        self.arrivals += 1;
        let place = queue.line.join(self.arrivals, lane, ready_at, waiter);
        self.wake(id, ready_at);
        Ok((id, place))
    }

    /// A waiter that could not go after all, because a hold began between permit and departure, takes the
    /// place it had; end its grant with [`Self::ended`] first. The waiter comes back if its job ended or its domain was released.
    pub fn rejoin(&mut self, domain: DomainId, place: Place, waiter: W, now: Timestamp) -> Result<(), W> {
        let ended = place.lane().job.is_some_and(|job| !self.jobs.contains_key(&job));
        if ended || self.paces.pace(domain).is_none() {
            return Err(waiter);
        }
        let queue =
            self.lines.entry(domain).or_insert_with(|| Queue { line: Line::default(), wake_at: None });
        queue.line.rejoin(place, waiter);
        self.wake(domain, now);
        Ok(())
    }

    /// A waiter gives up; its place is free at once and nothing is charged (B11).
    pub fn leave(&mut self, domain: DomainId, place: &Place) -> Option<W> {
        let waiter = self.lines.get_mut(&domain)?.line.leave(place);
        // Whoever stands first now may have to be looked at earlier.
        self.wake(domain, Timestamp::MIN);
        waiter
    }

    /// Who goes next?
    pub fn next(&mut self, now: Timestamp) -> Next<W> {
        loop {
            self.look_around(now);
            let due = self.wakes.first().copied().filter(|(at, _)| *at <= now).map(|(_, id)| id);
            // Who waited for room in its job goes before who is due: else a domain whose task just ended would
            // take the room again, every time.
            let Some(id) = self.unpark().or(due) else {
                let looks = self.jobs.values().filter_map(Room::look_at);
                let until = self.wakes.first().map(|(at, _)| *at).into_iter().chain(looks).min();
                return until.map_or(Next::Idle, |until| Next::Sleep { until });
            };
            if let Some(grant) = self.look(id, now) {
                return Next::Go(grant);
            }
        }
    }

    /// May somebody who is not in line go now? Not while others are (B3).
    pub fn check(&mut self, domain: &Domain, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Decision {
        let id = self.paces.enter(domain);
        let saving = || {
            // Whatever keeps it closed anyway says more.
            let pace = self.paces.pace(id).filter(|_| self.saving.contains(&id))?;
            pace.peek(terms, intent, now).or_else(|| self.being_saved(id, now))
        };
        if let Some(reason) = self.changing_hands(id, now).or_else(saving) {
            return Decision::Wait { until: reason.until, reason };
        }
        let full = Full { jobs: &self.jobs, running: &self.running, hangs: self.hanging.contains(&id), id };
        match (self.paces.pace_mut(id), self.lines.get(&id)) {
            (Some(pace), Some(queue)) => {
                let open = |lane: &Lane, waiter: &W, pace: &Pace| full.may_send(lane, waiter, pace);
                queue.line.check(pace, terms, intent, now, open)
            }
            (Some(pace), None) => pace.admit(terms, intent, now),
            (None, _) => Pace::default().admit(terms, intent, now),
        }
    }

    /// What would keep somebody who is not in line from going now; `None` when nothing would. Nothing is reserved.
    pub fn peek(&self, domain: &Domain, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        let id = self.paces.find(domain)?;
        let pace = self.paces.pace(id)?;
        let full = Full { jobs: &self.jobs, running: &self.running, hangs: self.hanging.contains(&id), id };
        let open = |lane: &Lane, waiter: &W, pace: &Pace| full.may_send(lane, waiter, pace);
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

    /// Records an answer; whoever waits is looked at again at once.
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
            // Nobody answered, but nobody was kept waiting either.
            Outcome::NetworkError => {}
            _ => drop(self.hanging.remove(&domain)),
        }
        self.wake(domain, now);
        Some(recorded)
    }

    /// A task that went is no longer in flight, whatever became of it.
    pub fn ended(&mut self, domain: DomainId, place: &Place, now: Timestamp) {
        if let Some(job) = place.lane().job {
            if let Some(flight) = self.flights.remove(&place.arrival())
                && let Some(room) = self.jobs.get_mut(&job)
            {
                room.leave(&flight);
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

    /// Something was heard of a request in flight: the head of its answer, or a good part of the body. Until it is
    /// silent for long again it takes a slot of its job.
    pub fn heard(&mut self, place: &Place, now: Timestamp) {
        let Some(flight) = self.flights.get_mut(&place.arrival()) else { return };
        self.hanging.remove(&flight.domain);
        if let Some(room) = self.jobs.get_mut(&flight.job) {
            room.heard(flight, now);
        }
    }

    /// A request in flight that is to be given up, because nothing was heard of it for long and others wait. It is in
    /// flight until it is [ended](Self::ended); whoever cannot give it up may go on with it.
    pub fn next_recalled(&mut self) -> Option<Place> {
        self.recalls.pop_front()
    }

    /// Whether a request in flight is to be given up.
    pub fn is_recalled(&self, place: &Place) -> bool {
        self.flights.get(&place.arrival()).is_some_and(|flight| flight.recalled)
    }

    /// Whether a domain is known to hang: it is tried last.
    pub fn hangs(&self, domain: DomainId) -> bool {
        self.hanging.contains(&domain)
    }

    /// A job ended: its waiters are sent away (B49). Those in flight still have to be ended.
    pub fn end_job(&mut self, job: JobId) -> Vec<W> {
        self.jobs.remove(&job);
        let gone = self.lines.values_mut().flat_map(|queue| queue.line.leave_job(job)).collect();
        self.wake_all();
        gone
    }

    /// A job gives a domain up: its waiters there are sent away (B47). Those in flight still have to be ended.
    pub fn leave_domain(&mut self, job: JobId, domain: &Domain) -> Vec<W> {
        let Some(id) = self.paces.find(domain) else { return Vec::new() };
        let gone = self.lines.get_mut(&id).map(|queue| queue.line.leave_job(job)).unwrap_or_default();
        self.wake(id, Timestamp::MIN);
        gone
    }

    /// How many wait on a domain.
    pub fn waiting(&self, domain: DomainId) -> usize {
        self.lines.get(&domain).map_or(0, |queue| queue.line.len())
    }

    /// Another process wants the domain: nobody is granted anything on it until it is released.
    pub fn drain(&mut self, domain: DomainId) {
        if self.paces.pace(domain).is_some() {
            self.draining.insert(domain);
        }
    }

    /// Something about the domain must be saved: nobody is granted anything on it until it is.
    pub fn save(&mut self, domain: DomainId) {
        if self.paces.pace(domain).is_some() {
            self.saving.insert(domain);
        }
    }

    /// It is saved.
    pub fn saved(&mut self, domain: DomainId, now: Timestamp) {
        self.saving.remove(&domain);
        self.wake(domain, now);
    }

    /// Takes a domain out, with its pace and everybody who waits for it, to hand it to another process. `None` while one
    /// of its tasks is in flight: that answer belongs to the pace. A permit that is lent to a caller goes along: it is
    /// recorded later, by its number, with whoever holds the domain then. Number and places of a released domain
    /// mean nothing any more.
    pub fn release(&mut self, domain: DomainId) -> Option<(Pace, Vec<W>)> {
        if self.running.keys().any(|(_, id)| *id == domain) {
            return None;
        }
        let mut waiters = Vec::new();
        if let Some(mut queue) = self.lines.remove(&domain) {
            queue.wake_at.map(|at| self.wakes.remove(&(at, domain)));
            waiters = queue.line.leave_all();
        }
        self.draining.remove(&domain);
        self.saving.remove(&domain);
        self.hanging.remove(&domain);
        self.jobs.values_mut().for_each(|room| room.forget(domain));
        Some((self.paces.remove(domain)?, waiters))
    }

    /// Looks at one domain: somebody goes, or the domain is looked at again later.
    fn look(&mut self, id: DomainId, now: Timestamp) -> Option<Grant<W>> {
        let queue = self.lines.get_mut(&id)?;
        if let Some(at) = queue.wake_at.take() {
            self.wakes.remove(&(at, id));
        }
        if self.draining.contains(&id) || self.saving.contains(&id) {
            return None;
        }
        let pace = self.paces.pace_mut(id)?;
        let hangs = self.hanging.contains(&id);
        let full = Full { jobs: &self.jobs, running: &self.running, hangs, id };
        let open = |lane: &Lane, waiter: &W, pace: &Pace| full.may_send(lane, waiter, pace);
        match queue.line.turn(pace, now, open) {
            Turn::Go { waiter, place, permit } => {
                if let Some(job) = place.lane().job {
                    *self.running.entry((job, id)).or_default() += 1;
                    let owner = waiter.owner();
                    if let Some(room) = self.jobs.get_mut(&job) {
                        let seat = room.enter(hangs, owner, now);
                        let recalled = false;
                        let flight = Flight { job, domain: id, place, owner, seat, heard_at: now, recalled };
                        self.flights.insert(place.arrival(), flight);
                    }
                }
                self.wake(id, now);
                Some(Grant { waiter, domain: id, place, permit })
            }
            Turn::Wait { until, closed, .. } => {
                if let Some(until) = until {
                    self.wake(id, until);
                }
                for (lane, owner) in closed {
                    // A lane that is closed by its domain's own limit opens when a task on this domain ends.
                    if let Some(room) = lane.job.and_then(|job| self.jobs.get_mut(&job))
                        && !room.admits(hangs, owner)
                    {
                        room.park(id, hangs, owner);
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

    /// A domain that waited for a job to have room, where it has some now.
    fn unpark(&mut self) -> Option<DomainId> {
        let hanging = &self.hanging;
        self.jobs.values_mut().find_map(|room| room.unpark(|id| hanging.contains(&id)))
    }

    /// Finds requests that nothing was heard of for long; they leave their room to others.
    fn look_around(&mut self, now: Timestamp) {
        let (paces, hanging, recalls) = (&self.paces, &mut self.hanging, &mut self.recalls);
        for (job, room) in &mut self.jobs {
            let aside = |id| {
                // One that answered before is slow for now; one that never did may never do.
                if paces.pace(id).is_none_or(|pace| pace.last_success().is_none()) {
                    hanging.insert(id);
                }
            };
            room.look(*job, &mut self.flights, now, aside, |place| recalls.push_back(place));
        }
    }

    /// Looks at every domain that anybody waits for.
    fn wake_all(&mut self) {
        let ids: Vec<DomainId> = self.lines.keys().copied().collect();
        ids.into_iter().for_each(|id| self.wake(id, Timestamp::MIN));
    }

    /// Looks at a domain at `at`, if anybody waits for it, or earlier if that was planned.
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

/// What there is of a job in flight, in all and on one domain.
struct Full<'a> {
    jobs: &'a BTreeMap<JobId, Room>,
    running: &'a Running,
    id: DomainId,
    hangs: bool,
}

impl Full<'_> {
    /// Whether a job may have one more task in flight, in all and on this domain (B40).
    fn may_send<W: Waiter>(&self, lane: &Lane, waiter: &W, pace: &Pace) -> bool {
        let Some(job) = lane.job else { return true };
        let Some(room) = self.jobs.get(&job) else { return false };
        let running = self.running.get(&(job, self.id)).copied().unwrap_or(0);
        // Where others wait, a domain that hangs is tried with one request at a time.
        let cap = match self.hangs && room.is_wanted() {
            true => 1,
            false => {
                let terms = waiter.terms();
                guard::concurrency(room.concurrency(), pace.spacing(terms), terms.baseline())
            }
        };
        running < cap && room.admits(self.hangs, waiter.owner())
    }
}

/// A domain changes hands within about this long (B9).
const HANDOVER: Span = Span::from_secs(1);
/// Something is saved within about this time.
const SAVED_IN: Span = Span::from_millis(100);

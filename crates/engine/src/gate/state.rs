//! The state behind the gate's lock: the lines, the held domains, and when to check again.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use comity_core::decision::{Limit, Outage, Reason};
use comity_core::dispatch::{Dispatch, Next};
use comity_core::domain::Domain;
use comity_core::line::{Owner, Ticket, Waiter as InLine};
use comity_core::pace::{Pace, SavedLimits, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::Rule;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, Saved, Steering, Tenure};
use tokio::sync::oneshot;

use super::activity::Activities;
use super::listing::Departed;
use super::survey::Survey;
use super::upkeep::IDLE;
use super::{Inner, Permit};
use crate::clock::Clock;
use crate::event::Event;
use crate::{FastMap, FastSet, lock};

/// A request of a job that waits in line and is started with a permit.
pub(crate) trait QueuedRequest: Send {
    /// Starts the request. Called without any lock held; must not block.
    fn start(self: Box<Self>, permit: Permit);

    /// For downcasting to the concrete type.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send>;
}

/// Who waits in line, and on which terms.
pub(crate) struct Waiter {
    pub(super) rule: Arc<Rule>,
    pub(super) crawl_delay: Span,
    pub(super) owner: Owner,
    pub(super) who: Who,
}

pub(super) enum Who {
    Caller(oneshot::Sender<Permit>),
    Request(Box<dyn QueuedRequest>),
}

impl InLine for Waiter {
    fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.rule, crawl_delay: self.crawl_delay }
    }

    fn owner(&self) -> Owner {
        self.owner
    }
}

impl Waiter {
    /// The request of a waiter that was created with one.
    pub(super) fn into_request(self) -> Box<dyn QueuedRequest> {
        match self.who {
            Who::Request(request) => request,
            Who::Caller(_) => Box::new(NoRequest),
        }
    }

    fn start(self, permit: Permit) {
        match self.who {
            // A caller that has given up in the meantime drops the permit, which returns it.
            Who::Caller(sender) => drop(sender.send(permit)),
            Who::Request(request) => request.start(permit),
        }
    }
}

/// Stands for the request of a caller, which has none.
struct NoRequest;

impl QueuedRequest for NoRequest {
    fn start(self: Box<Self>, _permit: Permit) {}

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// The state behind the gate's lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) dispatch: Dispatch<Waiter>,
    /// The domains held in the store. A gate without a store holds every domain implicitly.
    pub(super) held: FastMap<DomainId, HeldDomain>,
    pub(super) keys: FastMap<DomainKey, DomainId>,
    /// Held domains with changes that have not been saved.
    pub(super) unsaved: BTreeSet<DomainId>,
    /// Held domains that other processes want.
    pub(super) wanted: BTreeSet<DomainId>,
    /// Held domains with lent permits in the store.
    pub(super) lent: BTreeSet<DomainId>,
    /// When to look which held domain is still used, by its serial.
    uses: BTreeSet<(Timestamp, DomainId, u64)>,
    /// Domains that may have lent permits, in the store or not.
    lending: FastSet<DomainId>,
    /// Permits in use in this process.
    pub(super) out: usize,
    /// What observers are shown, and where to look for it next.
    pub(super) surveys: Surveys,
    pub(super) crawl_delays: HashMap<Domain, Span>,
    /// Paces from a previous gate whose store became unavailable, until the domains are taken again.
    pub(super) remembered: HashMap<Domain, Pace>,
    /// The running jobs, with their concurrency.
    jobs: FastMap<JobId, u32>,
    /// Whom to notify when a request is recalled.
    pub(super) recalls: FastMap<Ticket, oneshot::Sender<()>>,
    /// No permits are granted from this time on, because the store may give our domains to others.
    pub(super) valid_until: Timestamp,
    /// How often the store had become unavailable or available at the last heartbeat. No permits are granted once that
    /// number changes.
    pub(super) confirmed: u64,
    pub(super) has_store: bool,
    /// Above three quarters of this many held domains, unused ones are released sooner.
    pub(super) room: usize,
    /// What happened lately, for people.
    pub(super) activities: Activities,
    /// Domains that are no longer held, with what was not reported about them.
    pub(super) departed: Vec<Departed>,
    /// When the timer checks next.
    planned_at: Option<Timestamp>,
    serials: u64,
    /// Incremented whenever all domains are lost. A domain taken in an earlier generation is not installed in a later
    /// one.
    pub(super) generation: u64,
}

/// The surveys of a gate.
#[derive(Debug, Default)]
pub(super) struct Surveys {
    /// Of the slowest domains.
    pub(super) slowest: Survey,
    /// Of those that hold the work back.
    pub(super) held_back: Survey,
    /// Of those that are published.
    pub(super) published: Survey,
}

/// When a change must be saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveWhen {
    Never,
    /// With the next flush.
    Soon,
    /// Before anybody else may send.
    Now,
}

/// A domain held in the store.
#[derive(Debug)]
pub(super) struct HeldDomain {
    pub(super) domain: Domain,
    pub(super) tenure: Tenure,
    pub(super) serial: u64,
    pub(super) taken_at: Timestamp,
    pub(super) used_at: Timestamp,
    pub(super) grants: u32,
    /// Permits in use in this process.
    pub(super) out: u32,
    /// Started requests of jobs whose tasks are not settled in the store.
    pub(super) unsettled: u32,
    /// Lent permits that are in the store.
    pub(super) lent: BTreeSet<u32>,
    pub(super) wanted: bool,
    /// The number of the latest change; grows with every change that must be saved.
    pub(super) changes: u64,
    pub(super) saved: u64,
    /// No permits are granted before this change is saved.
    pub(super) must_save: u64,
}

impl State {
    pub(super) fn new(valid_until: Timestamp) -> Self {
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
        Self {
            dispatch: Dispatch::new(seed),
            held: FastMap::default(),
            keys: FastMap::default(),
            unsaved: BTreeSet::new(),
            wanted: BTreeSet::new(),
            lent: BTreeSet::new(),
            uses: BTreeSet::new(),
            lending: FastSet::default(),
            out: 0,
            surveys: Surveys::default(),
            room: usize::MAX,
            crawl_delays: HashMap::new(),
            remembered: HashMap::new(),
            jobs: FastMap::default(),
            recalls: FastMap::default(),
            valid_until,
            confirmed: 0,
            has_store: valid_until != Timestamp::MAX,
            activities: Activities::default(),
            departed: Vec::new(),
            planned_at: None,
            serials: 0,
            generation: 0,
        }
    }

    /// Drops all domains, and returns the previous state.
    pub(super) fn reset(&mut self, crawl_delays: HashMap<Domain, Span>, valid_until: Timestamp) -> Self {
        // Serials continue, so that a permit of the old generation is never mistaken for one of the new.
        let (serials, generation, room, confirmed) =
            (self.serials, self.generation + 1, self.room, self.confirmed);
        // Keep the remembered paces of domains that have not been taken again.
        let remembered = std::mem::take(&mut self.remembered);
        let fresh =
            Self { crawl_delays, serials, generation, room, confirmed, remembered, ..Self::new(valid_until) };
        let lost = std::mem::replace(self, fresh);
        lost.jobs.iter().for_each(|(job, concurrency)| self.begin_job(*job, *concurrency));
        lost
    }

    pub(super) fn begin_job(&mut self, job: JobId, concurrency: u32) {
        self.jobs.insert(job, concurrency);
        self.dispatch.job(job, concurrency);
    }

    pub(super) fn has_job(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    pub(super) fn end_job(&mut self, job: JobId) -> Vec<Waiter> {
        self.jobs.remove(&job);
        self.dispatch.end_job(job)
    }

    /// The crawl-delay of a host, or zero if unknown.
    pub(super) fn crawl_delay(&self, host: &Domain) -> Span {
        self.crawl_delays.get(host).copied().unwrap_or_default()
    }

    /// Whether the gate has been closed for good.
    pub(super) fn is_closed(&self) -> bool {
        self.valid_until == Timestamp::MIN
    }

    /// Whether the domain is held, so that its line can be joined.
    pub(super) fn is_held(&self, domain: &Domain) -> bool {
        !self.has_store || self.dispatch.paces().find(domain).is_some_and(|id| self.held.contains_key(&id))
    }

    /// Whether the domain is held under exactly this tenure.
    pub(super) fn is_under(&self, domain: &Domain, tenure: Tenure) -> bool {
        let id = self.dispatch.paces().find(domain);
        id.and_then(|id| self.held.get(&id)).is_some_and(|held| held.tenure == tenure)
    }

    /// Whether a permit with this serial belongs to the current tenure of its domain.
    pub(super) fn owns(&self, id: DomainId, serial: u64) -> bool {
        !self.has_store || self.held.get(&id).is_some_and(|held| held.serial == serial)
    }

    /// Adds a domain that was taken from the store.
    pub(super) fn adopt(&mut self, domain: &Domain, tenure: Tenure, pace: Pace, now: Timestamp) -> DomainId {
        self.serials += 1;
        let lent: BTreeSet<u32> = pace.lent_permits(now).map(|lent| lent.id).collect();
        if let Some(fresh) = self.dispatch.pace_mut(domain, now) {
            *fresh = pace;
        }
        // `pace_mut` has added it.
        let id = self.dispatch.paces().find(domain).unwrap_or_else(|| unreachable!("{domain} was entered"));
        let held = HeldDomain {
            domain: domain.clone(),
            tenure,
            serial: self.serials,
            taken_at: now,
            used_at: now,
            grants: 0,
            out: 0,
            unsettled: 0,
            lent,
            wanted: false,
            changes: 0,
            saved: 0,
            must_save: 0,
        };
        if !held.lent.is_empty() {
            self.lent.insert(id);
            self.lending.insert(id);
        }
        self.held.insert(id, held);
        self.keys.insert(tenure.key, id);
        self.look_for_use(id, self.serials, now + IDLE);
        id
    }

    /// Plans to look whether a held domain is still used.
    pub(super) fn look_for_use(&mut self, id: DomainId, serial: u64, at: Timestamp) {
        self.uses.insert((at, id, serial));
    }

    /// The next held domain to look at by now, and its serial. It may no longer be held.
    pub(super) fn next_unused(&mut self, now: Timestamp) -> Option<(DomainId, u64)> {
        let (_, id, serial) = self.uses.first().copied().filter(|(at, ..)| *at <= now)?;
        self.uses.pop_first();
        Some((id, serial))
    }

    /// Counts a grant, and returns the serial of the tenure it belongs to.
    pub(super) fn granted(&mut self, id: DomainId, now: Timestamp) -> Option<u64> {
        if !self.has_store {
            self.out += 1;
            return None;
        }
        let held = self.held.get_mut(&id)?;
        self.out += 1;
        held.grants = held.grants.saturating_add(1);
        held.out += 1;
        held.used_at = now;
        Some(held.serial)
    }

    /// Notes that a permit is no longer in use in this process.
    pub(super) fn returned(&mut self, id: DomainId, serial: u64) {
        if !self.has_store {
            self.out = self.out.saturating_sub(1);
        }
        if let Some(held) = self.held.get_mut(&id).filter(|held| held.serial == serial) {
            held.out = held.out.saturating_sub(1);
            self.out = self.out.saturating_sub(1);
        }
    }

    /// Notes that a permit of a domain was lent.
    pub(super) fn note_lending(&mut self, id: DomainId) {
        self.lending.insert(id);
    }

    /// The permits of all domains that are neither recorded nor expired.
    pub(super) fn in_flight(&mut self, now: Timestamp) -> usize {
        let (paces, mut lent) = (self.dispatch.paces(), 0);
        self.lending.retain(|id| {
            let open = paces.pace(*id).map_or(0, |pace| pace.lent_permits(now).count());
            lent += open;
            open > 0
        });
        self.out + lent
    }

    /// Notes that the task of a started request is settled in the store.
    pub(super) fn settled(&mut self, id: DomainId, serial: u64) {
        if let Some(held) = self.held.get_mut(&id).filter(|held| held.serial == serial) {
            held.unsettled = held.unsettled.saturating_sub(1);
        }
    }

    /// Notes a change of a domain that must be saved.
    pub(super) fn touch(&mut self, domain: &Domain, save: SaveWhen, now: Timestamp) {
        let Some(id) = self.dispatch.paces().find(domain) else { return };
        if self.held.contains_key(&id) {
            self.activities.touch(id, now);
        }
        let Some(held) = self.held.get_mut(&id) else { return };
        held.changes += 1;
        self.unsaved.insert(id);
        if save == SaveWhen::Now {
            held.must_save = held.changes;
            self.dispatch.save(id);
        }
    }

    /// Removes a domain, unless one of its tasks is in flight.
    pub(super) fn remove(&mut self, id: DomainId) -> Option<(HeldDomain, Pace, Vec<Waiter>)> {
        let (pace, waiters) = self.dispatch.release(id)?;
        let held = self.held.remove(&id)?;
        self.out = self.out.saturating_sub(held.out as usize);
        self.keys.remove(&held.tenure.key);
        self.unsaved.remove(&id);
        self.wanted.remove(&id);
        self.lent.remove(&id);
        if let Some(left) = self.activities.remove(id).filter(|_| self.departed.len() < DEPARTED_MAX) {
            let (domain, tenure) = (held.domain.clone(), held.tenure);
            self.departed.push(Departed { domain, tenure, pace: pace.clone(), left });
        }
        Some((held, pace, waiters))
    }

    /// What to save of a domain.
    pub(super) fn to_save(&self, id: DomainId) -> Option<Saved> {
        let (held, pace) = (self.held.get(&id)?, self.dispatch.paces().pace(id)?);
        Some(saved(held.tenure, pace))
    }
}

/// Of how many domains that are no longer held something is kept to be reported.
const DEPARTED_MAX: usize = 10_000;

/// What to save of a pace, under a tenure.
pub(super) fn saved(tenure: Tenure, pace: &Pace) -> Saved {
    let (kept, steering) = persistent_part(pace);
    Saved { tenure, kept, steering }
}

/// The part of a pace that survives a crash.
pub(super) fn persistent_part(pace: &Pace) -> (SavedLimits, Steering) {
    let steering = Steering { pinned: pace.learned().pinned(), paused_until: pace.paused_until() };
    (pace.saved_limits(), steering)
}

/// Grants everything that may leave now, and plans the next check.
pub(super) fn pump(inner: &Arc<Inner>, mut state: MutexGuard<'_, State>) {
    // Mostly there is one.
    let mut granted = Vec::with_capacity(1);
    let now = inner.clock.now();
    let next = loop {
        if now >= state.valid_until || inner.store_unavailable(&state, now).is_some() {
            break None;
        }
        match state.dispatch.next(now) {
            Next::Go(grant) => {
                let serial = state.granted(grant.domain, now).unwrap_or(0);
                if matches!(grant.waiter.who, Who::Request(_))
                    && let Some(held) = state.held.get_mut(&grant.domain)
                {
                    held.unsettled += 1;
                }
                let domain = state.dispatch.paces().domain(grant.domain).cloned();
                let Some(domain) = domain else { continue };
                let ticket = grant.ticket.lane().job.map(|_| grant.ticket);
                let (rule, crawl_delay) = (grant.waiter.rule.clone(), grant.waiter.crawl_delay);
                let (owner, ready_at) = (grant.waiter.owner, grant.ticket.ready_at());
                let permit = Permit::new(
                    inner.clone(),
                    grant.permit,
                    domain,
                    grant.domain,
                    serial,
                    ticket.map(|ticket| (ticket, owner)),
                    rule,
                    crawl_delay,
                    ready_at,
                );
                granted.push((grant.waiter, permit));
            }
            Next::Sleep { until } => break Some(until),
            Next::Idle => break None,
        }
    };
    while let Some(ticket) = state.dispatch.next_recalled() {
        // Whoever doesn't listen yet checks for a recall before it starts to.
        if let Some(listener) = state.recalls.remove(&ticket) {
            let _ = listener.send(());
        }
    }
    let sooner = match (next, state.planned_at) {
        (Some(next), Some(planned)) => next < planned,
        (Some(_), None) => true,
        (None, _) => false,
    };
    if sooner {
        state.planned_at = next;
        inner.timer.notify_one();
    }
    drop(state);
    for (waiter, permit) in granted {
        inner.events.emit(&Event::Granted { domain: permit.domain() });
        waiter.start(permit);
    }
}

/// The timer thread: grants what may leave when time has passed. It holds no reference to the gate while it sleeps, so
/// that an unused gate is dropped.
pub(super) fn run_timer(gate: &Weak<Inner>, state: &Mutex<State>, condition: &Condvar, clock: &Clock) {
    loop {
        let now = clock.now();
        let guard = lock(state);
        match guard.planned_at {
            Some(planned) if planned <= now => {
                drop(guard);
                let Some(inner) = gate.upgrade() else { return };
                let mut guard = inner.lock();
                guard.planned_at = None;
                pump(&inner, guard);
            }
            // An automatic clock jumps to the planned time, because nothing else has to happen before it.
            Some(planned) if clock.skip_to(planned) => {}
            planned => {
                // Check now and then whether the gate still exists.
                let look_at = now + Span::from_secs(1);
                let until = planned.map_or(look_at, |planned| planned.min(look_at));
                drop(clock.wait(condition, guard, Some(until)));
                if gate.strong_count() == 0 {
                    return;
                }
            }
        }
    }
}

/// The reason to wait while a domain is being handed over to another process.
pub(super) fn changing_hands(now: Timestamp) -> Reason {
    let until = now + Span::from_secs(1);
    Reason { limit: Limit::ChangingHands, until, asked_at: now }
}

/// The reason to wait while the store is unavailable. Nobody knows when it comes back, so callers should ask again
/// soon.
pub(super) fn store_unavailable(outage: Outage, now: Timestamp) -> Reason {
    Reason { limit: Limit::StoreUnavailable(outage), until: now + Span::from_secs(1), asked_at: now }
}

//! What the gate's lock protects: the lines, the domains held, and when to look next.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use comity_core::decision::{Away, Limit, Reason};
use comity_core::dispatch::{Dispatch, Next};
use comity_core::domain::Domain;
use comity_core::line::{Owner, Place, Waiter as InLine};
use comity_core::pace::{Kept, Pace, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::Rule;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, Hold, Saved, Steering};
use tokio::sync::oneshot;

use super::{Inner, Permit};
use crate::clock::Clock;
use crate::event::Event;
use crate::lock;

/// What waits for its turn and is sent off with a permit.
pub(crate) trait Errand: Send {
    /// It may go. Called without any lock held; must not block.
    fn go(self: Box<Self>, permit: Permit);

    /// For casting back to what it was.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send>;
}

/// Who waits, and on what terms.
pub(crate) struct Waiter {
    pub(super) rule: Arc<Rule>,
    pub(super) crawl_delay: Span,
    pub(super) owner: Owner,
    pub(super) who: Who,
}

pub(super) enum Who {
    Caller(oneshot::Sender<Permit>),
    Errand(Box<dyn Errand>),
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
    /// The errand of a waiter that was made with one.
    pub(super) fn into_errand(self) -> Box<dyn Errand> {
        match self.who {
            Who::Errand(errand) => errand,
            Who::Caller(_) => Box::new(Nobody),
        }
    }

    fn go(self, permit: Permit) {
        match self.who {
            // A caller that left meanwhile drops the permit, which gives it back.
            Who::Caller(sender) => drop(sender.send(permit)),
            Who::Errand(errand) => errand.go(permit),
        }
    }
}

/// The errand of a caller: there is none.
struct Nobody;

impl Errand for Nobody {
    fn go(self: Box<Self>, _permit: Permit) {}

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// What the gate's lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub(super) dispatch: Dispatch<Waiter>,
    /// The domains held in a store; a gate without one holds whatever is asked for.
    pub(super) tenures: HashMap<DomainId, Tenure>,
    pub(super) keys: HashMap<DomainKey, DomainId>,
    /// Those of them with something to keep that is not saved.
    pub(super) unsaved: BTreeSet<DomainId>,
    /// Those of them that other processes want.
    pub(super) wanted: BTreeSet<DomainId>,
    /// Those of them with permits that the store knows of.
    pub(super) lent: BTreeSet<DomainId>,
    pub(super) crawl_delays: HashMap<Domain, Span>,
    /// What a gate before this one knew of domains whose store went away, until they are taken up.
    pub(super) remains: HashMap<Domain, Pace>,
    /// The jobs that run, with their concurrency.
    jobs: HashMap<JobId, u32>,
    /// Who is to be told when a request is recalled.
    pub(super) recalls: HashMap<Place, oneshot::Sender<()>>,
    /// Nobody goes from then on: the store may give our domains to others.
    pub(super) valid_until: Timestamp,
    /// How often the store had gone away or come back when our time was last renewed. Nobody goes once it did so again.
    pub(super) confirmed: u64,
    pub(super) tenant: bool,
    /// So many domains are held at most without those that nobody uses being let go of sooner.
    pub(super) room: usize,
    /// When the timer looks next.
    planned_at: Option<Timestamp>,
    serials: u64,
    /// How often everything that was held was lost: what was taken before is not taken up after.
    pub(super) life: u64,
}

/// Whether something that changed is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Nothing,
    /// In a while (B35).
    Soon,
    /// Before anybody else goes (B37).
    Now,
}

/// A domain held in a store.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) domain: Domain,
    pub(super) hold: Hold,
    pub(super) serial: u64,
    pub(super) taken_at: Timestamp,
    pub(super) used_at: Timestamp,
    pub(super) grants: u32,
    /// Permits in the hands of this process.
    pub(super) out: u32,
    /// Errands that went and are not settled in the store.
    pub(super) unsettled: u32,
    /// Permits that the store knows of.
    pub(super) lent: BTreeSet<u32>,
    pub(super) wanted: bool,
    /// Something to keep changed; the number grows with every change.
    pub(super) changes: u64,
    pub(super) saved: u64,
    /// Nobody goes before this change is saved (B37).
    pub(super) must_save: u64,
}

impl State {
    pub(super) fn new(valid_until: Timestamp) -> Self {
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
        Self {
            dispatch: Dispatch::new(seed),
            tenures: HashMap::new(),
            keys: HashMap::new(),
            unsaved: BTreeSet::new(),
            wanted: BTreeSet::new(),
            lent: BTreeSet::new(),
            room: usize::MAX,
            crawl_delays: HashMap::new(),
            remains: HashMap::new(),
            jobs: HashMap::new(),
            recalls: HashMap::new(),
            valid_until,
            confirmed: 0,
            tenant: valid_until != Timestamp::MAX,
            planned_at: None,
            serials: 0,
            life: 0,
        }
    }

    /// Forgets all domains; what was there before.
    pub(super) fn start_anew(&mut self, crawl_delays: HashMap<Domain, Span>, valid_until: Timestamp) -> Self {
        // Serials go on: a permit of the old life must not be taken for one of the new.
        let (serials, life, room, confirmed) = (self.serials, self.life + 1, self.room, self.confirmed);
        // What is known of domains that nobody has taken since the store went away stays known.
        let remains = std::mem::take(&mut self.remains);
        let fresh = Self { crawl_delays, serials, life, room, confirmed, remains, ..Self::new(valid_until) };
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

    /// The crawl-delay that a host's robots.txt asks for, if it is known.
    pub(super) fn crawl_delay(&self, host: &Domain) -> Span {
        self.crawl_delays.get(host).copied().unwrap_or_default()
    }

    /// Whether nobody is let go any more, whatever comes.
    pub(super) fn is_closed(&self) -> bool {
        self.valid_until == Timestamp::MIN
    }

    /// Whether the line of a domain may be joined.
    pub(super) fn is_held(&self, domain: &Domain) -> bool {
        !self.tenant || self.dispatch.paces().find(domain).is_some_and(|id| self.tenures.contains_key(&id))
    }

    /// Whether a domain is held under this very hold.
    pub(super) fn is_under(&self, domain: &Domain, hold: Hold) -> bool {
        let id = self.dispatch.paces().find(domain);
        id.and_then(|id| self.tenures.get(&id)).is_some_and(|tenure| tenure.hold == hold)
    }

    /// Whether a permit belongs to the holding in force.
    pub(super) fn owns(&self, id: DomainId, serial: u64) -> bool {
        !self.tenant || self.tenures.get(&id).is_some_and(|tenure| tenure.serial == serial)
    }

    /// Takes a domain up.
    pub(super) fn adopt(&mut self, domain: &Domain, hold: Hold, pace: Pace, now: Timestamp) -> DomainId {
        self.serials += 1;
        let lent: BTreeSet<u32> = pace.lent(now).map(|lent| lent.id).collect();
        if let Some(fresh) = self.dispatch.pace_mut(domain, now) {
            *fresh = pace;
        }
        // `pace_mut` has entered it.
        let id = self.dispatch.paces().find(domain).unwrap_or_else(|| unreachable!("{domain} was entered"));
        let tenure = Tenure {
            domain: domain.clone(),
            hold,
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
        if !tenure.lent.is_empty() {
            self.lent.insert(id);
        }
        self.tenures.insert(id, tenure);
        self.keys.insert(hold.key, id);
        id
    }

    /// Notes a grant; the serial of the holding it belongs to.
    pub(super) fn granted(&mut self, id: DomainId, now: Timestamp) -> Option<u64> {
        let tenure = self.tenures.get_mut(&id)?;
        tenure.grants = tenure.grants.saturating_add(1);
        tenure.out += 1;
        tenure.used_at = now;
        Some(tenure.serial)
    }

    /// A permit is no longer in the hands of this process.
    pub(super) fn returned(&mut self, id: DomainId, serial: u64) {
        if let Some(tenure) = self.tenures.get_mut(&id).filter(|tenure| tenure.serial == serial) {
            tenure.out = tenure.out.saturating_sub(1);
        }
    }

    /// An errand that went is settled in the store.
    pub(super) fn settled(&mut self, id: DomainId, serial: u64) {
        if let Some(tenure) = self.tenures.get_mut(&id).filter(|tenure| tenure.serial == serial) {
            tenure.unsettled = tenure.unsettled.saturating_sub(1);
        }
    }

    /// Something to keep of a domain changed.
    pub(super) fn touch(&mut self, domain: &Domain, keep: Keep) {
        let Some(id) = self.dispatch.paces().find(domain) else { return };
        let Some(tenure) = self.tenures.get_mut(&id) else { return };
        tenure.changes += 1;
        self.unsaved.insert(id);
        if keep == Keep::Now {
            tenure.must_save = tenure.changes;
            self.dispatch.save(id);
        }
    }

    /// Takes a domain out, unless a task of it is in flight.
    pub(super) fn part(&mut self, id: DomainId) -> Option<(Tenure, Pace, Vec<Waiter>)> {
        let (pace, waiters) = self.dispatch.release(id)?;
        let tenure = self.tenures.remove(&id)?;
        self.keys.remove(&tenure.hold.key);
        self.unsaved.remove(&id);
        self.wanted.remove(&id);
        self.lent.remove(&id);
        Some((tenure, pace, waiters))
    }

    /// What is to be kept of a domain.
    pub(super) fn to_save(&self, id: DomainId) -> Option<Saved> {
        let (tenure, pace) = (self.tenures.get(&id)?, self.dispatch.paces().pace(id)?);
        Some(saved(tenure.hold, pace))
    }
}

/// What is to be kept of a pace, under a hold.
pub(super) fn saved(hold: Hold, pace: &Pace) -> Saved {
    let (kept, steering) = to_keep(pace);
    Saved { hold, kept, steering }
}

/// What is to be kept of a pace.
pub(super) fn to_keep(pace: &Pace) -> (Kept, Steering) {
    let steering = Steering { pinned: pace.learned().pinned(), paused_until: pace.paused_until() };
    (pace.kept(), steering)
}

/// Lets go whoever may go, and plans when to look again.
pub(super) fn pump(inner: &Arc<Inner>, mut state: MutexGuard<'_, State>) {
    let mut going = Vec::new();
    let now = inner.clock.now();
    let next = loop {
        if now >= state.valid_until || inner.store_away(&state, now).is_some() {
            break None;
        }
        match state.dispatch.next(now) {
            Next::Go(grant) => {
                let serial = state.granted(grant.domain, now).unwrap_or(0);
                if matches!(grant.waiter.who, Who::Errand(_))
                    && let Some(tenure) = state.tenures.get_mut(&grant.domain)
                {
                    tenure.unsettled += 1;
                }
                let domain = state.dispatch.paces().domain(grant.domain).cloned();
                let Some(domain) = domain else { continue };
                let place = grant.place.lane().job.map(|_| grant.place);
                let (rule, crawl_delay) = (grant.waiter.rule.clone(), grant.waiter.crawl_delay);
                let owner = grant.waiter.owner;
                let permit = Permit::new(
                    inner.clone(),
                    grant.permit,
                    domain,
                    grant.domain,
                    serial,
                    place.map(|place| (place, owner)),
                    rule,
                    crawl_delay,
                );
                going.push((grant.waiter, permit));
            }
            Next::Sleep { until } => break Some(until),
            Next::Idle => break None,
        }
    };
    while let Some(place) = state.dispatch.next_recalled() {
        // Who does not listen yet asks as soon as it does.
        if let Some(listener) = state.recalls.remove(&place) {
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
    for (waiter, permit) in going {
        inner.events.tell(&Event::Granted { domain: permit.domain() });
        waiter.go(permit);
    }
}

/// The timer: looks who may go when time alone has changed something. It has no hand on the gate while it sleeps, so
/// that a gate which nobody has any more ends.
pub(super) fn keep_time(gate: &Weak<Inner>, state: &Mutex<State>, condition: &Condvar, clock: &Clock) {
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
            // Somebody waits for that, and on some clocks nothing else needs to happen before.
            Some(planned) if clock.skips_to(planned) => {}
            planned => {
                // Now and then it looks whether the gate is still there.
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

/// Why a domain that goes to another process keeps its callers.
pub(super) fn changing_hands(now: Timestamp) -> Reason {
    let until = now + Span::from_secs(1);
    Reason { limit: Limit::ChangingHands, until, asked_at: now }
}

/// Why nobody goes while the store is away. When it comes back is not known: it is worth asking again soon.
pub(super) fn store_away(away: Away, now: Timestamp) -> Reason {
    Reason { limit: Limit::StoreAway(away), until: now + Span::from_secs(1), asked_at: now }
}

//! The concurrency of one job, and how requests to hosts that hang make way for others.
//!
//! A job has `concurrency` slots. A request without progress for [`SILENT_AFTER`] moves to the *overflow*: it is still
//! waited for, but its slot is free for another request. A job never has more than [`IN_FLIGHT_FACTOR`] times its
//! concurrency in flight, and one source never more than [`SOURCE_FACTOR`] times. If silent requests take all of that
//! while untried domains wait, requests that have been silent for the job's grace period are *recalled*: their senders
//! give them up for now. The requests with the longest silence stay, because the grace period is learned from how long
//! their responses take.
//!
//! A domain that is known to hang is tried last: its requests never take a slot, only spare capacity, and they are not
//! recalled, so that each of them gets its full timeout in the end. [`crate::dispatch`] knows which domains hang;
//! nothing here depends on a particular domain.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::FixedState;

use crate::line::{Owner, Ticket};
use crate::paces::DomainId;
use crate::task::JobId;
use crate::time::{Span, Timestamp};

/// The capacity of one job, and how much of it is in use.
#[derive(Debug)]
pub(crate) struct Capacity {
    concurrency: u32,
    /// Requests that take a slot.
    slots: u32,
    /// Requests that don't take a slot, including `hanging`.
    overflow: u32,
    /// Requests to domains that are known to hang.
    hanging: u32,
    /// Requests in flight per source.
    owners: BTreeMap<Owner, u32>,
    parked: Parked,
    /// Before this time, there is nothing to do unless something happens.
    check_at: Timestamp,
    /// Requests that have been silent for this long may be recalled.
    grace: Span,
}

/// Which part of the capacity a request in flight takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// One of the job's slots.
    Slot,
    /// No slot, because it has been silent for a while.
    Overflow,
    /// No slot, because its domain is known to hang.
    Hanging,
}

/// A request of a job that is in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) job: JobId,
    pub(crate) domain: DomainId,
    pub(crate) ticket: Ticket,
    pub(crate) owner: Owner,
    pub(crate) slot_use: SlotUse,
    /// When it was granted, or last made progress.
    pub(crate) progress_at: Timestamp,
    pub(crate) recalled: bool,
}

/// The requests of all jobs that are in flight, by the arrival number of their waiter.
pub(crate) type Flights = HashMap<u64, Flight, FixedState>;

/// Domains that wait for capacity, each of them once.
#[derive(Debug, Default)]
struct Parked {
    /// Domains that aren't known to hang, by source. Sources take turns.
    fresh: BTreeMap<Owner, VecDeque<DomainId>>,
    turns: VecDeque<Owner>,
    /// Domains that are known to hang.
    hanging: VecDeque<(Owner, DomainId)>,
    known: BTreeSet<DomainId>,
}

impl Capacity {
    pub(crate) fn new(job: JobId, concurrency: u32, flights: &Flights) -> Self {
        let mut capacity = Self {
            concurrency: concurrency.max(1),
            slots: 0,
            overflow: 0,
            hanging: 0,
            owners: BTreeMap::new(),
            parked: Parked::default(),
            check_at: Timestamp::MIN,
            grace: GRACE,
        };
        // A job that is reopened may still have requests in flight.
        for flight in flights.values().filter(|flight| flight.job == job) {
            capacity.count(flight.slot_use, flight.owner);
        }
        capacity
    }

    pub(crate) fn concurrency(&self) -> u32 {
        self.concurrency
    }

    pub(crate) fn set_concurrency(&mut self, concurrency: u32) {
        self.concurrency = concurrency.max(1);
        self.check_at = Timestamp::MIN;
    }

    /// How many more requests can take a slot.
    pub(crate) fn free(&self) -> u32 {
        let whole = self.times(IN_FLIGHT_FACTOR).saturating_sub(self.in_flight());
        self.concurrency.saturating_sub(self.slots).min(whole)
    }

    /// Whether one more request may be sent.
    pub(crate) fn admits(&self, hangs: bool, owner: Owner) -> bool {
        let admitted = if hangs { self.admits_hanging() } else { self.free() > 0 };
        admitted && self.has_share(owner)
    }

    /// Whether any domain waits for capacity.
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.known.is_empty()
    }

    fn in_flight(&self) -> u32 {
        self.slots.saturating_add(self.overflow)
    }

    fn times(&self, factor: u32) -> u32 {
        self.concurrency.saturating_mul(factor)
    }

    fn admits_hanging(&self) -> bool {
        // A few are tried even while other domains wait, because there may always be others.
        let most = match self.parked.fresh.is_empty() {
            true => self.times(HANGING_FACTOR),
            false => (self.concurrency / HANGING_DIVISOR).max(1),
        };
        self.hanging < most && self.in_flight() < self.times(IN_FLIGHT_FACTOR)
    }

    fn has_share(&self, owner: Owner) -> bool {
        owner == Owner::NONE || self.owners.get(&owner).is_none_or(|taken| *taken < self.times(SOURCE_FACTOR))
    }

    /// A request was granted; returns which part of the capacity it takes.
    pub(crate) fn enter(&mut self, hangs: bool, owner: Owner, now: Timestamp) -> SlotUse {
        let slot_use = if hangs { SlotUse::Hanging } else { SlotUse::Slot };
        self.count(slot_use, owner);
        self.check_at = self.check_at.min(now + SILENT_AFTER);
        slot_use
    }

    fn count(&mut self, slot_use: SlotUse, owner: Owner) {
        match slot_use {
            SlotUse::Slot => self.slots += 1,
            SlotUse::Overflow => self.overflow += 1,
            SlotUse::Hanging => (self.overflow, self.hanging) = (self.overflow + 1, self.hanging + 1),
        }
        if owner != Owner::NONE {
            *self.owners.entry(owner).or_default() += 1;
        }
    }

    /// A request ended, with or without a response.
    pub(crate) fn leave(&mut self, flight: &Flight) {
        if flight.slot_use != SlotUse::Slot {
            self.grace = self.grace.less(self.grace.less(GRACE).split(GRACE_DECAY));
        }
        self.uncount(flight.slot_use);
        if let Some(taken) = self.owners.get_mut(&flight.owner) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                self.owners.remove(&flight.owner);
            }
        }
    }

    fn uncount(&mut self, slot_use: SlotUse) {
        match slot_use {
            SlotUse::Slot => self.slots = self.slots.saturating_sub(1),
            SlotUse::Overflow => self.overflow = self.overflow.saturating_sub(1),
            SlotUse::Hanging => {
                (self.overflow, self.hanging) =
                    (self.overflow.saturating_sub(1), self.hanging.saturating_sub(1));
            }
        }
    }

    /// A request made progress: it takes a slot again, even if that exceeds the concurrency.
    pub(crate) fn note_progress(&mut self, flight: &mut Flight, now: Timestamp) {
        if flight.slot_use != SlotUse::Slot {
            let twice = now.since(flight.progress_at).times(2);
            self.grace = self.grace + twice.less(self.grace).split(GRACE_RISE);
            self.uncount(flight.slot_use);
            self.slots += 1;
            flight.slot_use = SlotUse::Slot;
        }
        flight.progress_at = flight.progress_at.max(now);
        self.check_at = self.check_at.min(now + SILENT_AFTER);
    }

    /// When to call [`Self::check_silent`] next; `None` if no domain waits for capacity.
    pub(crate) fn check_at(&self) -> Option<Timestamp> {
        Some(self.check_at).filter(|at| self.has_parked() && *at < Timestamp::MAX)
    }

    /// Finds silent requests. Calls `silent` with the domain of each request that loses its slot now, and `recall` with
    /// each request that should be given up.
    pub(crate) fn check_silent(
        &mut self,
        job: JobId,
        flights: &mut Flights,
        now: Timestamp,
        mut silent: impl FnMut(DomainId),
        mut recall: impl FnMut(Ticket),
    ) {
        if now < self.check_at {
            return;
        }
        let mut next = Timestamp::MAX;
        for flight in
            flights.values_mut().filter(|flight| flight.job == job && flight.slot_use == SlotUse::Slot)
        {
            let late_at = flight.progress_at + SILENT_AFTER;
            if late_at > now {
                next = next.min(late_at);
                continue;
            }
            flight.slot_use = SlotUse::Overflow;
            (self.slots, self.overflow) = (self.slots.saturating_sub(1), self.overflow + 1);
            silent(flight.domain);
        }
        for arrival in self.to_recall(job, flights, now, &mut next) {
            if let Some(flight) = flights.get_mut(&arrival) {
                flight.recalled = true;
                recall(flight.ticket);
            }
        }
        self.check_at = next;
    }

    /// The requests to recall now, those with the longest silence first; lowers `next` to the time of the next recall.
    fn to_recall(&self, job: JobId, flights: &Flights, now: Timestamp, next: &mut Timestamp) -> Vec<u64> {
        if self.in_flight() < self.times(IN_FLIGHT_FACTOR) || self.parked.fresh.is_empty() {
            return Vec::new();
        }
        let mut silent: Vec<(Timestamp, u64, SlotUse)> = Vec::new();
        let mut wanted = self.concurrency.saturating_sub(self.slots) as usize;
        for (arrival, flight) in flights.iter().filter(|(_, flight)| flight.job == job) {
            if flight.recalled {
                wanted = wanted.saturating_sub(1);
            } else if flight.slot_use != SlotUse::Slot {
                silent.push((flight.progress_at, *arrival, flight.slot_use));
            }
        }
        silent.sort_unstable_by_key(|(progress_at, arrival, _)| (*progress_at, *arrival));
        // The ones with the longest silence stay, because the grace period is learned from how they end.
        let others = silent.into_iter().skip(self.concurrency as usize);
        let waiting = self.parked.known.len();
        let mut recalled = Vec::new();
        for (progress_at, arrival, _) in others.filter(|(.., slot_use)| *slot_use == SlotUse::Overflow) {
            if progress_at + self.grace > now {
                *next = (*next).min(progress_at + self.grace);
                break;
            }
            if recalled.len() == wanted.min(waiting) {
                break;
            }
            recalled.push(arrival);
        }
        recalled
    }

    /// A domain waits for capacity.
    pub(crate) fn park(&mut self, id: DomainId, hangs: bool, owner: Owner) {
        self.parked.push(id, hangs, owner);
        if self.in_flight() >= self.times(IN_FLIGHT_FACTOR) {
            // A request may have to be recalled for it.
            self.check_at = Timestamp::MIN;
        }
    }

    /// The next parked domain for which there is capacity now; `hangs` returns whether a domain is known to hang.
    pub(crate) fn unpark(&mut self, hangs: impl Fn(DomainId) -> bool) -> Option<DomainId> {
        while self.free() > 0
            && let Some((owner, id)) = self.pop_fresh()
        {
            if !hangs(id) {
                return Some(id);
            }
            self.parked.push(id, true, owner);
        }
        if !self.admits_hanging() {
            return None;
        }
        let nth = self.parked.hanging.iter().position(|(owner, _)| self.has_share(*owner))?;
        let (_, id) = self.parked.hanging.remove(nth)?;
        self.parked.known.remove(&id);
        Some(id)
    }

    /// The domain that has waited longest, of the source whose turn it is.
    fn pop_fresh(&mut self) -> Option<(Owner, DomainId)> {
        let nth = self.parked.turns.iter().position(|owner| self.has_share(*owner))?;
        let owner = self.parked.turns.remove(nth)?;
        let waiting = self.parked.fresh.get_mut(&owner)?;
        let id = waiting.pop_front()?;
        match waiting.is_empty() {
            true => drop(self.parked.fresh.remove(&owner)),
            false => self.parked.turns.push_back(owner),
        }
        self.parked.known.remove(&id);
        Some((owner, id))
    }

    /// A domain no longer waits for capacity.
    pub(crate) fn forget(&mut self, id: DomainId) {
        if !self.parked.known.remove(&id) {
            return;
        }
        self.parked.hanging.retain(|(_, parked)| *parked != id);
        self.parked.fresh.retain(|_, waiting| {
            waiting.retain(|parked| *parked != id);
            !waiting.is_empty()
        });
        let fresh = &self.parked.fresh;
        self.parked.turns.retain(|owner| fresh.contains_key(owner));
    }
}

impl Parked {
    fn push(&mut self, id: DomainId, hangs: bool, owner: Owner) {
        if !self.known.insert(id) {
            return;
        }
        if hangs {
            return self.hanging.push_back((owner, id));
        }
        let waiting = self.fresh.entry(owner).or_default();
        if waiting.is_empty() {
            self.turns.push_back(owner);
        }
        waiting.push_back(id);
    }
}

/// A request without progress for this long loses its slot to others.
pub const SILENT_AFTER: Span = Span::from_secs(1);
/// A job has at most this many times its concurrency in flight.
pub const IN_FLIGHT_FACTOR: u32 = 4;
/// One source of a job has at most this many times the job's concurrency in flight.
pub const SOURCE_FACTOR: u32 = 3;
/// If no other domains wait, requests to hanging domains may take this many times the concurrency.
const HANGING_FACTOR: u32 = 2;
/// If other domains wait, requests to hanging domains may take the concurrency divided by this.
const HANGING_DIVISOR: u32 = 4;
/// The initial and shortest grace period. It gets longer if responses of the job turn out to take longer.
const GRACE: Span = Span::from_secs(4);
/// A response after a long silence moves the grace period toward twice that silence, by one part in this many.
const GRACE_RISE: u64 = 8;
/// A request that ends without progress moves the grace period back toward [`GRACE`], by one part in this many.
const GRACE_DECAY: u64 = 16;

//! The room that the requests of one job take, and how one that hears nothing makes way for others.
//!
//! A job has `concurrency` slots. A request that nothing was heard of for [`PATIENCE`] stands *aside*: it is still
//! waited for, but its slot goes to somebody else. So that this ends somewhere, a job never has more than [`WHOLE`] times its
//! concurrency in flight, and none of its sources more than [`SHARE`] times. When all of that is taken by requests
//! nobody hears of, and hosts wait that were never tried, those that were silent for the job's grace are *recalled*:
//! whoever sent them gives them up for now. The longest silent ones stay, because their end tells how long answers
//! take here; from that the grace is learned.
//!
//! A domain that is known to hang is tried last: its requests never take a slot, only room that is left over, and
//! they are not recalled, so that every one of them gets its full time in the end. Which domains hang is known to
//! [`crate::dispatch`]; nothing here is about one domain.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::FixedState;

use crate::line::{Owner, Place};
use crate::paces::DomainId;
use crate::task::JobId;
use crate::time::{Span, Timestamp};

/// What the requests of one job take.
#[derive(Debug)]
pub(crate) struct Room {
    concurrency: u32,
    slots: u32,
    aside: u32,
    /// Those aside that were sent to domains known to hang.
    last: u32,
    /// In flight of each source.
    owners: BTreeMap<Owner, u32>,
    parked: Parked,
    /// Nothing changes by time alone before then.
    look_at: Timestamp,
    /// A request that was silent for this long may be recalled.
    grace: Span,
}

/// What a request in flight takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// A slot of its job.
    Slot,
    /// Nothing was heard of it for a while.
    Aside,
    /// It was sent to a domain that is known to hang.
    Last,
}

/// A request of a job in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) job: JobId,
    pub(crate) domain: DomainId,
    pub(crate) place: Place,
    pub(crate) owner: Owner,
    pub(crate) seat: Seat,
    /// When it was granted, or something was last heard of it.
    pub(crate) heard_at: Timestamp,
    pub(crate) recalled: bool,
}

/// The requests of all jobs in flight, by the arrival of their waiter.
pub(crate) type Flights = HashMap<u64, Flight, FixedState>;

/// Domains that wait for room; none is in here twice.
#[derive(Debug, Default)]
struct Parked {
    /// By source, each of which has a turn.
    fresh: BTreeMap<Owner, VecDeque<DomainId>>,
    turns: VecDeque<Owner>,
    /// Domains that are known to hang.
    hanging: VecDeque<(Owner, DomainId)>,
    known: BTreeSet<DomainId>,
}

impl Room {
    pub(crate) fn new(job: JobId, concurrency: u32, flights: &Flights) -> Self {
        let mut room = Self {
            concurrency: concurrency.max(1),
            slots: 0,
            aside: 0,
            last: 0,
            owners: BTreeMap::new(),
            parked: Parked::default(),
            look_at: Timestamp::MIN,
            grace: GRACE,
        };
        // A job that is reopened may still have requests on the wire.
        for flight in flights.values().filter(|flight| flight.job == job) {
            room.count(flight.seat, flight.owner);
        }
        room
    }

    pub(crate) fn concurrency(&self) -> u32 {
        self.concurrency
    }

    pub(crate) fn set_concurrency(&mut self, concurrency: u32) {
        self.concurrency = concurrency.max(1);
        self.look_at = Timestamp::MIN;
    }

    /// How many more requests could take a slot.
    pub(crate) fn free(&self) -> u32 {
        let whole = self.times(WHOLE).saturating_sub(self.in_flight());
        self.concurrency.saturating_sub(self.slots).min(whole)
    }

    /// Whether one more request may be sent.
    pub(crate) fn admits(&self, hangs: bool, owner: Owner) -> bool {
        let room = if hangs { self.has_room_for_last() } else { self.free() > 0 };
        room && self.has_share(owner)
    }

    /// Whether anybody waits for room.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.parked.known.is_empty()
    }

    fn in_flight(&self) -> u32 {
        self.slots.saturating_add(self.aside)
    }

    fn times(&self, factor: u32) -> u32 {
        self.concurrency.saturating_mul(factor)
    }

    fn has_room_for_last(&self) -> bool {
        // Where others wait a few are tried all the same: those who wait may never end.
        let most = match self.parked.fresh.is_empty() {
            true => self.times(LAST),
            false => (self.concurrency / LAST_BESIDE).max(1),
        };
        self.last < most && self.in_flight() < self.times(WHOLE)
    }

    fn has_share(&self, owner: Owner) -> bool {
        owner == Owner::NONE || self.owners.get(&owner).is_none_or(|taken| *taken < self.times(SHARE))
    }

    /// A request was granted; what it takes.
    pub(crate) fn enter(&mut self, hangs: bool, owner: Owner, now: Timestamp) -> Seat {
        let seat = if hangs { Seat::Last } else { Seat::Slot };
        self.count(seat, owner);
        self.look_at = self.look_at.min(now + PATIENCE);
        seat
    }

    fn count(&mut self, seat: Seat, owner: Owner) {
        match seat {
            Seat::Slot => self.slots += 1,
            Seat::Aside => self.aside += 1,
            Seat::Last => (self.aside, self.last) = (self.aside + 1, self.last + 1),
        }
        if owner != Owner::NONE {
            *self.owners.entry(owner).or_default() += 1;
        }
    }

    /// A request ended, answered or not, and so did its connection if it is of no more use.
    pub(crate) fn leave(&mut self, flight: &Flight) {
        if flight.seat != Seat::Slot {
            self.grace = self.grace.less(self.grace.less(GRACE).split(FORGET));
        }
        self.uncount(flight.seat);
        if let Some(taken) = self.owners.get_mut(&flight.owner) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                self.owners.remove(&flight.owner);
            }
        }
    }

    fn uncount(&mut self, seat: Seat) {
        match seat {
            Seat::Slot => self.slots = self.slots.saturating_sub(1),
            Seat::Aside => self.aside = self.aside.saturating_sub(1),
            Seat::Last => {
                (self.aside, self.last) = (self.aside.saturating_sub(1), self.last.saturating_sub(1));
            }
        }
    }

    /// Something was heard of a request: it takes a slot again, even if that is one more than there are.
    pub(crate) fn heard(&mut self, flight: &mut Flight, now: Timestamp) {
        if flight.seat != Seat::Slot {
            let twice = now.since(flight.heard_at).times(2);
            self.grace = self.grace + twice.less(self.grace).split(LEARN);
            self.uncount(flight.seat);
            self.slots += 1;
            flight.seat = Seat::Slot;
        }
        flight.heard_at = flight.heard_at.max(now);
        self.look_at = self.look_at.min(now + PATIENCE);
    }

    /// When [`Self::look`] has something to do for somebody who waits.
    pub(crate) fn look_at(&self) -> Option<Timestamp> {
        Some(self.look_at).filter(|at| self.is_wanted() && *at < Timestamp::MAX)
    }

    /// Finds requests that nothing was heard of: `aside` is told of those that leave their slot now, `recall` of those
    /// that are to be given up.
    pub(crate) fn look(
        &mut self,
        job: JobId,
        flights: &mut Flights,
        now: Timestamp,
        mut aside: impl FnMut(DomainId),
        mut recall: impl FnMut(Place),
    ) {
        if now < self.look_at {
            return;
        }
        let mut next = Timestamp::MAX;
        for flight in flights.values_mut().filter(|flight| flight.job == job && flight.seat == Seat::Slot) {
            let late_at = flight.heard_at + PATIENCE;
            if late_at > now {
                next = next.min(late_at);
                continue;
            }
            flight.seat = Seat::Aside;
            (self.slots, self.aside) = (self.slots.saturating_sub(1), self.aside + 1);
            aside(flight.domain);
        }
        for arrival in self.to_recall(job, flights, now, &mut next) {
            if let Some(flight) = flights.get_mut(&arrival) {
                flight.recalled = true;
                recall(flight.place);
            }
        }
        self.look_at = next;
    }

    /// Who is to be recalled now, the longest silent first; `next` is moved to when somebody will be.
    fn to_recall(&self, job: JobId, flights: &Flights, now: Timestamp, next: &mut Timestamp) -> Vec<u64> {
        if self.in_flight() < self.times(WHOLE) || self.parked.fresh.is_empty() {
            return Vec::new();
        }
        let mut silent: Vec<(Timestamp, u64, Seat)> = Vec::new();
        let mut wanted = self.concurrency.saturating_sub(self.slots) as usize;
        for (arrival, flight) in flights.iter().filter(|(_, flight)| flight.job == job) {
            if flight.recalled {
                wanted = wanted.saturating_sub(1);
            } else if flight.seat != Seat::Slot {
                silent.push((flight.heard_at, *arrival, flight.seat));
            }
        }
        silent.sort_unstable_by_key(|(heard_at, arrival, _)| (*heard_at, *arrival));
        // The longest silent ones stay: how they end is what the grace is learned from.
        let others = silent.into_iter().skip(self.concurrency as usize);
        let waiting = self.parked.known.len();
        let mut recalled = Vec::new();
        for (heard_at, arrival, _) in others.filter(|(.., seat)| *seat == Seat::Aside) {
            if heard_at + self.grace > now {
                *next = (*next).min(heard_at + self.grace);
                break;
            }
            if recalled.len() == wanted.min(waiting) {
                break;
            }
            recalled.push(arrival);
        }
        recalled
    }

    /// A domain waits for room.
    pub(crate) fn park(&mut self, id: DomainId, hangs: bool, owner: Owner) {
        self.parked.push(id, hangs, owner);
        if self.in_flight() >= self.times(WHOLE) {
            // Somebody may have to be recalled for it.
            self.look_at = Timestamp::MIN;
        }
    }

    /// A domain that waited for room, where there is some now; `hangs` tells which are to be tried last.
    pub(crate) fn unpark(&mut self, hangs: impl Fn(DomainId) -> bool) -> Option<DomainId> {
        while self.free() > 0
            && let Some((owner, id)) = self.pop_fresh()
        {
            if !hangs(id) {
                return Some(id);
            }
            self.parked.push(id, true, owner);
        }
        if !self.has_room_for_last() {
            return None;
        }
        let nth = self.parked.hanging.iter().position(|(owner, _)| self.has_share(*owner))?;
        let (_, id) = self.parked.hanging.remove(nth)?;
        self.parked.known.remove(&id);
        Some(id)
    }

    /// The longest waiting of whose turn it is.
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

    /// A domain does not wait any more.
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

/// A request that nothing was heard of for this long gives its slot to others.
pub const PATIENCE: Span = Span::from_secs(1);
/// So many times its concurrency a job has in flight, at most,
pub const WHOLE: u32 = 4;
/// and so many times of one source.
pub const SHARE: u32 = 3;
/// So many times its concurrency are tried at once where a domain is known to hang, if nobody else waits;
const LAST: u32 = 2;
/// else this part of it.
const LAST_BESIDE: u32 = 4;
/// A request is silent for this long before it is recalled, unless answers of the job are known to take longer.
const GRACE: Span = Span::from_secs(4);
/// An answer after a long silence moves the grace by this part toward twice that silence,
const LEARN: u64 = 8;
/// and one that never came moves it back by this part.
const FORGET: u64 = 16;

//! Who waits for one domain, and whose turn it is (B3, B12).
//!
//! Waiters of one intent are served in the order in which they are ready, then in which they came; a retry
//! comes back by the time it is ready and so stands behind those who waited before (B41). Waiters stand in
//! lanes, one for each job and intent, so that a job that may not send right now is passed over at the cost of
//! one look, however many of its tasks wait. Nobody here sleeps: [`Line::turn`] tells when to look again.
//! The times of a line are those of a clock that does not step back, as the engine's does not (B7); a pace
//! looks after itself.

use std::collections::BTreeMap;

use crate::decision::{Decision, Limit, Permit, Reason};
use crate::intent::Intent;
use crate::pace::{Pace, Terms};
use crate::task::JobId;
use crate::time::{Span, Timestamp};

/// What waits in a line.
pub trait Waiter {
    /// What its host is fetched on.
    fn terms(&self) -> Terms<'_>;

    /// On whose behalf it waits: those of one job take turns when they wait for room.
    fn owner(&self) -> Owner {
        Owner::NONE
    }
}

/// On whose behalf a task of a job waits: the number of its source, or nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

impl Owner {
    /// The tasks of a list belong to nobody in particular.
    pub const NONE: Self = Self(0);
}

/// Which waiters belong together: those of one job and intent. Callers of the gate have no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The job, if it is one's.
    pub job: Option<JobId>,
    /// What its requests are for.
    pub intent: Intent,
}

/// A place in line, to give it up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    lane: Lane,
    ready_at: Timestamp,
    arrival: u64,
}

/// Whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<W> {
    /// This waiter goes; its slot is charged.
    Go {
        /// Who goes.
        waiter: W,
        /// From which place.
        place: Place,
        /// Its permit.
        permit: Permit,
    },
    /// Nobody yet.
    Wait {
        /// The first moment at which somebody may go, unless something is recorded or a lane opens before;
        /// `None` when that is all there is to wait for.
        until: Option<Timestamp>,
        /// What the first in line waits for; `None` when nobody is ready.
        reason: Option<Reason>,
        /// Lanes with somebody ready that may not send now, and who stands first in each.
        closed: Vec<(Lane, Owner)>,
    },
    /// Nobody waits.
    Empty,
}

/// The waiters of a lane, by the time they are ready and the order in which they came.
type Waiting<W> = BTreeMap<(Timestamp, u64), W>;

/// Who waits for one domain.
#[derive(Debug)]
pub struct Line<W> {
    lanes: Vec<(Lane, Waiting<W>)>,
}

impl Place {
    /// The lane it is in.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The number of its waiter among all that ever joined.
    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self { lanes: Vec::new() }
    }
}

impl<W: Waiter> Line<W> {
    /// Joins the line; the waiter may go from `ready_at` on. Arrivals are numbered by whoever owns the line,
    /// each number once: a place stays unique when an empty line is dropped and made anew.
    pub fn join(&mut self, arrival: u64, lane: Lane, ready_at: Timestamp, waiter: W) -> Place {
        let place = Place { lane, ready_at, arrival };
        self.rejoin(place, waiter);
        place
    }

    /// Takes a place again that was left: a waiter that could not go after all keeps its turn.
    pub fn rejoin(&mut self, place: Place, waiter: W) {
        let Place { lane, ready_at, arrival } = place;
        let index = self.lanes.iter().position(|(known, _)| *known == lane).unwrap_or_else(|| {
            self.lanes.push((lane, BTreeMap::new()));
            self.lanes.len() - 1
        });
        self.lanes[index].1.insert((ready_at, arrival), waiter);
    }

    /// Gives a place up; `None` when the waiter has gone already.
    pub fn leave(&mut self, place: &Place) -> Option<W> {
        let index = self.lanes.iter().position(|(lane, _)| *lane == place.lane)?;
        let waiter = self.lanes[index].1.remove(&(place.ready_at, place.arrival));
        self.drop_if_empty(index);
        waiter
    }

    /// Sends everybody away.
    pub fn leave_all(&mut self) -> Vec<W> {
        self.lanes.drain(..).flat_map(|(_, waiting)| waiting.into_values()).collect()
    }

    /// Sends everybody of a job away.
    pub fn leave_job(&mut self, job: JobId) -> Vec<W> {
        let (gone, stay): (Vec<_>, Vec<_>) =
            self.lanes.drain(..).partition(|(lane, _)| lane.job == Some(job));
        self.lanes = stay;
        gone.into_iter().flat_map(|(_, waiting)| waiting.into_values()).collect()
    }

    /// Lets the next waiter go if one may; `open` tells which lanes may send now.
    pub fn turn(
        &mut self,
        pace: &mut Pace,
        now: Timestamp,
        open: impl Fn(&Lane, &W, &Pace) -> bool,
    ) -> Turn<W> {
        let mut closed = Vec::new();
        let mut later: Option<Timestamp> = None;
        // The first ready waiter of each intent: nobody overtakes within an intent, nobody waits for another.
        let mut firsts: [Option<(Timestamp, u64, usize)>; 3] = [None; 3];
        for (index, (lane, waiting)) in self.lanes.iter().enumerate() {
            let Some((&(ready_at, arrival), waiter)) = waiting.first_key_value() else { continue };
            if ready_at > now {
                later = Some(later.map_or(ready_at, |known| known.min(ready_at)));
            } else if !open(lane, waiter, pace) {
                closed.push((*lane, waiter.owner()));
            } else {
                let first = &mut firsts[lane.intent.index()];
                if first.is_none_or(|(known_at, known, _)| (ready_at, arrival) < (known_at, known)) {
                    *first = Some((ready_at, arrival, index));
                }
            }
        }
        firsts
            .sort_unstable_by_key(|first| first.map_or((Timestamp::MAX, u64::MAX), |(at, nth, _)| (at, nth)));
        let mut binding: Option<Reason> = None;
        for (ready_at, arrival, index) in firsts.into_iter().flatten() {
            let (lane, waiting) = &mut self.lanes[index];
            let lane = *lane;
            let Some(waiter) = waiting.get(&(ready_at, arrival)) else { continue };
            match pace.admit(waiter.terms(), lane.intent, now) {
                Decision::Proceed(permit) => {
                    let Some(waiter) = waiting.remove(&(ready_at, arrival)) else { continue };
                    self.drop_if_empty(index);
                    return Turn::Go { waiter, place: Place { lane, ready_at, arrival }, permit };
                }
                Decision::Wait { reason, .. } | Decision::Refuse(reason) => {
                    if binding.is_none_or(|known| reason.until < known.until) {
                        binding = Some(reason);
                    }
                }
            }
        }
        if self.lanes.is_empty() {
            return Turn::Empty;
        }
        let until = binding.map(|reason| reason.until).into_iter().chain(later).min();
        Turn::Wait { until, reason: binding, closed }
    }

    /// May somebody who is not in line go now? Not before those who wait for the same slot (B3): those of the
    /// same intent, and those of another that are not kept by that intent's own limits. Lanes that are not
    /// `open` keep nobody.
    pub fn check(
        &self,
        pace: &mut Pace,
        terms: Terms<'_>,
        intent: Intent,
        now: Timestamp,
        open: impl Fn(&Lane, &W, &Pace) -> bool,
    ) -> Decision {
        match self.before(pace, terms, intent, now, open) {
            Some(reason) => Decision::Wait { until: reason.until, reason },
            None => pace.admit(terms, intent, now),
        }
    }

    /// Why somebody who is not in line would have to wait for those who are; `None` when nobody comes before.
    pub fn before(
        &self,
        pace: &Pace,
        terms: Terms<'_>,
        intent: Intent,
        now: Timestamp,
        open: impl Fn(&Lane, &W, &Pace) -> bool,
    ) -> Option<Reason> {
        let mut ahead = 0;
        for (lane, waiting) in &self.lanes {
            let Some((&(ready_at, _), first)) = waiting.first_key_value() else { continue };
            if ready_at > now || !open(lane, first, pace) {
                continue;
            }
            let reason = pace.peek(first.terms(), lane.intent, now).map(|reason| reason.limit);
            let elsewhere = matches!(reason, Some(Limit::IntentDelay(..) | Limit::IntentBurst(..)));
            if lane.intent == intent || !elsewhere {
                ahead += ready(waiting, now);
            }
        }
        (ahead > 0).then(|| {
            let turns = pace.spacing(terms).times(ahead as u64);
            let until = (pace.retry_at(terms, intent, now) + turns).max(now + SOON);
            Reason { limit: Limit::Line { ahead }, until, asked_at: now }
        })
    }

    /// How many are in line, ready or not.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|(_, waiting)| waiting.len()).sum()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    fn drop_if_empty(&mut self, index: usize) {
        if self.lanes[index].1.is_empty() {
            self.lanes.swap_remove(index);
        }
    }
}

/// How many of a lane are ready. A retry that comes back in an hour keeps nobody now.
fn ready<W>(waiting: &Waiting<W>, now: Timestamp) -> usize {
    match waiting.last_key_value() {
        // As nearly always: nobody needs to be counted.
        Some(((last, _), _)) if *last <= now => waiting.len(),
        _ => waiting.range(..=(now, u64::MAX)).count(),
    }
}

/// Somebody behind a line is told to come back no sooner than this.
const SOON: Span = Span::from_millis(1);

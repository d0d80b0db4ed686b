//! The waiting line of one domain, and whose turn it is.
//!
//! Waiters of one intent are served in the order in which they became ready, and then in the order in which they
//! joined. A retry joins with the time at which it is ready, so it is behind those that were ready before. There is one
//! lane per job and intent, so that a job that may not send right now is skipped with one check, however many of its
//! tasks wait. Nothing here sleeps: [`Line::turn`] returns when to check again. A line needs a clock that never steps
//! back, such as the engine's; only a pace handles clock steps.

use crate::decision::{Decision, Limit, Permit, Reason};
use crate::intent::Intent;
use crate::pace::{Pace, Terms};
use crate::task::JobId;
use crate::time::{Span, Timestamp};
use crate::waiters::Waiters;

/// Something that waits in a line: a task, or a caller.
pub trait Waiter {
    /// The limits that apply to its host.
    fn terms(&self) -> Terms<'_>;

    /// The source it belongs to: sources of one job take turns when they wait for capacity.
    fn owner(&self) -> Owner {
        Owner::NONE
    }
}

/// The source that a task of a job belongs to, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

impl Owner {
    /// The task doesn't belong to a source, as in a job with a list of URLs.
    pub const NONE: Self = Self(0);
}

/// Waiters that belong together: those with the same job and intent. Direct callers of the gate have no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The job, if any.
    pub job: Option<JobId>,
    /// What its requests are for.
    pub intent: Intent,
}

/// Identifies a waiter and its place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    lane: Lane,
    ready_at: Timestamp,
    arrival: u64,
}

/// Whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<W> {
    /// This waiter goes; its slot has been charged.
    Go {
        /// The waiter.
        waiter: W,
        /// Its ticket, to rejoin the line in the same place.
        ticket: Ticket,
        /// Its permit.
        permit: Permit,
    },
    /// Nobody may go yet.
    Wait {
        /// The earliest time at which a waiter may go, unless something is recorded or a lane opens before that; `None`
        /// if only such an event can help.
        until: Option<Timestamp>,
        /// What delays the first in line; `None` if nobody is ready.
        reason: Option<Reason>,
        /// Lanes with a ready waiter that may not send now, with the owner of the first waiter in each.
        closed: Vec<(Lane, Owner)>,
    },
    /// Nobody waits.
    Empty,
}

/// The waiting line of one domain.
#[derive(Debug)]
pub struct Line<W> {
    lanes: Vec<(Lane, Waiters<W>)>,
}

impl Ticket {
    /// The lane of the waiter.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// From when on the waiter could go, as far as it is concerned.
    pub fn ready_at(&self) -> Timestamp {
        self.ready_at
    }

    /// The number of the waiter among all that ever joined.
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
    /// Adds a waiter that may go from `ready_at` on. The owner of the line passes a new `arrival` number each time, so
    /// that tickets stay unique when an empty line is dropped and created again.
    pub fn join(&mut self, arrival: u64, lane: Lane, ready_at: Timestamp, waiter: W) -> Ticket {
        let ticket = Ticket { lane, ready_at, arrival };
        self.rejoin(ticket, waiter);
        ticket
    }

    /// Puts a waiter that could not go after all back into its old place.
    pub fn rejoin(&mut self, ticket: Ticket, waiter: W) {
        let Ticket { lane, ready_at, arrival } = ticket;
        let index = self.lanes.iter().position(|(known, _)| *known == lane).unwrap_or_else(|| {
            // Most lines have one lane, and there may be a million lines.
            self.lanes.reserve_exact(1);
            self.lanes.push((lane, Waiters::default()));
            self.lanes.len() - 1
        });
        self.lanes[index].1.insert((ready_at, arrival), waiter);
    }

    /// Removes a waiter; `None` if it has already gone.
    pub fn leave(&mut self, ticket: &Ticket) -> Option<W> {
        let index = self.lanes.iter().position(|(lane, _)| *lane == ticket.lane)?;
        let waiter = self.lanes[index].1.remove((ticket.ready_at, ticket.arrival));
        self.drop_if_empty(index);
        waiter
    }

    /// Removes all waiters.
    pub fn leave_all(&mut self) -> Vec<W> {
        self.lanes.drain(..).flat_map(|(_, waiting)| waiting.into_values()).collect()
    }

    /// Removes all waiters of a job.
    pub fn leave_job(&mut self, job: JobId) -> Vec<W> {
        let (gone, stay): (Vec<_>, Vec<_>) =
            self.lanes.drain(..).partition(|(lane, _)| lane.job == Some(job));
        self.lanes = stay;
        gone.into_iter().flat_map(|(_, waiting)| waiting.into_values()).collect()
    }

    /// Lets the next waiter go, if one may; `open` returns whether a lane may send now.
    pub fn turn(
        &mut self,
        pace: &mut Pace,
        now: Timestamp,
        open: impl Fn(&Lane, &W, &Pace) -> bool,
    ) -> Turn<W> {
        let mut closed = Vec::new();
        let mut later: Option<Timestamp> = None;
        // The first ready waiter of each intent. Nobody overtakes within an intent, and intents don't wait for each
        // other.
        let mut firsts: [Option<(Timestamp, u64, usize)>; 3] = [None; 3];
        for (index, (lane, waiting)) in self.lanes.iter().enumerate() {
            let Some(((ready_at, arrival), waiter)) = waiting.first() else { continue };
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
            let Some((_, waiter)) = waiting.first() else { continue };
            match pace.admit(waiter.terms(), lane.intent, now) {
                Decision::Proceed(permit) => {
                    let Some(waiter) = waiting.remove((ready_at, arrival)) else { continue };
                    self.drop_if_empty(index);
                    return Turn::Go { waiter, ticket: Ticket { lane, ready_at, arrival }, permit };
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

    /// May a caller that isn't in line go now? Not before waiters for the same slot: those with the same intent, and
    /// those with another intent unless they are delayed by limits of that intent. Lanes that aren't `open` don't
    /// count.
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

    /// Why a caller that isn't in line has to wait for those who are; `None` if nobody is ahead.
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
            let Some(((ready_at, _), first)) = waiting.first() else { continue };
            if ready_at > now || !open(lane, first, pace) {
                continue;
            }
            let reason = pace.peek(first.terms(), lane.intent, now).map(|reason| reason.limit);
            let own_limit = matches!(reason, Some(Limit::IntentDelay(..) | Limit::IntentBurst(..)));
            if lane.intent == intent || !own_limit {
                ahead += waiting.ready(now);
            }
        }
        (ahead > 0).then(|| {
            let turns = pace.spacing(terms).times(ahead as u64);
            let until = (pace.retry_at(terms, intent, now) + turns).max(now + SOON);
            Reason { limit: Limit::Line { ahead }, until, asked_at: now }
        })
    }

    /// Number of waiters, ready or not.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|(_, waiting)| waiting.len()).sum()
    }

    /// Whether a request of the job waits.
    pub fn has_job(&self, job: JobId) -> bool {
        self.lanes.iter().any(|(lane, _)| lane.job == Some(job))
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    fn drop_if_empty(&mut self, index: usize) {
        if self.lanes[index].1.is_empty() {
            self.lanes.swap_remove(index);
        }
    }
}

/// The shortest wait for a caller behind a line.
const SOON: Span = Span::from_millis(1);

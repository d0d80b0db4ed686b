//! What bracket learning remembers about a domain, and the same as lists, for its encoding.

use super::estimate::Anchor;
use crate::time::{Span, Timestamp};

/// What bracket learning remembers about one domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bracket {
    pub(crate) phase: Phase,
    /// The delay between requests.
    pub(crate) delay: Span,
    /// The delay to return to if the running probe fails.
    pub(crate) safe: Span,
    /// The longest delay that was refused lately, or zero.
    pub(crate) failed: Span,
    /// The delay that the latest estimate of the limit allows, or zero.
    pub(crate) limit: Span,
    /// The delay before the limit fell, or zero: worth trying again.
    pub(crate) former: Span,
    /// When the limit fell.
    pub(crate) fell_at: Timestamp,
    /// When the former limit is tried again.
    pub(crate) former_at: Timestamp,
    /// The latest refusal of which more is known than that it was one.
    pub(crate) anchor: Anchor,
    /// The start of the first request of the current step, and how many were accepted in it.
    pub(crate) step_at: Timestamp,
    pub(crate) step_accepted: u32,
    /// The first refusal of the current outage, and how many there were; none if requests are accepted.
    pub(crate) closed_at: Timestamp,
    pub(crate) polls: u16,
    /// The longest outage lately, if there was one that lasted for more than a few requests.
    pub(crate) outage: Span,
    /// How long the site's window seems to be; zero if it doesn't seem to have one.
    pub(crate) window: Span,
    /// The delay that the latest whole cycle between two long outages allowed.
    pub(crate) cycle_limit: Span,
    /// The first request, or the first one after the latest long outage.
    pub(crate) cycle: Anchor,
    /// How many refusals were not the consequence of an earlier one.
    pub(crate) refusals: u32,
    /// How many requests the site accepts at once.
    pub(crate) burst: u32,
    /// How many requests have to be accepted until the next probe.
    pub(crate) probe_every: u32,
    /// By how much the next probe is faster, in thousandths.
    pub(crate) probe_step: u16,
    /// Refusals while the limit seemed known.
    pub(crate) strikes: u16,
    /// The most requests in flight, or zero for no limit of its own.
    pub(crate) in_flight: u16,
    /// The most requests that were in flight when one was accepted since the latest refusal.
    pub(crate) in_flight_seen: u16,
    /// How many were accepted since.
    pub(crate) in_flight_sample: u16,
    /// How many were accepted while the limit of requests in flight was reached.
    pub(crate) in_flight_full: u16,
}

/// What bracket learning is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// Nothing was refused so far: goes faster and faster.
    #[default]
    Start,
    /// Something was refused, but the limit isn't known yet.
    Search,
    /// The limit is known.
    Locked,
    /// The limit is known, and a faster pace is tried.
    Probe,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::Start, Self::Search, Self::Locked, Self::Probe];
}

/// The state as lists, for its encoding. Their order must never change.
impl Bracket {
    pub(crate) fn spans(&self) -> [Span; 8] {
        let Self { delay, safe, failed, limit, former, outage, window, cycle_limit, .. } = *self;
        [delay, safe, failed, limit, former, outage, window, cycle_limit]
    }

    pub(crate) fn spans_mut(&mut self) -> [&mut Span; 8] {
        let Self { delay, safe, failed, limit, former, outage, window, cycle_limit, .. } = self;
        [delay, safe, failed, limit, former, outage, window, cycle_limit]
    }

    pub(crate) fn times(&self) -> [Timestamp; 6] {
        [self.fell_at, self.former_at, self.step_at, self.closed_at, self.anchor.at, self.cycle.at]
    }

    pub(crate) fn times_mut(&mut self) -> [&mut Timestamp; 6] {
        let Self { fell_at, former_at, step_at, closed_at, anchor, cycle, .. } = self;
        [fell_at, former_at, step_at, closed_at, &mut anchor.at, &mut cycle.at]
    }

    pub(crate) fn numbers(&self) -> [u32; 15] {
        [
            self.anchor.id,
            self.anchor.refused,
            self.cycle.id,
            self.cycle.refused,
            self.step_accepted,
            self.refusals,
            self.burst,
            self.probe_every,
            self.polls.into(),
            self.probe_step.into(),
            self.strikes.into(),
            self.in_flight.into(),
            self.in_flight_seen.into(),
            self.in_flight_sample.into(),
            self.in_flight_full.into(),
        ]
    }

    /// `None` if a number is too large for its field.
    pub(crate) fn with_numbers(self, numbers: [u32; 15]) -> Option<Self> {
        let [
            anchor,
            anchor_refused,
            cycle,
            cycle_refused,
            step_accepted,
            refusals,
            burst,
            probe_every,
            small @ ..,
        ] = numbers;
        let mut halves = [0_u16; 7];
        for (half, number) in halves.iter_mut().zip(small) {
            *half = u16::try_from(number).ok()?;
        }
        let [polls, probe_step, strikes, in_flight, in_flight_seen, in_flight_sample, in_flight_full] =
            halves;
        Some(Self {
            anchor: Anchor { at: self.anchor.at, id: anchor, refused: anchor_refused },
            cycle: Anchor { at: self.cycle.at, id: cycle, refused: cycle_refused },
            step_accepted,
            refusals,
            burst,
            probe_every,
            polls,
            probe_step,
            strikes,
            in_flight,
            in_flight_seen,
            in_flight_sample,
            in_flight_full,
            ..self
        })
    }
}

//! The arithmetic of bracket learning: rates, what lies between two refusals, the size of a burst.
//!
//! Only basic arithmetic is used, so that the same responses give the same delays on every machine.

use crate::learn::Sent;
use crate::time::{Span, Timestamp};

/// Requests per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Rate(f64);

/// A refusal from which accepted requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// When the refused request started.
    pub(crate) at: Timestamp,
    /// The number of its permit.
    pub(crate) id: u32,
    /// How many requests after it were refused too.
    pub(crate) refused: u32,
}

/// What a site accepted between two refusals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) accepted: u32,
    pub(super) span: Span,
}

impl Rate {
    pub(super) fn of(delay: Span) -> Self {
        Self(1e6 / (delay.as_micros().max(1) as f64))
    }

    /// The delay between two requests, rounded up.
    pub(super) fn delay(self) -> Span {
        Span::from_micros((1e6 / self.0).ceil() as u64)
    }

    pub(super) fn times(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }

    pub(super) fn at_most(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    pub(super) fn at_least(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    pub(super) fn between(self, other: Self) -> Self {
        Self((self.0 + other.0) / 2.0)
    }

    /// How many times as fast as `other` this is.
    pub(super) fn over(self, other: Self) -> f64 {
        self.0 / other.0
    }

    /// How many requests this is in a span.
    pub(super) fn in_span(self, span: Span) -> u32 {
        (self.0 * span.as_secs_f64()) as u32
    }
}

impl Default for Anchor {
    fn default() -> Self {
        Self { at: Timestamp::NEVER, id: 0, refused: 0 }
    }
}

impl Anchor {
    pub(super) fn at(sent: Sent) -> Self {
        Self { at: sent.started_at, id: sent.id, refused: 0 }
    }

    /// Another request was refused; one that started before the anchor doesn't count.
    pub(super) fn refused(&mut self, id: u32) {
        if id.wrapping_sub(self.id) < u32::MAX / 2 {
            self.refused = self.refused.saturating_add(1);
        }
    }

    /// What was accepted since, up to the refused request `sent`; `None` without an anchor.
    pub(super) fn until(&self, sent: Sent) -> Option<Seen> {
        self.at.ever()?;
        let between = sent.id.wrapping_sub(self.id).saturating_sub(1);
        let span = sent.started_at.since(self.at);
        (!span.is_zero()).then_some(Seen { accepted: between.saturating_sub(self.refused), span })
    }
}

impl Seen {
    /// The limit, if this was accepted between two moments at which nothing was left.
    pub(super) fn rate(&self) -> Rate {
        Rate(f64::from(self.accepted) / self.span.as_secs_f64())
    }

    /// The highest rate that the limit can be.
    pub(super) fn most(&self) -> Rate {
        Rate((f64::from(self.accepted) + 1.0) / self.span.as_secs_f64())
    }
}

/// How many requests the site accepted at once, if the pace grew in steps up to `failed` while the limit was `limit`.
pub(super) fn burst_of_ramp(failed: Rate, limit: Rate) -> u32 {
    let (mut rate, mut burst) = (failed.0, 1.0);
    while rate > limit.0 && burst < 10_000.0 {
        burst += (2.0 * rate).max(8.0) * (1.0 - limit.0 / rate);
        rate /= super::START_FACTOR;
    }
    burst as u32
}

/// By how much a probe should be faster, in thousandths, if the limit was estimated from this many requests.
pub(super) fn uncertainty(accepted: u32) -> u16 {
    (2_000 / accepted.max(1)).clamp(30, 100) as u16
}

/// How many requests show that a pace `faster` times as fast isn't just a burst.
pub(super) fn probe_length(burst: u32, faster: f64) -> u32 {
    let share = (1.0 - 1.0 / faster).max(0.005);
    15 + (1.3 * f64::from(burst) / share) as u32
}

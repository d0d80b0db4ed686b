//! The delay learned from responses: how far apart requests to a domain have to be when no header or rule says so.
//!
//! This module is the interface to learning algorithms. A learner has parameters (in [`Learning`], part of the rule),
//! state (in [`Learned`], part of the pace) and two events that may change the state: a success and a 429.
//! [`crate::pace`] decides which responses count, at most one per penalty episode, and handles holds.

mod bracket;
mod linear;

pub use bracket::BracketRule;
pub(crate) use bracket::{Bracket, Limits, Phase};
pub use linear::LinearRule;

use crate::time::{Span, Timestamp};

/// How the delay is learned, with parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learning {
    /// Nothing is learned.
    Off,
    /// One step up after a 429, one step down after a run of successes.
    Linear(LinearRule),
    /// A pace between one that works and one that was refused.
    Bracket(BracketRule),
}

/// What was learned about one domain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    pub(crate) delay: Span,
    /// How far a probe may go; boxed because few domains ever have a probe.
    pub(crate) bounds: Option<Box<Bounds>>,
    pub(crate) success_streak: u16,
    pub(crate) error_streak: u16,
    /// Number of the latest probe, so that a request can carry the probe in which it started.
    pub(crate) probe: u16,
    pub(crate) pinned: bool,
    /// Whether this is newer than what the store has.
    pub(crate) touched: bool,
}

/// How far a probe may go, and the delay to return to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) floor: Span,
    /// When a failed probe last confirmed the floor.
    pub(crate) floor_at: Timestamp,
    /// The delay to return to if the running probe fails; zero if no probe is running.
    pub(crate) probe_from: Span,
}

/// A change of the learned delay or its floor, to be logged and saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayChange {
    /// The old delay.
    pub from: Span,
    /// The new delay.
    pub to: Span,
    /// The new floor.
    pub floor: Span,
}

/// What a learner has to know about a request to judge its response, even a late one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The spacing that applied when it started.
    pub(crate) spacing: Span,
    /// With linear learning, the number of the latest probe when it started; with bracket learning, how many requests
    /// were in flight with it.
    pub(crate) probe: u16,
    /// When it started.
    pub(crate) started_at: Timestamp,
    /// The number of its permit.
    pub(crate) id: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { floor: Span::ZERO, floor_at: Timestamp::NEVER, probe_from: Span::ZERO }
    }
}

impl Learned {
    /// The learned delay; zero if nothing was learned.
    pub fn delay(&self) -> Span {
        self.delay
    }

    /// The lowest delay known to be safe; zero if none is known.
    pub fn floor(&self) -> Span {
        self.bounds().floor
    }

    /// When a failed probe last confirmed the floor.
    pub fn floor_confirmed_at(&self) -> Option<Timestamp> {
        self.bounds().floor_at.ever()
    }

    /// Consecutive successes since the last change or failure.
    pub fn success_streak(&self) -> u32 {
        self.success_streak.into()
    }

    /// Consecutive 429s.
    pub fn error_streak(&self) -> u32 {
        self.error_streak.into()
    }

    /// The delay to return to if the running probe fails; `None` if no probe is running.
    pub fn probing_from(&self) -> Option<Span> {
        let from = self.bounds.as_ref()?.probe_from;
        (!from.is_zero()).then_some(from)
    }

    /// Whether an operator pinned it, so that responses don't change it.
    pub fn pinned(&self) -> bool {
        self.pinned
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds.as_deref().copied().unwrap_or_default()
    }

    /// Sets the bounds; default bounds aren't stored.
    pub(crate) fn bound(&mut self, bounds: Bounds) {
        self.bounds = (bounds != Bounds::default()).then(|| Box::new(bounds));
    }

    /// Ends the running probe, if any.
    pub(crate) fn end_probe(&mut self) {
        if let Some(bounds) = &self.bounds {
            self.bound(Bounds { probe_from: Span::ZERO, ..**bounds });
        }
    }

    /// Whether the request started in the running probe.
    fn in_probe(&self, sent: Sent) -> bool {
        self.probing_from().is_some() && sent.probe == self.probe
    }

    /// Runs `change` and returns what it changed.
    pub(crate) fn changing(&mut self, change: impl FnOnce(&mut Self)) -> Option<DelayChange> {
        let before = (self.delay, self.floor());
        change(self);
        let after = (self.delay, self.floor());
        self.touched |= before != after;
        (before != after).then_some(DelayChange { from: before.0, to: after.0, floor: after.1 })
    }
}

impl Learning {
    /// The delay that learning starts from, unless the rule's or robots.txt's delay is longer.
    pub(crate) fn base(&self) -> Span {
        match self {
            Self::Off | Self::Bracket(_) => Span::ZERO,
            Self::Linear(rule) => rule.base,
        }
    }

    /// The longest delay that may be learned with this base.
    pub(crate) fn most(&self, base: Span) -> Span {
        match self {
            Self::Off => Span::MAX,
            Self::Linear(LinearRule { ceiling, .. }) | Self::Bracket(BracketRule { ceiling, .. }) => {
                (*ceiling).max(base)
            }
        }
    }

    /// A request succeeded that started after the latest penalty. The base is computed only if a probe may start, which
    /// is rare.
    #[inline]
    pub(crate) fn succeeded(
        &self,
        learned: &mut Learned,
        sent: Sent,
        base: impl FnOnce() -> Span,
        now: Timestamp,
    ) -> Option<DelayChange> {
        if learned.probing_from().is_some() && !learned.in_probe(sent) {
            return None;
        }
        learned.success_streak = learned.success_streak.saturating_add(1);
        match self {
            Self::Linear(rule) if rule.may_probe(learned) => {
                learned.changing(|learned| rule.succeeded(learned, base(), now))
            }
            Self::Linear(_) | Self::Bracket(_) | Self::Off => None,
        }
    }

    /// A request was rate limited that started after the latest penalty.
    pub(crate) fn limited(
        &self,
        learned: &mut Learned,
        sent: Sent,
        base: Span,
        now: Timestamp,
    ) -> Option<DelayChange> {
        learned.error_streak = learned.error_streak.saturating_add(1);
        match self {
            Self::Off | Self::Bracket(_) => None,
            Self::Linear(_) if learned.pinned => None,
            Self::Linear(rule) => learned.changing(|learned| rule.limited(learned, sent, base, now)),
        }
    }

    /// The delay to use for a stored or given delay and floor: at least the floor, between base and ceiling.
    pub(crate) fn limit(&self, delay: Span, floor: Span, base: Span) -> Span {
        let delay = delay.max(floor);
        match self {
            _ if delay.is_zero() => Span::ZERO,
            Self::Off => delay,
            Self::Linear(_) | Self::Bracket(_) => delay.clamp(base, self.most(base)),
        }
    }
}

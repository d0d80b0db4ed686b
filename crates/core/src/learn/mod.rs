//! The delay learnt from answers: how long a domain needs between starts, beyond what anyone told us.
//!
//! This module is the seam. A learner has parameters (in [`Learning`], part of the rule), state (in
//! [`Learned`], part of the pace) and two moments at which it may change that state: a success and a rate
//! limit. Which answers reach it, and once per penalty episode only, is decided in [`crate::pace`]; holds are
//! none of its business.

mod linear;

pub use linear::LinearRule;

use crate::time::{Span, Timestamp};

/// Which rule learns, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learning {
    /// Nothing is learnt.
    Off,
    /// One step up on a 429, one step down after a run of successes.
    Linear(LinearRule),
}

/// What was learnt about one domain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    pub(crate) delay: Span,
    /// How far a probe may go; few domains ever have one.
    pub(crate) bounds: Option<Box<Bounds>>,
    pub(crate) success_streak: u16,
    pub(crate) error_streak: u16,
    /// Counts probes, so that a request can say in which one it started.
    pub(crate) probe: u16,
    pub(crate) pinned: bool,
    /// Whether anything newer than a stored row is known (B36).
    pub(crate) touched: bool,
}

/// How far a probe may go, and where it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) floor: Span,
    /// When a broken probe last confirmed the floor.
    pub(crate) floor_at: Timestamp,
    /// While a probe runs, the delay to go back to; zero when none runs.
    pub(crate) probe_from: Span,
}

/// A change of the learned delay or its floor, to be told and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayChange {
    /// The delay before.
    pub from: Span,
    /// The delay now.
    pub to: Span,
    /// The floor now.
    pub floor: Span,
}

/// A request as a learner sees it: what it needs to judge a late answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The spacing in force when it started.
    pub(crate) spacing: Span,
    /// The probe that was counted last when it started.
    pub(crate) probe: u16,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { floor: Span::ZERO, floor_at: Timestamp::NEVER, probe_from: Span::ZERO }
    }
}

impl Learned {
    /// The learned delay; zero when nothing was learnt.
    pub fn delay(&self) -> Span {
        self.delay
    }

    /// The least delay known to be safe; zero when none is known.
    pub fn floor(&self) -> Span {
        self.bounds().floor
    }

    /// When a broken probe last confirmed the floor.
    pub fn floor_confirmed_at(&self) -> Option<Timestamp> {
        self.bounds().floor_at.ever()
    }

    /// Successes in a row since the last change or failure.
    pub fn success_streak(&self) -> u32 {
        self.success_streak.into()
    }

    /// Rate limits in a row.
    pub fn error_streak(&self) -> u32 {
        self.error_streak.into()
    }

    /// The delay that a running probe would go back to.
    pub fn probing_from(&self) -> Option<Span> {
        let from = self.bounds.as_ref()?.probe_from;
        (!from.is_zero()).then_some(from)
    }

    /// Whether an operator keeps it as it is.
    pub fn pinned(&self) -> bool {
        self.pinned
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds.as_deref().copied().unwrap_or_default()
    }

    /// Sets the bounds; the default ones take no room.
    pub(crate) fn bound(&mut self, bounds: Bounds) {
        self.bounds = (bounds != Bounds::default()).then(|| Box::new(bounds));
    }

    /// Ends the running probe, if there is one.
    pub(crate) fn end_probe(&mut self) {
        if let Some(bounds) = &self.bounds {
            self.bound(Bounds { probe_from: Span::ZERO, ..**bounds });
        }
    }

    /// Whether the request started in the probe that runs now.
    fn in_probe(&self, sent: Sent) -> bool {
        self.probing_from().is_some() && sent.probe == self.probe
    }

    /// Runs `change` and tells what it did to delay and floor.
    pub(crate) fn changing(&mut self, change: impl FnOnce(&mut Self)) -> Option<DelayChange> {
        let before = (self.delay, self.floor());
        change(self);
        let after = (self.delay, self.floor());
        self.touched |= before != after;
        (before != after).then_some(DelayChange { from: before.0, to: after.0, floor: after.1 })
    }
}

impl Learning {
    /// The least delay that learning starts from, beside the rule's and the site's own.
    pub(crate) fn base(&self) -> Span {
        match self {
            Self::Off => Span::ZERO,
            Self::Linear(rule) => rule.base,
        }
    }

    /// The longest delay that may be learnt over this base.
    pub(crate) fn most(&self, base: Span) -> Span {
        match self {
            Self::Off => Span::MAX,
            Self::Linear(rule) => rule.ceiling.max(base),
        }
    }

    /// A request that started under the current knowledge succeeded. The base is asked for only when a probe
    /// may start, which is seldom.
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
            Self::Linear(_) | Self::Off => None,
        }
    }

    /// A request that started under the current knowledge was rate limited.
    pub(crate) fn limited(
        &self,
        learned: &mut Learned,
        sent: Sent,
        base: Span,
        now: Timestamp,
    ) -> Option<DelayChange> {
        learned.error_streak = learned.error_streak.saturating_add(1);
        match self {
            Self::Off => None,
            Self::Linear(_) if learned.pinned => None,
            Self::Linear(rule) => learned.changing(|learned| rule.limited(learned, sent, base, now)),
        }
    }

    /// What a stored or given delay and floor come to here: raised to the floor, within base and ceiling (B36).
    pub(crate) fn limit(&self, delay: Span, floor: Span, base: Span) -> Span {
        let delay = delay.max(floor);
        match self {
            _ if delay.is_zero() => Span::ZERO,
            Self::Off => delay,
            Self::Linear(_) => delay.clamp(base, self.most(base)),
        }
    }
}

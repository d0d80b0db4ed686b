//! The linear rule: one step up per penalty episode, one step down after a run of successes (B28–B33, B38).

use super::{Bounds, Learned, Sent};
use crate::time::{Span, Timestamp};

/// The parameters of the linear rule; valid because the rule that holds them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearRule {
    /// The least delay that learning starts from.
    pub base: Span,
    /// How much a 429 adds and a probe takes off.
    pub step: Span,
    /// The longest delay learnt, unless the base is longer.
    pub ceiling: Span,
    /// How many successes in a row start a probe.
    pub probe_after: u32,
    /// How old an unconfirmed floor may get before a probe may go below it.
    pub max_age: Span,
}

impl LinearRule {
    /// A step more than the request had, or back to where the probe that it broke began.
    pub(super) fn limited(&self, learned: &mut Learned, sent: Sent, base: Span, now: Timestamp) {
        let most = self.ceiling.max(base);
        let raised = |delay: Span| (delay.max(base) + self.step).min(most);
        match learned.probing_from() {
            None => learned.delay = raised(learned.delay),
            Some(safe) if learned.in_probe(sent) => {
                // The base may have fallen since the probe began.
                let safe = safe.min(most);
                learned.delay = safe;
                learned.bound(Bounds { floor: safe, floor_at: now, probe_from: Span::ZERO });
            }
            // It started before the probe, so it says nothing about the probe but that the old delay was too short.
            Some(_) => learned.delay = raised(sent.spacing),
        }
        learned.end_probe();
        learned.success_streak = 0;
    }

    /// Whether enough successes were counted to confirm a probe or to start one.
    #[inline]
    pub(super) fn may_probe(&self, learned: &Learned) -> bool {
        let something = !learned.delay.is_zero() || learned.probing_from().is_some();
        something && u32::from(learned.success_streak) >= self.probe_after && !learned.pinned
    }

    /// Enough successes were counted: they confirm the running probe and may start the next.
    pub(super) fn succeeded(&self, learned: &mut Learned, base: Span, now: Timestamp) {
        if learned.probing_from().is_some() {
            learned.end_probe();
            learned.success_streak = 0;
        }
        self.probe(learned, base, now);
    }

    /// Starts a probe one step lower, if there is room for one.
    fn probe(&self, learned: &mut Learned, base: Span, now: Timestamp) {
        let bounds = learned.bounds();
        let one_lower = learned.delay.min(self.ceiling.max(base)).less(self.step);
        let stale = now.since(bounds.floor_at) >= self.max_age;
        let floor =
            if stale && one_lower < bounds.floor { bounds.floor.less(self.step) } else { bounds.floor };
        let target = one_lower.max(floor).max(base);
        if target < learned.delay {
            learned.bound(Bounds { floor, probe_from: learned.delay, ..bounds });
            learned.delay = target;
            learned.probe = learned.probe.wrapping_add(1);
            learned.success_streak = 0;
        }
    }
}

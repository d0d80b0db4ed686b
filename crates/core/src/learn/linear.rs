//! Linear learning: one step up per penalty episode, one step down after a run of successes.

use super::{Bounds, Learned, Sent};
use crate::time::{Span, Timestamp};

/// The parameters of linear learning, validated with the rule they are part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearRule {
    /// The delay that learning starts from, and the shortest delay it probes.
    pub base: Span,
    /// How much a 429 adds and a probe subtracts.
    pub step: Span,
    /// The longest learned delay, unless the base is longer.
    pub ceiling: Span,
    /// How many consecutive successes start a probe.
    pub probe_after: u32,
    /// How long ago a floor must have been confirmed for a probe to go below it.
    pub max_age: Span,
}

impl LinearRule {
    /// A request was rate limited: raises the delay by one step, or ends the probe that failed and restores the delay
    /// from before it.
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
            // The request started before the probe, so it only shows that the delay at that time was too short.
            Some(_) => learned.delay = raised(sent.spacing),
        }
        learned.end_probe();
        learned.success_streak = 0;
    }

    /// Whether there were enough consecutive successes to confirm a probe or to start one.
    #[inline]
    pub(super) fn may_probe(&self, learned: &Learned) -> bool {
        let something = !learned.delay.is_zero() || learned.probing_from().is_some();
        something && u32::from(learned.success_streak) >= self.probe_after && !learned.pinned
    }

    /// There were enough consecutive successes: confirms the running probe, and may start the next one.
    pub(super) fn succeeded(&self, learned: &mut Learned, base: Span, now: Timestamp) {
        if learned.probing_from().is_some() {
            learned.end_probe();
            learned.success_streak = 0;
        }
        self.probe(learned, base, now);
    }

    /// Starts a probe one step lower, unless that is below the floor or the base.
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

//! The linear rule: one step up per penalty episode, one step down after a run of successes (B28–B33, B38).

use super::{Learned, Sent};
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
        let raised = |delay: Span| (delay.max(base) + self.step).min(self.ceiling.max(base));
        match learned.probing_from() {
            None => learned.delay = raised(learned.delay),
            Some(safe) if learned.in_probe(sent) => {
                learned.delay = safe;
                learned.floor = safe;
                learned.floor_at = now;
            }
            // It started before the probe, so it says nothing about the probe but that the old delay was too short.
            Some(_) => learned.delay = raised(sent.spacing),
        }
        learned.probe_from = Span::ZERO;
        learned.success_streak = 0;
    }

    /// Counts the success; enough of them confirm the running probe and start the next.
    pub(super) fn succeeded(&self, learned: &mut Learned, sent: Sent, base: Span, now: Timestamp) {
        if learned.probing_from().is_some() && !learned.in_probe(sent) {
            return;
        }
        learned.success_streak = learned.success_streak.saturating_add(1);
        if learned.success_streak < self.probe_after || learned.pinned {
            return;
        }
        if learned.probing_from().is_some() {
            learned.probe_from = Span::ZERO;
            learned.success_streak = 0;
        }
        self.probe(learned, base, now);
    }

    /// Starts a probe one step lower, if there is room for one.
    fn probe(&self, learned: &mut Learned, base: Span, now: Timestamp) {
        let one_lower = learned.delay.less(self.step);
        let stale = now.since(learned.floor_at) >= self.max_age;
        let floor = if stale && one_lower < learned.floor { learned.floor.less(self.step) } else { learned.floor };
        let target = one_lower.max(floor).max(base);
        if target < learned.delay {
            learned.floor = floor;
            learned.probe_from = learned.delay;
            learned.delay = target;
            learned.probe = learned.probe.wrapping_add(1);
            learned.success_streak = 0;
        }
    }
}

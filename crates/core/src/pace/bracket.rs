//! Bracket learning as part of a pace: which limits it keeps, and where its state is.
//!
//! The rule itself is in [`crate::learn`]. The learned delay is also kept in `learned`, so that it is shown, saved and
//! pinned like any other.

use super::{Pace, Terms};
use crate::decision::Permit;
use crate::learn::{Bracket, BracketRule, DelayChange, Learning, Limits, Phase, Sent};
use crate::time::{Span, Timestamp};

/// What bracket learning knows about the limit of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// The delay it keeps between requests.
    pub delay: Span,
    /// From how many refusals that is known; late refusals, and those of an outage, count once.
    pub refusals: u32,
    /// How many requests the site seems to accept at once.
    pub burst: u32,
    /// How long the site's window seems to be, if it has one.
    pub window: Option<Span>,
    /// How many requests may be in flight, if that is limited.
    pub in_flight: Option<u32>,
    /// What it is doing.
    pub step: Step,
}

/// What bracket learning does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing was refused so far, so it goes faster.
    Starting,
    /// It looks for the limit.
    Searching,
    /// It keeps its pace, and tries a faster one after so many requests.
    Keeping {
        /// Requests until the next probe.
        probe_in: u32,
    },
    /// It tries a faster pace, for so many more requests.
    Probing {
        /// Requests until it is confirmed.
        left: u32,
    },
}

impl Pace {
    /// What bracket learning knows, if it is in use and learned something.
    pub fn estimate(&self) -> Option<Estimate> {
        let state = self.bracket()?;
        let step = match state.phase {
            Phase::Start => Step::Starting,
            Phase::Search => Step::Searching,
            Phase::Locked => {
                Step::Keeping { probe_in: state.probe_every.saturating_sub(state.step_accepted) }
            }
            Phase::Probe => Step::Probing { left: state.probe_length().saturating_sub(state.step_accepted) },
        };
        Some(Estimate {
            delay: state.delay,
            refusals: state.refusals,
            burst: state.burst,
            window: Some(state.window).filter(|window| !window.is_zero()),
            in_flight: Some(u32::from(state.in_flight)).filter(|limit| *limit > 0),
            step,
        })
    }

    /// The delay that bracket learning asks for now.
    pub(super) fn bracket_delay(&self, rule: &BracketRule, terms: Terms<'_>) -> Span {
        let limits = limits(rule, terms);
        let delay = match self.bracket() {
            Some(state) => state.delay,
            None if self.learned.delay.is_zero() => rule.start,
            None => self.learned.delay,
        };
        delay.max(self.learned.floor()).min(limits.most)
    }

    /// How many requests may be in flight according to bracket learning.
    #[inline]
    pub(super) fn learned_in_flight(&self, terms: Terms<'_>) -> Option<u32> {
        match terms.rule.learning() {
            Learning::Bracket(_) if !self.learned.pinned => self.bracket()?.in_flight_max(),
            _ => None,
        }
    }

    pub(super) fn bracket_succeeded(
        &mut self,
        rule: &BracketRule,
        terms: Terms<'_>,
        sent: &Permit,
        idle_since: Timestamp,
    ) -> Option<DelayChange> {
        self.learned.success_streak = self.learned.success_streak.saturating_add(1);
        if self.learned.pinned {
            return None;
        }
        let limits = limits(rule, terms);
        let state = self.bracket_mut(rule, limits);
        if idle_since > Timestamp::NEVER && sent.started_at.since(idle_since) > IDLE_AFTER {
            state.idled();
        }
        rule.succeeded(state, Sent::from(sent), limits);
        self.bracket_changed()
    }

    /// Returns the change of the delay, and how long to wait unless the server said.
    pub(super) fn bracket_limited(
        &mut self,
        rule: &BracketRule,
        terms: Terms<'_>,
        sent: &Permit,
    ) -> (Option<DelayChange>, Span) {
        self.learned.error_streak = self.learned.error_streak.saturating_add(1);
        if self.learned.pinned {
            return (None, self.learned.delay);
        }
        let limits = limits(rule, terms);
        let hold = rule.limited(self.bracket_mut(rule, limits), Sent::from(sent), limits);
        (self.bracket_changed(), hold)
    }

    /// Whether bracket learning knows nothing that would be missed.
    pub(super) fn bracket_is_blank(&self) -> bool {
        self.bracket().is_none_or(|state| state.refusals == 0 && state.closed_at == Timestamp::NEVER)
    }

    pub(super) fn bracket_refused_late(&mut self, rule: &BracketRule, sent: &Permit) {
        if let Some(state) = self.cold.as_mut().and_then(|cold| cold.bracket.as_deref_mut()) {
            rule.refused_late(state, Sent::from(sent));
        }
    }

    fn bracket_mut(&mut self, rule: &BracketRule, limits: Limits) -> &mut Bracket {
        let learned = self.learned.delay;
        self.cold_mut().bracket.get_or_insert_with(|| {
            let mut state = rule.fresh(limits);
            if !learned.is_zero() {
                // Learned by another rule, or before the rest was lost: a good pace to start from, but not a proof.
                state.delay = learned.clamp(limits.least, limits.most);
                (state.phase, state.safe) = (Phase::Locked, state.delay);
            }
            Box::new(state)
        })
    }

    /// Takes over the delay once something is known about the limit; before, any other start would do as well.
    fn bracket_changed(&mut self) -> Option<DelayChange> {
        let state = self.bracket().filter(|state| state.refusals > 0)?;
        let delay = state.delay;
        self.learned.changing(|learned| learned.delay = delay)
    }
}

/// Never faster than the rule and robots.txt allow, and never slower than the ceiling, unless they are.
fn limits(rule: &BracketRule, terms: Terms<'_>) -> Limits {
    let least = terms.baseline().max(SHORTEST);
    Limits { least, most: rule.ceiling.max(least) }
}

/// After this long without a success, what was learned is probed again soon.
const IDLE_AFTER: Span = Span::from_hours(1);
/// A thousand requests per second.
const SHORTEST: Span = Span::from_millis(1);

//! How responses change a pace: penalties and backoff, `Retry-After` and quotas, the learned delay.

use super::{OwnCause, Pace, ServerCause, Terms};
use crate::backoff::Ladder;
use crate::decision::Permit;
use crate::headers::RetryAfter;
use crate::intent::Intent;
use crate::learn::{DelayChange, Learning, Sent};
use crate::outcome::{Answer, Outcome, Reach};
use crate::rule::WaitOn429;
use crate::time::{Span, Timestamp};

/// What recording a response changed, for logging, metrics, retries and saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Whether the response counted.
    pub freshness: Freshness,
    /// The change of the learned delay or its floor, if any.
    pub delay: Option<DelayChange>,
    /// End of the hold that was set or extended, if any.
    pub held_until: Option<Timestamp>,
    /// The server's new deadline, if any. It has to be saved before the next request is allowed.
    pub server_until: Option<Timestamp>,
    /// How the `Retry-After` was applied.
    pub retry_after: RetryAfterEffect,
}

/// Refers to a permit by its number, for callers outside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitRef {
    /// Its number among the permits of its domain.
    pub id: u32,
    /// When it was granted. Needed to accept reports about permits that were lost together with their pace.
    pub granted_at: Timestamp,
    /// How long its request took, if known.
    pub took: Option<Span>,
}

/// Whether a response says something new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The request started after the latest penalty: the response counts.
    Fresh,
    /// The request started before the latest penalty: only its `Retry-After` and quota headers count, and a 429 uses no
    /// retry.
    Late,
    /// The permit was recorded before, so nothing changed.
    Repeated,
}

impl Freshness {
    /// Its name in JSON (`standing`).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Late => "late",
            Self::Repeated => "repeated",
        }
    }
}

/// How the `Retry-After` of a response was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetryAfterEffect {
    /// There was none.
    #[default]
    Absent,
    /// It is honored in full.
    Honored(Span),
    /// It was longer than the rule allows, and was shortened.
    Clamped {
        /// What the server asked for.
        asked: Span,
        /// What applies.
        to: Span,
    },
    /// It was invalid; the rule's own wait applies.
    Unusable,
}

impl Pace {
    /// Records the response to the request of `permit`. Recording it twice is harmless.
    #[inline]
    pub fn record(&mut self, terms: Terms<'_>, permit: &Permit, answer: &Answer, now: Timestamp) -> Recorded {
        self.observe_clock(now);
        match self.settle(permit) {
            Some(sent) => self.learn_from(terms, sent, answer, now),
            // The permit was dropped, but what the server asks for still applies.
            None if self.cold.as_mut().is_some_and(|cold| cold.first_report_of_dropped(permit.id)) => {
                let mut recorded = Recorded::of(Freshness::Late);
                self.apply_hints(terms, answer, now, &mut recorded);
                recorded
            }
            None => Recorded::of(Freshness::Repeated),
        }
    }

    /// Applies the headers of a response whose body is still being received. They take effect now; the permit stays
    /// open until the response is recorded, which should not repeat them.
    pub fn record_head(&mut self, terms: Terms<'_>, answer: &Answer, now: Timestamp) -> Recorded {
        self.observe_clock(now);
        let mut recorded = Recorded::of(Freshness::Fresh);
        if terms.rule.enabled() {
            self.apply_hints(terms, answer, now, &mut recorded);
        }
        recorded
    }

    /// Records a response without a permit. It settles the oldest open permit of that intent whose lease has not ended;
    /// if there is none, the request was sent without a permit and is charged now.
    pub fn record_unasked(
        &mut self,
        terms: Terms<'_>,
        intent: Intent,
        answer: &Answer,
        now: Timestamp,
    ) -> Recorded {
        self.observe_clock(now);
        let lent = self.leases().filter(|lent| lent.until > now).map(|lent| &lent.permit);
        let lent = lent.filter(|permit| permit.intent == intent).min_by_key(|permit| permit.started_at);
        // Own permits are recorded by whoever in this process drew them, so a lent one is more likely to be meant.
        let oldest = lent.or_else(|| self.opens().find(|open| open.intent == intent)).copied();
        let sent = match oldest {
            Some(open) => self.settle(&open).unwrap_or(open),
            None => {
                let permit = self.charge(terms, intent, now);
                self.settle(&permit).unwrap_or(permit)
            }
        };
        self.learn_from(terms, sent, answer, now)
    }

    /// Records the response to the request of a lent permit. Recording it twice is harmless. If it is known how long
    /// the request took, its start moves accordingly, but never to an earlier time.
    pub fn record_lent(
        &mut self,
        terms: Terms<'_>,
        reference: PermitRef,
        answer: &Answer,
        now: Timestamp,
    ) -> Recorded {
        self.observe_clock(now);
        let own = self.permit(reference.id).copied().filter(|own| reference.refers_to(own));
        let Some(own) = own else { return self.record_closed(terms, reference, answer, now) };
        let mut permit = own;
        if let Some(took) = reference.took {
            self.shift(terms, &mut permit, own, now - took);
        }
        self.record(terms, &permit, answer, now)
    }

    /// Records a response for a permit that isn't open: what the server asks for applies, unless it was recorded
    /// before.
    fn record_closed(
        &mut self,
        terms: Terms<'_>,
        reference: PermitRef,
        answer: &Answer,
        now: Timestamp,
    ) -> Recorded {
        let (id, granted_at) = (reference.id, reference.granted_at);
        let is_news = now.since(granted_at) <= REPORT_WITHIN
            && self.cold.as_mut().is_some_and(|cold| {
                cold.first_report_of_dropped(id) || cold.first_report_of_lost(id, granted_at)
            });
        if !is_news {
            return Recorded::of(Freshness::Repeated);
        }
        let mut recorded = Recorded::of(Freshness::Late);
        self.apply_hints(terms, answer, now, &mut recorded);
        recorded
    }

    /// Gives up a lent permit that isn't used: it no longer counts as in flight, and its slot is not refunded. False if
    /// it was recorded or given up before.
    pub fn abandon_lent(&mut self, reference: PermitRef, now: Timestamp) -> bool {
        self.observe_clock(now);
        let own = self.permit(reference.id).copied().filter(|own| reference.refers_to(own));
        own.and_then(|own| self.settle(&own)).is_some()
    }

    #[inline]
    fn learn_from(&mut self, terms: Terms<'_>, sent: Permit, answer: &Answer, now: Timestamp) -> Recorded {
        let fresh = self.holds.as_ref().is_none_or(|holds| sent.started_at >= holds.penalty_at);
        let mut recorded = Recorded::of(if fresh { Freshness::Fresh } else { Freshness::Late });
        if !terms.rule.enabled() {
            return recorded;
        }
        let mut learned_hold = None;
        match (answer.outcome.is_penalty(), fresh) {
            (false, true) => {
                self.penalties = 0;
                let idle_since = std::mem::replace(&mut self.last_success, now);
                self.learned.error_streak = 0;
                recorded.delay = match terms.rule.learning() {
                    Learning::Bracket(rule) => self.bracket_succeeded(rule, terms, &sent, idle_since),
                    learning => {
                        learning.succeeded(&mut self.learned, Sent::from(&sent), || terms.learn_base(), now)
                    }
                };
            }
            (false, false) => self.last_success = now,
            (true, true) => {
                self.penalties = self.penalties.saturating_add(1);
                self.holds_mut().penalty_at = now;
                self.learned.success_streak = 0;
                if answer.outcome == Outcome::RateLimited {
                    let base = terms.learn_base();
                    match terms.rule.learning() {
                        Learning::Bracket(rule) => {
                            let (change, hold) = self.bracket_limited(rule, terms, &sent);
                            (recorded.delay, learned_hold) = (change, Some(hold));
                        }
                        learning => {
                            recorded.delay =
                                learning.limited(&mut self.learned, Sent::from(&sent), base, now);
                        }
                    }
                }
            }
            (true, false) => {
                self.learned.success_streak = 0;
                if let (Learning::Bracket(rule), Outcome::RateLimited) =
                    (terms.rule.learning(), answer.outcome)
                {
                    self.bracket_refused_late(rule, &sent);
                }
            }
        }
        let stated = !answer.hints.is_empty() && self.apply_hints(terms, answer, now, &mut recorded);
        if answer.outcome.is_penalty() && fresh && !stated {
            self.hold_by_rule(terms, answer, learned_hold, now, &mut recorded);
        }
        // What the server asked for wasn't enough.
        if let Some(span) =
            learned_hold.filter(|_| stated && self.bracket().is_some_and(|state| state.polls > 1))
            && self.hold_by_ourselves(span, OwnCause::Learned, now)
        {
            recorded.held_until = recorded.held_until.max(Some(now + span));
        }
        recorded
    }

    /// Applies `Retry-After` and quotas: an exhausted quota holds the domain until it resets, and remaining requests
    /// are spread evenly until the reset. True if a `Retry-After` replaces the rule's own wait.
    fn apply_hints(
        &mut self,
        terms: Terms<'_>,
        answer: &Answer,
        now: Timestamp,
        recorded: &mut Recorded,
    ) -> bool {
        let max = terms.rule.retry_after_max();
        if let Some(reset) = answer.hints.exhausted_for {
            self.hold_for_server(now, reset.min(max), ServerCause::QuotaSpent, recorded);
        }
        if let Some(quota) = answer.hints.quota {
            let reset = quota.reset.min(max);
            self.cold_mut().quota(reset.split(quota.remaining.get()), reset, now);
        }
        let span = match answer.hints.retry_after {
            RetryAfter::Absent => return false,
            RetryAfter::Unusable => {
                recorded.retry_after = RetryAfterEffect::Unusable;
                return false;
            }
            RetryAfter::After(asked) if asked > max => {
                recorded.retry_after = RetryAfterEffect::Clamped { asked, to: max };
                max
            }
            RetryAfter::After(asked) => {
                recorded.retry_after = RetryAfterEffect::Honored(asked);
                asked
            }
        };
        self.hold_for_server(now, span, ServerCause::RetryAfter, recorded);
        true
    }

    /// Holds the domain for the server; a longer hold that is already set stays.
    fn hold_for_server(&mut self, now: Timestamp, span: Span, word: ServerCause, recorded: &mut Recorded) {
        let (until, holds) = (now + span, self.holds_mut());
        if until > holds.server_until {
            holds.server_until = until;
            holds.server_ms = whole_ms(span);
            holds.server_cause = word;
            recorded.server_until = Some(until);
            recorded.held_until = recorded.held_until.max(Some(until));
        }
    }

    /// Holds the domain as the rule says: `wait_on_429` after a 429, backoff after other failures. An unreachable host
    /// is retried soon, because nothing was sent to it.
    fn hold_by_rule(
        &mut self,
        terms: Terms<'_>,
        answer: &Answer,
        learned_hold: Option<Span>,
        now: Timestamp,
        recorded: &mut Recorded,
    ) {
        let ladder = terms.rule.ladder().wait(self.penalties);
        let by_ladder = || (ladder.unwrap_or(NO_LADDER_WAIT), OwnCause::Backoff);
        let pinned = self.learned.pinned && !self.learned.delay.is_zero();
        let learns = pinned || !matches!(terms.rule.learning(), Learning::Off);
        let learned = learned_hold.unwrap_or(self.learned_delay(terms)).max(terms.learn_base());
        let soon = UNREACHABLE.wait(self.penalties).filter(|_| answer.reach == Reach::Unreachable);
        let wait = match (answer.outcome, terms.rule.wait_on_429()) {
            (Outcome::RateLimited, WaitOn429::Fixed(span)) => Some((span, OwnCause::WaitOn429)),
            (Outcome::RateLimited, WaitOn429::Learned) if learns => Some((learned, OwnCause::Learned)),
            (Outcome::RateLimited, WaitOn429::Learned | WaitOn429::Backoff) => Some(by_ladder()),
            _ => ladder.map(|span| (soon.map_or(span, |soon| span.min(soon)), OwnCause::Backoff)),
        };
        if let Some((span, cause)) = wait
            && self.hold_by_ourselves(span, cause, now)
        {
            recorded.held_until = recorded.held_until.max(Some(now + span));
        }
    }

    /// Holds the domain for `span`, without counting a penalty and without changing what was learned.
    pub fn back_off(&mut self, span: Span, now: Timestamp) {
        self.observe_clock(now);
        self.hold_by_ourselves(span, OwnCause::Backoff, now);
    }

    /// False if a hold that ends later is already set.
    fn hold_by_ourselves(&mut self, span: Span, cause: OwnCause, now: Timestamp) -> bool {
        let (until, holds) = (now + span, self.holds_mut());
        if until <= holds.own_until {
            return false;
        }
        (holds.own_until, holds.own_ms, holds.own_cause) = (until, whole_ms(span), cause);
        true
    }
}

impl Recorded {
    fn of(freshness: Freshness) -> Self {
        Self {
            freshness,
            delay: None,
            held_until: None,
            server_until: None,
            retry_after: RetryAfterEffect::Absent,
        }
    }
}

/// Responses for permits that expired or were lost are accepted for this long after the permit was granted.
pub(super) const REPORT_WITHIN: Span = Span::from_hours(1);

/// The length of a hold in milliseconds, rounded down so that it never gets longer.
pub(super) fn whole_ms(span: Span) -> u32 {
    u32::try_from(span.as_micros() / 1_000).unwrap_or(u32::MAX)
}

/// Waits before retrying a host that refused the connection or has no address, unless the rule waits for less.
const UNREACHABLE: Ladder = Ladder::Linear { base: Span::from_secs(1), max: Span::from_millis(1_500) };
/// The wait after a 429 if `wait_on_429` is "backoff" but the rule has no backoff.
const NO_LADDER_WAIT: Span = Span::from_secs(60);

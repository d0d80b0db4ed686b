//! What an answer changes (B20–B25, B27, B29–B33 and the table of outcomes).

use super::{Guess, Pace, ServerWord, Terms};
use crate::backoff::Ladder;
use crate::decision::Permit;
use crate::headers::RetryAfter;
use crate::intent::Intent;
use crate::learn::{DelayChange, Learning, Sent};
use crate::outcome::{Answer, Contact, Outcome};
use crate::rule::WaitOn429;
use crate::time::{Span, Timestamp};

/// What recording an answer did, for whoever logs, counts, retries or persists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Whether the answer counted.
    pub standing: Standing,
    /// The learned delay or its floor changed.
    pub delay: Option<DelayChange>,
    /// A hold was set or moved, and ends then.
    pub held_until: Option<Timestamp>,
    /// The server's own deadline was set or moved: it must be kept before the next grant (B37).
    pub server_until: Option<Timestamp>,
    /// What became of the `Retry-After`.
    pub heeded: Heeded,
}

/// A permit that was passed on by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Its number among the permits of its domain.
    pub id: u32,
    /// When it was granted: one that was lost with its pace is still heard of.
    pub granted_at: Timestamp,
    /// How long its request took, if that is known.
    pub took: Option<Span>,
}

/// How an answer stands to what was known when its request started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The request started under what is known now: the answer counts.
    Fresh,
    /// It started before the latest penalty: a failure spends no retry, and only its `Retry-After` counts (B23).
    Late,
    /// This permit was recorded before; nothing changed.
    Repeated,
}

impl Standing {
    /// The word for it in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Late => "late",
            Self::Repeated => "repeated",
        }
    }
}

/// What became of the `Retry-After` of an answer (B20, B21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Heeded {
    /// There was none.
    #[default]
    Absent,
    /// It holds.
    Honoured(Span),
    /// It was longer than the rule allows.
    Clamped {
        /// What the server asked for.
        asked: Span,
        /// What holds.
        to: Span,
    },
    /// It made no sense; the rule's own wait holds.
    Unusable,
}

impl Pace {
    /// Records the answer to the request of `permit`. Recording it again is harmless.
    #[inline]
    pub fn record(&mut self, terms: Terms<'_>, permit: &Permit, answer: &Answer, now: Timestamp) -> Recorded {
        self.meet(now);
        match self.settle(permit) {
            Some(sent) => self.learn_from(terms, sent, answer, now),
            // Nobody waited for it any more, but what the server asks for still goes.
            None if self.rare.as_mut().is_some_and(|rare| rare.hears_of_let_go(permit.id)) => {
                let mut recorded = Recorded::of(Standing::Late);
                self.heed_server(terms, answer, now, &mut recorded);
                recorded
            }
            None => Recorded::of(Standing::Repeated),
        }
    }

    /// Hears what a server said in the head of an answer whose body is still on its way: it counts from now on (B20),
    /// and the permit stays open until the answer is recorded, which then should not say it again.
    pub fn heed(&mut self, terms: Terms<'_>, answer: &Answer, now: Timestamp) -> Recorded {
        self.meet(now);
        let mut recorded = Recorded::of(Standing::Fresh);
        if terms.rule.enabled() {
            self.heed_server(terms, answer, now, &mut recorded);
        }
        recorded
    }

    /// Records an answer without a permit: it settles the oldest open permit of that intent whose lease has not ended, and
    /// if there is none, a request left without asking and is charged for now (B25).
    pub fn record_unasked(
        &mut self,
        terms: Terms<'_>,
        intent: Intent,
        answer: &Answer,
        now: Timestamp,
    ) -> Recorded {
        self.meet(now);
        let lent = self.leases().filter(|lent| lent.until > now).map(|lent| &lent.permit);
        let lent = lent.filter(|permit| permit.intent == intent).min_by_key(|permit| permit.started_at);
        // What is held is recorded by whoever holds it; one that was lent is likelier meant.
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

    /// Records the answer to the request of a permit that was passed on by its number. Recording it again is
    /// harmless. If it is known how long the request took, its start moves there, never earlier (B25).
    pub fn record_passed(
        &mut self,
        terms: Terms<'_>,
        passed: Passed,
        answer: &Answer,
        now: Timestamp,
    ) -> Recorded {
        self.meet(now);
        let own = self.permit(passed.id).copied().filter(|own| passed.means(own));
        let Some(own) = own else { return self.record_closed(terms, passed, answer, now) };
        let mut permit = own;
        if let Some(took) = passed.took {
            self.shift(terms, &mut permit, own, now - took);
        }
        self.record(terms, &permit, answer, now)
    }

    /// An answer to a permit that is not open: what the server asks for goes, unless it was recorded before.
    fn record_closed(
        &mut self,
        terms: Terms<'_>,
        passed: Passed,
        answer: &Answer,
        now: Timestamp,
    ) -> Recorded {
        let (id, granted_at) = (passed.id, passed.granted_at);
        let is_news = now.since(granted_at) <= HEARD_FOR
            && self
                .rare
                .as_mut()
                .is_some_and(|rare| rare.hears_of_let_go(id) || rare.hears_of_lost(id, granted_at));
        if !is_news {
            return Recorded::of(Standing::Repeated);
        }
        let mut recorded = Recorded::of(Standing::Late);
        self.heed_server(terms, answer, now, &mut recorded);
        recorded
    }

    /// The permit that was passed on is not used after all: it is no longer on the wire, and its charge stays (B25).
    /// False when it was recorded or given up before.
    pub fn abandon_passed(&mut self, passed: Passed, now: Timestamp) -> bool {
        self.meet(now);
        let own = self.permit(passed.id).copied().filter(|own| passed.means(own));
        own.and_then(|own| self.settle(&own)).is_some()
    }

    #[inline]
    fn learn_from(&mut self, terms: Terms<'_>, sent: Permit, answer: &Answer, now: Timestamp) -> Recorded {
        let fresh = self.holds.as_ref().is_none_or(|holds| sent.started_at >= holds.penalty_at);
        let mut recorded = Recorded::of(if fresh { Standing::Fresh } else { Standing::Late });
        if !terms.rule.enabled() {
            return recorded;
        }
        match (answer.outcome.is_penalty(), fresh) {
            (false, true) => {
                self.penalties = 0;
                self.last_success = now;
                self.learned.error_streak = 0;
                recorded.delay = terms.rule.learning().succeeded(
                    &mut self.learned,
                    Sent::from(&sent),
                    || terms.learn_base(),
                    now,
                );
            }
            (false, false) => self.last_success = now,
            (true, true) => {
                self.penalties = self.penalties.saturating_add(1);
                self.holds_mut().penalty_at = now;
                self.learned.success_streak = 0;
                if answer.outcome == Outcome::RateLimited {
                    let base = terms.learn_base();
                    recorded.delay =
                        terms.rule.learning().limited(&mut self.learned, Sent::from(&sent), base, now);
                }
            }
            (true, false) => self.learned.success_streak = 0,
        }
        let stated = !answer.told.is_silent() && self.heed_server(terms, answer, now, &mut recorded);
        if answer.outcome.is_penalty() && fresh && !stated {
            self.hold_by_rule(terms, answer, now, &mut recorded);
        }
        recorded
    }

    /// Obeys `Retry-After` and the quota headers: nothing left, stay away until the reset; something left, spread
    /// it until the reset (B27). True when `Retry-After` replaces the rule's own wait.
    fn heed_server(
        &mut self,
        terms: Terms<'_>,
        answer: &Answer,
        now: Timestamp,
        recorded: &mut Recorded,
    ) -> bool {
        let max = terms.rule.retry_after_max();
        if let Some(reset) = answer.told.spent {
            self.hold_for_server(now, reset.min(max), ServerWord::QuotaSpent, recorded);
        }
        if let Some(quota) = answer.told.quota {
            let reset = quota.reset.min(max);
            self.rare_mut().quota(reset.split(quota.remaining.get()), reset, now);
        }
        let span = match answer.told.retry_after {
            RetryAfter::Absent => return false,
            RetryAfter::Unusable => {
                recorded.heeded = Heeded::Unusable;
                return false;
            }
            RetryAfter::After(asked) if asked > max => {
                recorded.heeded = Heeded::Clamped { asked, to: max };
                max
            }
            RetryAfter::After(asked) => {
                recorded.heeded = Heeded::Honoured(asked);
                asked
            }
        };
        self.hold_for_server(now, span, ServerWord::RetryAfter, recorded);
        true
    }

    /// A shorter hold never shortens a longer one (B22).
    fn hold_for_server(&mut self, now: Timestamp, span: Span, word: ServerWord, recorded: &mut Recorded) {
        let (until, holds) = (now + span, self.holds_mut());
        if until > holds.server_until {
            holds.server_until = until;
            holds.server_ms = whole_ms(span);
            holds.server_word = word;
            recorded.server_until = Some(until);
            recorded.held_until = recorded.held_until.max(Some(until));
        }
    }

    /// The rule's own wait: after a 429 what `wait_on_429` says, after another failure the ladder. A host that was not
    /// there is asked again soon: nothing was sent, so there is nothing to spare it.
    fn hold_by_rule(&mut self, terms: Terms<'_>, answer: &Answer, now: Timestamp, recorded: &mut Recorded) {
        let ladder = terms.rule.ladder().wait(self.penalties);
        let by_ladder = || (ladder.unwrap_or(NO_LADDER_WAIT), Guess::Backoff);
        let pinned = self.learned.pinned && !self.learned.delay.is_zero();
        let learns = pinned || !matches!(terms.rule.learning(), Learning::Off);
        let learned = self.learned_delay(terms).max(terms.learn_base());
        let soon = UNREACHABLE.wait(self.penalties).filter(|_| answer.contact == Contact::Refused);
        let wait = match (answer.outcome, terms.rule.wait_on_429()) {
            (Outcome::RateLimited, WaitOn429::Fixed(span)) => Some((span, Guess::WaitOn429)),
            (Outcome::RateLimited, WaitOn429::Learned) if learns => Some((learned, Guess::Learned)),
            (Outcome::RateLimited, WaitOn429::Learned | WaitOn429::Backoff) => Some(by_ladder()),
            _ => ladder.map(|span| (soon.map_or(span, |soon| span.min(soon)), Guess::Backoff)),
        };
        if let Some((span, guess)) = wait
            && self.hold_by_guess(span, guess, now)
        {
            recorded.held_until = recorded.held_until.max(Some(now + span));
        }
    }

    /// Stays away for so long by our own guess; neither the ladder nor what was learned changes.
    pub fn back_off(&mut self, span: Span, now: Timestamp) {
        self.meet(now);
        self.hold_by_guess(span, Guess::Backoff, now);
    }

    /// False when a hold that ends later is in force.
    fn hold_by_guess(&mut self, span: Span, guess: Guess, now: Timestamp) -> bool {
        let (until, holds) = (now + span, self.holds_mut());
        if until <= holds.guess_until {
            return false;
        }
        (holds.guess_until, holds.guess_ms, holds.guess) = (until, whole_ms(span), guess);
        true
    }
}

impl Recorded {
    fn of(standing: Standing) -> Self {
        Self { standing, delay: None, held_until: None, server_until: None, heeded: Heeded::Absent }
    }
}

/// An answer to a permit that expired or was lost is heard for this long; who tells it later tells old news.
pub(super) const HEARD_FOR: Span = Span::from_hours(1);

/// Whole milliseconds, rounded down: how long a hold was, and never longer.
pub(super) fn whole_ms(span: Span) -> u32 {
    u32::try_from(span.as_micros() / 1_000).unwrap_or(u32::MAX)
}

/// How long a host is left alone that refused the connection or has no address, unless its rule waits for less.
const UNREACHABLE: Ladder = Ladder::Linear { base: Span::from_secs(1), max: Span::from_millis(1_500) };
/// What a 429 waits when the rule says "backoff" and has no ladder.
const NO_LADDER_WAIT: Span = Span::from_secs(60);

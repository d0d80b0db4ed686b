//! Every limit on the next start, listed in one place (B2).
//!
//! Asking takes the latest of them, explaining shows all of them: both walk the same list, so that they
//! cannot disagree. The order is that of B2 for ties: server, robots, rule, learned.

use super::{Guess, PERMIT_EXPIRES, Pace, ServerWord, Terms};
use crate::decision::{Limit, Permit, Reason, Spacing};
use crate::intent::Intent;
use crate::time::Timestamp;

impl Pace {
    /// The constraint that binds at `now`: the latest one, the first of the list on a tie.
    #[inline]
    pub(super) fn binding(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        self.binding_for(terms, intent, now, None)
    }

    /// The same, where `own` is the request that asks and already has been charged for.
    #[inline]
    pub(super) fn binding_for(
        &self,
        terms: Terms<'_>,
        intent: Intent,
        now: Timestamp,
        own: Option<&Permit>,
    ) -> Option<Reason> {
        let mut latest: Option<(Limit, Timestamp)> = None;
        self.each_constraint(terms, intent, now, own, |limit, until| {
            if until > latest.map_or(now, |(_, latest)| latest) {
                latest = Some((limit, until));
            }
        });
        latest.map(|(limit, until)| Reason { limit, until, asked_at: now })
    }

    /// Calls `visit` with every constraint and the first moment at which it does not bind.
    #[inline]
    pub(super) fn each_constraint(
        &self,
        terms: Terms<'_>,
        intent: Intent,
        now: Timestamp,
        own: Option<&Permit>,
        mut visit: impl FnMut(Limit, Timestamp),
    ) {
        let rule = terms.rule;
        if !rule.enabled() {
            return;
        }
        // A request that leaves at the very moment of its charge was spaced when it was charged. One that
        // leaves later is not spaced from its own charge, only from what left since.
        let on_time = own.is_some_and(|own| now <= own.started_at);
        let since = |start: Timestamp, id: u32| match own {
            Some(own) if on_time || id == own.id => Timestamp::NEVER,
            _ => start,
        };
        let lost_at = self.rare.as_ref().map_or(Timestamp::NEVER, |rare| rare.lost_at);
        let last = since(self.last_start, self.last_id);
        let assumed = last == lost_at;

        if self.server_until > Timestamp::NEVER {
            let limit = match self.server_word {
                ServerWord::RetryAfter => Limit::RetryAfter,
                ServerWord::QuotaSpent => Limit::QuotaSpent,
            };
            visit(limit, self.server_until);
        }
        if let Some(rare) = &self.rare {
            for quota in rare.quotas.iter().filter(|quota| quota.until > now) {
                let spacing = Spacing { delay: quota.delay, last, assumed };
                visit(Limit::QuotaSpacing(spacing), (last + quota.delay).min(quota.until));
            }
        }
        if last > Timestamp::NEVER {
            let spaced = |delay| Spacing { delay, last, assumed };
            if !terms.crawl_delay.is_zero() {
                visit(Limit::CrawlDelay(spaced(terms.crawl_delay)), last + terms.crawl_delay);
            }
            visit(Limit::MinDelay(spaced(rule.min_delay())), last + rule.min_delay());
            if !rule.rate_delay().is_zero() {
                visit(Limit::Rate(spaced(rule.rate_delay())), last + rule.rate_delay());
            }
        }
        if let Some(rare) = self.rare.as_ref().filter(|_| !on_time) {
            let except = own.map(|own| own.started_at);
            if let Some(burst) = rule.burst() {
                visit(Limit::Burst(burst), rare.window.free_at(burst, lost_at, except));
            }
            let slower = rule.intent(intent);
            let last = since(rare.starts[intent.index()], rare.start_ids[intent.index()]);
            if !slower.min_delay.is_zero() && last > Timestamp::NEVER {
                let spacing = Spacing { delay: slower.min_delay, last, assumed: last == lost_at };
                visit(Limit::IntentDelay(intent, spacing), last + slower.min_delay);
            }
            if let Some(burst) = slower.burst {
                let free_at = rare.windows[intent.index()].free_at(burst, lost_at, except);
                visit(Limit::IntentBurst(intent, burst), free_at);
            }
        } else if self.rare.is_none() && !rule.intent(intent).min_delay.is_zero() && intent == Intent::Fetch && last > Timestamp::NEVER {
            // Nothing rare was kept yet, so every start was a fetch.
            let delay = rule.intent(intent).min_delay;
            visit(Limit::IntentDelay(intent, Spacing { delay, last, assumed }), last + delay);
        }
        if self.guess_until > Timestamp::NEVER && self.guess != Guess::Learned {
            let limit = match self.guess {
                Guess::WaitOn429 => Limit::WaitOn429,
                Guess::Backoff | Guess::Learned => Limit::Backoff { penalties: self.penalties },
            };
            visit(limit, self.guess_until);
        }
        if let Some(limit) = rule.in_flight() {
            self.in_flight_constraint(limit, now, own, &mut visit);
        }
        let learned = self.learned_delay(rule);
        if !learned.is_zero() && last > Timestamp::NEVER {
            visit(Limit::LearnedDelay(Spacing { delay: learned, last, assumed }), last + learned);
        }
        if self.guess_until > Timestamp::NEVER && self.guess == Guess::Learned {
            visit(Limit::LearnedHold, self.guess_until);
        }
        if let Some(paused_until) = self.rare.as_ref().and_then(|rare| rare.paused_until.ever()) {
            visit(Limit::Paused, paused_until);
        }
    }

    /// With `limit` requests on the wire, one more waits until enough of them are recorded, or expire (B78).
    ///
    /// To a request that was charged for already, those count that were charged before it and those that
    /// have left: it may be of a group in which another host allows more at once.
    #[inline]
    fn in_flight_constraint(
        &self,
        limit: u32,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        let Some(oldest) = &self.open else { return };
        let more = self.rare.as_ref().is_some_and(|rare| !rare.open.is_empty());
        if !more && own.is_none() {
            if limit == 1 {
                visit(Limit::InFlight { limit }, oldest.started_at + PERMIT_EXPIRES);
            }
            return;
        }
        let mut earlier = true;
        let counts = |open: &&Permit| {
            let mine = own.is_some_and(|own| own.id == open.id);
            earlier &= !mine;
            !mine && (earlier || open.departed || own.is_none())
        };
        let mut ends: Vec<Timestamp> =
            self.opens().filter(counts).map(|open| open.started_at + PERMIT_EXPIRES).collect();
        ends.retain(|end| *end > now);
        ends.sort_unstable();
        if let Some(surplus) = ends.len().checked_sub(limit as usize) {
            visit(Limit::InFlight { limit }, ends[surplus]);
        }
    }
}

//! Every limit on the next start, listed in one place (B2).
//!
//! Asking takes the latest of them, explaining shows all of them: both walk the same list, so that they
//! cannot disagree. The order is that of B2 for ties: server, robots, rule, learned.

use super::lease::renewed_until;
use super::{Guess, Pace, ServerWord, Terms};
use crate::decision::{Limit, Permit, Reason, Spacing};
use crate::intent::Intent;
use crate::time::{Span, Timestamp};

impl Pace {
    /// Whether nothing binds at `now`: the same question without asking what.
    #[inline]
    pub(super) fn free(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> bool {
        let mut free = true;
        self.each_constraint(terms, intent, now, None, |_, until| free &= until <= now);
        free
    }

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
    ///
    /// Always inlined, so that a caller who does not look at the limits does not pay for their numbers.
    #[inline(always)]
    pub(super) fn each_constraint(
        &self,
        terms: Terms<'_>,
        intent: Intent,
        now: Timestamp,
        own: Option<&Permit>,
        mut visit: impl FnMut(Limit, Timestamp),
    ) {
        if !terms.rule.enabled() {
            return;
        }
        let last = self.last_for(own, now, self.last_start, self.last_id);
        self.server_limits(last, now, &mut visit);
        self.spacing_limits(terms, last, &mut visit);
        self.burst_and_intent_limits(terms, intent, now, own, &mut visit);
        self.rule_limits(terms, now, own, &mut visit);
        self.learned_limits(terms, last, &mut visit);
        if let Some(paused_until) = self.rare.as_ref().and_then(|rare| rare.paused_until.ever()) {
            visit(Limit::Paused, paused_until);
        }
    }

    /// The start that the next one is spaced from, where `id` made it.
    ///
    /// A request that leaves at the very moment of its charge was spaced when it was charged. One that leaves
    /// later is not spaced from its own charge, only from what left since.
    #[inline(always)]
    fn last_for(&self, own: Option<&Permit>, now: Timestamp, start: Timestamp, id: u32) -> Timestamp {
        match own {
            Some(own) if now <= own.started_at || id == own.id => Timestamp::NEVER,
            _ => start,
        }
    }

    #[inline(always)]
    fn spaced(&self, delay: Span, last: Timestamp) -> Spacing {
        Spacing { delay, last, assumed: self.rare.as_ref().is_some_and(|rare| rare.lost_at == last) }
    }

    /// Until when the server asked us to stay away, and what is left of its quotas.
    #[inline(always)]
    fn server_limits(&self, last: Timestamp, now: Timestamp, visit: &mut impl FnMut(Limit, Timestamp)) {
        if let Some(holds) = self.holds.as_ref().filter(|holds| holds.server_until > Timestamp::NEVER) {
            let limit = match holds.server_word {
                ServerWord::RetryAfter => Limit::RetryAfter,
                ServerWord::QuotaSpent => Limit::QuotaSpent,
            };
            visit(limit, holds.server_until);
        }
        let quotas = self.rare.iter().flat_map(|rare| &rare.quotas);
        for quota in quotas.filter(|quota| quota.until > now) {
            let limit = Limit::QuotaSpacing(self.spaced(quota.delay, last));
            visit(limit, (last + quota.delay).min(quota.until));
        }
    }

    /// The delays of robots.txt and the rule.
    #[inline(always)]
    fn spacing_limits(&self, terms: Terms<'_>, last: Timestamp, visit: &mut impl FnMut(Limit, Timestamp)) {
        if last == Timestamp::NEVER {
            return;
        }
        let rule = terms.rule;
        if !terms.crawl_delay.is_zero() {
            visit(Limit::CrawlDelay(self.spaced(terms.crawl_delay, last)), last + terms.crawl_delay);
        }
        visit(Limit::MinDelay(self.spaced(rule.min_delay(), last)), last + rule.min_delay());
        if !rule.rate_delay().is_zero() {
            visit(Limit::Rate(self.spaced(rule.rate_delay(), last)), last + rule.rate_delay());
        }
    }

    /// Burst windows, and what an intent is slowed to.
    #[inline(always)]
    fn burst_and_intent_limits(
        &self,
        terms: Terms<'_>,
        intent: Intent,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        let (slower, index) = (terms.rule.intent(intent), intent.index());
        let (start, id) = match &self.rare {
            Some(rare) => (rare.starts[index], rare.start_ids[index]),
            // Nothing rare was kept yet, so every start was a fetch.
            None if intent == Intent::Fetch => (self.last_start, self.last_id),
            None => (Timestamp::NEVER, 0),
        };
        let last = self.last_for(own, now, start, id);
        if !slower.min_delay.is_zero() && last > Timestamp::NEVER {
            let limit = Limit::IntentDelay(intent, self.spaced(slower.min_delay, last));
            visit(limit, last + slower.min_delay);
        }
        let on_time = own.is_some_and(|own| now <= own.started_at);
        let Some(rare) = self.rare.as_ref().filter(|_| !on_time) else { return };
        let except = own.map(|own| own.started_at);
        if let Some(burst) = terms.rule.burst() {
            visit(Limit::Burst(burst), rare.window.free_at(burst, rare.lost_at, except));
        }
        if let Some(burst) = slower.burst {
            let free_at = rare.windows[index].free_at(burst, rare.lost_at, except);
            visit(Limit::IntentBurst(intent, burst), free_at);
        }
    }

    /// The rule's own waits after failures, and its limit of requests on the wire.
    #[inline(always)]
    fn rule_limits(
        &self,
        terms: Terms<'_>,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        match self.guess() {
            Some((Guess::Backoff, until)) => visit(Limit::Backoff { penalties: self.penalties }, until),
            Some((Guess::WaitOn429, until)) => visit(Limit::WaitOn429, until),
            Some((Guess::Learned, _)) | None => {}
        }
        if let Some(limit) = terms.rule.in_flight() {
            self.in_flight_limit(limit, now, own, visit);
        }
    }

    /// The learned delay, as spacing and as the wait after a 429.
    #[inline(always)]
    fn learned_limits(&self, terms: Terms<'_>, last: Timestamp, visit: &mut impl FnMut(Limit, Timestamp)) {
        let learned = self.learned_delay(terms);
        if !learned.is_zero() && last > Timestamp::NEVER {
            visit(Limit::LearnedDelay(self.spaced(learned, last)), last + learned);
        }
        if let Some((Guess::Learned, until)) = self.guess() {
            visit(Limit::LearnedHold, until);
        }
    }

    #[inline(always)]
    fn guess(&self) -> Option<(Guess, Timestamp)> {
        let holds = self.holds.as_ref()?;
        holds.guess_until.ever().map(|until| (holds.guess, until))
    }

    /// With `limit` requests on the wire, one more waits until enough of them are recorded, or their leases end (B78,
    /// B80).
    ///
    /// To a request that was charged for already, those count that were charged before it and those that
    /// have left: it may be of a group in which another host allows more at once.
    #[inline]
    fn in_flight_limit(
        &self,
        limit: u32,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        let more = self.rare.as_ref().is_some_and(|rare| !rare.open.is_empty() || !rare.lent.is_empty());
        if more || own.is_some() {
            return self.in_flight_limit_of_many(limit, now, own, visit);
        }
        if let Some(only) = self.open.as_ref().filter(|_| limit == 1) {
            visit(Limit::InFlight { limit }, renewed_until(only.started_at, now));
        }
    }

    fn in_flight_limit_of_many(
        &self,
        limit: u32,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        let mut earlier = true;
        let counts = |open: &&Permit| {
            let mine = own.is_some_and(|own| own.id == open.id);
            earlier &= !mine;
            !mine && (earlier || open.departed || own.is_none())
        };
        let held = self.opens().filter(counts);
        let held = held.map(|open| (renewed_until(open.started_at, now), Limit::InFlight { limit }));
        let lent =
            self.leases().filter(|lent| lent.until > now && own.is_none_or(|own| own.id != lent.permit.id));
        let lent = lent.map(|lent| (lent.until, Limit::Lease { limit, since: lent.permit.started_at }));
        let mut ends: Vec<(Timestamp, Limit)> = held.chain(lent).collect();
        ends.sort_by_key(|(end, _)| *end);
        if let Some(surplus) = ends.len().checked_sub(limit as usize) {
            let (end, limit) = ends[surplus];
            visit(limit, end);
        }
    }
}

//! All limits on the next request, in one list.
//!
//! Deciding takes the latest of them and explaining shows all of them. Both use the same list, so they cannot disagree.
//! The order matters for ties: server, robots.txt, rule, learned.

use super::lease::renewed_until;
use super::{OwnCause, Pace, ServerCause, Terms};
use crate::decision::{Limit, Permit, Reason, Spacing};
use crate::intent::Intent;
use crate::time::{Span, Timestamp};

impl Pace {
    /// Whether nothing delays a request at `now`. Faster than [`Self::binding`], because no reason is built.
    #[inline]
    pub(super) fn free(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> bool {
        let mut free = true;
        self.each_constraint(terms, intent, now, None, |_, until| free &= until <= now);
        free
    }

    /// The constraint that delays a request at `now` the longest; on a tie, the first in the list.
    #[inline]
    pub(super) fn binding(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        self.binding_for(terms, intent, now, None)
    }

    /// Like [`Self::binding`], but for the request of `own`, which has already been charged.
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

    /// Calls `visit` with every constraint and the earliest time at which it allows a request.
    ///
    /// Always inlined, so that callers that ignore the limits don't pay for computing their numbers.
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
        if let Some(paused_until) = self.cold.as_ref().and_then(|cold| cold.paused_until.ever()) {
            visit(Limit::Paused, paused_until);
        }
    }

    /// Visits the constraints of a domain without any requests so far: they delay nothing yet, but people want to know them.
    pub(super) fn each_future_constraint(&self, terms: Terms<'_>, mut visit: impl FnMut(Limit)) {
        let rule = terms.rule;
        if !rule.enabled() || self.last_start > Timestamp::NEVER {
            return;
        }
        let spacing = |delay| Spacing { delay, last: Timestamp::NEVER, assumed: false };
        for (delay, limit) in [
            (terms.crawl_delay, Limit::CrawlDelay(spacing(terms.crawl_delay))),
            (rule.min_delay(), Limit::MinDelay(spacing(rule.min_delay()))),
            (rule.rate_delay(), Limit::Rate(spacing(rule.rate_delay()))),
            (self.learned_delay(terms), self.learned_limit(spacing(self.learned_delay(terms)))),
        ] {
            if !delay.is_zero() {
                visit(limit);
            }
        }
        if let Some(burst) = rule.burst().filter(|_| self.cold.is_none()) {
            visit(Limit::Burst(burst));
        }
    }

    /// The start from which the next one has to keep its distance; `id` is the permit of `start`.
    ///
    /// A request that departs at the time of its charge was spaced when it was charged. One that departs later keeps
    /// its distance to requests that started since, but not to its own charge.
    #[inline(always)]
    fn last_for(&self, own: Option<&Permit>, now: Timestamp, start: Timestamp, id: u32) -> Timestamp {
        match own {
            Some(own) if now <= own.started_at || id == own.id => Timestamp::NEVER,
            _ => start,
        }
    }

    #[inline(always)]
    fn spaced(&self, delay: Span, last: Timestamp) -> Spacing {
        Spacing { delay, last, assumed: self.cold.as_ref().is_some_and(|cold| cold.lost_at == last) }
    }

    /// The server's deadline and its quotas.
    #[inline(always)]
    fn server_limits(&self, last: Timestamp, now: Timestamp, visit: &mut impl FnMut(Limit, Timestamp)) {
        if let Some(holds) = self.holds.as_ref().filter(|holds| holds.server_until > Timestamp::NEVER) {
            let limit = match holds.server_cause {
                ServerCause::RetryAfter => Limit::RetryAfter,
                ServerCause::QuotaSpent => Limit::QuotaSpent,
            };
            visit(limit, holds.server_until);
        }
        let quotas = self.cold.iter().flat_map(|cold| &cold.quotas);
        for quota in quotas.filter(|quota| quota.until > now) {
            let limit = Limit::QuotaSpacing(self.spaced(quota.delay, last));
            visit(limit, (last + quota.delay).min(quota.until));
        }
    }

    /// The delays of robots.txt and of the rule.
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

    /// Burst windows, and the additional limits of the intent.
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
        let (start, id) = match &self.cold {
            Some(cold) => (cold.starts[index], cold.start_ids[index]),
            // Without cold state, every start so far was a fetch.
            None if intent == Intent::Fetch => (self.last_start, self.last_id),
            None => (Timestamp::NEVER, 0),
        };
        let last = self.last_for(own, now, start, id);
        if !slower.min_delay.is_zero() && last > Timestamp::NEVER {
            let limit = Limit::IntentDelay(intent, self.spaced(slower.min_delay, last));
            visit(limit, last + slower.min_delay);
        }
        let on_time = own.is_some_and(|own| now <= own.started_at);
        let Some(cold) = self.cold.as_ref().filter(|_| !on_time) else { return };
        let except = own.map(|own| own.started_at);
        if let Some(burst) = terms.rule.burst() {
            visit(Limit::Burst(burst), cold.window.free_at(burst, cold.lost_at, except));
        }
        if let Some(burst) = slower.burst {
            let free_at = cold.windows[index].free_at(burst, cold.lost_at, except);
            visit(Limit::IntentBurst(intent, burst), free_at);
        }
    }

    /// The rule's own waits after failures, and its limit on requests in flight.
    #[inline(always)]
    fn rule_limits(
        &self,
        terms: Terms<'_>,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        match self.own_hold() {
            Some((OwnCause::Backoff, until)) => visit(Limit::Backoff { penalties: self.penalties }, until),
            Some((OwnCause::WaitOn429, until)) => visit(Limit::WaitOn429, until),
            Some((OwnCause::Learned, _)) | None => {}
        }
        let limits = [terms.rule.in_flight(), self.learned_in_flight(terms)];
        if let Some(limit) = limits.into_iter().flatten().min() {
            self.in_flight_limit(limit, now, own, visit);
        }
    }

    /// The learned delay, as spacing and as the wait after a 429.
    #[inline(always)]
    fn learned_limits(&self, terms: Terms<'_>, last: Timestamp, visit: &mut impl FnMut(Limit, Timestamp)) {
        let learned = self.learned_delay(terms);
        if !learned.is_zero() && last > Timestamp::NEVER {
            visit(self.learned_limit(self.spaced(learned, last)), last + learned);
        }
        if let Some((OwnCause::Learned, until)) = self.own_hold() {
            visit(Limit::LearnedHold, until);
        }
    }

    /// The learned delay, with what bracket learning bases it on.
    #[inline(always)]
    fn learned_limit(&self, spacing: Spacing) -> Limit {
        match self.bracket() {
            Some(state) if !self.learned.pinned && state.delay == spacing.delay => {
                Limit::LearnedRate(spacing, state.summary())
            }
            _ => Limit::LearnedDelay(spacing),
        }
    }

    #[inline(always)]
    fn own_hold(&self) -> Option<(OwnCause, Timestamp)> {
        let holds = self.holds.as_ref()?;
        holds.own_until.ever().map(|until| (holds.own_cause, until))
    }

    /// With `limit` requests in flight, the next one waits until enough of them are recorded or their leases end.
    ///
    /// For a request that was already charged, only requests that were charged before it or have departed count: in a
    /// group, another host may allow more requests in flight.
    #[inline]
    fn in_flight_limit(
        &self,
        limit: u32,
        now: Timestamp,
        own: Option<&Permit>,
        visit: &mut impl FnMut(Limit, Timestamp),
    ) {
        let more = self.cold.as_ref().is_some_and(|cold| !cold.open.is_empty() || !cold.lent.is_empty());
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
        let ours = self.opens().filter(counts);
        let ours = ours.map(|open| (renewed_until(open.started_at, now), Limit::InFlight { limit }));
        let lent =
            self.leases().filter(|lent| lent.until > now && own.is_none_or(|own| own.id != lent.permit.id));
        let lent = lent.map(|lent| (lent.until, Limit::Lease { limit, since: lent.permit.started_at }));
        let mut ends: Vec<(Timestamp, Limit)> = ours.chain(lent).collect();
        ends.sort_by_key(|(end, _)| *end);
        if let Some(surplus) = ends.len().checked_sub(limit as usize) {
            let (end, limit) = ends[surplus];
            visit(limit, end);
        }
    }
}

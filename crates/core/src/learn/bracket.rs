//! Bracket learning: finds the rate of a hidden limit between a pace that works and one that was refused.
//!
//! A refusal proves that the site's allowance is used up. So between two refusals, the accepted requests divided by the
//! time are the limit, whatever the burst or the pace was. The pace stays just below that estimate, and now and then a
//! probe tests whether more is allowed: rarely if probes fail, and for as long as the site's burst could hide the truth.
//!
//! - this file: the parameters, and what a success or a refusal does to the state
//! - `state`: the state
//! - `estimate`: the arithmetic of rates, bursts and probes
//!
//! Holds that the server stated, and every limit of the rule, come first; they are in [`crate::pace`].

mod estimate;
mod state;

use super::Sent;
use crate::time::{Span, Timestamp};
use estimate::{Anchor, Rate};
pub(crate) use state::{Bracket, Phase};

/// The parameters of bracket learning, validated with the rule they are part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BracketRule {
    /// The delay to start with, unless the rule's or robots.txt's delay is longer.
    pub start: Span,
    /// The longest learned delay, unless the rule's or robots.txt's delay is longer.
    pub ceiling: Span,
}

impl Bracket {
    pub(crate) fn new(delay: Span) -> Self {
        Self {
            phase: Phase::Start,
            delay,
            safe: Span::ZERO,
            failed: Span::ZERO,
            limit: Span::ZERO,
            former: Span::ZERO,
            fell_at: Timestamp::NEVER,
            former_at: Timestamp::NEVER,
            anchor: Anchor::default(),
            step_at: Timestamp::NEVER,
            step_accepted: 0,
            closed_at: Timestamp::NEVER,
            polls: 0,
            outage: Span::ZERO,
            window: Span::ZERO,
            cycle_limit: Span::ZERO,
            cycle: Anchor::default(),
            refusals: 0,
            burst: 1,
            probe_every: PROBE_FIRST,
            probe_step: PROBE_STEP,
            strikes: 0,
            in_flight: 0,
            in_flight_seen: 0,
            in_flight_sample: 0,
            in_flight_full: 0,
        }
    }

    /// The most requests that may be in flight; `None` if learning doesn't limit them. A site that just refused a
    /// request is asked with one request at a time.
    pub(crate) fn in_flight_max(&self) -> Option<u32> {
        match (self.closed_at.ever(), self.in_flight) {
            (Some(_), _) => Some(1),
            (None, 0) => None,
            (None, limit) => Some(limit.into()),
        }
    }

    fn rate(&self) -> Rate {
        Rate::of(self.delay)
    }

    /// What people are told about it.
    pub(crate) fn summary(&self) -> crate::decision::Learned {
        let probing = self.phase == Phase::Probe;
        let needed = if probing { self.probe_length() } else { self.probe_every };
        crate::decision::Learned {
            refusals: self.refusals,
            burst: self.burst,
            probe_in: needed.saturating_sub(self.step_accepted),
            probing,
        }
    }

    /// A new process continues after a clean stop: our own guesses about an outage end.
    pub(crate) fn restarted(&mut self) {
        (self.closed_at, self.polls) = (Timestamp::NEVER, 0);
    }

    /// Nothing was sent for long: what is known may be out of date, so the next probe comes early.
    pub(crate) fn idled(&mut self) {
        self.probe_every = self.probe_every.min(PROBE_FIRST);
        self.probe_step = self.probe_step.max(PROBE_STEP);
        (self.step_at, self.step_accepted, self.strikes) = (Timestamp::NEVER, 0, 0);
        self.anchor = Anchor::default();
    }

    /// Starts a step at `rate`, within the limits.
    fn go(&mut self, rate: Rate, limits: Limits) {
        self.delay = rate.delay().clamp(limits.least, limits.most);
        (self.step_at, self.step_accepted) = (Timestamp::NEVER, 0);
    }

    fn lock(&mut self, rate: Rate, limits: Limits) {
        self.phase = Phase::Locked;
        self.go(rate, limits);
        self.safe = self.delay;
    }
}

/// The shortest and the longest delay that may be learned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) least: Span,
    pub(crate) most: Span,
}

impl BracketRule {
    /// The state of a domain about which nothing is known yet.
    pub(crate) fn fresh(&self, limits: Limits) -> Bracket {
        Bracket::new(self.start.clamp(limits.least, limits.most))
    }

    /// A request succeeded that started after the latest penalty.
    pub(crate) fn succeeded(&self, state: &mut Bracket, sent: Sent, limits: Limits) {
        if let Some(closed_at) = state.closed_at.ever() {
            let outage = sent.started_at.since(closed_at);
            // One refusal and one wait say little about how long the site refuses.
            let long = state.polls > 1 && outage > state.long_outage();
            (state.closed_at, state.polls) = (Timestamp::NEVER, 0);
            if long {
                self.outage_over(state, sent, outage, limits);
            } else {
                let outage = state.outage.split(2);
                state.outage = if outage > LONG_OUTAGE { outage } else { Span::ZERO };
                state.go(state.rate(), limits);
            }
        }
        if state.cycle.at == Timestamp::NEVER {
            state.cycle = Anchor::at(sent);
        }
        state.in_flight_seen = state.in_flight_seen.max(sent.probe);
        state.in_flight_sample = state.in_flight_sample.saturating_add(1);
        self.widen_in_flight(state, sent);
        if state.step_at == Timestamp::NEVER {
            state.step_at = sent.started_at;
            return;
        }
        state.step_accepted = state.step_accepted.saturating_add(1);
        match state.phase {
            Phase::Start if state.settled_in(START_STEP, sent) => {
                if state.kept_up(sent) {
                    state.go(state.rate().times(START_FACTOR), limits);
                } else {
                    state.go(state.rate(), limits);
                }
            }
            Phase::Search if state.step_accepted >= SEARCH_STEP => self.climb(state, sent, limits),
            Phase::Locked => self.consider_probe(state, sent, limits),
            Phase::Probe if state.step_accepted >= state.probe_length() => {
                if !state.kept_up(sent) {
                    return state.lock(Rate::of(state.safe), limits);
                }
                let step = u32::from(state.probe_step) * 8 / 5;
                state.probe_step = step.min(u32::from(PROBE_STEP_MAX)) as u16;
                state.probe_every = PROBE_AGAIN;
                (state.limit, state.strikes) = (Span::ZERO, 0);
                if state.delay <= state.former {
                    // What was the limit once is the limit again, about.
                    state.former = Span::ZERO;
                    (state.probe_step, state.probe_every) = (PROBE_STEP / 2, PROBE_FIRST);
                }
                state.lock(state.rate(), limits);
            }
            _ => {}
        }
    }

    /// A long outage ended: with a window, what was accepted since the previous one ended is what the window allows.
    fn outage_over(&self, state: &mut Bracket, sent: Sent, outage: Span, limits: Limits) {
        state.outage = outage.max(state.outage);
        let cycle = state.cycle.until(sent);
        state.cycle = Anchor::at(sent);
        // After a long time without an outage, this isn't the end of a window: the limit fell, or the site failed.
        let Some(cycle) = cycle.filter(|cycle| cycle.accepted > 0 && cycle.span <= outage.times(20)) else {
            (state.anchor, state.outage) = (Anchor::at(sent), Span::ZERO);
            return state.go(state.rate(), limits);
        };
        let (limit, known) = (cycle.rate(), Rate::of(state.limit));
        let before = std::mem::replace(&mut state.cycle_limit, limit.delay());
        let agrees = !before.is_zero() && (0.85..1.18).contains(&limit.over(Rate::of(before)));
        state.anchor = Anchor::at(sent);
        if agrees {
            (state.window, state.probe_step, state.probe_every) = (cycle.span, PROBE_STEP / 2, PROBE_FIRST);
        } else if !state.limit.is_zero()
            && state.window.is_zero()
            && state.phase != Phase::Search
            && limit < known
        {
            // The limit was known better: this was a ban, or a failure.
            return state.lock(known.times(MARGIN).at_most(state.rate()), limits);
        } else {
            (state.window, state.probe_step, state.probe_every) =
                (Span::ZERO, PROBE_STEP * 5 / 2, PROBE_AGAIN);
        }
        state.limit = limit.delay();
        state.lock(limit.times(MARGIN), limits);
    }

    fn climb(&self, state: &mut Bracket, sent: Sent, limits: Limits) {
        if !state.kept_up(sent) {
            return state.go(state.rate(), limits);
        }
        let failed = Rate::of(state.failed);
        let next = state.rate().between(failed);
        if next.over(state.rate()) < LOCK_WITHIN {
            state.probe_step = PROBE_STEP_MIN;
            return state.lock(state.rate(), limits);
        }
        state.go(next, limits);
    }

    fn consider_probe(&self, state: &mut Bracket, sent: Sent, limits: Limits) {
        let former = !state.former.is_zero() && state.former < state.delay;
        let far = former && Rate::of(state.former).over(state.rate()) > FORMER_FAR;
        let fallen_for = sent.started_at.since(state.fell_at);
        if far && state.step_accepted >= FORMER_AFTER && sent.started_at >= state.former_at {
            state.former_at = sent.started_at + fallen_for.split(FORMER_SHARE);
            state.phase = Phase::Probe;
            state.safe = state.delay;
            return state.go(Rate::of(state.former), limits);
        }
        if state.step_accepted >= state.probe_every && state.delay > limits.least {
            state.phase = Phase::Probe;
            state.safe = state.delay;
            state.go(state.rate().times(1.0 + f64::from(state.probe_step) / 1_000.0), limits);
        }
    }

    /// Lets one more request be in flight after the limit was reached often without a refusal.
    fn widen_in_flight(&self, state: &mut Bracket, sent: Sent) {
        if state.in_flight == 0 || sent.probe < state.in_flight {
            return;
        }
        state.in_flight_full = state.in_flight_full.saturating_add(1);
        if state.in_flight_full >= IN_FLIGHT_AFTER {
            (state.in_flight, state.in_flight_full) = (state.in_flight.saturating_add(1), 0);
        }
    }

    /// A request that started before the latest slow-down was refused: it says nothing new, but it wasn't accepted.
    pub(crate) fn refused_late(&self, state: &mut Bracket, sent: Sent) {
        state.anchor.refused(sent.id);
        state.cycle.refused(sent.id);
    }

    /// A request was refused that started after the latest penalty. Returns how long to wait unless the server said.
    pub(crate) fn limited(&self, state: &mut Bracket, sent: Sent, limits: Limits) -> Span {
        state.cycle.refused(sent.id);
        if state.closed_at > Timestamp::NEVER {
            return self.still_refused(state, sent);
        }
        state.refusals = state.refusals.saturating_add(1);
        (state.closed_at, state.polls) = (sent.started_at, 1);
        let seen = state.anchor.until(sent);
        self.judge(state, sent, seen, limits);
        state.anchor = Anchor::at(sent);
        state.delay.max(state.outage.split(2)).min(POLL_MAX)
    }

    fn still_refused(&self, state: &mut Bracket, sent: Sent) -> Span {
        state.polls = state.polls.saturating_add(1);
        // For a site that refuses for long, the rate counts from first refusal to first refusal. Otherwise the latest
        // one is the better anchor, because what the site would have allowed meanwhile may be lost.
        if sent.started_at.since(state.closed_at) < state.long_outage() {
            state.anchor = Anchor::at(sent);
        } else {
            state.anchor.refused(sent.id);
        }
        let doubled = POLL_FIRST.times(1 << u32::from(state.polls.saturating_sub(2)).min(10));
        doubled.max(state.delay).min(POLL_MAX)
    }

    fn judge(&self, state: &mut Bracket, sent: Sent, seen: Option<estimate::Seen>, limits: Limits) {
        let rate = state.rate();
        // The limit of requests in flight was raised lately, and this one needed that.
        let widened = state.in_flight > 1 && sent.probe >= state.in_flight && state.in_flight_full < WIDENED;
        let crowded = widened
            || sent.probe > 1 && sent.probe > state.in_flight_seen.max(1) && state.in_flight_sample >= 20;
        (state.in_flight_seen, state.in_flight_sample) = (0, 0);
        if crowded && state.phase != Phase::Start {
            // More requests were in flight than ever before: that, and not the pace, may be what the site refuses.
            state.in_flight = ((u32::from(sent.probe) * 9 / 10) as u16).max(1);
            state.in_flight_full = WIDENED;
            if state.phase == Phase::Probe {
                state.lock(Rate::of(state.safe), limits);
            } else if state.phase == Phase::Search && seen.is_some_and(|seen| seen.accepted >= ENOUGH) {
                state.lock(rate, limits);
            } else {
                state.go(rate, limits);
            }
            return;
        }
        // What a window allows again comes back bit by bit, or all at once at its end.
        if !state.outage.is_zero() && sent.started_at.since(state.cycle.at) < state.outage {
            return state.lock(rate.times(0.95), limits);
        }
        match state.phase {
            Phase::Start => {
                state.failed = state.delay;
                state.phase = Phase::Search;
                state.go(rate.times(SLOW_DOWN), limits);
            }
            Phase::Search => self.search(state, seen, limits),
            Phase::Locked => self.strike(state, seen, limits),
            Phase::Probe => self.probe_failed(state, sent, seen, limits),
        }
    }

    fn search(&self, state: &mut Bracket, seen: Option<estimate::Seen>, limits: Limits) {
        let rate = state.rate();
        let failed = state.delay;
        match seen {
            Some(seen) if seen.accepted >= ENOUGH && seen.span >= state.outage => {
                let limit = seen.rate();
                if state.limit.is_zero() && state.refusals <= 3 {
                    state.burst = estimate::burst_of_ramp(Rate::of(state.failed), limit).max(state.burst);
                }
                state.limit = limit.delay();
                state.probe_step = estimate::uncertainty(seen.accepted);
                state.probe_every = PROBE_FIRST;
                let margin = limit.times(MARGIN).at_most(rate.times(MARGIN));
                state.lock(margin, limits);
            }
            // It may be a window that is used up again, of which the end of the outage tells more.
            _ if !state.outage.is_zero() => state.go(rate.times(0.9), limits),
            seen => {
                let most = seen.map_or(rate, |seen| seen.most());
                let next = rate.times(SLOW_DOWN).at_most(most);
                state.go(next.at_least(rate.times(0.1)), limits);
            }
        }
        state.failed = failed;
    }

    fn strike(&self, state: &mut Bracket, seen: Option<estimate::Seen>, limits: Limits) {
        let rate = state.rate();
        let recent = state.strikes > 0 && seen.is_some_and(|seen| seen.accepted < STRIKE_WITHIN);
        state.failed = state.delay;
        if !recent {
            state.strikes = 1;
            if state.burst < BURST_GUESS_MAX {
                state.burst = state.burst * 3 / 2 + 1;
            }
            let estimated = seen.filter(|seen| seen.accepted >= ENOUGH).map_or(rate, |seen| seen.rate());
            let next = rate.times(0.97).at_most(estimated.times(MARGIN));
            return state.lock(next, limits);
        }
        if state.former.is_zero() && state.outage.is_zero() {
            (state.former, state.fell_at, state.former_at) = (state.safe, state.anchor.at, state.anchor.at);
        }
        state.strikes = 0;
        match seen {
            Some(seen) if seen.accepted >= ENOUGH && seen.span >= state.outage => {
                state.limit = seen.rate().delay();
                state.probe_step = estimate::uncertainty(seen.accepted);
                state.probe_every = PROBE_FIRST;
                state.lock(seen.rate().at_most(rate).times(MARGIN), limits);
            }
            seen => {
                state.phase = Phase::Search;
                if !state.outage.is_zero() {
                    return state.go(rate.times(0.9), limits);
                }
                let most = seen.map_or(rate, |seen| seen.most());
                state.go(rate.times(0.7).at_most(most).at_least(rate.times(0.1)), limits);
            }
        }
    }

    fn probe_failed(&self, state: &mut Bracket, _sent: Sent, seen: Option<estimate::Seen>, limits: Limits) {
        let (tried, safe) = (state.rate(), Rate::of(state.safe));
        state.failed = state.delay;
        if state.delay == state.former {
            if tried.over(safe) > FORMER_FAR {
                state.probe_every = state.probe_every.max(PROBE_FIRST);
                return state.lock(safe, limits);
            }
            state.former = Span::ZERO;
        }
        state.probe_step = (state.probe_step / 2).max(PROBE_STEP_MIN);
        state.probe_every = state.probe_every.saturating_mul(2).clamp(PROBE_FIRST, PROBE_EVERY_MAX);
        let known =
            seen.filter(|seen| seen.accepted >= ENOUGH).map_or(safe, |seen| seen.rate().times(MARGIN));
        state.lock(known.at_least(safe).at_most(tried.times(MARGIN)), limits);
    }
}

impl Bracket {
    /// Whether the step had enough requests and enough time.
    fn settled_in(&self, requests: u32, sent: Sent) -> bool {
        let long_enough = START_TIME.max(self.step_at.since(self.cycle.at).split(START_SHARE));
        self.step_accepted >= requests && sent.started_at.since(self.step_at) >= long_enough
    }

    /// Refusing for longer than this isn't just a bucket that is empty.
    fn long_outage(&self) -> Span {
        LONG_OUTAGE.max(self.delay.times(4))
    }

    /// Whether requests were sent about as fast as allowed. Slower ones say nothing about the pace.
    fn kept_up(&self, sent: Sent) -> bool {
        let took = sent.started_at.since(self.step_at);
        took <= self.delay.times(u64::from(self.step_accepted)).times(5).split(4) + KEEP_UP
    }

    /// How many requests a probe needs before it is confirmed.
    pub(crate) fn probe_length(&self) -> u32 {
        let faster = self.rate().over(Rate::of(self.safe));
        let by_burst = estimate::probe_length(self.burst, faster);
        // Whether there is a window isn't known after the first long outage.
        let window = if self.window.is_zero() { self.outage.min(UNSURE_MAX) } else { self.window.times(2) };
        let by_window = Rate::of(self.delay).in_span(window);
        let most = Rate::of(self.delay).in_span(PROBE_TIME_MAX).clamp(PROBE_LEAST, PROBE_EVERY_MAX);
        by_burst.max(by_window).min(most)
    }
}

const START_STEP: u32 = 8;
const START_TIME: Span = Span::from_secs(2);
/// A step takes at least this share of the time since the first request, so that the pace doesn't explode.
const START_SHARE: u64 = 5;
const START_FACTOR: f64 = 1.5;
const SLOW_DOWN: f64 = 0.6;
const SEARCH_STEP: u32 = 10;
const LOCK_WITHIN: f64 = 1.02;
const ENOUGH: u32 = 6;
const MARGIN: f64 = 0.98;
/// A burst that is only guessed from refusals isn't believed to be larger.
const BURST_GUESS_MAX: u32 = 150;
const STRIKE_WITHIN: u32 = 100;
const PROBE_FIRST: u32 = 100;
const PROBE_AGAIN: u32 = 20;
const PROBE_EVERY_MAX: u32 = 4_000;
const PROBE_STEP: u16 = 100;
const PROBE_STEP_MIN: u16 = 15;
const PROBE_STEP_MAX: u16 = 500;
const FORMER_AFTER: u32 = 20;
/// The former limit is tried again after this share of the time since it fell.
const FORMER_SHARE: u64 = 8;
const IN_FLIGHT_AFTER: u16 = 3_000;
const WIDENED: u16 = 300;
const POLL_FIRST: Span = Span::from_millis(500);
const POLL_MAX: Span = Span::from_secs(60);
const LONG_OUTAGE: Span = Span::from_secs(2);
/// A probe that is confirmed too early costs one refusal; one that takes for ever costs more.
const PROBE_TIME_MAX: Span = Span::from_mins(10);
const PROBE_LEAST: u32 = 30;
/// From this factor on, the former limit is worth a probe of its own.
const FORMER_FAR: f64 = 1.3;
const UNSURE_MAX: Span = Span::from_secs(30);
const KEEP_UP: Span = Span::from_millis(500);

//! The small facade: one pace, waited for before each request.
//!
//! A thin coat over a [`Gate`] of one domain; lines, spacing and ladder are the gate's. It fetches nothing.

use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Departure, Terms};
use comity_core::problem::Problems;
use comity_core::rule::{Backoff, Fields, LearningName, Profile, Rule, RuleTable};
use comity_core::time::Span;

use crate::clock::Clock;
use crate::event::Events;
use crate::gate::{Gate, Permit};

/// Keeps requests apart: call [`wait`](Self::wait) before each, and [`backoff`](Self::backoff) after one that was
/// refused.
///
/// Clones share one pace, and so do threads and async tasks that use them: any number of callers get one slot
/// an interval each, in the order they came.
///
/// ```
/// use comity::limiter::RateLimiter;
///
/// let limiter = RateLimiter::new(50.0)?; // requests a second
/// for page in 1..=3 {
///     limiter.wait();
///     // … fetch the page; if it was refused: limiter.backoff(attempt) …
/// }
/// # Ok::<(), comity_core::problem::Problems>(())
/// ```
/// The same from async code:
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use comity::limiter::{Limits, RateLimiter};
///
/// let limiter = RateLimiter::with(Limits { requests_per_second: 100.0, ..Limits::default() })?;
/// limiter.wait_async().await;
/// # Ok::<(), comity_core::problem::Problems>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct RateLimiter {
    gate: Gate,
    host: Domain,
    rule: Arc<Rule>,
}

/// What a [`RateLimiter`] goes by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Most requests a second.
    pub requests_per_second: f64,
    /// The first wait of [`RateLimiter::backoff`].
    pub backoff_base: Span,
    /// Its longest.
    pub backoff_max: Span,
    /// False makes waiting and backing off no-ops; the only way to be unpaced (B13).
    pub enabled: bool,
}

/// One request a second; waits of 5 s, doubling up to 5 min.
impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_second: 1.0,
            backoff_base: Span::from_secs(5),
            backoff_max: Span::from_secs(300),
            enabled: true,
        }
    }
}

/// One request a second (B13).
impl Default for RateLimiter {
    fn default() -> Self {
        Self::with(Limits::default()).unwrap_or_else(|_| unreachable!("the defaults are valid"))
    }
}

impl RateLimiter {
    /// A limiter of so many requests a second.
    pub fn new(requests_per_second: f64) -> Result<Self, Problems> {
        Self::with(Limits { requests_per_second, ..Limits::default() })
    }

    /// A limiter that goes by `limits`. Every problem with them is reported.
    pub fn with(limits: Limits) -> Result<Self, Problems> {
        Self::with_clock(limits, Clock::new())
    }

    /// One that lets everything pass at once.
    pub fn disabled() -> Self {
        let limits = Limits { enabled: false, ..Limits::default() };
        Self::with(limits).unwrap_or_else(|_| unreachable!("the defaults are valid"))
    }

    /// The same on another clock, for tests.
    pub fn with_clock(limits: Limits, clock: Clock) -> Result<Self, Problems> {
        let fields = Fields {
            enabled: Some(limits.enabled),
            min_delay: Some(Span::ZERO),
            requests_per_second: Some(Some(limits.requests_per_second)),
            backoff: Some(Backoff::Exponential),
            backoff_base: Some(limits.backoff_base),
            backoff_max: Some(limits.backoff_max),
            learning: Some(LearningName::Off),
            in_flight: Some(None),
            ..Fields::default()
        };
        let profile = Profile { default: fields, ..Profile::archiver() };
        let rules = RuleTable::new(&profile, &Fields::default(), &[], None)?;
        let host = Domain::parse("limiter.invalid").unwrap_or_else(|_| unreachable!("a valid name"));
        let rule = rules.rule(&host).clone();
        let Limits { requests_per_second, enabled, .. } = limits;
        tracing::info!(requests_per_second, enabled, interval = %Terms::from(&*rule).baseline(), "rate limiter");
        Ok(Self { gate: Gate::new(Arc::new(rules), clock, Events::new()), host, rule })
    }

    /// Waits until the next request may leave. The thread sleeps meanwhile.
    pub fn wait(&self) {
        self.tell_wait();
        while !sent(self.gate.acquire_blocking(&self.host, Intent::Fetch).ok()) {}
    }

    /// Waits until the next request may leave. Dropping the future gives the place up.
    pub async fn wait_async(&self) {
        self.tell_wait();
        while !sent(self.gate.acquire(&self.host, Intent::Fetch).await.ok()) {}
    }

    /// Stays away after a refusal, for longer with each `attempt`, counted from 0: 5, 10, 20 … s. All users of this
    /// limiter stay away; the next [`wait`](Self::wait) takes one more interval (B19).
    pub fn backoff(&self, attempt: u32) {
        let until = self.hold(attempt);
        self.gate.clock().sleep_until_blocking(until);
        self.charge();
    }

    /// The same from async code.
    pub async fn backoff_async(&self, attempt: u32) {
        let until = self.hold(attempt);
        self.gate.clock().sleep_until(until).await;
        self.charge();
    }

    /// The gate it is a coat of, and whose pace it keeps there.
    pub(crate) fn line(&self) -> (&Gate, &Domain) {
        (&self.gate, &self.host)
    }

    fn tell_wait(&self) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            let wait =
                self.gate.change_pace(&self.host, |pace, terms, now| pace.wait(terms, Intent::Fetch, now));
            if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
                tracing::debug!(%wait, "waiting for the next request");
            }
        }
    }

    fn hold(&self, attempt: u32) -> comity_core::time::Timestamp {
        let span = self.rule.backoff(attempt);
        let now = self.gate.clock().now();
        if span.is_zero() {
            return now;
        }
        tracing::warn!(attempt, wait = %span, "backing off");
        self.gate.change_pace(&self.host, |pace, _, now| pace.back_off(span, now));
        now + span
    }

    fn charge(&self) {
        if self.rule.enabled() {
            self.gate.change_pace(&self.host, |pace, terms, now| pace.charge_now(terms, Intent::Fetch, now));
        }
    }
}

/// The caller sends now, unless somebody backed off meanwhile. What comes back is not known here, so that it is no success
/// and no failure; who was refused backs off.
fn sent(permit: Option<Permit>) -> bool {
    let Some(mut permit) = permit else { return true };
    if permit.depart() != Departure::Go {
        return false;
    }
    permit.left();
    true
}

//! A simple rate limiter: one pace, to wait for before each request.
//!
//! A thin wrapper around a [`Gate`] with a single domain, which does the queueing, spacing and backoff. It fetches
//! nothing.

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

/// Keeps requests apart: call [`wait`](Self::wait) before each request, and [`backoff`](Self::backoff) after one that
/// was rate limited or refused.
///
/// Clones share one pace, and so do all threads and async tasks that use them: each caller gets one slot per interval,
/// in the order of their calls.
///
/// ```
/// use comity::limiter::RateLimiter;
///
/// let limiter = RateLimiter::new(50.0)?; // requests per second
/// for page in 1..=3 {
///     limiter.wait();
///     // … fetch the page; if it was rate limited: limiter.backoff(attempt) …
/// }
/// # Ok::<(), comity_core::problem::Problems>(())
/// ```
/// From async code:
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

/// The settings of a [`RateLimiter`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Maximum requests per second.
    pub requests_per_second: f64,
    /// The wait of the first [`RateLimiter::backoff`].
    pub backoff_base: Span,
    /// The longest wait of [`RateLimiter::backoff`].
    pub backoff_max: Span,
    /// False turns `wait` and `backoff` into no-ops. There is no other way to turn pacing off.
    pub enabled: bool,
}

/// One request per second; a backoff that starts at 5 s and doubles up to 5 min.
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

/// One request per second.
impl Default for RateLimiter {
    fn default() -> Self {
        Self::with(Limits::default()).unwrap_or_else(|_| unreachable!("the defaults are valid"))
    }
}

impl RateLimiter {
    /// A limiter with this many requests per second.
    pub fn new(requests_per_second: f64) -> Result<Self, Problems> {
        Self::with(Limits { requests_per_second, ..Limits::default() })
    }

    /// A limiter with these limits. Reports every problem with them at once.
    pub fn with(limits: Limits) -> Result<Self, Problems> {
        Self::with_clock(limits, Clock::new())
    }

    /// A limiter that never waits.
    pub fn disabled() -> Self {
        let limits = Limits { enabled: false, ..Limits::default() };
        Self::with(limits).unwrap_or_else(|_| unreachable!("the defaults are valid"))
    }

    /// A limiter on the given clock, for tests.
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
        tracing::info!(requests_per_second, enabled, interval = %Terms::from(&*rule).baseline(), "rate limiter created");
        Ok(Self { gate: Gate::new(Arc::new(rules), clock, Events::new()), host, rule })
    }

    /// Blocks the thread until the next request may leave.
    pub fn wait(&self) {
        self.log_wait();
        while !sent(self.gate.acquire_blocking(&self.host, Intent::Fetch).ok()) {}
    }

    /// Waits until the next request may leave. Dropping the future gives up the place in line.
    pub async fn wait_async(&self) {
        self.log_wait();
        while !sent(self.gate.acquire(&self.host, Intent::Fetch).await.ok()) {}
    }

    /// Backs off after a refused request: 5, 10, 20 … s for `attempt` 0, 1, 2 …. All users of this limiter wait, and
    /// the next
    /// [`wait`](Self::wait) takes one more interval.
    pub fn backoff(&self, attempt: u32) {
        let until = self.hold(attempt);
        self.gate.clock().sleep_until_blocking(until);
        self.charge();
    }

    /// Like [`Self::backoff`], for async code.
    pub async fn backoff_async(&self, attempt: u32) {
        let until = self.hold(attempt);
        self.gate.clock().sleep_until(until).await;
        self.charge();
    }

    /// The gate behind this limiter, and the one host in it.
    pub(crate) fn gate_and_host(&self) -> (&Gate, &Domain) {
        (&self.gate, &self.host)
    }

    fn log_wait(&self) {
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

/// Starts the caller's request; false if somebody backed off in the meantime. Its outcome is never reported here, so it
/// counts neither as a success nor as a failure: after a refusal the caller calls `backoff`.
fn sent(permit: Option<Permit>) -> bool {
    let Some(mut permit) = permit else { return true };
    if permit.depart() != Departure::Go {
        return false;
    }
    permit.sent_unrecorded();
    true
}

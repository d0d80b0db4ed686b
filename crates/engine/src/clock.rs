//! The engine's clock: wall time when it was made, plus monotonic time since. Steps of the wall clock while a
//! process runs are not seen (B7). The only module that reads the time that anything is decided by; the transport measures
//! its own time-outs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use comity_core::time::{Span, Timestamp};

use crate::lock;

/// A clock; clones read the same.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Real { wall: Timestamp, since: Instant },
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Manual {
    now: Mutex<Timestamp>,
    /// Whoever sleeps moves it.
    automatic: bool,
    sleepers: Mutex<Vec<Arc<Condvar>>>,
}

/// The hands of a clock that moves only when told to, for tests.
#[derive(Debug, Clone)]
pub struct Hands(Arc<Manual>);

impl Clock {
    /// A clock that runs.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall = Timestamp::from_micros(i64::try_from(wall.as_micros()).unwrap_or(i64::MAX));
        Self(Kind::Real { wall, since: Instant::now() })
    }

    /// A clock that reads `now` until its hands are moved.
    pub fn manual(now: Timestamp) -> (Self, Hands) {
        Self::moved_by_hand(now, false)
    }

    /// The same, but whoever sleeps moves its hands to when that ends: one thread can wait for itself.
    pub fn automatic(now: Timestamp) -> (Self, Hands) {
        Self::moved_by_hand(now, true)
    }

    fn moved_by_hand(now: Timestamp, automatic: bool) -> (Self, Hands) {
        let manual = Arc::new(Manual { now: Mutex::new(now), automatic, sleepers: Mutex::default() });
        (Self(Kind::Manual(manual.clone())), Hands(manual))
    }

    /// Moves the hands of a clock that moves by itself to `until`; false for any other.
    pub(crate) fn skips_to(&self, until: Timestamp) -> bool {
        let Kind::Manual(manual) = &self.0 else { return false };
        if manual.automatic {
            let mut now = lock(&manual.now);
            *now = (*now).max(until);
        }
        manual.automatic
    }

    /// What it reads.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::Real { wall, since } => *wall + micros(Instant::now().saturating_duration_since(*since)),
            Kind::Manual(manual) => *lock(&manual.now),
        }
    }

    /// Sleeps until `until`, as this clock reads it.
    pub async fn sleep_until(&self, until: Timestamp) {
        match &self.0 {
            Kind::Real { .. } => tokio::time::sleep(until.since(self.now()).into()).await,
            Kind::Manual(_) if self.skips_to(until) => {}
            Kind::Manual(manual) => {
                while *lock(&manual.now) < until {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    /// The same for a thread.
    pub fn sleep_until_blocking(&self, until: Timestamp) {
        match &self.0 {
            Kind::Real { .. } => std::thread::sleep(until.since(self.now()).into()),
            Kind::Manual(_) if self.skips_to(until) => {}
            Kind::Manual(manual) => {
                while *lock(&manual.now) < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// A condition that is to be waited on with this clock is told when its hands move.
    pub(crate) fn wakes(&self, condition: &Arc<Condvar>) {
        if let Kind::Manual(manual) = &self.0 {
            lock(&manual.sleepers).push(condition.clone());
        }
    }

    /// Waits on a condition until it is told or the clock reads `until`.
    pub(crate) fn wait<'a, T>(
        &self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        until: Option<Timestamp>,
    ) -> MutexGuard<'a, T> {
        match (&self.0, until) {
            (Kind::Real { .. }, Some(until)) => {
                let left = until.since(self.now()).into();
                condition.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
            }
            (Kind::Real { .. }, None) => condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
            // The hands may move between reading them and waiting: look again soon.
            (Kind::Manual(_), _) => {
                let soon = Duration::from_millis(5);
                condition.wait_timeout(guard, soon).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Hands {
    /// Moves the clock ahead.
    pub fn advance(&self, span: Span) {
        let mut now = lock(&self.0.now);
        *now = *now + span;
        drop(now);
        lock(&self.0.sleepers).iter().for_each(|condition| condition.notify_all());
    }
}

/// A duration as the core has it.
pub(crate) fn micros(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

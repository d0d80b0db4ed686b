//! The engine's clock: the time of a store, or the wall clock where there is none, when it was made, plus the time that
//! this machine was up since, sleep included. Steps of the wall clock while a process runs are not seen (B7). The only
//! module that reads the time that anything is decided by; the transport measures its own time-outs.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_core::time::{Span, Timestamp};
use comity_store::machine::{Machine, ThisMachine};
use comity_store::time::StoreTime;
use comity_store::{Store, StoreError};

use crate::lock;

/// A clock; clones read the same.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Real(Arc<Real>),
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Real {
    machine: Arc<dyn Machine>,
    /// What this clock would have read when the machine booted, in microseconds.
    booted_us: AtomicI64,
    /// A gate on a store goes by it.
    in_use: AtomicBool,
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
    /// A clock that runs, from what the wall clock reads now.
    pub fn new() -> Self {
        Self::on(Arc::new(ThisMachine))
    }

    /// A clock that reads the time of a store.
    pub async fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let clock = Self::new();
        clock.follow(store.time().await?);
        Ok(clock)
    }

    /// A clock that runs as a machine says.
    #[doc(hidden)]
    pub fn on(machine: Arc<dyn Machine>) -> Self {
        let booted_us = AtomicI64::new((machine.wall() - machine.up()).as_micros());
        Self(Kind::Real(Arc::new(Real { machine, booted_us, in_use: AtomicBool::new(false) })))
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
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::Real(real) => real.booted_at() + real.machine.up(),
            Kind::Manual(manual) => *lock(&manual.now),
        }
    }

    /// Whether it runs by itself, so that it can go by the time of a store.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.0, Kind::Real(_))
    }

    /// A gate on a store goes by it from now on; whether one did before, so that it must not be set by the wall clock.
    pub(crate) fn take_into_use(&self) -> bool {
        match &self.0 {
            Kind::Real(real) => real.in_use.swap(true, Ordering::Relaxed),
            Kind::Manual(_) => true,
        }
    }

    /// From now on it reads the time of a store.
    pub(crate) fn follow(&self, time: StoreTime) {
        if let Kind::Real(real) = &self.0 {
            real.booted_us.store((time.now - time.up).as_micros(), Ordering::Relaxed);
        }
    }

    /// What it would have read when the machine booted: moments that were read before it followed a store move by how
    /// much this has changed.
    pub(crate) fn booted_at(&self) -> Timestamp {
        match &self.0 {
            Kind::Real(real) => real.booted_at(),
            Kind::Manual(_) => Timestamp::from_micros(0),
        }
    }

    /// Sleeps until `until`, as this clock reads it.
    pub async fn sleep_until(&self, until: Timestamp) {
        match &self.0 {
            Kind::Real(_) => {
                while let Some(left) = self.left(until) {
                    tokio::time::sleep(left).await;
                }
            }
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
            Kind::Real(_) => {
                while let Some(left) = self.left(until) {
                    std::thread::sleep(left);
                }
            }
            Kind::Manual(_) if self.skips_to(until) => {}
            Kind::Manual(manual) => {
                while *lock(&manual.now) < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// How long to sleep until a moment. What sleepers sleep by stands still while the machine sleeps, and this clock does
    /// not: they look again now and then.
    fn left(&self, until: Timestamp) -> Option<Duration> {
        let left = until.since(self.now());
        (!left.is_zero()).then(|| left.min(NAP).into())
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
            (Kind::Real(_), Some(until)) => {
                let left = self.left(until).unwrap_or_default();
                condition.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
            }
            (Kind::Real(_), None) => condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
            // The hands may move between reading them and waiting: look again soon.
            (Kind::Manual(_), _) => {
                let soon = Duration::from_millis(5);
                condition.wait_timeout(guard, soon).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl Real {
    fn booted_at(&self) -> Timestamp {
        Timestamp::from_micros(self.booted_us.load(Ordering::Relaxed))
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

/// Whoever sleeps looks at the clock this often.
const NAP: Span = Span::from_secs(10);

//! The engine's clock: the store's time (without a store, the wall clock) when the clock was created, plus the time
//! since boot that has passed since then, suspend included. It ignores steps of the wall clock while the process runs.
//!
//! This is the only module that provides the time for decisions. The transport measures its own timeouts.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_core::time::{Span, Timestamp};
use comity_store::machine::{Machine, ThisMachine};
use comity_store::time::StoreTime;
use comity_store::{Store, StoreError};

use crate::lock;

/// A clock. Clones show the same time.
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
    /// The time this clock would have shown when the machine booted, in microseconds.
    booted_us: AtomicI64,
    /// Whether a gate on a store already uses this clock.
    in_use: AtomicBool,
}

#[derive(Debug)]
struct Manual {
    now: Mutex<Timestamp>,
    /// Whether sleeping advances the clock.
    automatic: bool,
    sleepers: Mutex<Vec<Arc<Condvar>>>,
}

/// Advances a manual clock, in tests.
#[derive(Debug, Clone)]
pub struct ClockControl(Arc<Manual>);

impl Clock {
    /// A real clock that starts at the current wall clock time.
    pub fn new() -> Self {
        Self::on(Arc::new(ThisMachine))
    }

    /// A real clock that shows the time of a store.
    pub async fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let clock = Self::new();
        clock.follow(store.time().await?);
        Ok(clock)
    }

    /// A real clock that takes its time from `machine`.
    #[doc(hidden)]
    pub fn on(machine: Arc<dyn Machine>) -> Self {
        let booted_us = AtomicI64::new((machine.wall() - machine.up()).as_micros());
        Self(Kind::Real(Arc::new(Real { machine, booted_us, in_use: AtomicBool::new(false) })))
    }

    /// A clock that stands at `now` until its control advances it.
    pub fn manual(now: Timestamp) -> (Self, ClockControl) {
        Self::new_manual(now, false)
    }

    /// A manual clock that jumps to the end of every sleep, so that a single thread can wait for itself.
    pub fn automatic(now: Timestamp) -> (Self, ClockControl) {
        Self::new_manual(now, true)
    }

    fn new_manual(now: Timestamp, automatic: bool) -> (Self, ClockControl) {
        let manual = Arc::new(Manual { now: Mutex::new(now), automatic, sleepers: Mutex::default() });
        (Self(Kind::Manual(manual.clone())), ClockControl(manual))
    }

    /// Advances an automatic clock to `until`; returns false for any other clock.
    pub(crate) fn skip_to(&self, until: Timestamp) -> bool {
        let Kind::Manual(manual) = &self.0 else { return false };
        if manual.automatic {
            let mut now = lock(&manual.now);
            *now = (*now).max(until);
        }
        manual.automatic
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::Real(real) => real.booted_at() + real.machine.up(),
            Kind::Manual(manual) => *lock(&manual.now),
        }
    }

    /// Whether this is a real clock, which can follow a store's time.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.0, Kind::Real(_))
    }

    /// Marks the clock as used by a gate on a store. Returns whether one used it before: then it must not be set by the
    /// wall clock.
    pub(crate) fn mark_in_use(&self) -> bool {
        match &self.0 {
            Kind::Real(real) => real.in_use.swap(true, Ordering::Relaxed),
            Kind::Manual(_) => true,
        }
    }

    /// Shows the time of a store from now on.
    pub(crate) fn follow(&self, time: StoreTime) {
        if let Kind::Real(real) = &self.0 {
            real.booted_us.store((time.now - time.up).as_micros(), Ordering::Relaxed);
        }
    }

    /// The time this clock would have shown when the machine booted. Times that were read before the clock followed a
    /// store must be shifted by the change of this value.
    pub(crate) fn booted_at(&self) -> Timestamp {
        match &self.0 {
            Kind::Real(real) => real.booted_at(),
            Kind::Manual(_) => Timestamp::from_micros(0),
        }
    }

    /// Sleeps until this clock shows `until`.
    pub async fn sleep_until(&self, until: Timestamp) {
        match &self.0 {
            Kind::Real(_) => {
                while let Some(remaining) = self.remaining(until) {
                    tokio::time::sleep(remaining).await;
                }
            }
            Kind::Manual(_) if self.skip_to(until) => {}
            Kind::Manual(manual) => {
                while *lock(&manual.now) < until {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    /// Like [`Self::sleep_until`], but blocks the thread.
    pub fn sleep_until_blocking(&self, until: Timestamp) {
        match &self.0 {
            Kind::Real(_) => {
                while let Some(remaining) = self.remaining(until) {
                    std::thread::sleep(remaining);
                }
            }
            Kind::Manual(_) if self.skip_to(until) => {}
            Kind::Manual(manual) => {
                while *lock(&manual.now) < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// How long to sleep before checking the clock again; `None` once `until` has been reached. OS timers stop while
    /// the machine is suspended and this clock doesn't, so sleepers check it now and then.
    fn remaining(&self, until: Timestamp) -> Option<Duration> {
        let remaining = until.since(self.now());
        (!remaining.is_zero()).then(|| remaining.min(SLEEP_MAX).into())
    }

    /// Notifies `condition` whenever a manual clock is advanced.
    pub(crate) fn notify_on_advance(&self, condition: &Arc<Condvar>) {
        if let Kind::Manual(manual) = &self.0 {
            lock(&manual.sleepers).push(condition.clone());
        }
    }

    /// Waits until `condition` is notified or the clock shows `until`.
    pub(crate) fn wait<'a, T>(
        &self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        until: Option<Timestamp>,
    ) -> MutexGuard<'a, T> {
        match (&self.0, until) {
            (Kind::Real(_), Some(until)) => {
                let remaining = self.remaining(until).unwrap_or_default();
                condition.wait_timeout(guard, remaining).unwrap_or_else(PoisonError::into_inner).0
            }
            (Kind::Real(_), None) => condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
            // The clock may be advanced between reading it and waiting, so check again soon.
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

impl ClockControl {
    /// Advances the clock.
    pub fn advance(&self, span: Span) {
        let mut now = lock(&self.0.now);
        *now = *now + span;
        drop(now);
        lock(&self.0.sleepers).iter().for_each(|condition| condition.notify_all());
    }
}

/// Converts a duration to a [`Span`].
pub(crate) fn to_span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// Sleepers check the clock at least this often.
const SLEEP_MAX: Span = Span::from_secs(10);

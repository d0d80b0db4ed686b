//! Waits while the database can't be used: how long, and what is logged meanwhile. All connections of a store share one
//! outage: it begins with the first that fails, and ends when those that wait work again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_core::decision::Outage;
use comity_core::time::Span;

use super::location::Location;
use crate::machine::{Machine, ThisMachine};
use crate::{Availability, StoreError};

/// The outages of a store.
#[derive(Debug)]
pub(super) struct Outages {
    location: Location,
    patience: AtomicU64,
    pub(super) availability: Arc<Availability>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which connections failed last.
    failing: Vec<usize>,
    /// The machine's uptime when the first of them failed.
    since: Option<Span>,
    /// The problem that was logged.
    logged: Option<String>,
    /// An earlier wait was given up: later callers don't wait as long again.
    gave_up: bool,
}

impl Outages {
    pub(super) fn new(location: Location, patience: Span) -> Self {
        Self {
            location,
            patience: AtomicU64::new(patience.as_micros()),
            availability: Arc::default(),
            state: Mutex::default(),
        }
    }

    pub(super) fn set_patience(&self, patience: Span) {
        self.patience.store(patience.as_micros(), Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call after connection `lane` failed for a reason that may pass. Returns when it is time to try again, or an error if
    /// patience has run out.
    pub(super) fn failed(&self, lane: usize, outage: Outage, what: &str) -> Result<(), StoreError> {
        let now = ThisMachine.up();
        let patience = Span::from_micros(self.patience.load(Ordering::Relaxed));
        let waited = {
            let mut state = self.state();
            if !state.failing.contains(&lane) {
                state.failing.push(lane);
            }
            let waited = now.less(*state.since.get_or_insert(now));
            self.availability.set_unavailable(outage);
            if waited >= patience || state.gave_up {
                state.gave_up = true;
                // It may never be used again, so nobody waits for it.
                state.failing.retain(|failing| *failing != lane);
                let waited = if waited.is_zero() {
                    String::new()
                } else {
                    format!("; gave up after waiting {}", waited.prose())
                };
                return Err(self.location.outage(outage, format!("{what}{waited}")));
            }
            if waited >= WARN_AFTER && state.logged.as_deref() != Some(what) {
                state.logged = Some(what.to_owned());
                self.availability.set_announced();
                let patience = patience.prose();
                tracing::warn!(
                    "{}: {what}; waiting up to {patience} for it; no requests are sent meanwhile",
                    self.location
                );
            }
            waited
        };
        std::thread::sleep(RETRY_AFTER.min(patience.less(waited).into()));
        Ok(())
    }

    /// Counts as an outage that is over already: who holds what has to be confirmed again.
    pub(super) fn interrupted(&self) {
        if self.state().since.is_none() {
            self.availability.set_unavailable(Outage::Gone);
            self.availability.set_available();
        }
    }

    /// Call when connection `lane` works. Returns whether an outage ended with that.
    pub(super) fn works(&self, lane: usize) -> bool {
        let mut state = self.state();
        if state.since.is_none() {
            return false;
        }
        state.failing.retain(|failing| *failing != lane);
        if !state.failing.is_empty() {
            return false;
        }
        self.availability.set_available();
        if let (Some(_), Some(since)) = (&state.logged, state.since) {
            let waited = ThisMachine.up().less(since).prose();
            tracing::warn!("{}: available again after {waited}; work continues", self.location);
        }
        *state = State::default();
        true
    }
}

/// An outage shorter than this is not logged.
const WARN_AFTER: Span = Span::from_secs(2);
/// The time between an attempt and the next.
const RETRY_AFTER: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_ends_although_a_connection_that_gave_up_is_never_used_again() {
        let location = Location::parse("postgres://localhost/db").unwrap();
        let outages = Outages::new(location, Span::from_secs(60));
        outages.failed(0, Outage::Gone, "gone").unwrap();
        outages.set_patience(Span::ZERO);
        assert!(outages.failed(1, Outage::Gone, "gone").is_err());
        assert!(outages.availability.outage().is_some());
        assert!(!outages.works(2), "the first one still waits");
        assert!(outages.works(0));
        assert!(outages.availability.outage().is_none());
        assert!(!outages.works(0), "it had ended");
    }
}

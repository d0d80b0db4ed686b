//! While the store is unavailable: no permits are granted, and what is known about domains is remembered. Waiting for
//! the store to come back is up to the store.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Shift;
use comity_store::StoreError;
use comity_store::domains::Stated;

use super::state::{self, State};
use super::{Gate, Inner};
use crate::clock::Clock;

/// The paces that a gate knew when its store became unavailable.
#[derive(Debug, Clone)]
pub struct RememberedPaces {
    paces: Vec<(Domain, Pace)>,
    /// When the machine booted, on the gate's clock.
    booted_at: Timestamp,
}

impl RememberedPaces {
    /// The deadlines that servers stated and that have not passed, for a store that may lack them.
    pub(super) fn stated(&self, clock: &Clock) -> Vec<Stated> {
        let (now, shift) = (clock.now(), Shift { from: self.booted_at, to: clock.booted_at() });
        let latest = self.paces.iter().filter_map(|(domain, pace)| {
            let (until, stated_at) = pace.saved_limits().server?;
            let (until, stated_at) = (shift.of(until), shift.of(stated_at));
            (until > now).then(|| (domain, Stated { domain: domain.clone(), until, stated_at }))
        });
        // Of several paces of a domain, the last one counts.
        latest.collect::<HashMap<_, _>>().into_values().collect()
    }
}

impl Gate {
    /// Waits until the store fails for good, and returns why. To continue, create a new gate.
    pub async fn until_store_fails(&self) -> StoreError {
        let Some(mut failure) = self.failure() else { return std::future::pending().await };
        match failure.wait_for(Option::is_some).await {
            Ok(error) => error.clone().unwrap_or(StoreError::Closed),
            Err(_) => StoreError::Closed,
        }
    }

    /// Waits for `future`, or for the store to become unavailable for good.
    pub(super) async fn unless_store_fails<T>(
        &self,
        future: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let (mut future, mut failure) = (pin!(future), pin!(self.until_store_fails()));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => failure.as_mut().poll(context).map(Err),
        })
        .await
    }

    /// The paces of all domains held here, for a gate that replaces this one after its store became unavailable.
    pub fn remembered_paces(&self) -> RememberedPaces {
        let state = self.lock();
        let held = state.dispatch.paces().iter().filter(|(id, ..)| state.held.contains_key(id));
        let held = held.map(|(_, domain, pace)| (domain.clone(), pace.clone()));
        let before = state.remembered.iter().map(|(domain, pace)| (domain.clone(), pace.clone()));
        let paces = before.chain(held).collect();
        RememberedPaces { paces, booted_at: self.0.clock.booted_at() }
    }

    /// Continues with the paces of a previous gate, for all domains that nobody else has held in the meantime.
    pub fn restore_paces(&self, remembered: RememberedPaces) {
        let shift = Shift { from: remembered.booted_at, to: self.0.clock.booted_at() };
        let moved = remembered.paces.into_iter().map(|(domain, mut pace)| {
            pace.shift_times(shift);
            (domain, pace)
        });
        self.lock().remembered.extend(moved);
    }

    /// Whether permits can be granted: the store works, and the gate is not closed.
    pub fn is_open(&self) -> bool {
        let (state, now) = (self.lock(), self.now());
        !self.has_failed() && now < state.valid_until && self.0.store_unavailable(&state, now).is_none()
    }

    /// Why no permits are granted, while the store is unavailable.
    pub fn store_unavailable(&self) -> Option<Reason> {
        self.0.store_unavailable(&self.lock(), self.now())
    }

    /// Shortens how long an unavailable store is waited for, because the process is shutting down.
    pub fn hurry(&self) {
        if let Some(registration) = &self.0.registration {
            registration.store.set_patience(HURRIED);
        }
    }
}

impl Inner {
    /// Why no permits are granted, if the store is unavailable or has been since the last heartbeat: results could not
    /// be saved, and it is unknown who holds the domains.
    pub(super) fn store_unavailable(&self, state: &State, now: Timestamp) -> Option<Reason> {
        let availability = &self.registration.as_ref()?.availability;
        (availability.turns() != state.confirmed).then(|| state::store_unavailable(availability.why(), now))
    }
}

/// How long an unavailable store is waited for during shutdown.
const HURRIED: Span = Span::from_secs(10);

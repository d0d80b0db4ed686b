//! A store that is away: nobody is let go meanwhile, and what is known of domains is kept. Waiting for it is the store's.

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Shift;
use comity_store::StoreError;

use super::state::{self, State};
use super::{Gate, Inner};

/// What a gate knew of its domains when its store went away.
#[derive(Debug, Clone)]
pub struct Remains {
    paces: Vec<(Domain, Pace)>,
    /// When the machine booted, by the clock that the gate had.
    booted_at: Timestamp,
}

impl Gate {
    /// Waits until the store stops working, and tells why. Whoever wants to go on makes a new gate.
    pub async fn until_store_fails(&self) -> StoreError {
        let Some(mut failure) = self.failure() else { return std::future::pending().await };
        match failure.wait_for(Option::is_some).await {
            Ok(error) => error.clone().unwrap_or(StoreError::Closed),
            Err(_) => StoreError::Closed,
        }
    }

    /// What is known of the domains held here, for a gate that comes after this one when its store went away.
    pub fn remains(&self) -> Remains {
        let state = self.lock();
        let held = state.dispatch.paces().iter().filter(|(id, ..)| state.tenures.contains_key(id));
        let held = held.map(|(_, domain, pace)| (domain.clone(), pace.clone()));
        let before = state.remains.iter().map(|(domain, pace)| (domain.clone(), pace.clone()));
        let paces = before.chain(held).collect();
        Remains { paces, booted_at: self.0.clock.booted_at() }
    }

    /// Goes on with what a gate before this one knew, wherever its store shows that nobody had a domain meanwhile.
    pub fn go_on_with(&self, remains: Remains) {
        let shift = Shift { from: remains.booted_at, to: self.0.clock.booted_at() };
        let moved = remains.paces.into_iter().map(|(domain, mut pace)| {
            pace.move_along(shift);
            (domain, pace)
        });
        self.lock().remains.extend(moved);
    }

    /// Whether anybody could be let go: its store works, and it is not closed.
    pub fn is_open(&self) -> bool {
        let (state, now) = (self.lock(), self.now());
        !self.has_failed() && now < state.valid_until && self.0.store_away(&state, now).is_none()
    }

    /// Why nobody is let go, while the store is away.
    pub fn store_away(&self) -> Option<Reason> {
        self.0.store_away(&self.lock(), self.now())
    }

    /// Somebody wants to stop: a store that is away is not waited for much longer.
    pub fn hurry(&self) {
        if let Some(tenancy) = &self.0.tenancy {
            tenancy.store.set_patience(HURRIED);
        }
    }
}

impl Inner {
    /// Why nobody goes, if the store is away, or was since our time was last renewed: what is fetched could not be saved,
    /// and whose the domains are is not known.
    pub(super) fn store_away(&self, state: &State, now: Timestamp) -> Option<Reason> {
        let availability = &self.tenancy.as_ref()?.availability;
        (availability.turns() != state.confirmed).then(|| state::store_away(availability.why(), now))
    }
}

/// How long a store is waited for by somebody who wants to stop.
const HURRIED: Span = Span::from_secs(10);

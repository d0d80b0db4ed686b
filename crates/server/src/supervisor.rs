//! Keeps the current [`ServingState`]: replaces it on a reload, and restarts it when its gate fails.
//!
//! Waiting for an unavailable store is not done here but in the store itself. In the meantime requests are refused with
//! the reason. When the store gives up, the service ends.

use std::sync::Arc;
use std::time::Duration;

use comity::config::Config;
use comity::gate::CloseMode;
use comity::store::StoreError;
use tokio::sync::{self, watch};

use crate::auth::{Access, Caller};
use crate::problem::{Kind, Problem};
use crate::service::{Insecure, ServeError};
use crate::state::{ServingState, StateBuilder};

/// Keeps the current state.
pub(crate) struct Supervisor {
    builder: StateBuilder,
    state: watch::Sender<Arc<ServingState>>,
    /// Held while the state is being replaced. Two replacements at once would lose what the gate knows.
    replacing: sync::Mutex<()>,
}

impl Supervisor {
    pub(crate) fn new(builder: StateBuilder, state: ServingState) -> Self {
        Self { builder, state: watch::Sender::new(Arc::new(state)), replacing: sync::Mutex::new(()) }
    }

    /// The current state, or an error while its store is unavailable.
    pub(crate) fn state(&self) -> Result<Arc<ServingState>, Problem> {
        let state = self.snapshot();
        match state.store.availability().long_outage() {
            Some(outage) => {
                let detail =
                    format!("waiting for the store: {outage}; no request may be sent until it is back");
                Err(Problem::new(Kind::Store, detail))
            }
            None => Ok(state),
        }
    }

    /// The current state, even while its store is unavailable.
    pub(crate) fn snapshot(&self) -> Arc<ServingState> {
        self.state.borrow().clone()
    }

    /// Calls `check` with the current access rules.
    pub(crate) fn with_access<T>(&self, check: impl FnOnce(&Access) -> T) -> T {
        check(&self.state.borrow().access)
    }

    /// Waits until an authenticated `caller` loses its access.
    pub(crate) async fn until_revoked(&self, caller: Caller) {
        let _ = self.state.subscribe().wait_for(|state| !state.access.still_allows(caller)).await;
    }

    /// Waits until `old` is no longer the current state.
    pub(crate) async fn until_replaced(&self, old: &Arc<ServingState>) {
        let _ = self.state.subscribe().wait_for(|state| !Arc::ptr_eq(state, old)).await;
    }

    /// Restarts the state whenever its gate fails. Returns the error when the store itself has given up.
    pub(crate) async fn watch(&self) -> StoreError {
        loop {
            let state = self.snapshot();
            tokio::select! {
                error = state.gate.until_store_fails() => {
                    let _replacing = self.replacing.lock().await;
                    if Arc::ptr_eq(&state, &self.snapshot()) && let Err(error) = self.restart(&state, error).await {
                        return error;
                    }
                }
                () = self.until_replaced(&state) => {}
            }
        }
    }

    /// Starts a new gate on the same store if the old one lost its domains or its time. Any other error is returned.
    async fn restart(&self, state: &Arc<ServingState>, error: StoreError) -> Result<(), StoreError> {
        if !matches!(error, StoreError::Lost | StoreError::Uncertain { .. } | StoreError::Closed) {
            return Err(error);
        }
        tracing::warn!(%error, "restarting the gate on the same store");
        let remains = state.gate.remembered_paces();
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, state.gate.close(CloseMode::HandOver)).await;
        let built = self.builder.build(state.store.clone(), state.config.clone(), state.access.clone()).await;
        let next =
            built.map_err(|failed| if let ServeError::Store(error) = failed { error } else { error })?;
        next.gate.restore_paces(remains);
        self.state.send_replace(Arc::new(next));
        Ok(())
    }

    /// Continues with another configuration on the same store. The paces of all domains are handed to the new gate. If
    /// the configuration can't be used, an error is returned and nothing changes.
    pub(crate) async fn reload(&self, config: Arc<Config>) -> Result<(), ServeError> {
        let _replacing = self.replacing.lock().await;
        let old = self.snapshot();
        let access = self.builder.access(&config)?;
        if access.is_open() && !old.access.is_open() && self.builder.insecure == Insecure::Refused {
            return Err(ServeError::TokensRemoved);
        }
        if config.store != old.config.store {
            return Err(ServeError::StoreChanged);
        }
        if old.gate.store_unavailable().is_some() {
            return Err(ServeError::StoreUnavailable);
        }
        let patience = config.upkeep.patience;
        let building = self.builder.build(old.store.clone(), config, access);
        let built = tokio::time::timeout(RELOAD_TIMEOUT, building).await;
        let next = built.unwrap_or(Err(ServeError::StoreUnavailable))?;
        old.store.set_patience(patience);
        // If the store becomes unavailable right now, the domains are handed over when it is back.
        let closing = tokio::spawn(async move { old.gate.close(CloseMode::HandOver).await });
        let _ = tokio::time::timeout(RELOAD_TIMEOUT, closing).await;
        self.state.send_replace(Arc::new(next));
        Ok(())
    }
}

/// How long closing a failed gate may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long starting the new gate, and closing the old one, may take on a reload. After that the store counts as
/// unavailable.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

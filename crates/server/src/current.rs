//! The gate in force, on a configuration that may change. A store that is away is waited for by the store itself: meanwhile
//! nobody is let go, and who asks hears why. What it gives up on ends the service.

use std::sync::Arc;
use std::time::Duration;

use comity::config::Config;
use comity::gate::HandsOff;
use comity::store::StoreError;
use tokio::sync::{self, watch};

use crate::auth::{Caller, Door};
use crate::live::{Beginning, Live};
use crate::problem::{Kind, Problem};
use crate::service::{Insecure, ServeError};

/// The gate in force.
pub(crate) struct Current {
    beginning: Beginning,
    live: watch::Sender<Arc<Live>>,
    /// Held by whoever is about to give the gate in force up: two at once would lose what it knew.
    giving_up: sync::Mutex<()>,
}

impl Current {
    pub(crate) fn new(beginning: Beginning, live: Live) -> Self {
        Self { beginning, live: watch::Sender::new(Arc::new(live)), giving_up: sync::Mutex::new(()) }
    }

    /// The gate in force, unless its store is away.
    pub(crate) fn live(&self) -> Result<Arc<Live>, Problem> {
        let live = self.in_force();
        match live.store.availability().away_for_long() {
            Some(away) => {
                let what = format!("waiting for the store: {away}; nothing leaves until it is back");
                Err(Problem::new(Kind::Store, what))
            }
            None => Ok(live),
        }
    }

    /// The one in force, whether or not its store is there.
    pub(crate) fn in_force(&self) -> Arc<Live> {
        self.live.borrow().clone()
    }

    /// Who may ask.
    pub(crate) fn with_door<T>(&self, look: impl FnOnce(&Door) -> T) -> T {
        look(&self.live.borrow().door)
    }

    /// Waits until `caller`, who was admitted, may not ask any more.
    pub(crate) async fn until_barred(&self, caller: Caller) {
        let _ = self.live.subscribe().wait_for(|now| !now.door.still_admits(caller)).await;
    }

    /// Waits until `closed` is no longer the gate in force.
    pub(crate) async fn until_other(&self, closed: &Arc<Live>) {
        let _ = self.live.subscribe().wait_for(|now| !Arc::ptr_eq(now, closed)).await;
    }

    /// Watches over the gate in force until its store is given up; why it was.
    pub(crate) async fn watch(&self) -> StoreError {
        loop {
            let live = self.in_force();
            tokio::select! {
                error = live.gate.until_store_fails() => {
                    let _giving_up = self.giving_up.lock().await;
                    if Arc::ptr_eq(&live, &self.in_force()) && let Err(error) = self.begin_anew(&live, error).await {
                        return error;
                    }
                }
                () = self.until_other(&live) => {}
            }
        }
    }

    /// A gate that has to know anew which time it is, or what it holds, is followed by another on the same store.
    async fn begin_anew(&self, live: &Arc<Live>, error: StoreError) -> Result<(), StoreError> {
        if !matches!(error, StoreError::Lost | StoreError::Uncertain { .. } | StoreError::Closed) {
            return Err(error);
        }
        tracing::warn!(%error, "starting over with the store as it is");
        let remains = live.gate.remains();
        let _ = tokio::time::timeout(BRIEFLY, live.gate.close(HandsOff::Pass)).await;
        let begun = self.beginning.on(live.store.clone(), live.config.clone(), live.door.clone()).await;
        let next = begun.map_err(|begun| if let ServeError::Store(error) = begun { error } else { error })?;
        next.gate.go_on_with(remains);
        self.live.send_replace(Arc::new(next));
        Ok(())
    }

    /// Goes on with another configuration on the same store; what is known of domains is passed on. What cannot be used
    /// is told before anything is given up.
    pub(crate) async fn reload(&self, config: Arc<Config>) -> Result<(), ServeError> {
        let _giving_up = self.giving_up.lock().await;
        let old = self.in_force();
        let door = self.beginning.door(&config)?;
        if door.is_open() && !old.door.is_open() && self.beginning.insecure == Insecure::Refused {
            return Err(ServeError::Opens);
        }
        if config.store != old.config.store {
            return Err(ServeError::OtherStore);
        }
        if old.gate.store_away().is_some() {
            return Err(ServeError::Away);
        }
        let patience = config.upkeep.patience;
        let begun = self.beginning.on(old.store.clone(), config, door);
        let next = tokio::time::timeout(CHANGE, begun).await.unwrap_or(Err(ServeError::Away))?;
        old.store.set_patience(patience);
        // If the store goes away this very moment, the domains are passed on when it is back.
        let closing = tokio::spawn(async move { old.gate.close(HandsOff::Pass).await });
        let _ = tokio::time::timeout(CHANGE, closing).await;
        self.live.send_replace(Arc::new(next));
        Ok(())
    }
}

const BRIEFLY: Duration = Duration::from_secs(2);
/// A gate takes another's place in this time, or the store counts as away.
const CHANGE: Duration = Duration::from_secs(30);

//! The gate in force, on a store that may go away and come back, and on a configuration that may change. While the store
//! is away nobody is let go; when it is back a new gate begins, which goes by what the store kept and by what the one
//! before it knew. It is never created again, and another store in its place is as good as none.

use std::sync::Arc;
use std::time::Duration;

use comity::config::Config;
use comity::gate::{HandsOff, Remains};
use comity::store::Identity;
use tokio::sync::{self, watch};

use crate::auth::{Caller, Door};
use crate::live::{Beginning, Live, reopen_store};
use crate::problem::{Kind, Problem};
use crate::service::{Insecure, ServeError};

/// The gate in force, if there is one.
pub(crate) struct Current {
    beginning: Beginning,
    live: watch::Sender<Result<Arc<Live>, Arc<Away>>>,
    /// Held by whoever is about to give the gate in force up: two at once would lose what it knew.
    giving_up: sync::Mutex<()>,
}

/// What is known while the store is away.
struct Away {
    /// Which store is waited for.
    identity: Identity,
    config: Arc<Config>,
    door: Door,
    /// What the last gate knew of its domains.
    remains: Remains,
}

impl Current {
    pub(crate) fn new(beginning: Beginning, live: Live) -> Self {
        Self { beginning, live: watch::Sender::new(Ok(Arc::new(live))), giving_up: sync::Mutex::new(()) }
    }

    /// The gate in force.
    pub(crate) fn live(&self) -> Result<Arc<Live>, Problem> {
        self.live.borrow().as_ref().map(Arc::clone).map_err(|_| {
            Problem::new(Kind::Store, "the store does not work at the moment; nothing leaves until it does")
        })
    }

    /// Who may ask, whether there is a gate or not.
    pub(crate) fn with_door<T>(&self, look: impl FnOnce(&Door) -> T) -> T {
        look(door(&self.live.borrow()))
    }

    /// Waits until `caller`, who was admitted, may not ask any more.
    pub(crate) async fn until_barred(&self, caller: Caller) {
        let _ = self.live.subscribe().wait_for(|now| !door(now).still_admits(caller)).await;
    }

    /// Waits until `closed` is no longer the gate in force.
    pub(crate) async fn until_other(&self, closed: &Arc<Live>) {
        let _ = self.live.subscribe().wait_for(|now| !is_same(now, closed)).await;
    }

    fn is_in_force(&self, live: &Arc<Live>) -> bool {
        is_same(&self.live.borrow(), live)
    }

    /// Watches the store, and begins anew when it is back.
    pub(crate) async fn watch(&self) {
        loop {
            let current = self.live.borrow().clone();
            match current {
                Ok(live) => tokio::select! {
                    error = live.gate.until_store_fails() => {
                        let _giving_up = self.giving_up.lock().await;
                        if self.is_in_force(&live) {
                            tracing::error!(%error, "the store went away; nothing leaves until it is back");
                            let remains = live.gate.remains();
                            self.lose(live, remains).await;
                        }
                    }
                    () = self.until_other(&live) => {}
                },
                Err(away) => {
                    let live = self.until_back(&away).await;
                    self.set(Ok(Arc::new(live)));
                    tracing::info!("the store is back");
                }
            }
        }
    }

    /// The gate is of no use any more: what it knew is kept for the next.
    async fn lose(&self, live: Arc<Live>, remains: Remains) {
        let away = Away {
            identity: live.store.identity(),
            config: live.config.clone(),
            door: live.door.clone(),
            remains,
        };
        self.set(Err(Arc::new(away)));
        // Callers in line hear that the gate is closed.
        let _ = tokio::time::timeout(BRIEFLY, live.gate.close(HandsOff::Pass)).await;
        // The last one who has the store waits for its thread, which may sit in a disk that does not answer.
        tokio::task::spawn_blocking(move || drop(live));
    }

    async fn until_back(&self, away: &Away) -> Live {
        let mut told = String::new();
        loop {
            tokio::time::sleep(AGAIN).await;
            let opened = match reopen_store(&away.config, &away.identity).await {
                Ok(store) => self.beginning.on(store, away.config.clone(), away.door.clone()).await,
                Err(error) => Err(error.into()),
            };
            match opened {
                Ok(live) => {
                    live.gate.go_on_with(away.remains.clone());
                    return live;
                }
                // Once for each reason: it may take days.
                Err(error) if error.to_string() != told => {
                    tracing::warn!(%error, "the store is still away");
                    told = error.to_string();
                }
                Err(_) => {}
            }
        }
    }

    /// Goes on with another configuration on the same store; what is known of domains is passed on. What cannot be used
    /// is told before anything is given up.
    pub(crate) async fn reload(&self, config: Arc<Config>) -> Result<(), ServeError> {
        let _giving_up = self.giving_up.lock().await;
        let old = self.live().map_err(|_| ServeError::Away)?;
        let door = self.beginning.door(&config)?;
        if door.is_open() && !old.door.is_open() && self.beginning.insecure == Insecure::Refused {
            return Err(ServeError::Opens);
        }
        if config.store != old.config.store {
            return Err(ServeError::OtherStore);
        }
        let remains = old.gate.remains();
        let begun = async {
            old.gate.close(HandsOff::Pass).await?;
            self.beginning.on(old.store.clone(), config, door).await
        };
        match tokio::time::timeout(CHANGE, begun).await.unwrap_or(Err(ServeError::Away)) {
            Ok(live) => {
                self.set(Ok(Arc::new(live)));
                Ok(())
            }
            Err(error) => {
                self.lose(old, remains).await;
                Err(error)
            }
        }
    }

    fn set(&self, live: Result<Arc<Live>, Arc<Away>>) {
        let _ = self.live.send_replace(live);
    }
}

fn door(now: &Result<Arc<Live>, Arc<Away>>) -> &Door {
    match now {
        Ok(live) => &live.door,
        Err(away) => &away.door,
    }
}

fn is_same(now: &Result<Arc<Live>, Arc<Away>>, live: &Arc<Live>) -> bool {
    now.as_ref().is_ok_and(|now| Arc::ptr_eq(now, live))
}

/// The store is looked for this often.
const AGAIN: Duration = Duration::from_secs(1);
const BRIEFLY: Duration = Duration::from_secs(2);
/// A gate takes another's place in this time, or the store counts as away.
const CHANGE: Duration = Duration::from_secs(30);

//! A gate on a store that may go away and come back. While it is away nobody is let go; when it is back a new gate
//! begins, which goes by what the store kept.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use comity::clock::Clock;
use comity::config::Config;
use comity::event::Events;
use comity::gate::{Gate, HandsOff};
use comity::store::{self, Store};
use tokio::sync::Notify;

use crate::auth::{self, Door, TokensError};
use crate::permit::Mint;
use crate::problem::{Kind, Problem};
use crate::service::ServeError;

/// What a request is answered with.
pub(crate) struct Live {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) gate: Gate,
    pub(crate) mint: Mint,
    pub(crate) door: Door,
}

impl Live {
    /// Opens the store and begins a gate on it.
    pub(crate) async fn begin(config: Arc<Config>, clock: Clock, events: Events) -> Result<Self, ServeError> {
        let door = door(&config)?;
        let store = store::open(config.store.as_str())?;
        let mint = Mint::of(&*store).await?;
        let name = format!("serve, pid {}", std::process::id());
        let gate = Gate::with_store(config.rules().clone(), clock, events, store.clone(), &name).await?;
        gate.set_room(config.serve.domains_max as usize);
        Ok(Self { config, store, gate, mint, door })
    }
}

fn door(config: &Config) -> Result<Door, TokensError> {
    let serve = &config.serve;
    let mut tokens = serve.tokens.clone();
    if let Some(path) = &serve.tokens_file {
        tokens.extend(auth::read_tokens(path)?);
    }
    Ok(Door::new(tokens, serve.hosts.clone(), serve.listen.ip()))
}

/// The gate in force, if there is one.
pub(crate) struct Current {
    clock: Clock,
    events: Events,
    live: RwLock<Result<Arc<Live>, Door>>,
    /// There is another gate, with another configuration.
    reloaded: Notify,
}

impl Current {
    pub(crate) fn new(clock: Clock, events: Events, live: Live) -> Self {
        Self { clock, events, live: RwLock::new(Ok(Arc::new(live))), reloaded: Notify::new() }
    }

    /// The gate in force.
    pub(crate) fn live(&self) -> Result<Arc<Live>, Problem> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().map(Arc::clone).map_err(|_| away())
    }

    /// Who may ask, whether there is a gate or not.
    pub(crate) fn with_door<T>(&self, look: impl FnOnce(&Door) -> T) -> T {
        match &*self.live.read().unwrap_or_else(PoisonError::into_inner) {
            Ok(live) => look(&live.door),
            Err(door) => look(door),
        }
    }

    /// Watches the store, and begins anew when it is back.
    pub(crate) async fn watch(&self) {
        loop {
            let Ok(live) = self.live() else { return };
            let error = tokio::select! {
                error = live.gate.until_store_fails() => error,
                () = self.reloaded.notified() => continue,
            };
            tracing::error!(%error, "the store went away; nothing leaves until it is back");
            self.set(Err(live.door.clone()));
            // Callers in line hear that the gate is closed.
            let _ = tokio::time::timeout(BRIEFLY, live.gate.close(HandsOff::Stop)).await;
            self.set(Ok(Arc::new(self.until_back(live.config.clone()).await)));
            tracing::info!("the store is back");
        }
    }

    async fn until_back(&self, config: Arc<Config>) -> Live {
        loop {
            tokio::time::sleep(AGAIN).await;
            match Live::begin(config.clone(), self.clock.clone(), self.events.clone()).await {
                Ok(live) => return live,
                Err(error) => tracing::warn!(%error, "the store is still away"),
            }
        }
    }

    /// Goes on with another configuration; what is known of domains is passed on. An error leaves everything as it is.
    pub(crate) async fn reload(&self, config: Arc<Config>) -> Result<(), ServeError> {
        let old = self.live().map_err(|_| ServeError::Away)?;
        // What cannot be used is told before anything is given up.
        door(&config)?;
        old.gate.close(HandsOff::Pass).await?;
        match Live::begin(config, self.clock.clone(), self.events.clone()).await {
            Ok(live) => {
                self.set(Ok(Arc::new(live)));
                self.reloaded.notify_one();
                Ok(())
            }
            Err(error) => {
                let back = Live::begin(old.config.clone(), self.clock.clone(), self.events.clone()).await?;
                self.set(Ok(Arc::new(back)));
                self.reloaded.notify_one();
                Err(error)
            }
        }
    }

    fn set(&self, live: Result<Arc<Live>, Door>) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = live;
    }
}

fn away() -> Problem {
    Problem::new(Kind::Store, "the store does not work at the moment; nothing leaves until it does")
}

/// The store is looked for this often.
const AGAIN: Duration = Duration::from_secs(1);
const BRIEFLY: Duration = Duration::from_secs(2);

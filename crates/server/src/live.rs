//! A gate on a store that may go away and come back. While it is away nobody is let go; when it is back a new gate
//! begins, which goes by what the store kept and by what the one before it knew.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy};
use comity::core::domain::Domain;
use comity::core::pace::Pace;
use comity::event::Events;
use comity::gate::{Gate, HandsOff};
use comity::store::{self, Store};
use tokio::sync::watch;

use crate::auth::{self, Door};
use crate::permit::Mint;
use crate::problem::{Kind, Problem};
use crate::service::{Insecure, ServeError};

/// What a request is answered with.
pub(crate) struct Live {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) gate: Gate,
    pub(crate) mint: Mint,
    pub(crate) door: Door,
    /// Domains that are about to be taken: they count for the room there is.
    arriving: AtomicUsize,
    /// Hosts of groups whose crawl-delay was looked for; that of others goes with their domain.
    recalled: Mutex<HashSet<Domain>>,
}

/// What a gate begins with.
#[derive(Clone)]
pub(crate) struct Beginning {
    pub(crate) clock: Clock,
    pub(crate) events: Events,
    pub(crate) insecure: Insecure,
}

impl Beginning {
    /// Opens the store and begins a gate on it.
    pub(crate) async fn open(&self, config: Arc<Config>) -> Result<Live, ServeError> {
        let door = self.door(&config)?;
        let store = store::open(config.store.as_str())?;
        self.on(store, config, door).await
    }

    /// Begins a gate on a store that is open.
    async fn on(&self, store: Arc<dyn Store>, config: Arc<Config>, door: Door) -> Result<Live, ServeError> {
        let mint = Mint::of(&*store).await?;
        let name = format!("serve, pid {}", std::process::id());
        let (rules, clock, events) = (config.rules().clone(), self.clock.clone(), self.events.clone());
        let gate = Gate::with_store(rules, clock, events, store.clone(), &name).await?;
        gate.set_room(config.serve.domains_max as usize);
        Ok(Live {
            config,
            store,
            gate,
            mint,
            door,
            arriving: AtomicUsize::new(0),
            recalled: Mutex::default(),
        })
    }

    /// Who may ask. A service that is open to everybody listens on loopback, unless somebody said otherwise.
    fn door(&self, config: &Config) -> Result<Door, ServeError> {
        let serve = &config.serve;
        let mut tokens = serve.tokens.clone();
        if let Some(path) = &serve.tokens_file {
            tokens.extend(auth::read_tokens(path)?);
        }
        let door = Door::new(tokens, serve.hosts.clone(), serve.listen.ip());
        if door.is_open() && !serve.listen.ip().is_loopback() && self.insecure == Insecure::Refused {
            return Err(ServeError::Open(serve.listen));
        }
        Ok(door)
    }
}

/// A domain that is about to be taken, until this is dropped.
pub(crate) struct Arrival<'a>(&'a AtomicUsize);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Live {
    /// Room for one more domain, kept while it is taken; an error when there is none.
    pub(crate) fn room(&self) -> Result<Arrival<'_>, Problem> {
        let most = self.config.serve.domains_max as usize;
        let before = self.arriving.fetch_add(1, Ordering::Relaxed);
        let arrival = Arrival(&self.arriving);
        if self.gate.domains() + before >= most {
            let what =
                "domains are held (serve.domains_max); those that nobody uses are let go of in a few seconds";
            return Err(Problem::new(Kind::Full, format!("{most} {what}")));
        }
        Ok(arrival)
    }

    /// The crawl-delay of a host whose domain is not held yet, if its robots.txt is known.
    pub(crate) async fn recall(&self, host: &Domain) {
        if self.config.robots != RobotsPolicy::Obey || !self.is_new(host) {
            return;
        }
        comity::client::recall_crawl_delay(&self.gate, &*self.store, &self.config, host).await;
    }

    fn is_new(&self, host: &Domain) -> bool {
        if self.gate.rules().domain(host) == *host {
            return !self.gate.holds(host);
        }
        let mut recalled = self.recalled.lock().unwrap_or_else(PoisonError::into_inner);
        if recalled.len() >= RECALLED_MAX {
            recalled.clear();
        }
        recalled.insert(host.clone())
    }
}

/// The gate in force, if there is one.
pub(crate) struct Current {
    beginning: Beginning,
    live: watch::Sender<Result<Arc<Live>, Arc<Away>>>,
}

/// What is known while the store is away.
struct Away {
    config: Arc<Config>,
    door: Door,
    /// What the last gate knew of its domains.
    remains: Mutex<Vec<(Domain, Pace)>>,
}

impl Current {
    pub(crate) fn new(beginning: Beginning, live: Live) -> Self {
        Self { beginning, live: watch::Sender::new(Ok(Arc::new(live))) }
    }

    /// The gate in force.
    pub(crate) fn live(&self) -> Result<Arc<Live>, Problem> {
        self.live.borrow().as_ref().map(Arc::clone).map_err(|_| {
            Problem::new(Kind::Store, "the store does not work at the moment; nothing leaves until it does")
        })
    }

    /// Who may ask, whether there is a gate or not.
    pub(crate) fn with_door<T>(&self, look: impl FnOnce(&Door) -> T) -> T {
        match &*self.live.borrow() {
            Ok(live) => look(&live.door),
            Err(away) => look(&away.door),
        }
    }

    /// Waits until `closed` is no longer the gate in force.
    pub(crate) async fn until_other(&self, closed: &Arc<Live>) {
        let is_other = |now: &Result<Arc<Live>, _>| !now.as_ref().is_ok_and(|now| Arc::ptr_eq(now, closed));
        let _ = self.live.subscribe().wait_for(is_other).await;
    }

    /// Watches the store, and begins anew when it is back.
    pub(crate) async fn watch(&self) {
        loop {
            let current = self.live.borrow().clone();
            match current {
                Ok(live) => tokio::select! {
                    error = live.gate.until_store_fails() => {
                        tracing::error!(%error, "the store went away; nothing leaves until it is back");
                        self.lose(&live, live.gate.remains()).await;
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
    async fn lose(&self, live: &Live, remains: Vec<(Domain, Pace)>) {
        let away =
            Away { config: live.config.clone(), door: live.door.clone(), remains: Mutex::new(remains) };
        self.set(Err(Arc::new(away)));
        // Callers in line hear that the gate is closed.
        let _ = tokio::time::timeout(BRIEFLY, live.gate.close(HandsOff::Pass)).await;
    }

    async fn until_back(&self, away: &Away) -> Live {
        loop {
            tokio::time::sleep(AGAIN).await;
            let opened = match store::open(away.config.store.as_str()) {
                Ok(store) => self.beginning.on(store, away.config.clone(), away.door.clone()).await,
                Err(error) => Err(error.into()),
            };
            match opened {
                Ok(live) => {
                    let remains =
                        std::mem::take(&mut *away.remains.lock().unwrap_or_else(PoisonError::into_inner));
                    live.gate.go_on_with(remains);
                    return live;
                }
                Err(error) => tracing::warn!(%error, "the store is still away"),
            }
        }
    }

    /// Goes on with another configuration on the same store; what is known of domains is passed on. What cannot be used
    /// is told before anything is given up.
    pub(crate) async fn reload(&self, config: Arc<Config>) -> Result<(), ServeError> {
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
        match begun.await {
            Ok(live) => {
                self.set(Ok(Arc::new(live)));
                Ok(())
            }
            Err(error) => {
                self.lose(&old, remains).await;
                Err(error)
            }
        }
    }

    fn set(&self, live: Result<Arc<Live>, Arc<Away>>) {
        let _ = self.live.send_replace(live);
    }
}

/// The store is looked for this often.
const AGAIN: Duration = Duration::from_secs(1);
const BRIEFLY: Duration = Duration::from_secs(2);
/// Hosts of groups that are remembered.
const RECALLED_MAX: usize = 10_000;

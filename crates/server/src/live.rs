//! What requests are answered with: a gate on a store, and how one begins. Which one is in force is `current`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy, exposed};
use comity::core::domain::Domain;
use comity::event::Events;
use comity::gate::Gate;
use comity::store::{self, Store, StoreError};

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
        let store = open_store(&config).await?;
        self.on(store, config, door).await
    }

    /// Begins a gate on a store that is open.
    pub(crate) async fn on(
        &self,
        store: Arc<dyn Store>,
        config: Arc<Config>,
        door: Door,
    ) -> Result<Live, ServeError> {
        let mint = Mint::of(&*store).await?;
        let name = format!("serve, pid {}", std::process::id());
        let (rules, clock, events) = (config.rules().clone(), self.clock.clone(), self.events.clone());
        let gate = Gate::with_store(rules, clock, events, store.clone(), &name).await?;
        gate.set_room(config.serve.domains_max as usize);
        gate.set_keep(config.upkeep.keep);
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
    pub(crate) fn door(&self, config: &Config) -> Result<Door, ServeError> {
        let serve = &config.serve;
        let mut tokens = serve.tokens.clone();
        if let Some(path) = &serve.tokens_file {
            tokens.extend(auth::read_tokens(path)?);
            if let Some(warning) = exposed(path) {
                tracing::warn!("serve.tokens_file: {warning}");
            }
        }
        let door = Door::new(tokens, serve.hosts.clone(), serve.listen.ip());
        if door.is_open() && !serve.listen.ip().is_loopback() && self.insecure == Insecure::Refused {
            return Err(ServeError::Open(serve.listen));
        }
        Ok(door)
    }
}

/// Opens the store, which is created when it is not there. That may take as long as another program keeps it locked: not on
/// a thread that answers requests.
async fn open_store(config: &Config) -> Result<Arc<dyn Store>, StoreError> {
    let (place, patience) = (config.store.clone(), config.upkeep.patience);
    let opening = move || store::open_patiently(place.as_str(), patience);
    let store = tokio::task::spawn_blocking(opening).await.unwrap_or(Err(StoreError::Closed))?;
    store.notes().iter().for_each(|note| tracing::warn!("{note}"));
    Ok(store)
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

/// Hosts of groups that are remembered.
const RECALLED_MAX: usize = 10_000;

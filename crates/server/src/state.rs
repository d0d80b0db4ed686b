//! What requests are served with: configuration, store, gate and access rules, and how they are set up. Replacing them
//! on a reload is the job of `supervisor`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy, exposure_warning};
use comity::core::domain::Domain;
use comity::event::Events;
use comity::gate::Gate;
use comity::store::{self, Store, StoreError};

use crate::auth::{self, Access};
use crate::permit::PermitSigner;
use crate::problem::{Kind, Problem};
use crate::service::{Insecure, ServeError};

/// What requests are served with. A reload replaces it as a whole.
pub(crate) struct ServingState {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) gate: Gate,
    pub(crate) signer: PermitSigner,
    pub(crate) access: Access,
    /// Domains that are being taken. They already count toward `serve.domains_max`.
    reserved: AtomicUsize,
    /// Hosts of groups whose crawl-delay was looked up. For other hosts, holding the domain implies it.
    crawl_delay_looked_up: Mutex<HashSet<Domain>>,
}

/// Sets up a [`ServingState`]. What is in here stays the same across reloads.
#[derive(Clone)]
pub(crate) struct StateBuilder {
    pub(crate) clock: Clock,
    pub(crate) events: Events,
    pub(crate) insecure: Insecure,
}

impl StateBuilder {
    /// Opens the store and starts a gate on it.
    pub(crate) async fn open(&self, config: Arc<Config>) -> Result<ServingState, ServeError> {
        let access = self.access(&config)?;
        let store = open_store(&config).await?;
        self.build(store, config, access).await
    }

    /// Starts a gate on a store that is already open.
    pub(crate) async fn build(
        &self,
        store: Arc<dyn Store>,
        config: Arc<Config>,
        access: Access,
    ) -> Result<ServingState, ServeError> {
        let signer = PermitSigner::of(&*store).await?;
        let name = format!("serve, pid {}", std::process::id());
        let (rules, clock, events) = (config.rules().clone(), self.clock.clone(), self.events.clone());
        let gate = Gate::with_store(rules, clock, events, store.clone(), &name).await?;
        gate.set_room(config.serve.domains_max as usize);
        gate.set_keep(config.upkeep.keep);
        Ok(ServingState {
            config,
            store,
            gate,
            signer,
            access,
            reserved: AtomicUsize::new(0),
            crawl_delay_looked_up: Mutex::default(),
        })
    }

    /// Reads who may use the service. Without tokens it must listen on loopback, unless `--insecure` was given.
    pub(crate) fn access(&self, config: &Config) -> Result<Access, ServeError> {
        let serve = &config.serve;
        let mut tokens = serve.tokens.clone();
        if let Some(path) = &serve.tokens_file {
            tokens.extend(auth::read_tokens(path)?);
            if let Some(warning) = exposure_warning(path) {
                tracing::warn!("serve.tokens_file: {warning}");
            }
        }
        let access = Access::new(tokens, serve.hosts.clone(), serve.listen.ip());
        if access.is_open() && !serve.listen.ip().is_loopback() && self.insecure == Insecure::Refused {
            return Err(ServeError::NoTokens(serve.listen));
        }
        Ok(access)
    }
}

/// Opens the store, and creates it if it doesn't exist. This may block for as long as another program keeps the store
/// locked, so it runs on a thread for blocking work.
async fn open_store(config: &Config) -> Result<Arc<dyn Store>, StoreError> {
    let (location, patience) = (config.store.clone(), config.upkeep.patience);
    let opening = move || store::open_with_patience(location.as_str(), patience);
    let store = tokio::task::spawn_blocking(opening).await.unwrap_or(Err(StoreError::Closed))?;
    store.notes().iter().for_each(|note| tracing::warn!("{note}"));
    Ok(store)
}

/// A domain that is being taken counts toward `serve.domains_max` until this is dropped.
pub(crate) struct DomainReservation<'a>(&'a AtomicUsize);

impl Drop for DomainReservation<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServingState {
    /// Reserves space for one more domain, or fails if `serve.domains_max` is reached.
    pub(crate) fn reserve_domain(&self) -> Result<DomainReservation<'_>, Problem> {
        let domains_max = self.config.serve.domains_max as usize;
        let reserved_before = self.reserved.fetch_add(1, Ordering::Relaxed);
        let reservation = DomainReservation(&self.reserved);
        if self.gate.domains() + reserved_before >= domains_max {
            let detail = format!(
                "the limit of {domains_max} sites is reached (serve.domains_max); idle sites are released within \
                 seconds, so retry soon"
            );
            return Err(Problem::new(Kind::Full, detail));
        }
        Ok(reservation)
    }

    /// Applies the crawl-delay of a host whose domain is not held yet, if its robots.txt is in the store.
    pub(crate) async fn load_crawl_delay(&self, host: &Domain) {
        if self.config.robots != RobotsPolicy::Obey || !self.needs_crawl_delay(host) {
            return;
        }
        comity::client::load_crawl_delay(&self.gate, &*self.store, &self.config, host).await;
    }

    fn needs_crawl_delay(&self, host: &Domain) -> bool {
        if self.gate.rules().domain(host) == *host {
            return !self.gate.holds(host);
        }
        let mut looked_up = self.crawl_delay_looked_up.lock().unwrap_or_else(PoisonError::into_inner);
        if looked_up.len() >= LOOKED_UP_MAX {
            looked_up.clear();
        }
        looked_up.insert(host.clone())
    }
}

/// How many hosts of groups are remembered.
const LOOKED_UP_MAX: usize = 10_000;

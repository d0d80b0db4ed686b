//! All of it together: what requests share, and its life from start to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::time::Timestamp;
use comity::event::Events;
use comity::gate::{GateError, HandsOff};
use comity::store::StoreError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::again::Answers;
use crate::auth::TokensError;
use crate::current::Current;
use crate::happenings::Happenings;
use crate::listen;
use crate::live::{Beginning, Live};
use crate::metrics::Metrics;
use crate::problem::Problem;

/// The decision service. Clones are the same service.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    clock: Clock,
    events: Events,
    current: Current,
    answers: Arc<Answers>,
    metrics: Arc<Metrics>,
    happenings: Arc<Happenings>,
    limits: Limits,
    stopping: watch::Sender<bool>,
}

/// What a request may be at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) body_max: usize,
    pub(crate) head_max: usize,
    pub(crate) connections_max: usize,
    pub(crate) idle_timeout: Duration,
}

/// A service that listens.
pub struct Running {
    service: Service,
    address: SocketAddr,
    /// What the configuration said of that.
    listen: SocketAddr,
    open: bool,
    accepting: JoinHandle<()>,
    watching: JoinHandle<StoreError>,
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tokens cannot be read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// It may not listen there.
    #[error(
        "serve.listen = {0}: without tokens only loopback is listened on; make one with comity serve --make-token use, \
         or say --insecure"
    )]
    Open(SocketAddr),
    /// It cannot listen there.
    #[error("serve.listen = {address}: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: std::io::Error,
    },
    /// The store is away at the moment.
    #[error("the store is away at the moment")]
    Away,
    /// All tokens went while it runs.
    #[error("serve.tokens: none is left, so that everybody could use it; that takes a restart")]
    Opens,
    /// Another store was named while it runs.
    #[error("store: another store is used after a restart only")]
    OtherStore,
}

/// Whether everybody may use a service that listens elsewhere than on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insecure {
    /// Never.
    Refused,
    /// Whoever started it said so.
    Accepted,
}

impl Service {
    /// Opens the store, listens and serves. Must be called inside a tokio runtime.
    pub async fn start(config: Config, insecure: Insecure) -> Result<Running, ServeError> {
        Self::start_by(config, insecure, Clock::new()).await
    }

    /// The same by another clock; only its decisions go by it, sockets and `acquire` have their own time.
    pub async fn start_by(config: Config, insecure: Insecure, clock: Clock) -> Result<Running, ServeError> {
        let (address, listen) = (config.serve.listen, config.serve.listen);
        let serve = &config.serve;
        let limits = Limits {
            body_max: usize::try_from(serve.body_max.bytes()).unwrap_or(usize::MAX),
            head_max: usize::try_from(serve.head_max.bytes()).unwrap_or(usize::MAX),
            connections_max: listen::connections_max(serve.connections_max as usize),
            idle_timeout: Duration::from(serve.idle_timeout),
        };
        let events = Events::new();
        let (metrics, happenings) = (Arc::new(Metrics::new()), Arc::new(Happenings::new()));
        events.listen(metrics.clone());
        events.listen(happenings.clone());
        let listener =
            TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        let address = listener.local_addr().unwrap_or(address);
        let beginning = Beginning { clock: clock.clone(), events: events.clone(), insecure };
        let live = beginning.open(Arc::new(config)).await?;
        let open = live.door.is_open();
        let service = Self(Arc::new(Inner {
            current: Current::new(beginning, live),
            clock,
            events,
            answers: Arc::default(),
            metrics,
            happenings,
            limits,
            stopping: watch::Sender::new(false),
        }));
        let accepting = tokio::spawn(listen::accept(service.clone(), listener));
        let watched = service.clone();
        let watching = tokio::spawn(async move { watched.0.current.watch().await });
        Ok(Running { service, address, listen, open, accepting, watching })
    }

    pub(crate) fn live(&self) -> Result<Arc<Live>, Problem> {
        self.0.current.live()
    }

    pub(crate) fn current(&self) -> &Current {
        &self.0.current
    }

    pub(crate) fn answers(&self) -> &Arc<Answers> {
        &self.0.answers
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn happenings(&self) -> &Happenings {
        &self.0.happenings
    }

    pub(crate) fn events(&self) -> &Events {
        &self.0.events
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// The gate was closed: waits for the one that takes its place. An error when none does.
    pub(crate) async fn next_gate(&self, closed: &Arc<Live>) -> Result<(), Problem> {
        tokio::select! {
            biased;
            () = self.stopping() => Err(GateError::Closed.into()),
            changed = tokio::time::timeout(CHANGE, self.current().until_other(closed)) => {
                changed.map_err(|_| GateError::Closed.into())
            }
        }
    }

    /// Waits until the service stops.
    pub(crate) async fn stopping(&self) {
        let _ = self.0.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether everybody may use it.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Goes on with another configuration: rules and tokens. Where it listens, and its limits, stay.
    pub async fn reload(&self, mut config: Config) -> Result<(), ServeError> {
        if config.serve.listen != self.listen {
            tracing::warn!(listen = %config.serve.listen, "serve.listen: another address is used after a restart only");
        }
        config.serve.listen = self.address;
        self.service.0.current.reload(Arc::new(config)).await
    }

    /// Waits until the store is given up: it was away for longer than `upkeep.patience`, or is damaged.
    pub async fn until_failed(&mut self) -> StoreError {
        (&mut self.watching).await.unwrap_or(StoreError::Closed)
    }

    /// Answers whoever waits, finishes what is under way, keeps what was learnt and gives all domains back.
    pub async fn stop(self) -> Result<(), StoreError> {
        self.service.0.stopping.send_replace(true);
        let _ = self.accepting.await;
        self.watching.abort();
        let live = self.service.0.current.in_force();
        // A store that is away is not waited for much longer.
        live.gate.hurry();
        live.gate.close(HandsOff::Stop).await
    }
}

/// No change of gates takes longer.
const CHANGE: Duration = Duration::from_secs(10);

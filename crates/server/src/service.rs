//! The service as a whole: what all requests share, and how it starts, reloads and stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::time::Timestamp;
use comity::event::{Events, Listener};
use comity::gate::{CloseMode, GateError};
use comity::store::StoreError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::auth::TokensError;
use crate::dashboard::Sessions;
use crate::idempotency::IdempotencyCache;
use crate::listen;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::sse::SseBroadcast;
use crate::state::{ServingState, StateBuilder};
use crate::supervisor::Supervisor;

/// The decision service. Clones share the same service.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    clock: Clock,
    events: Events,
    supervisor: Supervisor,
    idempotency: Arc<IdempotencyCache>,
    metrics: Arc<Metrics>,
    sse: Arc<SseBroadcast>,
    sessions: Sessions,
    port: u16,
    limits: Limits,
    stopping: watch::Sender<bool>,
}

/// Limits on connections and requests. They stay as they were at the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) body_max: usize,
    pub(crate) head_max: usize,
    pub(crate) connections_max: usize,
    pub(crate) idle_timeout: Duration,
}

/// A running service.
pub struct Running {
    service: Service,
    address: SocketAddr,
    /// `serve.listen` as configured; the port may be 0.
    listen: SocketAddr,
    open: bool,
    accepting: JoinHandle<()>,
    watching: JoinHandle<StoreError>,
}

/// Why the service can't start, or can't reload its configuration.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store can't be opened or used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tokens can't be read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The address is not loopback, and there are no tokens.
    #[error(
        "serve.listen = {0}: listening beyond loopback requires tokens; create one with comity serve --make-token use, \
         or pass --insecure"
    )]
    NoTokens(SocketAddr),
    /// Binding the address failed.
    #[error("serve.listen = {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// A reload failed because the store is unavailable.
    #[error("the store is unavailable at the moment; reload again when it is back")]
    StoreUnavailable,
    /// A reload would remove all tokens, and thereby give everybody access.
    #[error("serve.tokens: removing all tokens would give everybody access; restart the service to do that")]
    TokensRemoved,
    /// A reload names another store.
    #[error("store: a reload can't switch to another store; restart the service to do that")]
    StoreChanged,
}

/// Whether a service without tokens may listen beyond loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insecure {
    /// It may not.
    Refused,
    /// It may: `--insecure` was given.
    Accepted,
}

impl Service {
    /// Opens the store and starts serving. Must be called inside a tokio runtime.
    pub async fn start(config: Config, insecure: Insecure) -> Result<Running, ServeError> {
        Self::start_with_clock(config, insecure, Clock::new()).await
    }

    /// Like [`start`](Self::start), with another clock. Only decisions use it; socket timeouts and the `max_wait_ms` of
    /// `acquire` run in real time.
    pub async fn start_with_clock(
        config: Config,
        insecure: Insecure,
        clock: Clock,
    ) -> Result<Running, ServeError> {
        let (address, listen) = (config.serve.listen, config.serve.listen);
        let serve = &config.serve;
        let limits = Limits {
            body_max: usize::try_from(serve.body_max.bytes()).unwrap_or(usize::MAX),
            head_max: usize::try_from(serve.head_max.bytes()).unwrap_or(usize::MAX),
            connections_max: listen::connections_max(serve.connections_max as usize),
            idle_timeout: Duration::from(serve.idle_timeout),
        };
        let events = Events::new();
        let (metrics, sse) = (Arc::new(Metrics::new()), Arc::new(SseBroadcast::new(clock.clone())));
        events.listen(metrics.clone());
        events.listen(sse.clone());
        let listener =
            TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        let address = listener.local_addr().unwrap_or(address);
        let builder = StateBuilder { clock: clock.clone(), events: events.clone(), insecure };
        let state = builder.open(Arc::new(config)).await?;
        let open = state.access.is_open();
        let service = Self(Arc::new(Inner {
            supervisor: Supervisor::new(builder, state),
            clock,
            events,
            idempotency: Arc::default(),
            metrics,
            sse,
            sessions: Sessions::new(),
            port: address.port(),
            limits,
            stopping: watch::Sender::new(false),
        }));
        let accepting = tokio::spawn(listen::accept(service.clone(), listener));
        let watched = service.clone();
        let watching = tokio::spawn(async move { watched.0.supervisor.watch().await });
        Ok(Running { service, address, listen, open, accepting, watching })
    }

    /// What to serve the next request with, or an error while the store is unavailable.
    pub(crate) fn state(&self) -> Result<Arc<ServingState>, Problem> {
        self.0.supervisor.state()
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.0.supervisor
    }

    pub(crate) fn idempotency(&self) -> &Arc<IdempotencyCache> {
        &self.0.idempotency
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn sse(&self) -> &SseBroadcast {
        &self.0.sse
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    /// The port it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.0.port
    }

    pub(crate) fn events(&self) -> &Events {
        &self.0.events
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Waits for the gate that replaces a closed one. Returns an error if the service stops or none comes in time.
    pub(crate) async fn next_gate(&self, closed: &Arc<ServingState>) -> Result<(), Problem> {
        tokio::select! {
            biased;
            () = self.stopping() => Err(GateError::Closed.into()),
            replaced = tokio::time::timeout(REPLACE_TIMEOUT, self.supervisor().until_replaced(closed)) => {
                replaced.map_err(|_| GateError::Closed.into())
            }
        }
    }

    /// Waits until the service begins to stop.
    pub(crate) async fn stopping(&self) {
        let _ = self.0.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}

impl Running {
    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows events on the dashboard and in the stream of events, also those of other gates in this process.
    pub fn listener(&self) -> Arc<dyn Listener> {
        self.service.0.sse.clone()
    }

    /// Whether it can be used without a token.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Applies the rules and tokens of another configuration. Address and limits stay as they were at the start.
    pub async fn reload(&self, mut config: Config) -> Result<(), ServeError> {
        if config.serve.listen != self.listen {
            tracing::warn!(listen = %config.serve.listen, "serve.listen: a new address takes effect after a restart");
        }
        config.serve.listen = self.address;
        self.service.0.supervisor.reload(Arc::new(config)).await
    }

    /// Waits until the store has failed for good: unavailable for longer than `upkeep.patience`, or damaged.
    pub async fn until_failed(&mut self) -> StoreError {
        (&mut self.watching).await.unwrap_or(StoreError::Closed)
    }

    /// Shuts down: answers waiting callers, finishes requests in progress, saves what was learned and releases all
    /// domains.
    pub async fn stop(self) -> Result<(), StoreError> {
        self.service.0.stopping.send_replace(true);
        let _ = self.accepting.await;
        self.watching.abort();
        let state = self.service.0.supervisor.snapshot();
        // Don't wait much longer for a store that is unavailable.
        state.gate.hurry();
        state.gate.close(CloseMode::Stop).await
    }
}

/// How long to wait for the gate that replaces a closed one.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(10);

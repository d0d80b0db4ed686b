//! A forward proxy: whatever goes through it waits in the same lines as everything else.
//!
//! - here: settings, and accepting connections
//! - `client_stream`: what is enforced on the bytes of a client: timeouts, and requests with two lengths
//! - `access`: who may use the proxy
//! - `service`: what a request asks for: a plain request, a tunnel, or a page through the gateway
//! - `exchange`: waits in line, sends the request by `attempt`, and passes the response on as it arrives
//! - `headers`: which headers may pass; `answer`: the proxy's own responses
//! - `connect`: tunnels, opaque or decrypted; `authority`: certificates for the latter
//! - `gateway`: `http://127.0.0.1:7879/https://example.org/page`
//! - `counts`: what went through
//!
//! Not here: pacing ([`crate::gate`]), connections to sites ([`crate::transport`]), commands.

mod access;
mod answer;
mod authority;
mod client_stream;
mod connect;
mod counts;
mod exchange;
mod gateway;
mod headers;
mod line;
mod service;

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use comity_core::time::Span;
use comity_store::Store;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::RobotsCache;
use crate::config::{Config, RobotsPolicy, Token};
use crate::gate::Gate;
use crate::transport::Transport;

use access::Access;
use client_stream::ClientStream;
use service::Service;

pub use authority::{Authority, AuthorityError};
pub use counts::ProxyCounts;

/// What a proxy does. The defaults are those of the configuration.
pub struct ProxySettings {
    /// What happens to https.
    pub https: Https,
    /// How long a request waits in line.
    pub wait_max: Span,
    /// Whether a request that would have to wait is answered at once.
    pub fail_fast: bool,
    /// How many times the proxy itself retries a request that may be sent again.
    pub retries_max: u32,
    /// Whether robots.txt is obeyed.
    pub robots: RobotsPolicy,
    /// The ports that CONNECT may lead to.
    pub connect_ports: Vec<u16>,
    /// Who may use the proxy; without any, everybody on this machine.
    pub tokens: Vec<Token>,
    /// Maximum connections at once.
    pub connections_max: usize,
    /// The largest request head (request line and headers), in bytes.
    pub head_max: usize,
    /// How long a connection may be idle, or take to send the head of a request.
    pub idle_timeout: Span,
}

/// What a proxy does with https.
#[derive(Clone)]
pub enum Https {
    /// Passes the encrypted bytes on: only connections are paced.
    Tunnel,
    /// Decrypts it with certificates by this authority: every request is paced.
    Decrypt(Arc<Authority>),
}

/// A pacing forward proxy. Clones share everything.
#[derive(Clone)]
pub struct Proxy(Arc<Inner>);

struct Inner {
    settings: ProxySettings,
    access: Access,
    gate: Gate,
    transport: Transport,
    robots: Option<Arc<RobotsCache>>,
    counts: counts::Counters,
    verified: connect::VerifiedSites,
    /// Identifies this proxy in `Via`, so that a request that comes back is recognized.
    name: String,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            https: Https::Tunnel,
            wait_max: Span::from_mins(5),
            fail_fast: false,
            retries_max: 0,
            robots: RobotsPolicy::Ignore,
            connect_ports: vec![443],
            tokens: Vec::new(),
            connections_max: 10_000,
            head_max: 64 << 10,
            idle_timeout: Span::from_secs(60),
        }
    }
}

impl Proxy {
    /// A proxy that sends through this gate and transport. robots.txt files are saved in the store, if there is one.
    pub fn new(
        settings: ProxySettings,
        config: &Config,
        gate: Gate,
        transport: Transport,
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        let mut obeying = config.clone();
        obeying.robots = settings.robots;
        let robots = RobotsCache::new(gate.clone(), transport.clone(), &obeying, store, None);
        Self(Arc::new(Inner {
            access: Access::new(settings.tokens.clone()),
            name: format!("comity-{:08x}", gate.clock().now().as_micros() as u32 ^ std::process::id()),
            settings,
            gate,
            transport,
            robots,
            counts: counts::Counters::default(),
            verified: connect::VerifiedSites::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Whether it may listen on this address: without tokens only programs on this machine may use it.
    pub fn may_listen_on(&self, address: IpAddr) -> bool {
        address.is_loopback() || !self.0.access.is_open()
    }

    /// What went through so far.
    pub fn counts(&self) -> ProxyCounts {
        self.0.counts.values()
    }

    /// Stops accepting connections, and answers those in line with 503.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Accepts connections until [`Self::stop`], then waits a moment for requests in flight.
    pub async fn serve(&self, listener: TcpListener) {
        let connections = Arc::new(Semaphore::new(self.0.settings.connections_max));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.0.stopping.cancelled() => break,
            };
            let (stream, _) = match accepted {
                Ok(accepted) => accepted,
                // For example, too many open files. That may be over in a moment.
                Err(error) => {
                    tracing::debug!(%error, "could not accept a connection");
                    self.0.transport.make_room(error).await;
                    continue;
                }
            };
            match connections.clone().try_acquire_owned() {
                Ok(slot) => {
                    let proxy = self.clone();
                    self.0.tasks.spawn(async move {
                        let _slot = slot;
                        proxy.serve_client(stream).await;
                    });
                }
                Err(_) => drop(self.0.tasks.spawn(refuse(stream))),
            }
        }
        drop(listener);
        self.0.tasks.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.0.tasks.wait()).await.is_err() {
            tracing::debug!("stopped with connections still open");
        }
    }

    async fn serve_client(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        if let Err(error) = self.serve_http(stream, Service::outer(self.clone())).await {
            // Broken connections and malformed requests matter only when debugging.
            tracing::debug!(%error, "connection of a client failed");
        }
    }

    /// Serves HTTP/1.1 or HTTP/2 on a stream.
    async fn serve_http<T>(
        &self,
        stream: T,
        service: Service,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let settings = &self.0.settings;
        let mut http = auto::Builder::new(TokioExecutor::new());
        let idle: Duration = settings.idle_timeout.into();
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_buf_size(settings.head_max.max(BUFFER_MIN))
            .max_headers(HEADERS_MAX)
            // A client that closes its side has hung up, so it leaves the line.
            .half_close(false);
        http.http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(settings.head_max).unwrap_or(u32::MAX))
            .max_concurrent_streams(STREAMS_MAX)
            .keep_alive_interval(idle)
            .keep_alive_timeout(idle);
        let stream = ClientStream::new(stream, idle);
        let framing = stream.framing();
        let answer = service_fn(move |request| {
            let (service, framing) = (service.clone(), framing.clone());
            async move { Ok::<_, std::convert::Infallible>(service.answer(request, &framing).await) }
        });
        let mut connection = pin!(http.serve_connection_with_upgrades(TokioIo::new(stream), answer));
        tokio::select! {
            done = connection.as_mut() => return done,
            () = self.0.stopping.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }
}

/// Answers 503 because there are too many connections, without reading the request.
async fn refuse(mut stream: TcpStream) {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let sent: Result<io::Result<()>, _> =
        tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer)).await;
    let _ = sent;
}

/// How long requests in flight may take when the proxy stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// hyper refuses less.
const BUFFER_MIN: usize = 8 << 10;
const HEADERS_MAX: usize = 200;
const STREAMS_MAX: u32 = 256;

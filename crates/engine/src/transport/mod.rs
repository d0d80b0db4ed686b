//! Sends one request on one connection and streams the response back.
//!
//! The transport opens or reuses a connection, asks its caller whether the request may leave *now*, writes it, and
//! returns the response headers and a body that is read chunk by chunk. It deliberately knows nothing about pacing,
//! retries, redirects, cookies or robots.txt: those are up to the caller, hop by hop.
//!
//! Reading order: this file (requests and responses), [`mod@error`] (what can go wrong), `site_options` (settings for
//! single sites), `origin` (where a request goes and how it is written), `guard` (blocked addresses), `proxy`, `socks`,
//! `tunnel` and `dial` (from a name to an open connection), `tls`, `connection` and `pool` (open and idle connections),
//! `slots` (how many there may be), `close_signal` (when one is closed), `body` and `coding` (response bodies),
//! `instrumented` (what is observed on a connection: `last_write`, `tap`, and in `noise` bytes that belong to no
//! response).

mod body;
mod close_signal;
mod coding;
mod connection;
mod dial;
pub mod error;
mod guard;
mod instrumented;
mod last_write;
mod noise;
mod origin;
mod pool;
mod proxy;
mod relay;
mod site_options;
mod slots;
mod socks;
mod tap;
mod tls;
mod tunnel;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use comity_core::domain::Domain;
use comity_core::time::Span;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::rustls::pki_types::CertificateDer;
use url::Url;

pub use self::body::Body;
pub use self::close_signal::CloseSignal;
pub use self::coding::{CODINGS_MAX, Coding, Codings};
pub(crate) use self::dial::RawConnection;
pub use self::error::{Phase, Refusal, SendError, TransportError};
pub use self::guard::{AllowNone, Allowance};
pub(crate) use self::origin::basic_of;
pub(crate) use self::proxy::PROXY_EXPECTED;
pub use self::proxy::{Proxies, Proxy, ProxyError};
pub use self::relay::Relay;
pub(crate) use self::relay::StreamedBody;
pub use self::site_options::{SiteOptions, Verify, Via};
pub use self::tap::Witness;

use self::connection::{Connection, Unanswered};
use self::dial::Dialer;
use self::origin::{Origin, Writer};
use self::pool::ConnectionPool;
use self::slots::Slots;
use crate::descriptors;
use crate::request::{Requests, Trust};

/// Sends requests. Cheap to clone; all tasks share one.
#[derive(Clone)]
pub struct Transport(Arc<Inner>, Arc<Requests>);

/// The settings of a [`Transport`].
pub struct Settings {
    /// The `User-Agent` header.
    pub user_agent: String,
    /// The timeout for DNS lookup, connection, proxy and TLS handshake together.
    pub connect_timeout: Span,
    /// The timeout from sending the request to the response headers.
    pub first_byte_timeout: Span,
    /// The timeout from sending the request to the end of the body.
    pub total_timeout: Span,
    /// The maximum size of a body in bytes, both as sent and as decoded.
    pub body_max: u64,
    /// The maximum size of the response headers in bytes.
    pub header_max: usize,
    /// Which non-public addresses the operator allows.
    pub allowance: Arc<dyn Allowance>,
    /// The proxies to use.
    pub proxies: Proxies,
    /// The maximum number of idle connections per origin.
    pub idle_max_per_host: usize,
    /// The maximum number of idle connections in total.
    pub idle_max: usize,
    /// The maximum number of open connections; by default as many as the limit on open files allows.
    pub connections_max: usize,
    /// How long an idle connection is kept open.
    pub idle_timeout: Span,
    /// Certificate authorities to trust in addition to the system's.
    pub roots_extra: Vec<CertificateDer<'static>>,
}

/// Where a URL comes from. Requests with different leads never share a connection.
pub use comity_store::tasks::Lead;

/// A request; a GET by default.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The URL. Its user and password are sent as Basic authorization if the URL is listed, and ignored otherwise.
    pub url: &'a Url,
    /// Where the URL comes from.
    pub lead: Lead,
    /// The `Accept` header; `*/*` by default.
    pub accept: Option<&'a HeaderValue>,
    /// Additional headers. They replace our own headers of the same name.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// URL-encoded form fields to send with a POST.
    pub posted: Option<&'a Bytes>,
    /// The method, if it is neither GET nor the POST of a form.
    pub method: Option<&'a Method>,
    /// The body to send with that method.
    pub body: Option<&'a Bytes>,
    /// Settings for this site that differ from the transport's.
    pub options: Option<&'a SiteOptions>,
    /// Sends it as another program wrote it, with `headers` alone.
    pub relay: Option<&'a Relay>,
    /// Observes the bytes of the exchange. Such requests use HTTP/1.1, on connections that no other requests use.
    pub witness: Option<&'a Arc<dyn Witness>>,
}

/// A response whose headers have arrived.
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The headers as sent, including `Content-Encoding`: [`Body::codings`] returns the encodings that are decoded.
    pub headers: HeaderMap,
    /// The HTTP version.
    pub version: Version,
    /// The address of the server, or of the proxy in front of it.
    pub remote: SocketAddr,
    /// When the request was written; unknown on a shared connection.
    pub written_at: Option<Instant>,
    /// The body.
    pub body: Body,
    /// The connection, if the server switched to another protocol for a relayed request.
    pub(crate) upgrade: Option<OnUpgrade>,
}

struct Inner {
    writer: Writer,
    dialer: Dialer,
    pool: Arc<ConnectionPool>,
    slots: Slots,
    connect_timeout: Duration,
    first_byte_timeout: Duration,
    total_timeout: Duration,
    body_max: u64,
}

/// The timeouts of the phases of a request.
#[derive(Clone, Copy)]
struct Limits {
    connect: Duration,
    first_byte: Duration,
    total: Duration,
}

/// Decides whether a request may be written now that its connection is open.
pub trait Depart<E> {
    /// `Ok` to write now; an error to write nothing. May be called more than once.
    fn depart(&mut self) -> impl Future<Output = Result<(), E>> + Send;

    /// Called when the request is written to a connection that no other request uses.
    fn sent_on(&mut self, _open: CloseSignal) {}
}

impl<E, F, D> Depart<E> for D
where
    D: FnMut() -> F,
    F: Future<Output = Result<(), E>> + Send,
{
    fn depart(&mut self) -> impl Future<Output = Result<(), E>> + Send {
        self()
    }
}

impl Transport {
    /// A transport with these settings.
    pub fn new(settings: Settings) -> Result<Self, TransportError> {
        let writer = Writer::new(&settings.user_agent)?;
        let inner = Inner {
            connect_timeout: settings.connect_timeout.into(),
            first_byte_timeout: settings.first_byte_timeout.min(settings.total_timeout).into(),
            total_timeout: settings.total_timeout.into(),
            body_max: settings.body_max,
            pool: Arc::new(ConnectionPool::new(&settings)),
            slots: Slots::new(settings.connections_max),
            dialer: Dialer::new(settings, writer.user_agent.clone())?,
            writer,
        };
        Ok(Self(Arc::new(inner), Arc::default()))
    }

    /// Shares the connections, for requests with these headers, cookies and credentials. `attempt` adds them, because
    /// it knows which credentials a URL may receive; [`Self::send`] adds nothing.
    pub fn with(self, requests: Requests) -> Self {
        Self(self.0, Arc::new(requests))
    }

    /// An error if a variable or file is missing that the request options of the URL's site refer to. All requests to a
    /// listed URL of that site fail with it.
    pub fn check(&self, url: &Url) -> Result<(), TransportError> {
        self.1.check(url, Trust::Listed)
    }

    /// The headers, cookies and credentials for requests.
    pub(crate) fn requests(&self) -> &Arc<Requests> {
        &self.1
    }

    /// How long a request to this host can go without a response before it fails.
    pub fn response_timeout(&self, host: &Domain) -> Span {
        let limits = self.0.limits(self.1.options(host));
        Span::from(limits.first_byte.max(limits.connect))
    }

    /// Opens or reuses a connection, awaits `depart`, and writes the request as soon as that returns `Ok`.
    ///
    /// If `depart` returns an error, nothing is written and the connection goes back to the pool. `depart` is called
    /// again only if the connection turns out to be closed before a single byte was written: then no attempt was made,
    /// and the request is sent on a new connection. A request that may have been written is never sent again.
    pub async fn send<E>(
        &self,
        request: Request<'_>,
        mut depart: impl Depart<E>,
    ) -> Result<Answered, SendError<E>> {
        let inner = &*self.0;
        let origin = Origin::of(&request)?;
        let limits = inner.limits(request.options);
        let mut connection = inner.connect(origin, limits.connect).await?;
        let mut reopened = 0;
        loop {
            let message = inner.writer.message(&request, &connection.route)?;
            if let Err(reason) = depart.depart().await {
                inner.pool.put(connection);
                return Err(SendError::Withheld(reason));
            }
            if let (Some(tap), Some(witness)) = (&connection.route.tap, request.witness) {
                tap.start(witness);
            }
            if let Some(signal) = connection.close_signal() {
                depart.sent_on(signal);
            }
            let departed_at = Instant::now();
            let (last_write, until) = (connection.route.last_write.clone(), departed_at + limits.first_byte);
            let streamed = request.relay.and_then(|relay| relay.body.as_ref());
            let answer = {
                let mut exchange = pin!(connection.exchange(message));
                match streamed {
                    None => timeout_at(until, exchange).await,
                    // The response is due that long after the last of a body that arrives while it is sent.
                    Some(_) => loop {
                        let until = until.max(last_write.last() + limits.first_byte);
                        let answer = timeout_at(until, exchange.as_mut()).await;
                        if answer.is_ok() || last_write.last() + limits.first_byte <= until {
                            break answer;
                        }
                    },
                }
            };
            match answer {
                Ok(Ok(response)) => {
                    let body_until = departed_at + limits.total;
                    return Ok(inner.answered(&request, response, connection, body_until)?);
                }
                // Whoever sent the body gave up; the site is not to blame.
                Ok(Err(_)) | Err(_) if streamed.is_some_and(StreamedBody::failed) => {
                    inner.pool.forget(connection);
                    return Err(TransportError::Abandoned.into());
                }
                // Closed while idle or while awaiting departure; opening a new connection is not a second attempt.
                Ok(Err(_)) if connection.route.noise.is_overrun() => {
                    inner.pool.forget(connection);
                    return Err(TransportError::Noise.into());
                }
                Ok(Err(Unanswered::Unsent(_))) if reopened < REOPENED_MAX => {
                    reopened += 1;
                    let origin = inner.pool.forget(connection);
                    connection = Box::pin(inner.open(origin, limits.connect)).await?;
                }
                Ok(Err(Unanswered::Unsent(error) | Unanswered::Lost(error))) => {
                    return Err(TransportError::of_exchange(error).into());
                }
                Err(_) => {
                    // A timeout on a shared connection may mean that the whole connection is dead.
                    inner.pool.forget(connection);
                    return Err(TransportError::TimedOut(Phase::FirstByte).into());
                }
            }
        }
    }
}

impl Transport {
    /// Opens a connection for later requests to the URL's origin, unless there is one: its certificate is verified then.
    pub(crate) async fn prepare(&self, request: &Request<'_>) -> Result<(), TransportError> {
        let connection = self.0.connect(Origin::of(request)?, self.0.limits(request.options).connect).await?;
        self.0.pool.put(connection);
        Ok(())
    }

    /// Opens a connection to the URL's host and port, and hands it over.
    pub(crate) async fn open_raw(&self, request: &Request<'_>) -> Result<RawConnection, TransportError> {
        let inner = &*self.0;
        let origin = Origin::of(request)?;
        let opening = async {
            let slot = inner.slots.take(&inner.pool, Instant::now() + EXHAUSTED_MAX).await?;
            inner.dialer.open_raw(&origin, slot).await
        };
        let limit = inner.limits(request.options).connect;
        timeout(limit, opening).await.unwrap_or(Err(TransportError::TimedOut(Phase::Connect)))
    }

    /// Frees file descriptors for other users by closing idle connections, and waits a moment.
    pub(crate) async fn make_room(&self, cause: io::Error) {
        self.0.relieve(&TransportError::Exhausted { source: Some(cause) }).await;
    }
}

impl Inner {
    /// The timeouts for a request, with those of its site.
    fn limits(&self, options: Option<&SiteOptions>) -> Limits {
        let or = |own: Option<Span>, usual: Duration| own.map_or(usual, Duration::from);
        let total = or(options.and_then(|options| options.total_timeout), self.total_timeout);
        Limits {
            connect: or(options.and_then(|options| options.connect_timeout), self.connect_timeout),
            first_byte: or(options.and_then(|options| options.first_byte_timeout), self.first_byte_timeout)
                .min(total),
            total,
        }
    }

    /// An idle connection or a new one.
    async fn connect(
        &self,
        origin: Arc<Origin>,
        connect_timeout: Duration,
    ) -> Result<Connection, TransportError> {
        match self.at_rest(&origin, connect_timeout).await? {
            Some(connection) => Ok(connection),
            // Boxed, because it is large and rarely needed.
            None => Box::pin(self.open(origin, connect_timeout)).await,
        }
    }

    /// A connection from the pool, if there is one.
    async fn at_rest(
        &self,
        origin: &Origin,
        connect_timeout: Duration,
    ) -> Result<Option<Connection>, TransportError> {
        let mut taking = pin!(self.pool.take(origin));
        // Mostly this is known right away, and then it needs no timer.
        match poll_fn(|cx| Poll::Ready(taking.as_mut().poll(cx))).await {
            Poll::Ready(at_rest) => Ok(at_rest),
            Poll::Pending => {
                timeout(connect_timeout, taking).await.map_err(|_| TransportError::TimedOut(Phase::Connect))
            }
        }
    }

    /// Opens a new connection. Waits a while for file descriptors if necessary, which doesn't count toward the site's
    /// timeout.
    async fn open(
        &self,
        origin: Arc<Origin>,
        connect_timeout: Duration,
    ) -> Result<Connection, TransportError> {
        let until = Instant::now() + EXHAUSTED_MAX;
        loop {
            let opened = match self.slots.take(&self.pool, until).await {
                Ok(slot) => {
                    let opening = self.dialer.open(Arc::clone(&origin), slot);
                    let opened = timeout(connect_timeout, opening).await;
                    opened.unwrap_or(Err(TransportError::TimedOut(Phase::Connect)))
                }
                Err(error) => {
                    self.slots.report(&error);
                    return Err(error);
                }
            };
            match opened {
                Err(error) if error.is_ours() && Instant::now() < until => self.relieve(&error).await,
                opened => return opened.map(|connection| self.pool.share(connection)),
            }
        }
    }

    /// Handles a shortage of descriptors: closes idle connections, and waits a moment for others to be closed.
    async fn relieve(&self, shortage: &TransportError) {
        self.slots.report(shortage);
        self.pool.close_idle();
        sleep(EXHAUSTED_PAUSE).await;
    }

    fn answered(
        &self,
        request: &Request<'_>,
        mut response: http::Response<hyper::body::Incoming>,
        connection: Connection,
        until: Instant,
    ) -> Result<Answered, TransportError> {
        let switched = response.status() == http::StatusCode::SWITCHING_PROTOCOLS;
        if switched && !request.relay.is_some_and(|relay| relay.upgrades) {
            return Err(TransportError::Switched);
        }
        connection.route.noise.answered();
        let upgrade = switched.then(|| {
            connection.route.noise.stop();
            hyper::upgrade::on(&mut response)
        });
        let (head, incoming) = response.into_parts();
        let codings = Codings::of(&head.headers);
        let remote = connection.route.remote;
        let written_at = connection.written_at();
        let kept = upgrade.is_none() && !is_last(head.version, &head.headers);
        let pool = kept.then(|| Arc::clone(&self.pool));
        let wire = body::Wire::new(incoming, connection, pool, self.body_max);
        let body = Body::new(wire, codings, until);
        let (status, headers, version) = (head.status.as_u16(), head.headers, head.version);
        Ok(Answered { status, headers, version, remote, written_at, body, upgrade })
    }
}

/// Whether the server closes the connection after this response.
fn is_last(version: Version, headers: &HeaderMap) -> bool {
    let says = |word| {
        let options = headers.get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
        options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case(word))
    };
    says("close") || version < Version::HTTP_11 && !says("keep-alive")
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            user_agent: "Comity/1.0".to_owned(),
            connect_timeout: Span::from_secs(10),
            first_byte_timeout: Span::from_secs(30),
            total_timeout: Span::from_mins(5),
            body_max: 64 << 20,
            header_max: 64 << 10,
            allowance: Arc::new(AllowNone),
            proxies: Proxies::default(),
            idle_max_per_host: 64,
            idle_max: 4_096,
            connections_max: descriptors::connections_max(),
            idle_timeout: Span::from_secs(20),
            roots_extra: Vec::new(),
        }
    }
}

impl<'a> Request<'a> {
    /// A plain request for `url`.
    pub fn new(url: &'a Url, lead: Lead) -> Self {
        Self {
            url,
            lead,
            accept: None,
            headers: &[],
            posted: None,
            method: None,
            body: None,
            options: None,
            relay: None,
            witness: None,
        }
    }
}

/// How many times a connection that was closed before departure is replaced. A server that closes them all is down.
const REOPENED_MAX: u32 = 2;
/// How long to wait for a file descriptor before the request goes back to its place in line.
const EXHAUSTED_MAX: Duration = Duration::from_secs(2);
/// How long to wait between tries.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_the_server_closes_is_not_kept() {
        let is_last = |version, value: Option<&str>| {
            let mut headers = HeaderMap::new();
            value.map(|value| headers.insert(CONNECTION, value.parse().unwrap()));
            is_last(version, &headers)
        };
        assert!(is_last(Version::HTTP_11, Some("close")));
        assert!(is_last(Version::HTTP_11, Some("te, Close ")));
        assert!(is_last(Version::HTTP_10, None));
        assert!(!is_last(Version::HTTP_10, Some("Keep-Alive")));
        assert!(!is_last(Version::HTTP_11, None));
        assert!(!is_last(Version::HTTP_11, Some("keep-alive, closed")));
        assert!(!is_last(Version::HTTP_2, None));
    }
}

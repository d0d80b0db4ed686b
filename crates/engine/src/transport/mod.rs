//! One request on one connection, one answer streamed back.
//!
//! The transport opens or reuses a connection, asks its caller whether the request may leave *now*, writes it,
//! and hands back the answer's head and a body that is read chunk by chunk. It deliberately knows nothing of
//! pacing, retries, redirects, cookies or robots.txt: whoever calls it decides those, hop by hop (B44).
//!
//! Reading order: this file (what is asked and answered), [`mod@error`] (what can go wrong), `way` (how a
//! single site is asked), `origin` (where a request goes and how it is written), `guard` (where we refuse to go), `proxy`, `socks`, `dial` (from a name to an open
//! connection), `connection` and `pool` (connections in use and at rest), `slots` (how many there may be), `line` (when one is
//! closed), `body` and `coding` (what comes back), `noticed` (what is noticed on the way: `stamp`, `tape`, and in
//! `meter` what comes that is no answer).

mod body;
mod coding;
mod connection;
mod dial;
pub mod error;
mod guard;
mod line;
mod meter;
mod noticed;
mod origin;
mod pool;
mod proxy;
mod slots;
mod socks;
mod stamp;
mod tape;
mod tls;
mod tunnel;
mod way;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_core::time::Span;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::rustls::pki_types::CertificateDer;
use url::Url;

pub use self::body::Body;
pub use self::coding::Coding;
pub use self::error::{Phase, Refusal, SendError, TransportError};
pub use self::guard::{AllowNone, Allowance};
pub use self::line::Line;
pub(crate) use self::origin::basic_of;
pub(crate) use self::proxy::PROXY_EXPECTED;
pub use self::proxy::{Proxies, Proxy, ProxyError};
pub use self::tape::Witness;
pub use self::way::{Verify, Via, Way};

use self::connection::{Connection, Unanswered};
use self::dial::Dialer;
use self::origin::{Origin, Writer};
use self::pool::Pool;
use self::slots::Slots;
use crate::descriptors;
use crate::request::Requests;

/// How requests are sent. Cheap to clone; all tasks share one.
#[derive(Clone)]
pub struct Transport(Arc<Inner>, Arc<Requests>);

/// What a [`Transport`] goes by.
pub struct Settings {
    /// What we call ourselves.
    pub user_agent: String,
    /// For name, connection, proxy and TLS together.
    pub connect_timeout: Span,
    /// From the request to the answer's head.
    pub first_byte_timeout: Span,
    /// From the request to the end of the body.
    pub total_timeout: Span,
    /// How many bytes of a body are read at most, both as sent and as decoded.
    pub body_max: u64,
    /// How many bytes an answer's head may have.
    pub header_max: usize,
    /// Which non-public places the operator allows (B76).
    pub allowance: Arc<dyn Allowance>,
    /// The proxies to go through.
    pub proxies: Proxies,
    /// How many idle connections one origin may have.
    pub idle_max_per_host: usize,
    /// How many idle connections there may be at all.
    pub idle_max: usize,
    /// How many connections may be open at once; what the limit on open files allows, unless told otherwise.
    pub connections_max: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Span,
    /// Certificate authorities trusted besides the system's.
    pub roots_extra: Vec<CertificateDer<'static>>,
}

/// Who led us to a URL (B76). Requests with different leads never share a connection.
pub use comity_store::tasks::Lead;

/// A request: a GET unless something else is said.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Where to. User info becomes Basic authorization if the URL is listed, and is left out otherwise.
    pub url: &'a Url,
    /// Who led us there.
    pub lead: Lead,
    /// The media types wanted; `*/*` if none are named.
    pub accept: Option<&'a HeaderValue>,
    /// Further headers, such as conditions. They replace our own of the same name.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// The fields of a form, encoded as URLs are; they are posted.
    pub posted: Option<&'a Bytes>,
    /// The method, where it is neither a GET nor the POST of a form.
    pub method: Option<&'a Method>,
    /// What is sent with that method.
    pub body: Option<&'a Bytes>,
    /// How it is sent, where that differs from the transport's settings.
    pub way: Option<&'a Way>,
    /// Who sees the exchange as it passes. Such requests speak HTTP/1.1, on connections that no others use.
    pub witness: Option<&'a Arc<dyn Witness>>,
}

/// An answer whose head has arrived.
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The headers as sent, `Content-Encoding` included: [`Body::coding`] says what was undone.
    pub headers: HeaderMap,
    /// The protocol spoken.
    pub version: Version,
    /// Where the connection leads: the server, or the proxy before it.
    pub remote: SocketAddr,
    /// When the request was written, where that is known: on a connection that is shared it is not.
    pub written_at: Option<Instant>,
    /// The rest.
    pub body: Body,
}

struct Inner {
    writer: Writer,
    dialer: Dialer,
    pool: Arc<Pool>,
    slots: Slots,
    connect_timeout: Duration,
    first_byte_timeout: Duration,
    total_timeout: Duration,
    body_max: u64,
}

/// How long the phases of one request may take.
#[derive(Clone, Copy)]
struct Limits {
    connect: Duration,
    first_byte: Duration,
    total: Duration,
}

/// Who says whether a request may be written, now that its connection is open.
pub trait Depart<E> {
    /// `Ok` to write now; an error to write nothing. It may be asked more than once.
    fn depart(&mut self) -> impl Future<Output = Result<(), E>> + Send;

    /// The request is written to this connection, and no other uses it.
    fn takes(&mut self, _line: Line) {}
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
    /// A transport that goes by `settings`.
    pub fn new(settings: Settings) -> Result<Self, TransportError> {
        let writer = Writer::new(&settings.user_agent)?;
        let inner = Inner {
            connect_timeout: settings.connect_timeout.into(),
            first_byte_timeout: settings.first_byte_timeout.min(settings.total_timeout).into(),
            total_timeout: settings.total_timeout.into(),
            body_max: settings.body_max,
            pool: Arc::new(Pool::new(&settings)),
            slots: Slots::new(settings.connections_max),
            dialer: Dialer::new(settings, writer.user_agent.clone())?,
            writer,
        };
        Ok(Self(Arc::new(inner), Arc::default()))
    }

    /// The same connections, for requests that are sent with these headers, cookies and credentials. They are added by
    /// whoever knows how far an address is trusted; [`Self::send`] adds nothing.
    pub fn with(self, requests: Requests) -> Self {
        Self(self.0, Arc::new(requests))
    }

    /// What requests are sent with.
    pub(crate) fn requests(&self) -> &Arc<Requests> {
        &self.1
    }

    /// Opens or reuses a connection, awaits `depart`, and writes the request the moment that says yes (B25).
    ///
    /// If `depart` says no, nothing was written and the connection goes back to the pool. It is asked again only
    /// if the connection turned out to be closed before a single byte was written: then no attempt was made, and
    /// the request leaves on a new connection. Whatever may have been written is never sent again.
    pub async fn send<E>(
        &self,
        request: Request<'_>,
        mut depart: impl Depart<E>,
    ) -> Result<Answered, SendError<E>> {
        let inner = &*self.0;
        let origin = Origin::of(&request)?;
        let limits = inner.limits(request.way);
        let mut connection = inner.connect(origin, limits.connect).await?;
        let mut reopened = 0;
        loop {
            let message = inner.writer.message(&request, &connection.route)?;
            if let Err(reason) = depart.depart().await {
                inner.pool.put(connection);
                return Err(SendError::Withheld(reason));
            }
            if let (Some(tape), Some(witness)) = (&connection.route.tape, request.witness) {
                tape.start(witness);
            }
            if let Some(line) = connection.line() {
                depart.takes(line);
            }
            let departed_at = Instant::now();
            let answer = timeout_at(departed_at + limits.first_byte, connection.exchange(message)).await;
            match answer {
                Ok(Ok(response)) => {
                    let body_until = departed_at + limits.total;
                    return Ok(inner.answered(response, connection, body_until)?);
                }
                // Closed while at rest or while departure was awaited; a new connection is no second attempt.
                Ok(Err(_)) if connection.route.meter.is_overrun() => {
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
                    // Silence on a shared connection may mean that all of it is dead.
                    inner.pool.forget(connection);
                    return Err(TransportError::TimedOut(Phase::FirstByte).into());
                }
            }
        }
    }
}

impl Transport {
    /// Somebody beside us found no file descriptor: idle connections are closed, and it is time to try again.
    pub(crate) async fn make_room(&self, cause: io::Error) {
        self.0.relieve(&TransportError::Exhausted { source: Some(cause) }).await;
    }
}

impl Inner {
    /// How long the phases of a request may take.
    fn limits(&self, way: Option<&Way>) -> Limits {
        let or = |own: Option<Span>, usual: Duration| own.map_or(usual, Duration::from);
        let total = or(way.and_then(|way| way.total_timeout), self.total_timeout);
        Limits {
            connect: or(way.and_then(|way| way.connect_timeout), self.connect_timeout),
            first_byte: or(way.and_then(|way| way.first_byte_timeout), self.first_byte_timeout).min(total),
            total,
        }
    }

    /// A connection at rest or a new one.
    async fn connect(
        &self,
        origin: Arc<Origin>,
        connect_timeout: Duration,
    ) -> Result<Connection, TransportError> {
        let at_rest = timeout(connect_timeout, self.pool.take(&origin)).await;
        match at_rest.map_err(|_| TransportError::TimedOut(Phase::Connect))? {
            Some(connection) => Ok(connection),
            // Boxed, as it is large and rare: whoever waits for a page need not have room for a handshake.
            None => Box::pin(self.open(origin, connect_timeout)).await,
        }
    }

    /// A new connection. Waits a while for the descriptors that it takes; that is not the site's time.
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

    /// Descriptors are short: closes what nobody uses, and waits a moment for what others close.
    async fn relieve(&self, shortage: &TransportError) {
        self.slots.report(shortage);
        self.pool.close_idle();
        sleep(EXHAUSTED_PAUSE).await;
    }

    fn answered(
        &self,
        response: http::Response<hyper::body::Incoming>,
        connection: Connection,
        until: Instant,
    ) -> Result<Answered, TransportError> {
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(TransportError::Switched);
        }
        connection.route.meter.answered();
        let (head, incoming) = response.into_parts();
        let coding = Coding::of(&head.headers);
        let remote = connection.route.remote;
        let written_at = connection.written_at();
        let wire = body::Wire::new(incoming, connection, Arc::clone(&self.pool), self.body_max);
        let body = Body::new(wire, coding, until);
        let (status, headers, version) = (head.status.as_u16(), head.headers, head.version);
        Ok(Answered { status, headers, version, remote, written_at, body })
    }
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
            way: None,
            witness: None,
        }
    }
}

/// How often a connection that was closed before departure is replaced. A server that closes them all is down.
const REOPENED_MAX: u32 = 2;
/// Whoever finds no descriptor for a connection waits for one this long, and then takes its place in line again.
const EXHAUSTED_MAX: Duration = Duration::from_secs(2);
/// So long until it is tried again.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

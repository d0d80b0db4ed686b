//! Opens connections: DNS lookup, TCP, proxy, TLS, HTTP.
//!
//! Several addresses race with a head start for the earlier ones (RFC 8305); the losers are dropped. The caller
//! enforces the timeout.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Sender};
use super::error::{HEADER_LINES_MAX, TransportError};
use super::guard::{self, Allowance};
use super::instrumented::InstrumentedStream;
use super::origin::{Form, Origin, Peer, Route};
use super::proxy::{Kind, Proxies, Proxy};
use super::site_options::{Verify, Via};
use super::slots::Slot;
use super::tunnel::tunnel;
use super::{Lead, Settings, socks, tls};
use crate::descriptors;

/// A connection whose bytes somebody else reads and writes.
pub(crate) struct RawConnection {
    pub(crate) stream: Box<dyn RawStream>,
    _slot: Slot,
}

/// The stream of a [`RawConnection`].
pub(crate) trait RawStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> RawStream for T {}

/// Opens connections.
pub(super) struct Dialer {
    tls: TlsConnector,
    /// For requests whose exchange is observed, which HTTP/2 doesn't allow.
    tls_http1: TlsConnector,
    /// For hosts whose certificates are not verified.
    unverified: TlsConnector,
    unverified_http1: TlsConnector,
    http1: http1::Builder,
    header_max: u32,
    allowance: Arc<dyn Allowance>,
    proxies: Proxies,
    user_agent: HeaderValue,
}

impl Dialer {
    pub(super) fn new(settings: Settings, user_agent: HeaderValue) -> Result<Self, TransportError> {
        let mut http1 = http1::Builder::new();
        // Ignore invalid header lines, as browsers do: they are no reason to lose a page.
        http1.ignore_invalid_headers_in_responses(true);
        // Most requests have no body, and are one buffer anyway.
        http1.writev(false);
        http1.max_header_size(settings.header_max).max_buf_size(settings.header_max.max(BUFFER_MIN));
        // hyper's default is 100, and a site may well send more. This costs two allocations per response, about 0.1 µs.
        http1.max_headers(HEADER_LINES_MAX);
        // A value may be continued on the next line (RFC 9112, section 5.2).
        http1.allow_obsolete_multiline_headers_in_responses(true);
        let tls = tls::client(&settings.roots_extra)?;
        let unverified = tls::unverified()?;
        Ok(Self {
            unverified_http1: TlsConnector::from(tls::only_http1(&unverified)),
            unverified: TlsConnector::from(unverified),
            tls_http1: TlsConnector::from(tls::only_http1(&tls)),
            tls: TlsConnector::from(tls),
            http1,
            header_max: u32::try_from(settings.header_max).unwrap_or(u32::MAX),
            allowance: settings.allowance,
            proxies: settings.proxies,
            user_agent,
        })
    }

    /// A new connection to `origin`, ready for a request.
    pub(super) async fn open(&self, origin: Arc<Origin>, slot: Slot) -> Result<Connection, TransportError> {
        let proxy = match &origin.via {
            Via::Settings => self.proxies.toward(&origin).cloned(),
            Via::Direct => None,
            Via::Proxy(proxy) => Some(Proxy::clone(proxy)),
        };
        let Some(proxy) = proxy else {
            let addresses = guard::addresses(&origin, &*self.allowance).await?;
            let (stream, remote) = connect(&origin.host, addresses).await?;
            return self.start(stream, slot, remote, origin, Peer::Server).await;
        };
        let target = match proxy.kind {
            Kind::Http | Kind::Https => {
                guard::check_for_proxy(&origin, &*self.allowance).await?;
                None
            }
            Kind::Socks5 | Kind::Socks5Names => Some(self.target(&origin, proxy.kind).await?),
        };
        let addresses = guard::lookup(&proxy.host, proxy.port).await.map_err(TransportError::of_proxy)?;
        let (mut stream, remote) = connect(&proxy.host, addresses).await.map_err(TransportError::of_proxy)?;
        match (target, proxy.kind) {
            (Some(target), _) => {
                socks::tunnel(&mut stream, &proxy, target, origin.port).await?;
                self.start(stream, slot, remote, origin, Peer::Proxy).await
            }
            (None, Kind::Https) => {
                let stream = handshake(&self.tls_http1, stream, &proxy.host).await;
                let stream = stream.map_err(TransportError::of_proxy)?;
                self.start_forwarded(stream, slot, remote, origin, &proxy).await
            }
            (None, _) => self.start_forwarded(stream, slot, remote, origin, &proxy).await,
        }
    }

    /// A new connection to the host and port of `origin`, without TLS or HTTP on it.
    pub(super) async fn open_raw(
        &self,
        origin: &Origin,
        slot: Slot,
    ) -> Result<RawConnection, TransportError> {
        let proxy = match &origin.via {
            Via::Settings => self.proxies.toward(origin).cloned(),
            Via::Direct => None,
            Via::Proxy(proxy) => Some(Proxy::clone(proxy)),
        };
        let Some(proxy) = proxy else {
            let addresses = guard::addresses(origin, &*self.allowance).await?;
            let (stream, _) = connect(&origin.host, addresses).await?;
            return Ok(RawConnection { stream: Box::new(stream), _slot: slot });
        };
        let target = match proxy.kind {
            Kind::Http | Kind::Https => {
                guard::check_for_proxy(origin, &*self.allowance).await?;
                None
            }
            Kind::Socks5 | Kind::Socks5Names => Some(self.target(origin, proxy.kind).await?),
        };
        let addresses = guard::lookup(&proxy.host, proxy.port).await.map_err(TransportError::of_proxy)?;
        let (mut stream, _) = connect(&proxy.host, addresses).await.map_err(TransportError::of_proxy)?;
        let stream: Box<dyn RawStream> = match (target, proxy.kind) {
            (Some(target), _) => {
                socks::tunnel(&mut stream, &proxy, target, origin.port).await?;
                Box::new(stream)
            }
            (None, Kind::Https) => {
                let stream = handshake(&self.tls_http1, stream, &proxy.host).await;
                let stream = stream.map_err(TransportError::of_proxy)?;
                Box::new(tunnel(stream, &proxy, origin, &self.user_agent, &self.http1).await?)
            }
            (None, _) => Box::new(tunnel(stream, &proxy, origin, &self.user_agent, &self.http1).await?),
        };
        Ok(RawConnection { stream, _slot: slot })
    }

    /// The target for a SOCKS5 proxy. Only listed names are left to the proxy, and only if it is configured to resolve
    /// names; otherwise it gets an address that passed the checks.
    async fn target(&self, origin: &Origin, kind: Kind) -> Result<socks::Target, TransportError> {
        if kind == Kind::Socks5Names && origin.lead == Lead::Listed && origin.literal().is_none() {
            guard::check_for_proxy(origin, &*self.allowance).await?;
            return Ok(socks::Target::Name(origin.bare_host().to_owned()));
        }
        let addresses = guard::addresses(origin, &*self.allowance).await?;
        // Prefer IPv4: many proxies have no IPv6, and there is no way to know.
        let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
        let missing =
            || TransportError::Resolve { host: origin.host.clone(), source: io::ErrorKind::NotFound.into() };
        Ok(socks::Target::Address(first.ok_or_else(missing)?.ip()))
    }

    /// Starts HTTP or HTTPS on a stream to a server.
    async fn start(
        &self,
        stream: TcpStream,
        slot: Slot,
        remote: SocketAddr,
        origin: Arc<Origin>,
        peer: Peer,
    ) -> Result<Connection, TransportError> {
        match origin.secure {
            true => self.start_secure(stream, slot, remote, origin, peer).await,
            false => self.start_http1(stream, slot, Route::new(origin, remote, Form::Path, peer)?).await,
        }
    }

    /// Starts HTTP or HTTPS on a stream to an HTTP proxy.
    async fn start_forwarded<T>(
        &self,
        stream: T,
        slot: Slot,
        remote: SocketAddr,
        origin: Arc<Origin>,
        proxy: &Proxy,
    ) -> Result<Connection, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if !origin.secure {
            let form = Form::Forwarded(proxy.authorization());
            return self.start_http1(stream, slot, Route::new(origin, remote, form, Peer::Proxy)?).await;
        }
        let stream = tunnel(stream, proxy, &origin, &self.user_agent, &self.http1).await?;
        self.start_secure(stream, slot, remote, origin, Peer::Proxy).await
    }

    async fn start_secure<T>(
        &self,
        stream: T,
        slot: Slot,
        remote: SocketAddr,
        origin: Arc<Origin>,
        peer: Peer,
    ) -> Result<Connection, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = self.secure(stream, &origin).await?;
        if stream.get_ref().1.alpn_protocol() == Some(tls::H2) {
            return self.start_http2(stream, slot, Route::new(origin, remote, Form::Fields, peer)?).await;
        }
        self.start_http1(stream, slot, Route::new(origin, remote, Form::Path, peer)?).await
    }

    async fn secure<T>(&self, stream: T, origin: &Origin) -> Result<TlsStream<T>, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = match (origin.verify, origin.witnessed || origin.upgrades) {
            (Verify::Certificate, false) => &self.tls,
            (Verify::Certificate, true) => &self.tls_http1,
            (Verify::Nothing, false) => &self.unverified,
            (Verify::Nothing, true) => &self.unverified_http1,
        };
        handshake(tls, stream, origin.bare_host()).await
    }

    async fn start_http1<T>(
        &self,
        stream: T,
        slot: Slot,
        route: Arc<Route>,
    ) -> Result<Connection, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let opened = self.http1.handshake(TokioIo::new(InstrumentedStream::new(stream, &route, slot))).await;
        let (sender, connection) = opened.map_err(TransportError::of_exchange)?;
        // Users of the connection learn through `sender` when it ends.
        Driver(route.unused()).execute(connection.with_upgrades());
        Ok(Connection { sender: Sender::One(sender), route })
    }

    async fn start_http2<T>(
        &self,
        stream: T,
        slot: Slot,
        route: Arc<Route>,
    ) -> Result<Connection, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let driver = Driver(route.unused());
        let mut http2 = http2::Builder::new(driver.clone());
        http2.max_header_list_size(self.header_max);
        let opened = http2.handshake(TokioIo::new(InstrumentedStream::new(stream, &route, slot))).await;
        let (sender, connection) = opened.map_err(TransportError::of_exchange)?;
        driver.execute(connection);
        Ok(Connection { sender: Sender::Many(sender), route })
    }
}

/// Performs a TLS handshake with `host`.
async fn handshake<T>(tls: &TlsConnector, stream: T, host: &str) -> Result<TlsStream<T>, TransportError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let wrong = |source| TransportError::Tls { host: host.to_owned(), source };
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| wrong(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    tls.connect(name, stream).await.map_err(wrong)
}

/// Drives a connection while it is in use, and a moment longer to close it cleanly. Without that limit, a server that
/// doesn't read could keep it open forever.
#[derive(Clone)]
struct Driver(CancellationToken);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Driver {
    fn execute(&self, driving: F) {
        let unused = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = driving => {}
                () = async { unused.cancelled().await; sleep(CLOSE_TIMEOUT).await } => {}
            }
        });
    }
}

/// Connects to whichever address responds first.
async fn connect(host: &str, addresses: Vec<SocketAddr>) -> Result<(TcpStream, SocketAddr), TransportError> {
    let host = &match addresses.first().map(SocketAddr::port) {
        Some(80 | 443) | None => host.to_owned(),
        Some(port) => format!("{host}:{port}"),
    };
    if let [address] = addresses[..] {
        return connect_one(address).await.map_err(|failure| failure.of(host));
    }
    let mut waiting = alternate(addresses).into_iter().take(ADDRESSES_MAX).peekable();
    let mut racing = JoinSet::new();
    let mut last = Failure::Theirs(io::ErrorKind::AddrNotAvailable.into());
    loop {
        if let Some(address) = waiting.next() {
            racing.spawn(connect_one(address));
        }
        let finished = tokio::select! {
            finished = racing.join_next() => finished,
            () = sleep(HEAD_START), if waiting.peek().is_some() => continue,
        };
        match finished {
            Some(Ok(Ok(stream))) => return Ok(stream),
            // If one address could not be tried for lack of descriptors, it might have worked, so that failure wins.
            Some(_) if matches!(last, Failure::Ours(_)) => {}
            Some(Ok(Err(failure))) => last = failure,
            Some(Err(error)) => last = Failure::Theirs(error.into()),
            None => return Err(last.of(host)),
        }
    }
}

async fn connect_one(address: SocketAddr) -> Result<(TcpStream, SocketAddr), Failure> {
    let connected = TcpStream::connect(address).await;
    let stream = connected.map_err(|error| match descriptors::ran_out_connecting(&error, address) {
        true => Failure::Ours(error),
        false => Failure::Theirs(error),
    })?;
    stream.set_nodelay(true).map_err(Failure::Theirs)?;
    Ok((stream, address))
}

/// Why connecting to an address failed.
enum Failure {
    /// The other side failed.
    Theirs(io::Error),
    /// Our own shortage; the address was not even tried.
    Ours(io::Error),
}

impl Failure {
    fn of(self, host: &str) -> TransportError {
        match self {
            Self::Theirs(source) => TransportError::Connect { host: host.to_owned(), source },
            Self::Ours(source) => TransportError::Exhausted { source: Some(source) },
        }
    }
}

/// The addresses in the resolver's order, with IPv6 and IPv4 alternating.
fn alternate(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut ours, mut others): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut mixed = Vec::with_capacity(ours.len() + others.len());
    let (mut one, mut other) = (ours.drain(..), others.drain(..));
    loop {
        let before = mixed.len();
        mixed.extend(one.next().into_iter().chain(other.next()));
        if mixed.len() == before {
            return mixed;
        }
    }
}

/// How long to try one address before the next one joins the race.
const HEAD_START: Duration = Duration::from_millis(250);
/// The maximum number of addresses to try per host.
const ADDRESSES_MAX: usize = 8;
/// How long an unused connection may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The minimum buffer size of hyper, which refuses less than 8 KiB.
const BUFFER_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_and_ipv4_addresses_alternate() {
        let parse = |text: &str| text.split(' ').map(|a| a.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let mixed = alternate(parse("[::1]:1 [::2]:1 [::3]:1 1.1.1.1:1 1.1.1.2:1"));
        assert_eq!(mixed, parse("[::1]:1 1.1.1.1:1 [::2]:1 1.1.1.2:1 [::3]:1"));
        assert_eq!(alternate(parse("1.1.1.1:1")), parse("1.1.1.1:1"));
    }

    #[tokio::test]
    async fn a_dead_address_does_not_stop_a_live_one() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = server.local_addr().unwrap();
        let dead = "127.0.0.1:1".parse().unwrap();
        let (_, remote) = connect("host", vec![dead, live]).await.unwrap();
        assert_eq!(remote, live);
        assert!(matches!(connect("host", vec![dead, dead]).await, Err(TransportError::Connect { .. })));
    }
}

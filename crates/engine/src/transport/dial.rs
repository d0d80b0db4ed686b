//! From an origin to an open connection: name, address, proxy, TLS, HTTP.
//!
//! Several addresses race with a head start for the earlier ones (RFC 8305), the losers are dropped. The time
//! all this may take is limited by the caller.

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
use super::error::TransportError;
use super::guard::{self, Allowance};
use super::noticed::Noticed;
use super::origin::{Form, Hops, Origin, Route};
use super::proxy::{Kind, Proxies, Proxy};
use super::slots::Slot;
use super::tunnel::tunnel;
use super::way::{Verify, Via};
use super::{Lead, Settings, socks, tls};
use crate::descriptors;

/// Opens connections.
pub(super) struct Dialer {
    tls: TlsConnector,
    /// For requests that are seen as they pass, which HTTP/2 does not let anybody.
    tls_http1: TlsConnector,
    /// The same for hosts whose certificate does not count.
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
        // Browsers skip header lines that make no sense; a page is not worth losing over one.
        http1.ignore_invalid_headers_in_responses(true);
        http1.max_header_size(settings.header_max).max_buf_size(settings.header_max.max(BUFFER_MIN));
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
            return self.start(stream, slot, remote, origin, Hops::Direct).await;
        };
        let target = match proxy.kind {
            Kind::Http | Kind::Https => {
                guard::vouch(&origin, &*self.allowance).await?;
                None
            }
            Kind::Socks5 | Kind::Socks5Names => Some(self.target(&origin, proxy.kind).await?),
        };
        let (mut stream, remote) =
            connect(&proxy.host, guard::lookup(&proxy.host, proxy.port).await?).await?;
        match (target, proxy.kind) {
            (Some(target), _) => {
                socks::tunnel(&mut stream, &proxy, target, origin.port).await?;
                self.start(stream, slot, remote, origin, Hops::Proxied).await
            }
            (None, Kind::Https) => {
                let stream = handshake(&self.tls_http1, stream, &proxy.host).await?;
                self.start_forwarded(stream, slot, remote, origin, &proxy).await
            }
            (None, _) => self.start_forwarded(stream, slot, remote, origin, &proxy).await,
        }
    }

    /// Where a SOCKS5 proxy is to connect to. Only a name that the operator listed is left to it, and only if it is said to
    /// resolve names: of anything else it is told an address that passed.
    async fn target(&self, origin: &Origin, kind: Kind) -> Result<socks::Target, TransportError> {
        if kind == Kind::Socks5Names && origin.lead == Lead::Listed && origin.literal().is_none() {
            guard::vouch(origin, &*self.allowance).await?;
            return Ok(socks::Target::Name(origin.bare_host().to_owned()));
        }
        let addresses = guard::addresses(origin, &*self.allowance).await?;
        // A proxy often has no IPv6, and nobody can tell.
        let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
        let missing =
            || TransportError::Resolve { host: origin.host.clone(), source: io::ErrorKind::NotFound.into() };
        Ok(socks::Target::Address(first.ok_or_else(missing)?.ip()))
    }

    /// Speaks to a server at the other end of `stream`.
    async fn start(
        &self,
        stream: TcpStream,
        slot: Slot,
        remote: SocketAddr,
        origin: Arc<Origin>,
        hops: Hops,
    ) -> Result<Connection, TransportError> {
        match origin.secure {
            true => self.start_secure(stream, slot, remote, origin, hops).await,
            false => self.start_http1(stream, slot, Route::new(origin, remote, Form::Path, hops)?).await,
        }
    }

    /// Speaks to an HTTP proxy at the other end of `stream`, and to a server behind it.
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
            return self.start_http1(stream, slot, Route::new(origin, remote, form, Hops::Proxied)?).await;
        }
        let stream = tunnel(stream, proxy, &origin, &self.user_agent, &self.http1).await?;
        self.start_secure(stream, slot, remote, origin, Hops::Proxied).await
    }

    async fn start_secure<T>(
        &self,
        stream: T,
        slot: Slot,
        remote: SocketAddr,
        origin: Arc<Origin>,
        hops: Hops,
    ) -> Result<Connection, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = self.secure(stream, &origin).await?;
        if stream.get_ref().1.alpn_protocol() == Some(tls::H2) {
            return self.start_http2(stream, slot, Route::new(origin, remote, Form::Fields, hops)?).await;
        }
        self.start_http1(stream, slot, Route::new(origin, remote, Form::Path, hops)?).await
    }

    async fn secure<T>(&self, stream: T, origin: &Origin) -> Result<TlsStream<T>, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = match (origin.verify, origin.witnessed) {
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
        let opened = self.http1.handshake(TokioIo::new(Noticed::new(stream, &route, slot))).await;
        let (sender, connection) = opened.map_err(TransportError::of_exchange)?;
        // What ends the connection reaches whoever uses it through `sender`.
        Driver(route.unused()).execute(connection);
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
        let opened = http2.handshake(TokioIo::new(Noticed::new(stream, &route, slot))).await;
        let (sender, connection) = opened.map_err(TransportError::of_exchange)?;
        driver.execute(connection);
        Ok(Connection { sender: Sender::Many(sender), route })
    }
}

/// Secures a connection to `host`.
async fn handshake<T>(tls: &TlsConnector, stream: T, host: &str) -> Result<TlsStream<T>, TransportError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let wrong = |source| TransportError::Tls { host: host.to_owned(), source };
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| wrong(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    tls.connect(name, stream).await.map_err(wrong)
}

/// Drives a connection for as long as somebody uses it, and a moment longer for a good-bye. A server that does not
/// read could put that off for ever.
#[derive(Clone)]
struct Driver(CancellationToken);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Driver {
    fn execute(&self, driving: F) {
        let unused = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = driving => {}
                () = async { unused.cancelled().await; sleep(FAREWELL).await } => {}
            }
        });
    }
}

/// A connection to whichever of the addresses answers first.
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
            // As long as one address could not be tried, nobody knows whether it would have worked.
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

/// Why an address was not connected to.
enum Failure {
    /// It did not answer as it should.
    Theirs(io::Error),
    /// It was not even asked.
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

/// The addresses in the resolver's order, but with the two families taking turns.
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

/// How long an address is tried alone before the next one joins.
const HEAD_START: Duration = Duration::from_millis(250);
/// How many addresses of one host are tried.
const ADDRESSES_MAX: usize = 8;
/// How long a connection that nobody uses any more may take to close.
const FAREWELL: Duration = Duration::from_secs(2);
/// How much hyper buffers at least; it refuses to go below 8 KiB.
const BUFFER_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_take_turns() {
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

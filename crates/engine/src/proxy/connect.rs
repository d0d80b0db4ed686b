//! CONNECT: opaque tunnels, of which only the connection is paced, and decrypted ones, of which every request is.
//!
//! A decrypted tunnel is opened only after the site's own certificate was verified. Otherwise the client gets an error
//! instead of a tunnel, and never a valid certificate for an invalid site.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use comity_core::domain::Domain;
use comity_store::tasks::Lead;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::answer::{Answer, ProxyBody, REASON, Refused, WAITED, header_text};
use super::authority::Authority;
use super::line::{Line, NotGranted};
use super::service::{Service, bad_request};
use super::{Https, Proxy};
use crate::attempt::{NoTunnel, open_tunnel};
use crate::lock;
use crate::transport::Request as Sent;

/// Where a tunnel leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// As in a URL: lower case, IPv6 in brackets.
    host: String,
    port: u16,
}

/// Answers a CONNECT.
pub(super) async fn answer(proxy: &Proxy, request: Request<Incoming>) -> Answer {
    let opened = match target(proxy, &request) {
        Err(refused) => Err(refused),
        Ok((target, url)) => match proxy.0.settings.https.clone() {
            Https::Tunnel => tunnel(proxy, &url, request).await,
            Https::Decrypt(authority) => decrypt(proxy, target, &url, authority, request).await,
        },
    };
    opened.unwrap_or_else(|refused| {
        proxy.0.counts.refused();
        refused.answer()
    })
}

fn target(proxy: &Proxy, request: &Request<Incoming>) -> Result<(Target, Url), Refused> {
    let expected = || bad_request("CONNECT needs a host and a port, such as example.org:443");
    let authority = request.uri().authority().ok_or_else(expected)?;
    let port = authority.port_u16().ok_or_else(expected)?;
    if !proxy.0.settings.connect_ports.contains(&port) {
        let detail = format!("CONNECT to port {port} is not allowed; allow it with proxy.connect_ports");
        return Err(Refused::new(StatusCode::FORBIDDEN, "connect-port", detail));
    }
    let url = Url::parse(&format!("https://{}:{port}/", authority.host())).map_err(|_| expected())?;
    let host = url.host_str().ok_or_else(expected)?.to_owned();
    Ok((Target { host, port }, url))
}

/// Opens a tunnel when it is its turn.
async fn tunnel(proxy: &Proxy, url: &Url, mut request: Request<Incoming>) -> Result<Answer, Refused> {
    let host = Domain::of(url).ok_or_else(|| bad_request("the URL has no host"))?;
    let present = CancellationToken::new();
    let mut line = Line::new(proxy, &host, &present);
    let raw = loop {
        let permit = line.permit().await.map_err(|error| match error {
            NotGranted::Refused(refused) => refused,
            NotGranted::Gone => bad_request("the client has hung up"),
        })?;
        let opening = open_tunnel(&proxy.0.transport, Sent::new(url, Lead::Remote), permit);
        match opening.await {
            Ok(raw) => break raw,
            Err(NoTunnel::Withheld) => {}
            Err(NoTunnel::Failed(cause) | NoTunnel::Never(cause)) => {
                return Err(Refused::of_transport(&cause));
            }
        }
    };
    proxy.0.counts.sent();
    let client = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(client) = client.await {
            join(TokioIo::new(client), raw.stream).await;
        }
    });
    let mut answer = Response::new(ProxyBody::empty());
    answer.headers_mut().insert(WAITED, line.waited.as_millis_up().into());
    if let Some(reason) = &line.reason {
        answer.headers_mut().insert(REASON, header_text(reason));
    }
    Ok(answer)
}

/// Verifies the site, and then serves requests to it with a certificate of ours.
async fn decrypt(
    proxy: &Proxy,
    target: Target,
    url: &Url,
    authority: Arc<Authority>,
    mut request: Request<Incoming>,
) -> Result<Answer, Refused> {
    proxy.0.verified.verify(proxy, &target, url).await?;
    let tls = authority.server(target.bare_host(), proxy.0.gate.clock().now()).map_err(|error| {
        let detail = format!("no certificate for {target}: {error}");
        Refused::new(StatusCode::BAD_GATEWAY, "tls", detail)
    })?;
    let client = hyper::upgrade::on(&mut request);
    proxy.0.tasks.spawn(serve_inside(proxy.clone(), Arc::new(target), TlsAcceptor::from(tls), client));
    Ok(Response::new(ProxyBody::empty()))
}

/// Boxed, because it serves what opened it.
fn serve_inside(
    proxy: Proxy,
    target: Arc<Target>,
    tls: TlsAcceptor,
    client: OnUpgrade,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let accepting = async { tls.accept(TokioIo::new(client.await.map_err(io::Error::other)?)).await };
        let accepted = timeout(HANDSHAKE_MAX, accepting).await;
        let stream = match accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%target, %error, "TLS handshake with a client of the proxy failed");
                return;
            }
        };
        let service = Service::inner(proxy.clone(), target);
        if let Err(error) = proxy.serve_http(stream, service).await {
            tracing::debug!(%error, "connection of a client failed");
        }
    })
}

impl Target {
    /// Whether `host`, with a port unless that is 443, is this target.
    pub(super) fn is(&self, host: &str) -> bool {
        let default = format!("{}:443", self.host);
        host.eq_ignore_ascii_case(&self.to_string())
            || self.port == 443 && host.eq_ignore_ascii_case(&default)
    }

    fn bare_host(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        if self.port == 443 { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Sites whose certificate was verified recently, or could not be.
#[derive(Default)]
pub(super) struct VerifiedSites(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Verified>>>>>);

struct Verified {
    result: Result<(), Refused>,
    until: Instant,
}

impl VerifiedSites {
    /// Opens a connection to the site, unless that was done a moment ago. However many ask, one connection is opened,
    /// which the first request then uses.
    async fn verify(&self, proxy: &Proxy, target: &Target, url: &Url) -> Result<(), Refused> {
        let cell = {
            let mut sites = lock(&self.0);
            if sites.len() >= SITES_MAX {
                sites.clear();
            }
            sites.entry(target.to_string()).or_default().clone()
        };
        let mut verified = cell.lock().await;
        if let Some(Verified { result, until }) = &*verified
            && Instant::now() < *until
        {
            return result.clone();
        }
        let requests = proxy.0.transport.requests();
        let prepared = requests.prepare(url, crate::request::Trust::Relayed, || proxy.0.gate.clock().now());
        let prepared = prepared.map_err(|error| Refused::of_transport(&error))?;
        let options = prepared.options.as_deref();
        let sent = Sent { options, ..Sent::new(url, Lead::Remote) };
        let result = proxy.0.transport.prepare(&sent).await.map_err(|error| Refused::of_transport(&error));
        let span = if result.is_ok() { VERIFIED_FOR } else { FAILED_FOR };
        *verified = Some(Verified { result: result.clone(), until: Instant::now() + span });
        result
    }
}

/// Joins the connections of a site and a client that switched to another protocol.
pub(super) async fn join_upgraded(site: OnUpgrade, client: OnUpgrade) {
    if let (Ok(site), Ok(client)) = tokio::join!(site, client) {
        join(TokioIo::new(client), TokioIo::<Upgraded>::new(site)).await;
    }
}

/// Copies bytes both ways until both sides have ended, or nothing was sent for long.
async fn join(client: impl AsyncRead + AsyncWrite + Unpin, site: impl AsyncRead + AsyncWrite + Unpin) {
    let read_at = Arc::new(Mutex::new(Instant::now()));
    let mut client = Watched { stream: client, read_at: read_at.clone() };
    let mut site = Watched { stream: site, read_at: read_at.clone() };
    let silent = async {
        loop {
            let until = *lock(&read_at) + SILENCE_MAX;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut site) => {}
        () = silent => {}
    }
    // Let what was written last arrive before the connections are closed.
    sleep(Duration::ZERO).await;
}

/// A stream that notes when something was read.
struct Watched<T> {
    stream: T,
    read_at: Arc<Mutex<Instant>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        *lock(&self.read_at) = Instant::now();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How long nothing may be sent in a tunnel.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long the result of a verification is used. Each connection for a request is verified, too.
const VERIFIED_FOR: Duration = Duration::from_secs(60);
const FAILED_FOR: Duration = Duration::from_secs(10);
const SITES_MAX: usize = 10_000;

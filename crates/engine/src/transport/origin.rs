//! Where a request goes and how it is written: origin, request line and headers.
//!
//! Connecting is done in [`super::dial`]. Header values and user info leave this file only on the wire.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, PROXY_AUTHORIZATION, USER_AGENT,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Uri};
use percent_encoding::percent_decode_str;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::{Position, Url};

use super::close_signal::CloseSignal;
use super::error::TransportError;
use super::last_write::LastWrite;
use super::noise::NoiseMeter;
use super::relay::{Outbound, Relay};
use super::site_options::{Verify, Via};
use super::tap::Tap;
use super::{Lead, Request};

/// What the requests of one connection have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) secure: bool,
    /// As in the URL: lower case, IDN in ASCII, IPv6 in brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) lead: Lead,
    /// Whether the exchange is observed.
    pub(super) witnessed: bool,
    /// Whether the request may switch to another protocol, which only HTTP/1.1 allows.
    pub(super) upgrades: bool,
    /// Which proxy is used. Connections that differ in this are never shared.
    pub(super) via: Via,
    /// Whether the certificate is verified. Connections that differ in this are never shared.
    pub(super) verify: Verify,
    /// Identifies the credentials, because some servers authenticate connections rather than requests; 0 means none.
    pub(super) account: u64,
}

/// Where a connection leads, and how requests are written to it.
pub(super) struct Route {
    pub(super) origin: Arc<Origin>,
    pub(super) remote: SocketAddr,
    pub(super) authority: Authority,
    pub(super) host: HeaderValue,
    pub(super) form: Form,
    /// When something was last written.
    pub(super) last_write: Arc<LastWrite>,
    /// Passes the bytes on to an observer.
    pub(super) tap: Option<Arc<Tap>>,
    /// Counts bytes that are not part of a response.
    pub(super) noise: Arc<NoiseMeter>,
    /// Signals when the connection is no longer used.
    _used: DropGuard,
    unused: CancellationToken,
    signal: CloseSignal,
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// The server itself.
    Server,
    /// A proxy.
    Proxy,
}

/// How a request line names its target.
pub(super) enum Form {
    /// `/path`, to an HTTP/1.1 server.
    Path,
    /// The whole URL, to a proxy, with the proxy's authorization.
    Forwarded(Option<HeaderValue>),
    /// `:scheme`, `:authority` and `:path`, on HTTP/2.
    Fields,
}

/// Writes requests.
pub(super) struct Writer {
    pub(super) user_agent: HeaderValue,
}

pub(super) type Message = http::Request<Outbound>;

impl Origin {
    pub(super) fn of(request: &Request<'_>) -> Result<Arc<Self>, TransportError> {
        let (url, lead) = (request.url, request.lead);
        let unsupported = || TransportError::UnsupportedScheme(url.scheme().to_owned());
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(unsupported()),
        };
        let host = url.host_str().ok_or_else(unsupported)?.to_owned();
        let port = url.port_or_known_default().ok_or_else(unsupported)?;
        let (via, verify) =
            request.options.map_or_else(Default::default, |options| (options.proxy.clone(), options.verify));
        let witnessed = request.witness.is_some();
        let upgrades = request.relay.is_some_and(|relay| relay.upgrades);
        let account = account(request);
        Ok(Arc::new(Self { secure, host, port, lead, witnessed, upgrades, via, verify, account }))
    }

    /// The host as in configurations and certificates: without the brackets of an IPv6 address and without a trailing
    /// dot.
    pub(super) fn bare_host(&self) -> &str {
        let host = self.host.strip_suffix('.').unwrap_or(&self.host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The address, if the host is an IP literal.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        self.bare_host().parse().ok()
    }

    /// `host`, or `host:port` if the port isn't the default of the scheme.
    pub(super) fn authority(&self) -> Result<Authority, TransportError> {
        let usual = if self.secure { 443 } else { 80 };
        let text =
            if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) };
        Authority::from_maybe_shared(Bytes::from(text)).map_err(|error| self.unsendable(error.into()))
    }

    fn unsendable(&self, source: http::Error) -> TransportError {
        TransportError::Unsendable { host: self.host.clone(), source }
    }
}

impl Route {
    pub(super) fn new(
        origin: Arc<Origin>,
        remote: SocketAddr,
        form: Form,
        peer: Peer,
    ) -> Result<Arc<Self>, TransportError> {
        let authority = origin.authority()?;
        let host = HeaderValue::from_str(authority.as_str());
        let host = host.map_err(|error| origin.unsendable(error.into()))?;
        let server = (peer == Peer::Server).then(|| remote.ip());
        let tap = origin.witnessed.then(|| Arc::new(Tap::new(server)));
        let unused = CancellationToken::new();
        let (last_write, noise, _used) = (LastWrite::new(), Arc::default(), unused.clone().drop_guard());
        let signal = CloseSignal::default();
        Ok(Arc::new(Self {
            origin,
            remote,
            authority,
            host,
            form,
            last_write,
            tap,
            noise,
            _used,
            unused,
            signal,
        }))
    }

    /// Cancelled when the connection is no longer used.
    pub(super) fn unused(&self) -> CancellationToken {
        self.unused.clone()
    }

    /// Signals when the connection is closed.
    pub(super) fn close_signal(&self) -> CloseSignal {
        self.signal.clone()
    }
}

impl Writer {
    pub(super) fn new(user_agent: &str) -> Result<Self, TransportError> {
        let wrong = "user_agent: expected visible ASCII characters such as \"Comity/1.0\"";
        let user_agent = HeaderValue::from_str(user_agent);
        Ok(Self { user_agent: user_agent.map_err(|_| TransportError::Settings(wrong.to_owned()))? })
    }

    /// The request as it is written to a connection with this route.
    pub(super) fn message(&self, request: &Request<'_>, route: &Route) -> Result<Message, TransportError> {
        if let Some(relay) = request.relay {
            return self.relayed(request, relay, route);
        }
        let mut message = Message::new(request.body.or(request.posted).cloned().unwrap_or_default().into());
        *message.uri_mut() = target(request.url, route).map_err(|error| route.origin.unsendable(error))?;
        let mut headers = HeaderMap::with_capacity(8);
        if !matches!(route.form, Form::Fields) {
            headers.insert(HOST, route.host.clone());
        }
        let own = request.options.and_then(|options| options.user_agent.as_ref());
        headers.insert(USER_AGENT, own.unwrap_or(&self.user_agent).clone());
        headers.insert(ACCEPT, request.accept.cloned().unwrap_or(HeaderValue::from_static("*/*")));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, br, zstd"));
        if request.lead == Lead::Listed
            && let Some(value) = basic(request.url)
        {
            headers.insert(AUTHORIZATION, value);
        }
        if request.posted.is_some() {
            *message.method_mut() = Method::POST;
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        }
        if let Some(method) = request.method {
            *message.method_mut() = method.clone();
        }
        for (name, value) in request.headers {
            headers.insert(name, value.clone());
        }
        if let Form::Forwarded(Some(value)) = &route.form {
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        *message.headers_mut() = headers;
        Ok(message)
    }

    /// A relayed request: with the headers it came with, and no others.
    fn relayed(
        &self,
        request: &Request<'_>,
        relay: &Relay,
        route: &Route,
    ) -> Result<Message, TransportError> {
        let body = relay.body.clone().map(Outbound::Streamed);
        let mut message = Message::new(body.unwrap_or_else(|| Bytes::new().into()));
        let wrong = |error| route.origin.unsendable(error);
        *message.uri_mut() = uri(relay.target.clone(), route).map_err(wrong)?;
        *message.method_mut() = request.method.cloned().unwrap_or_default();
        let headers = message.headers_mut();
        if !matches!(route.form, Form::Fields) {
            headers.insert(HOST, route.host.clone());
        }
        for (name, value) in request.headers {
            headers.append(name, value.clone());
        }
        if let Form::Forwarded(Some(value)) = &route.form {
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        Ok(message)
    }
}

/// A hash of the credentials sent with a request.
fn account(request: &Request<'_>) -> u64 {
    let given = request.headers.iter().rev().find(|(name, _)| *name == AUTHORIZATION);
    let of_url = || basic(request.url).filter(|_| request.lead == Lead::Listed);
    let value = given.map(|(_, value)| value.clone()).or_else(of_url);
    // Never 0, which means no credentials.
    value.map_or(0, |value| xxhash_rust::xxh3::xxh3_64(value.as_bytes()) | 1)
}

/// The Basic authorization for a URL's user and password.
pub(super) fn basic(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair: Vec<u8> = percent_decode_str(url.username()).collect();
    pair.push(b':');
    pair.extend(percent_decode_str(url.password().unwrap_or_default()));
    basic_of(&pair)
}

/// The Basic authorization of `user:password`.
pub(crate) fn basic_of(pair: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn target(url: &Url, route: &Route) -> Result<Uri, http::Error> {
    uri(PathAndQuery::try_from(&url[Position::BeforePath..Position::AfterQuery])?, route)
}

fn uri(path: PathAndQuery, route: &Route) -> Result<Uri, http::Error> {
    let scheme = match route.form {
        Form::Path => return Ok(path.into()),
        Form::Forwarded(_) => Scheme::HTTP,
        Form::Fields => Scheme::HTTPS,
    };
    let mut parts = http::uri::Parts::default();
    (parts.scheme, parts.authority) = (Some(scheme), Some(route.authority.clone()));
    parts.path_and_query = Some(path);
    Ok(Uri::from_parts(parts)?)
}

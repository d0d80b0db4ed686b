//! Where a request goes, and how it is written: origin, request line and headers.
//!
//! Connecting is done in [`super::dial`]. No header value and no user info leaves this file but onto the wire (B75).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, PROXY_AUTHORIZATION, USER_AGENT,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Uri};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::{Position, Url};

use super::error::TransportError;
use super::line::Line;
use super::meter::Meter;
use super::stamp::Stamp;
use super::tape::Tape;
use super::way::{Verify, Via};
use super::{Lead, Request};

/// What the requests of one connection have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) secure: bool,
    /// As the URL writes it: lower case, IDN in ASCII, IPv6 in brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) lead: Lead,
    /// Whether what passes is seen by somebody.
    pub(super) witnessed: bool,
    /// Through which proxy it leads,
    pub(super) via: Via,
    /// and whether its certificate counts: connections that differ in either are never shared.
    pub(super) verify: Verify,
    /// Tells apart who is let in: some servers let in a connection, not a request. None is 0.
    pub(super) account: u64,
}

/// Which way a connection leads, and how requests are written to it.
pub(super) struct Route {
    pub(super) origin: Arc<Origin>,
    pub(super) remote: SocketAddr,
    pub(super) authority: Authority,
    pub(super) host: HeaderValue,
    pub(super) form: Form,
    /// When something was last written to it.
    pub(super) stamp: Arc<Stamp>,
    /// Who sees what passes on it.
    pub(super) tape: Option<Arc<Tape>>,
    /// What comes over it.
    pub(super) meter: Arc<Meter>,
    /// Tells whoever drives the connection that nobody uses it any more.
    _used: DropGuard,
    unused: CancellationToken,
    line: Line,
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hops {
    /// The server itself.
    Direct,
    /// A proxy.
    Proxied,
}

/// How a request line names its target.
pub(super) enum Form {
    /// `/path`, to an HTTP/1.1 server.
    Path,
    /// The whole URL, to a proxy, and what it wants to see of us.
    Forwarded(Option<HeaderValue>),
    /// `:scheme`, `:authority` and `:path`, on HTTP/2.
    Fields,
}

/// Writes requests.
pub(super) struct Writer {
    pub(super) user_agent: HeaderValue,
}

pub(super) type Message = http::Request<Full<Bytes>>;

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
        let (via, verify) = request.way.map_or_else(Default::default, |way| (way.proxy.clone(), way.verify));
        let witnessed = request.witness.is_some();
        Ok(Arc::new(Self { secure, host, port, lead, witnessed, via, verify, account: account(request) }))
    }

    /// The host as configurations and certificates write it: without an IPv6 address's brackets or a last dot.
    pub(super) fn bare_host(&self) -> &str {
        let host = self.host.strip_suffix('.').unwrap_or(&self.host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The address, if the host is one.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        self.bare_host().parse().ok()
    }

    /// `host`, or `host:port` where the port is not the scheme's own.
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
        hops: Hops,
    ) -> Result<Arc<Self>, TransportError> {
        let authority = origin.authority()?;
        let host = HeaderValue::from_str(authority.as_str());
        let host = host.map_err(|error| origin.unsendable(error.into()))?;
        let server = (hops == Hops::Direct).then(|| remote.ip());
        let tape = origin.witnessed.then(|| Arc::new(Tape::new(server)));
        let unused = CancellationToken::new();
        let (stamp, meter, _used) = (Stamp::new(), Arc::default(), unused.clone().drop_guard());
        let line = Line::default();
        Ok(Arc::new(Self { origin, remote, authority, host, form, stamp, tape, meter, _used, unused, line }))
    }

    /// Cancelled when nobody uses the connection any more.
    pub(super) fn unused(&self) -> CancellationToken {
        self.unused.clone()
    }

    /// Tells when the connection is closed.
    pub(super) fn line(&self) -> Line {
        self.line.clone()
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
        let mut message = Message::new(request.body.or(request.posted).cloned().unwrap_or_default().into());
        *message.uri_mut() = uri(request.url, route).map_err(|error| route.origin.unsendable(error))?;
        let mut headers = HeaderMap::with_capacity(8);
        if !matches!(route.form, Form::Fields) {
            headers.insert(HOST, route.host.clone());
        }
        let own = request.way.and_then(|way| way.user_agent.as_ref());
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
}

/// A number for whoever is let in with a request.
fn account(request: &Request<'_>) -> u64 {
    let given = request.headers.iter().rev().find(|(name, _)| *name == AUTHORIZATION);
    let of_url = || basic(request.url).filter(|_| request.lead == Lead::Listed);
    let value = given.map(|(_, value)| value.clone()).or_else(of_url);
    // Never the same as nobody's.
    value.map_or(0, |value| xxhash_rust::xxh3::xxh3_64(value.as_bytes()) | 1)
}

/// The Basic authorization that a URL's user info asks for.
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

fn uri(url: &Url, route: &Route) -> Result<Uri, http::Error> {
    let path = PathAndQuery::try_from(&url[Position::BeforePath..Position::AfterQuery])?;
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

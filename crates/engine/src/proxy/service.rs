//! What a request asks for: a page of a site, a tunnel, or a page through the gateway.

use std::sync::Arc;

use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use url::{Position, Url};

use super::answer::{Answer, Refused};
use super::client_stream::Framing;
use super::connect::{self, Target};
use super::exchange::{Exchange, Style};
use super::{Proxy, gateway, headers};
use crate::transport::StreamedBody;

/// Answers the requests of one connection.
#[derive(Clone)]
pub(super) struct Service {
    proxy: Proxy,
    /// Where its CONNECT leads, for requests inside a decrypted tunnel.
    tunnel: Option<Arc<Target>>,
}

/// Where a request leads.
struct Destination {
    url: Url,
    target: PathAndQuery,
    style: Style,
}

impl Service {
    pub(super) fn outer(proxy: Proxy) -> Self {
        Self { proxy, tunnel: None }
    }

    pub(super) fn inner(proxy: Proxy, tunnel: Arc<Target>) -> Self {
        Self { proxy, tunnel: Some(tunnel) }
    }

    pub(super) async fn answer(self, request: Request<Incoming>, framing: &Framing) -> Answer {
        // Nothing after such a request may be taken for another one.
        let is_last = framing.is_ambiguous() || request.headers().contains_key(TRANSFER_ENCODING);
        let is_http1 = request.version() != Version::HTTP_2;
        let mut answer = match framing.is_ambiguous() {
            true => bad_request("the request has both Content-Length and Transfer-Encoding").answer(),
            false => self.pass(request).await,
        };
        if is_last && is_http1 && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    async fn pass(self, request: Request<Incoming>) -> Answer {
        match self.destination(&request) {
            Err(refused) => {
                self.proxy.0.counts.refused();
                refused.answer()
            }
            Ok(None) => connect::answer(&self.proxy, request).await,
            Ok(Some(to)) => self.exchange(request, to).relay().await,
        }
    }

    /// Where a request leads; `None` for a CONNECT.
    fn destination(&self, request: &Request<Incoming>) -> Result<Option<Destination>, Refused> {
        if headers::has_passed(request.headers(), &self.proxy.0.name) {
            let detail = "the request has been through this proxy before";
            return Err(Refused::new(StatusCode::LOOP_DETECTED, "loop", detail));
        }
        let connects = request.method() == Method::CONNECT;
        if let Some(tunnel) = &self.tunnel {
            return if connects {
                Err(bad_request("CONNECT inside a tunnel"))
            } else {
                tunneled(request, tunnel).map(Some)
            };
        }
        if !self.proxy.0.access.allows(request.headers()) {
            let detail = "missing or unknown token: expected it as the password of the proxy's URL";
            return Err(Refused::new(StatusCode::PROXY_AUTHENTICATION_REQUIRED, "unauthorized", detail));
        }
        if connects {
            return Ok(None);
        }
        let uri = request.uri();
        if uri.authority().is_none() {
            let url = gateway::url(request)?;
            let target = url[Position::BeforePath..Position::AfterQuery].parse();
            let target = target.map_err(|_| bad_request("the URL cannot be written as a request"))?;
            return Ok(Some(Destination { url, target, style: Style::Gateway }));
        }
        let scheme = uri.scheme_str().unwrap_or("http");
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        // A user and password in the URL would be sent by the client as a header, if it meant to.
        let host = authority.rsplit('@').next().unwrap_or_default();
        destination(scheme, host, uri.path_and_query()).map(Some)
    }

    fn exchange(self, mut request: Request<Incoming>, to: Destination) -> Exchange {
        let (proxy, version) = (self.proxy, request.version());
        let upgrades = to.style == Style::Proxied && headers::upgrades(request.headers(), version);
        let upgrade = upgrades.then(|| hyper::upgrade::on(&mut request));
        let (parts, body) = request.into_parts();
        let mut headers = headers::of_request(&parts.headers, version, &proxy.0.name, upgrades);
        if to.style == Style::Gateway {
            gateway::strip(&mut headers);
        }
        let body =
            (!body.is_end_stream()).then(|| StreamedBody::new(body.map_err(Into::into).boxed_unsync()));
        let Destination { url, target, style } = to;
        Exchange { proxy, url, target, method: parts.method, headers, body, upgrade, style }
    }
}

/// Where a request inside a tunnel leads: its host must be the one that the tunnel leads to.
fn tunneled(request: &Request<Incoming>, tunnel: &Target) -> Result<Destination, Refused> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (request.uri().authority(), hosts.next(), hosts.next()) {
        (Some(authority), ..) => authority.as_str(),
        (None, Some(host), None) => host.to_str().unwrap_or_default(),
        _ => "",
    };
    if !tunnel.is(host) {
        let detail = format!("the request is for {host:?}, but the tunnel leads to {tunnel}");
        return Err(Refused::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", detail));
    }
    destination("https", &tunnel.to_string(), request.uri().path_and_query())
}

fn destination(scheme: &str, host: &str, path: Option<&PathAndQuery>) -> Result<Destination, Refused> {
    let target = path.cloned().unwrap_or(PathAndQuery::from_static("/"));
    // An empty path before a query is allowed in a URL, but not in a request.
    let slash = if target.as_str().starts_with(['/', '*']) { "" } else { "/" };
    let url = Url::parse(&format!("{scheme}://{host}{slash}{target}"));
    let url = url.ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    let url = url.ok_or_else(|| bad_request("expected an http or https URL with a host"))?;
    let target = match slash {
        "" => target,
        _ => {
            format!("/{target}").parse().map_err(|_| bad_request("the URL cannot be written as a request"))?
        }
    };
    Ok(Destination { url, target, style: Style::Proxied })
}

pub(super) fn bad_request(detail: &str) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, "bad-request", detail)
}

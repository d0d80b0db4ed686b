//! One relayed request: waits in line, is sent, and its response is passed on while it arrives.
//!
//! It runs in a task of its own: if the client hangs up while it waits, it leaves the line; once it was sent, the
//! response's headers are still awaited, because the site may ask for something in them.

use std::time::Duration;

use bytes::Bytes;
use comity_core::domain::Domain;
use comity_core::line::Owner;
use comity_core::outcome::{Answer as SiteAnswer, Outcome};
use comity_core::time::Span;
use comity_store::tasks::Lead;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::Proxy;
use super::answer::{Answer, Chunk, ProxyBody, REASON, Refused, Relayed, WAITED, header_text};
use super::line::{Line, NotGranted};
use super::{connect, gateway, headers};
use crate::attempt::{
    BeforeSend, Head, Outgoing, Received, Sink, Unsent, Wanted, attempt, may_resend, pacing_hints,
};
use crate::client::{Requester, path_and_query};
use crate::redact;
use crate::request::Trust;
use crate::transport::{Relay, Request, StreamedBody};

/// A request to relay.
pub(super) struct Exchange {
    pub(super) proxy: Proxy,
    pub(super) url: Url,
    /// Its target as the client wrote it.
    pub(super) target: PathAndQuery,
    pub(super) method: Method,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Option<StreamedBody>,
    /// The client's connection, if it wants to switch to another protocol.
    pub(super) upgrade: Option<OnUpgrade>,
    /// How the response's headers change.
    pub(super) style: Style,
}

/// Who reads the response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// A client of the proxy.
    Proxied,
    /// A client that asked for `/https://…`.
    Gateway,
}

/// A response without the guard that its body gets.
struct Ready {
    response: Response<()>,
    body: ReadyBody,
}

enum ReadyBody {
    Whole(ProxyBody),
    Chunks(mpsc::Receiver<Chunk>),
}

impl Exchange {
    /// Relays the request. Dropping the future means that the client has hung up.
    pub(super) async fn relay(self) -> Answer {
        let (respond, responded) = oneshot::channel();
        let gone = CancellationToken::new();
        let guard = gone.clone().drop_guard();
        let proxy = self.proxy.clone();
        // Boxed, because the future is large.
        proxy.0.tasks.spawn(Box::pin(self.run(respond, gone)));
        let Ok(Ready { response, body }) = responded.await else {
            let detail = "the request was dropped";
            return Refused::new(StatusCode::BAD_GATEWAY, "unreachable", detail).answer();
        };
        let body = match body {
            ReadyBody::Whole(whole) => whole,
            ReadyBody::Chunks(chunks) => ProxyBody::Relayed(Relayed { chunks, _gone: guard }),
        };
        response.map(|()| body)
    }

    async fn run(mut self, respond: oneshot::Sender<Ready>, gone: CancellationToken) {
        let proxy = self.proxy.clone();
        let mut sink = PassOn {
            respond: Some(respond),
            chunks: None,
            slot: None,
            site: None,
            client: self.upgrade.take(),
            retries_left: if self.body.is_none() { proxy.0.settings.retries_max } else { 0 },
            retries: false,
            waited: Span::ZERO,
            reason: None,
            url: self.url.clone(),
            style: self.style,
        };
        if let Err(NotGranted::Refused(refused)) = self.send(&mut sink, &gone).await {
            proxy.0.counts.refused();
            let (waited, respond) = (sink.waited, sink.respond.take());
            let mut response = refused.answer();
            response.headers_mut().insert(WAITED, waited.as_millis_up().into());
            let (parts, whole) = response.into_parts();
            let response = Response::from_parts(parts, ());
            if let Some(respond) = respond {
                // Nobody waits for it if the client has hung up.
                let _ = respond.send(Ready { response, body: ReadyBody::Whole(whole) });
            }
        }
    }

    async fn send(&self, sink: &mut PassOn, gone: &CancellationToken) -> Result<(), NotGranted> {
        let proxy = &self.proxy;
        let bad = || Refused::new(StatusCode::BAD_REQUEST, "bad-request", "the URL has no host");
        let host = Domain::of(&self.url).ok_or_else(|| NotGranted::Refused(bad()))?;
        let mut line = Line::new(proxy, &host, gone);
        self.check_robots(&line).await?;
        loop {
            let granted = line.permit().await;
            (sink.waited, sink.reason) = (line.waited, line.reason.clone());
            let mut permit = granted?;
            let relay = Relay {
                target: self.target.clone(),
                body: self.body.clone(),
                upgrades: sink.client.is_some(),
            };
            let (headers, method) = (&self.headers[..], Some(&self.method));
            let request =
                Request { headers, method, relay: Some(&relay), ..Request::new(&self.url, Lead::Remote) };
            let transport = &proxy.0.transport;
            let out = Outgoing { transport, request, trust: Trust::Relayed, recording: None };
            let ended = match attempt(out, &mut permit, Present(gone), sink).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) if proxy.0.settings.fail_fast => return Err(line.too_early(None)),
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Vetoed(Gone)) => return Err(NotGranted::Gone),
                Err(Unsent::Never(cause)) => {
                    return Err(NotGranted::Refused(Refused::of_transport(&cause)));
                }
            };
            let unsent = matches!(&ended.received, Received::Failed(cause) if !cause.may_have_arrived());
            if !unsent {
                proxy.0.counts.sent();
            }
            if ended.outcome == Outcome::RateLimited {
                proxy.0.counts.rate_limited();
            }
            let cause = match ended.received {
                Received::Response(_) if std::mem::take(&mut sink.retries) => continue,
                Received::Response(_) | Received::SinkFailed(Gone) => return Ok(()),
                // What has been passed on so far ends without an end, so the client knows.
                Received::Failed(_) if sink.respond.is_none() => return Ok(()),
                Received::Failed(cause) => cause,
            };
            let again = may_resend(&self.method, ended.outcome, Some(&cause));
            if sink.retries_left > 0 && again && !cause.is_final() {
                sink.retries_left -= 1;
                continue;
            }
            return Err(NotGranted::Refused(Refused::of_transport(&cause)));
        }
    }

    async fn check_robots(&self, line: &Line<'_>) -> Result<(), NotGranted> {
        let Some(robots) = &self.proxy.0.robots else { return Ok(()) };
        let requester = Requester { job: None, owner: Owner::NONE };
        let asking = robots.rules(&self.url, Lead::Remote, requester);
        let refused = |status, kind, detail, retry_after| {
            NotGranted::Refused(Refused { retry_after, ..Refused::new(status, kind, detail) })
        };
        let rules = line.limited(Box::pin(asking)).await?.map_err(|error| {
            refused(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", error.to_string(), None)
        })?;
        let rules = rules.map_err(|unavailable| {
            let now = self.proxy.0.gate.clock().now();
            let retry_after = unavailable.retry_at.map(|at| at.since(now));
            let status = match retry_after {
                Some(_) => StatusCode::SERVICE_UNAVAILABLE,
                None => StatusCode::BAD_GATEWAY,
            };
            refused(status, "robots", unavailable.to_string(), retry_after)
        })?;
        if rules.allows(path_and_query(&self.url)) {
            return Ok(());
        }
        let detail = format!("{}: forbidden by robots.txt", redact::url(&self.url));
        Err(refused(StatusCode::FORBIDDEN, "robots", detail, None))
    }
}

/// Vetoes a request whose client has hung up.
struct Present<'a>(&'a CancellationToken);

/// The client has hung up.
#[derive(Debug)]
struct Gone;

impl BeforeSend for Present<'_> {
    type Veto = Gone;

    async fn before_send(&mut self) -> Result<(), Gone> {
        if self.0.is_cancelled() { Err(Gone) } else { Ok(()) }
    }
}

/// Passes a response on to the client.
struct PassOn {
    respond: Option<oneshot::Sender<Ready>>,
    chunks: Option<mpsc::Sender<Chunk>>,
    /// Room for one more chunk.
    slot: Option<mpsc::OwnedPermit<Chunk>>,
    /// The connections of site and client, to be joined after a switch of protocols.
    site: Option<OnUpgrade>,
    client: Option<OnUpgrade>,
    retries_left: u32,
    /// Whether the response was not passed on because the request is sent again.
    retries: bool,
    waited: Span,
    reason: Option<String>,
    url: Url,
    style: Style,
}

impl PassOn {
    fn response(&self, status: StatusCode, site: &HeaderMap) -> Response<()> {
        let mut headers = headers::of_response(site, status);
        if self.style == Style::Gateway {
            gateway::adapt(&mut headers, &self.url);
        }
        headers.insert(WAITED, self.waited.as_millis_up().into());
        if let Some(reason) = &self.reason {
            headers.insert(REASON, header_text(reason));
        }
        let mut response = Response::new(());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    }
}

impl Sink for PassOn {
    type Error = Gone;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, Gone> {
        let answer = SiteAnswer::of_status(head.status, pacing_hints(&head.headers, head.at));
        if answer.outcome.is_penalty() && self.retries_left > 0 {
            self.retries_left -= 1;
            self.retries = true;
            return Ok(Wanted::Nothing);
        }
        let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let response = self.response(status, &head.headers);
        let respond = self.respond.take().ok_or(Gone)?;
        if status.is_informational() || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status) {
            let body = ReadyBody::Whole(ProxyBody::empty());
            respond.send(Ready { response, body }).map_err(|_| Gone)?;
            if let Some((site, client)) = self.site.take().zip(self.client.take()) {
                tokio::spawn(connect::join_upgraded(site, client));
            }
            return Ok(Wanted::Nothing);
        }
        let (chunks, received) = mpsc::channel(CHUNKS_MAX);
        self.chunks = Some(chunks);
        respond.send(Ready { response, body: ReadyBody::Chunks(received) }).map_err(|_| Gone)?;
        Ok(Wanted::Relayed(SILENCE_MAX))
    }

    fn switched(&mut self, connection: OnUpgrade) {
        self.site = Some(connection);
    }

    async fn ready(&mut self) -> Result<(), Gone> {
        if let Some(chunks) = self.chunks.take() {
            self.slot = Some(chunks.reserve_owned().await.map_err(|_| Gone)?);
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: Bytes) -> Result<(), Gone> {
        let slot = self.slot.take().ok_or(Gone)?;
        self.chunks = Some(slot.send(Chunk::Part(chunk)));
        Ok(())
    }

    fn complete(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.send(Chunk::End);
        }
    }
}

/// How many chunks may wait for a slow client.
const CHUNKS_MAX: usize = 4;
/// How long a site may be silent in the middle of a response.
const SILENCE_MAX: Duration = Duration::from_secs(5 * 60);

//! Pacing for an existing client: a tower layer and, with the feature `reqwest`, a reqwest middleware.
//!
//! A request waits for its turn on its domain, is sent, and its response is recorded. Everything that shares the
//! [`Gate`]
//! shares one pace. There are no hidden retries: a 429 is recorded and passed on.
//!
//! - here: [`PoliteLayer`], and the waiting and recording that both kinds share
//! - `body`: response bodies, whose requests stay in flight until they end
//! - `follow`: redirects, hop by hop
//! - `tower`, `reqwest`: the two kinds of layer
//!
//! This module neither fetches robots.txt nor checks that redirects lead to public addresses, because the wrapped
//! client does its own DNS lookups. [`crate::client::Client`] does both. To apply a known crawl-delay, use
//! [`Gate::set_crawl_delay`].

mod body;
mod follow;
#[cfg(feature = "reqwest")]
mod reqwest;
mod tower;

use std::error::Error;
use std::io;
use std::pin::pin;
use std::time::Duration;

use comity_core::decision::{Limit, Reason};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, TransportFailure};
use comity_core::time::{Span, Timestamp};
use http::HeaderMap;
use url::Url;

use self::body::InFlight;
use crate::clock::to_span;
use crate::event::redacted_url;
use crate::gate::{Gate, GateError, Permit};
use crate::head::{DEPART_WAIT_MAX, apply_head};
use crate::shortage::ran_out;

pub use self::body::InFlightBody;
pub use self::follow::FollowingLayer;
pub use self::tower::{Following, Polite};

/// Makes a client polite: wrap a tower service in it, or use it as a reqwest middleware.
///
/// ```
/// # use std::io::{Read, Write};
/// # let site = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = site.local_addr()?;
/// # std::thread::spawn(move || {
/// #     for mut stream in site.incoming().flatten() {
/// #         let _ = stream.read(&mut [0; 1024]);
/// #         let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
/// #     }
/// # });
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use std::sync::Arc;
///
/// use comity::clock::Clock;
/// use comity::core::rule::RuleTable;
/// use comity::event::Events;
/// use comity::gate::Gate;
/// use comity::layer::PoliteLayer;
/// use http_body_util::Empty;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tower::{Service, ServiceBuilder};
///
/// let gate = Gate::new(Arc::new(RuleTable::default()), Clock::new(), Events::new());
/// let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
/// let mut client = ServiceBuilder::new().layer(PoliteLayer::new(gate)).service(client);
///
/// let request = http::Request::get(format!("http://{address}/page")).body(Empty::new())?;
/// assert_eq!(client.call(request).await?.status(), 200); // a second one would wait for its turn
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A request is in flight until the body of its response has been read or dropped, or has been left unread for five
/// seconds. If the rule allows only one request at a time, the next one to that domain waits until then.
#[derive(Debug, Clone)]
pub struct PoliteLayer {
    gate: Gate,
    intent: Intent,
    patience: Option<Span>,
}

/// Why a request was not sent, or its response not passed on.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The URL is not an http or https URL with a host.
    #[error("url = {url:?}: expected an http or https URL with a host, such as \"https://example.org/page\"")]
    Url {
        /// The URL, without secrets.
        url: String,
    },
    /// The domain is held for longer than the caller wants to wait, or until an operator resumes it.
    #[error("{host}: {reason}")]
    Held {
        /// The host.
        host: Domain,
        /// Why it is held, and until when.
        reason: Reason,
    },
    /// The gate cannot grant permits.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The client followed a redirect on its own, without waiting for the target's domain.
    #[error(
        "{from}: the client followed a redirect to {to} on its own, bypassing that site's pace; \
         build it with redirect(Policy::none()), and follow redirects here with PoliteLayer::following"
    )]
    Followed {
        /// The requested URL.
        from: String,
        /// The URL that the response came from.
        to: String,
    },
    /// More redirects than allowed.
    #[error("{url}: redirected to itself, or more than {max} times")]
    Redirects {
        /// The URL that redirected last.
        url: String,
        /// The limit.
        max: u32,
    },
    /// The redirect target isn't a valid http or https URL.
    #[error("{url}: redirected to something that isn't a valid http or https URL")]
    BadRedirect {
        /// The URL that redirected.
        url: String,
    },
}

/// Any error, as tower defines it.
pub type BoxError = Box<dyn Error + Send + Sync>;

impl PoliteLayer {
    /// A layer whose requests go through `gate` and wait for their turn however long that takes. Redirects are passed
    /// on unchanged; if the caller follows one, that request waits for its own turn.
    pub fn new(gate: Gate) -> Self {
        Self { gate, intent: Intent::Fetch, patience: None }
    }

    /// Sets what the requests are for. Rules may limit intents differently.
    pub fn intent(self, intent: Intent) -> Self {
        Self { intent, ..self }
    }

    /// Fails with [`LayerError::Held`] if the domain is held for longer than this, because its server asked for it or
    /// after failures.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: Some(to_span(patience)), ..self }
    }

    /// Follows up to `max` redirects per request. Each waits for its turn on the domain it leads to.
    pub fn following(self, max: u32) -> FollowingLayer {
        FollowingLayer { polite: self, max }
    }

    fn host(&self, url: &Url) -> Result<Domain, LayerError> {
        Domain::of(url).ok_or_else(|| LayerError::Url { url: redacted_url(url) })
    }

    /// Waits in line, as if since `since`. The permit is checked once more at departure, because a hold may have
    /// started in the meantime; then it is dropped and the wait starts again.
    async fn acquire(&self, host: &Domain, since: Timestamp) -> Result<Granted, LayerError> {
        let last = self.gate.with_pace(host, |pace, _, _| pace.last_start()).await?;
        let connects = last.is_none_or(|last| since.since(last) > KEPT_ALIVE);
        let mut waiting = pin!(self.gate.acquire_since(host, self.intent, since));
        loop {
            let now = self.gate.clock().now();
            let reasons = self.gate.explain(host, self.intent).await?;
            let closed = |reason: &Reason| match self.patience {
                _ if reason.limit == Limit::Paused => reason.until == Timestamp::MAX,
                Some(patience) => reason.is_hold() && reason.until.since(now) > patience,
                None => false,
            };
            if let Some(reason) = reasons.into_iter().find(closed) {
                return Err(LayerError::Held { host: host.clone(), reason });
            }
            if let Ok(permit) = tokio::time::timeout(LOOK, &mut waiting).await {
                return Ok(Granted { permit: permit?, connects });
            }
        }
    }

    /// Handles response headers. What the server asks for takes effect now. Whether the request succeeded is known when
    /// the body ends, and until then it is in flight.
    fn answered(&self, granted: Granted, status: http::StatusCode, headers: &HeaderMap) -> InFlight {
        let Granted { mut permit, connects } = granted;
        if connects {
            // Only the client knows when the request was written; it was no later than now.
            permit.answered(Some(Span::ZERO));
        }
        let at = permit.now();
        let applied = apply_head(&mut permit, status.as_u16(), headers, at);
        if applied.recorded.is_some() {
            return InFlight::ended();
        }
        InFlight::new(permit, applied.answer)
    }
}

/// A request that has been granted its turn.
struct Granted {
    permit: Permit,
    /// Whether the client probably has to open a connection first, and so sends the request later.
    connects: bool,
}

impl Granted {
    /// Whether the request may be handed to the client now. If not, drop the permit and wait again.
    async fn depart(&mut self) -> bool {
        self.permit.depart_within(DEPART_WAIT_MAX).await
    }
}

/// Records that no response arrived. Records nothing if nothing was sent.
fn record_failure(granted: Granted, error: &(dyn Error + 'static)) {
    if let Some(failure) = failure_of(error) {
        granted.permit.record(&Answer::of_failure(failure));
    }
}

fn failure_of(error: &(dyn Error + 'static)) -> Option<TransportFailure> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(judged) = judge(error) {
            return judged;
        }
        cause = error.source();
    }
    Some(TransportFailure::Disconnected)
}

/// What one error in a chain of causes means, judged by its type. `Some(None)` means that nothing was sent; `None`
/// means that this error doesn't tell.
fn judge(error: &(dyn Error + 'static)) -> Option<Option<TransportFailure>> {
    let late = |is_late: bool| is_late.then_some(Some(TransportFailure::TimedOut));
    #[cfg(feature = "reqwest")]
    if let Some(error) = error.downcast_ref::<::reqwest::Error>() {
        return if error.is_builder() { Some(None) } else { late(error.is_timeout()) };
    }
    #[cfg(feature = "client")]
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return if error.is_user() { Some(None) } else { late(error.is_timeout()) };
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return match error.kind() {
            // Without a file descriptor nothing was sent.
            _ if ran_out(error) => Some(None),
            io::ErrorKind::ConnectionRefused => Some(Some(TransportFailure::Unreachable)),
            kind => late(kind == io::ErrorKind::TimedOut),
        };
    }
    late(error.is::<tokio::time::error::Elapsed>())
}

/// Clients usually keep idle connections open for longer than this.
const KEPT_ALIVE: Span = Span::from_secs(5);
/// How often a waiting request checks whether its domain has been held in the meantime.
const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    /// B46
    #[test]
    fn errors_are_judged_by_type_however_deeply_nested() {
        let of = |kind: io::ErrorKind| failure_of(&Outer(kind.into()));
        assert_eq!(of(io::ErrorKind::TimedOut), Some(TransportFailure::TimedOut));
        assert_eq!(of(io::ErrorKind::ConnectionReset), Some(TransportFailure::Disconnected));
        assert_eq!(of(io::ErrorKind::ConnectionRefused), Some(TransportFailure::Unreachable));
        #[cfg(unix)]
        assert_eq!(failure_of(&Outer(rustix::io::Errno::MFILE.into())), None, "nothing was sent");
        let text = io::Error::other("timed out");
        assert_eq!(failure_of(&text), Some(TransportFailure::Disconnected), "the text doesn't count");
    }
}

//! Manners for a client that exists already: a tower layer, and with the feature `reqwest` a reqwest-middleware.
//!
//! A request waits for its turn on the domain it goes to, leaves, and its answer is recorded; whoever shares the
//! [`Gate`] keeps one pace with it. There are no hidden retries: a 429 is recorded and passed on (B44).
//!
//! - here: [`PoliteLayer`], waiting and recording, what both kinds have in common
//! - `body`: the body of an answer, on the wire until it ends
//! - `follow`: redirects, hop by hop
//! - `tower`, `reqwest`: the two kinds
//!
//! robots.txt is not asked for here, and where a redirect leads is not checked for being public: the client that is
//! made polite resolves names by itself. [`crate::client::Client`] does both. A crawl-delay that is known can be told
//! to the gate, by [`Gate::set_crawl_delay`].

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
use comity_core::outcome::{Answer, Breakdown};
use comity_core::time::{Span, Timestamp};
use http::HeaderMap;
use url::Url;

use self::body::OnWire;
use crate::attempt::{PATIENCE, hear};
use crate::client::is_hold;
use crate::clock::micros;
use crate::descriptors;
use crate::event::shown;
use crate::gate::{Gate, GateError, Permit};

pub use self::body::OnWireBody;
pub use self::follow::FollowingLayer;
pub use self::tower::{Following, Polite};

/// Makes a client polite: put it around a tower service, or give it to a reqwest-middleware.
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
/// A request is on the wire until the body of its answer was read or dropped, or lay unread for five seconds: until then
/// it keeps the next request to that domain waiting, where the rule allows one at a time (B78).
#[derive(Debug, Clone)]
pub struct PoliteLayer {
    gate: Gate,
    intent: Intent,
    patience: Option<Span>,
}

/// Why a request was not sent, or its answer not passed on.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// That is no place to ask politely.
    #[error("url = {url:?}: expected an http or https URL with a host, such as \"https://example.org/page\"")]
    Url {
        /// What was asked for, without secrets.
        url: String,
    },
    /// The domain is closed for longer than the caller wants to wait, or until an operator opens it.
    #[error("{host}: {reason}")]
    Held {
        /// Which.
        host: Domain,
        /// By what, and until when.
        reason: Reason,
    },
    /// Nobody can be let go.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The client followed a redirect before anybody could wait for its domain.
    #[error(
        "{from}: the client followed a redirect to {to} by itself, past the pace of that domain; \
         build it with redirect(Policy::none()), and follow redirects here with PoliteLayer::following"
    )]
    Followed {
        /// What was asked for.
        from: String,
        /// What was answered.
        to: String,
    },
    /// More redirects than allowed.
    #[error("{url}: redirected to itself, or more than {max} times")]
    Redirects {
        /// Who redirected last.
        url: String,
        /// How many are allowed.
        max: u32,
    },
    /// The redirect leads where nobody may follow.
    #[error("{url}: redirected to something that isn't a valid http or https URL")]
    Leads {
        /// Who redirected.
        url: String,
    },
}

/// What tower calls any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

impl PoliteLayer {
    /// Requests pass `gate`, and wait for their turn however long that takes. Redirects are passed on as they are: each
    /// one that the caller follows waits for its own turn.
    pub fn new(gate: Gate) -> Self {
        Self { gate, intent: Intent::Fetch, patience: None }
    }

    /// What the requests are for, where a rule tells that apart (B26).
    pub fn intent(self, intent: Intent) -> Self {
        Self { intent, ..self }
    }

    /// Gives a request up with [`LayerError::Held`] when its domain is closed for longer than this: because the server
    /// asked for it, or after failures.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: Some(micros(patience)), ..self }
    }

    /// Follows redirects, at most so many in a row, each waiting for its turn on the domain it leads to.
    pub fn following(self, max: u32) -> FollowingLayer {
        FollowingLayer { polite: self, max }
    }

    fn host(&self, url: &Url) -> Result<Domain, LayerError> {
        Domain::of(url).ok_or_else(|| LayerError::Url { url: shown(url) })
    }

    /// Waits in line since `since`. The permit is asked once more at departure: a hold may have begun meanwhile, and then
    /// it is given up for another wait.
    async fn granted(&self, host: &Domain, since: Timestamp) -> Result<Turn, LayerError> {
        let last = self.gate.with_pace(host, |pace, _, _| pace.last_start()).await?;
        let connects = last.is_none_or(|last| since.since(last) > KEPT_ALIVE);
        let mut waiting = pin!(self.gate.acquire_since(host, self.intent, since));
        loop {
            let now = self.gate.clock().now();
            let reasons = self.gate.explain(host, self.intent).await?;
            let closed = |reason: &Reason| match self.patience {
                _ if reason.limit == Limit::Paused => reason.until == Timestamp::MAX,
                Some(patience) => is_hold(reason) && reason.until.since(now) > patience,
                None => false,
            };
            if let Some(reason) = reasons.into_iter().find(closed) {
                return Err(LayerError::Held { host: host.clone(), reason });
            }
            tokio::select! {
                biased;
                permit = &mut waiting => return Ok(Turn { permit: permit?, connects }),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// The head of an answer came. What the server says counts from now; whether the request succeeded is known when
    /// the body ended, and until then it is on the wire.
    fn answered(&self, turn: Turn, status: http::StatusCode, headers: &HeaderMap) -> OnWire {
        let Turn { mut permit, connects } = turn;
        if connects {
            // When it was written nobody but the client knows; not later than now.
            permit.answered(Some(Span::ZERO));
        }
        let heard = hear(&mut permit, status.as_u16(), headers);
        if heard.recorded.is_some() {
            return OnWire::ended();
        }
        OnWire::new(permit, heard.answer)
    }
}

/// A request whose turn it is.
struct Turn {
    permit: Permit,
    /// Its client will probably open a connection first, and send it that much later.
    connects: bool,
}

impl Turn {
    /// Whether it may be handed to the client now. If not it is to be given up, and waited for anew.
    async fn departs(&mut self) -> bool {
        self.permit.departs(PATIENCE).await
    }
}

/// No answer came: what that is to the domain, by the types of errors (B46). Nothing, if nothing was sent.
fn broken(turn: Turn, error: &(dyn Error + 'static)) {
    if let Some(breakdown) = breakdown(error) {
        turn.permit.record(&Answer::of_breakdown(breakdown));
    }
}

fn breakdown(error: &(dyn Error + 'static)) -> Option<Breakdown> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(judged) = judge(error) {
            return judged;
        }
        cause = error.source();
    }
    Some(Breakdown::Disconnected)
}

/// What one of the causes of an error says: nothing, or what it was, if anything was sent at all.
fn judge(error: &(dyn Error + 'static)) -> Option<Option<Breakdown>> {
    let late = |is_late: bool| is_late.then_some(Some(Breakdown::TimedOut));
    #[cfg(feature = "reqwest")]
    if let Some(error) = error.downcast_ref::<::reqwest::Error>() {
        return if error.is_builder() { Some(None) } else { late(error.is_timeout()) };
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return if error.is_user() { Some(None) } else { late(error.is_timeout()) };
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return match error.kind() {
            // Without a descriptor nothing was sent.
            _ if descriptors::ran_out(error) => Some(None),
            io::ErrorKind::ConnectionRefused => Some(Some(Breakdown::Unreachable)),
            kind => late(kind == io::ErrorKind::TimedOut),
        };
    }
    late(error.is::<tokio::time::error::Elapsed>())
}

/// Clients keep a connection for longer than this, as a rule.
const KEPT_ALIVE: Span = Span::from_secs(5);
/// Whoever waits looks this often whether the domain was closed meanwhile.
const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    /// B46
    #[test]
    fn errors_are_judged_by_their_types_however_deep() {
        let of = |kind: io::ErrorKind| breakdown(&Outer(kind.into()));
        assert_eq!(of(io::ErrorKind::TimedOut), Some(Breakdown::TimedOut));
        assert_eq!(of(io::ErrorKind::ConnectionReset), Some(Breakdown::Disconnected));
        assert_eq!(of(io::ErrorKind::ConnectionRefused), Some(Breakdown::Unreachable));
        #[cfg(unix)]
        assert_eq!(breakdown(&Outer(rustix::io::Errno::MFILE.into())), None, "nothing was sent");
        let text = io::Error::other("timed out");
        assert_eq!(breakdown(&text), Some(Breakdown::Disconnected), "words do not count");
    }
}

//! One attempt: one request on the wire. Everything that sends goes through here:
//!
//! ```text
//!  permit ─► connect ─► before_send ─► depart ─► write ─► headers take effect ─► body into a sink ─► outcome recorded
//!               │            │           │                     │                       │
//!               └────────────┴───────────┴ withheld or         └ a failure is          └ an incomplete response is
//!                        vetoed: nothing was sent                recorded right here     not a success
//! ```
//!
//! Callers differ only in their [`Sink`], which takes the response body, and in what they do right before the request
//! leaves ([`BeforeSend`]). What a server asks for in its headers takes effect as soon as they arrive.
//!
//! - here: the attempt itself
//! - `sink`: where bodies go
//! - `hop`: redirects: how far their targets are trusted, and what is sent along
//! - `resend`: whether a request may be sent again
//! - `tunnel`: a connection whose bytes somebody else reads and writes
//!
//! Not here: waiting in line ([`crate::gate`]), retries and following redirects, which are up to the caller.

mod hop;
mod resend;
mod sink;
mod tunnel;

use std::borrow::Cow;
use std::time::Duration;

use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Freshness, Recorded};
use comity_core::time::Timestamp;
use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;

use crate::archive::{ArchiveError, Ending, Recording};
use crate::clock::to_span;
use crate::gate::{Permit, Recall};
use crate::request::Trust;
use crate::transport::{Answered, Body, CloseSignal, Depart, Request, SendError, Transport, TransportError};

pub(crate) use crate::head::{AppliedHead, DEPART_WAIT_MAX, apply_head, pacing_hints};
pub(crate) use crate::redirect::{Redirect, next_hop};
pub(crate) use hop::{
    OriginListed, Provenance, body_after_redirect, origin_listed, provenance, redirected_lead,
};
pub(crate) use resend::{NOT_RESENT, may_resend};
pub(crate) use sink::{Collect, Sink, Wanted};
pub(crate) use tunnel::{NoTunnel, open_tunnel};

/// What to send, and how.
pub(crate) struct Outgoing<'a> {
    pub(crate) transport: &'a Transport,
    pub(crate) request: Request<'a>,
    /// Which credentials the target may receive.
    pub(crate) trust: Trust,
    pub(crate) recording: Option<Recording>,
}

/// Runs when the connection is open, right before the request is sent.
pub(crate) trait BeforeSend: Send {
    /// Why the request must not be sent.
    type Veto: Send;

    /// `Ok` if the request may be sent. May be called more than once.
    fn before_send(&mut self) -> impl Future<Output = Result<(), Self::Veto>> + Send;
}

/// Does nothing.
impl BeforeSend for () {
    type Veto = std::convert::Infallible;

    async fn before_send(&mut self) -> Result<(), Self::Veto> {
        Ok(())
    }
}

/// Why nothing was sent. The permit is unchanged.
#[derive(Debug)]
pub(crate) enum Unsent<S = std::convert::Infallible> {
    /// The request may not leave yet after all, or file descriptors ran out.
    Withheld,
    /// [`BeforeSend`] vetoed it.
    Vetoed(S),
    /// The request must never be sent. The site is not to blame.
    Never(TransportError),
}

/// The result of an attempt, which has already been recorded.
#[derive(Debug)]
pub(crate) struct AttemptResult<E> {
    pub(crate) received: Received<E>,
    /// The status of the response, if its headers arrived.
    pub(crate) status: Option<u16>,
    /// When the response headers arrived, if they did.
    pub(crate) answered_at: Option<Timestamp>,
    pub(crate) outcome: Outcome,
    pub(crate) freshness: Freshness,
    /// Whether the exchange could be archived.
    pub(crate) archived: Result<(), ArchiveError>,
}

/// What came back.
#[derive(Debug)]
pub(crate) enum Received<E> {
    /// A response, with as much of its body as the sink wanted.
    Response(Head),
    /// No response, or an incomplete one.
    Failed(TransportError),
    /// A response whose body the sink could not take.
    SinkFailed(E),
}

/// The status and headers of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// When they arrived.
    pub(crate) at: Timestamp,
}

/// How much of a body was read.
enum BodyRead<E> {
    /// All of it, or none was wanted.
    Whole,
    /// As much as the sink wanted.
    Cut,
    /// Reading failed.
    Failed(TransportError),
    /// The sink failed.
    SinkFailed(E),
}

/// Makes an attempt and settles its permit.
pub(crate) async fn attempt<B: BeforeSend, S: Sink>(
    out: Outgoing<'_>,
    permit: &mut Permit,
    before: B,
    sink: &mut S,
) -> Result<AttemptResult<S::Error>, Unsent<B::Veto>> {
    let Outgoing { transport, request, trust, recording } = out;
    let requests = transport.requests();
    let url = request.url;
    permit.name_url(url);
    let prepared = requests.prepare(url, trust, || permit.now()).map_err(Unsent::Never)?;
    let headers = merge_headers(prepared.headers, request.headers);
    let witness = recording.as_ref().map(Recording::witness);
    let request = Request { witness, headers: &headers, options: prepared.options.as_deref(), ..request };
    let mut answered = match send(transport, request, permit, before).await {
        Ok(answered) => answered,
        Err(SendError::Withheld(unsent)) => return Err(unsent),
        // Our own shortage: the request goes back to its place in line.
        Err(SendError::Failed(cause)) if cause.is_ours() => return Err(Unsent::Withheld),
        Err(SendError::Failed(cause)) if cause.is_final() => return Err(Unsent::Never(cause)),
        Err(SendError::Failed(cause)) => {
            let answer = Answer::of_failure(cause.failure());
            let freshness = permit.settle(&answer).freshness;
            let (received, outcome) = (Received::Failed(cause), answer.outcome);
            let (status, answered_at, archived) = (None, None, Ok(()));
            return Ok(AttemptResult { received, status, answered_at, outcome, freshness, archived });
        }
    };
    let at = permit.answered(answered.written_at.map(|written_at| to_span(written_at.elapsed())));
    let (status, headers) = (answered.status, std::mem::take(&mut answered.headers));
    let head = Head { status, headers, at };
    let applied = apply_head(permit, status, &head.headers, at);
    if trust != Trust::Relayed {
        requests.store_cookies(url, &head.headers, head.at).await;
    }
    if let Some(connection) = answered.upgrade.take() {
        sink.switched(connection);
    }
    // The body of a refusal is read only briefly, unless the exchange is being recorded or somebody else reads it.
    let is_brief = applied.recorded.is_some() && recording.is_none() && trust != Trust::Relayed;
    let reading_body = read_body(&mut answered, &head, permit, sink);
    let read = match is_brief {
        true => timeout(REFUSAL_BODY_TIMEOUT, reading_body).await.unwrap_or(BodyRead::Cut),
        false => reading_body.await,
    };
    let archived = match recording {
        Some(recording) => recording.finish(ending(&read)).await,
        None => Ok(()),
    };
    Ok(finish(head, applied, read, archived, permit, sink))
}

/// Merges the request's own headers into those for every request to the site. The request's own win; cookies are
/// combined.
fn merge_headers<'a>(
    mut all: Vec<(HeaderName, HeaderValue)>,
    own: &'a [(HeaderName, HeaderValue)],
) -> Cow<'a, [(HeaderName, HeaderValue)]> {
    if all.is_empty() {
        return Cow::Borrowed(own);
    }
    for (name, value) in own {
        let known = all.iter_mut().find(|(known, _)| known == name);
        match known {
            Some((_, known)) if *name == COOKIE => {
                let both = [known.as_bytes(), b"; ", value.as_bytes()].concat();
                *known = HeaderValue::from_bytes(&both).unwrap_or_else(|_| value.clone());
            }
            Some((_, known)) => *known = value.clone(),
            None => all.push((name.clone(), value.clone())),
        }
    }
    Cow::Owned(all)
}

/// Judges and records the response, unless it was recorded when its headers arrived.
fn finish<S: Sink>(
    head: Head,
    applied: AppliedHead,
    read: BodyRead<S::Error>,
    archived: Result<(), ArchiveError>,
    permit: &mut Permit,
    sink: &mut S,
) -> AttemptResult<S::Error> {
    let AppliedHead { answer, recorded } = applied;
    let (status, answered_at) = (Some(head.status), Some(head.at));
    let (received, judged) = match read {
        BodyRead::SinkFailed(error) => (Received::SinkFailed(error), answer),
        BodyRead::Failed(cause) if (200..300).contains(&head.status) => {
            let judged = match cause.is_final() {
                // The response was larger than we accept, which is not the site's fault.
                true => answer,
                false => Answer { hints: answer.hints, ..Answer::of_failure(cause.failure()) },
            };
            (Received::Failed(cause), judged)
        }
        // For anything but a success the status alone decides.
        BodyRead::Whole | BodyRead::Cut | BodyRead::Failed(_) => {
            let judged = sink.judge(&head, answer);
            (Received::Response(head), judged)
        }
    };
    let Recorded { freshness, .. } = recorded.unwrap_or_else(|| permit.settle(&judged));
    AttemptResult { received, status, answered_at, outcome: judged.outcome, freshness, archived }
}

/// Sends a request once its connection is open and its permit still allows it, and waits for the response headers.
/// After a failure it also waits until the connection is closed, because until then the request takes up room.
async fn send<B: BeforeSend>(
    transport: &Transport,
    request: Request<'_>,
    permit: &mut Permit,
    before: B,
) -> Result<Answered, SendError<Unsent<B::Veto>>> {
    let recall = permit.recall();
    let departing = Departing { permit, before };
    let sent = unless_recalled(recall, transport.send(request, departing)).await;
    if let Err(SendError::Failed(_)) = sent {
        permit.connection_closed().await;
    }
    sent
}

/// Reads as much of the body as the sink wants.
async fn read_body<S: Sink>(
    answered: &mut Answered,
    head: &Head,
    permit: &mut Permit,
    sink: &mut S,
) -> BodyRead<S::Error> {
    let body = &mut answered.body;
    let (max, cut) = match sink.begin(head).await {
        Ok(Wanted::Whole { max }) => (max, u64::MAX),
        Ok(Wanted::Cut(bytes)) => {
            body.cut_at(bytes);
            (u64::MAX, bytes)
        }
        Ok(Wanted::Relayed(silence)) => {
            body.relay(silence);
            (u64::MAX, u64::MAX)
        }
        Ok(Wanted::Nothing) => {
            // Read only to keep the connection usable, and only briefly.
            let _ = timeout(DRAIN_TIMEOUT, drain(body)).await;
            return BodyRead::Whole;
        }
        Err(error) => return BodyRead::SinkFailed(error),
    };
    let recall = permit.recall();
    let reading = async {
        loop {
            sink.ready().await.map_err(BodyRead::SinkFailed)?;
            let Some(chunk) = body.chunk().await else { break };
            let chunk = chunk.map_err(BodyRead::Failed)?;
            permit.received(chunk.len());
            if body.decoded_bytes() > max {
                return Err(BodyRead::Failed(TransportError::BodyTooLarge { body_max: max }));
            }
            sink.chunk(chunk).map_err(BodyRead::SinkFailed)?;
        }
        Ok(())
    };
    let read = unless_recalled(recall, reading).await;
    if read.is_err() {
        body.give_up();
        permit.connection_closed().await;
    }
    match read {
        Ok(()) if body.decoded_bytes() >= cut => BodyRead::Cut,
        Ok(()) => {
            sink.complete();
            BodyRead::Whole
        }
        Err(read) => read,
    }
}

/// Runs a request until it is recalled to make room for others.
async fn unless_recalled<T, E: From<TransportError>>(
    recall: Recall,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        biased;
        done = request => done,
        () = recall.recalled() => Err(TransportError::GivenUp.into()),
    }
}

impl<E> From<TransportError> for BodyRead<E> {
    fn from(cause: TransportError) -> Self {
        Self::Failed(cause)
    }
}

fn ending<E>(read: &BodyRead<E>) -> Ending {
    match read {
        BodyRead::Whole => Ending::Complete,
        BodyRead::Cut => Ending::Truncated("length"),
        BodyRead::Failed(cause) => Ending::of(cause),
        BodyRead::SinkFailed(_) => Ending::Lost,
    }
}

/// Reads the rest of an unwanted body, if it is small.
async fn drain(body: &mut Body) {
    while let Some(Ok(_)) = body.chunk().await {
        if body.wire_bytes() > DRAIN_MAX {
            return;
        }
    }
}

/// A permit whose connection is open and that is about to depart.
struct Departing<'a, B> {
    permit: &'a mut Permit,
    before: B,
}

impl<B: BeforeSend> Depart<Unsent<B::Veto>> for Departing<'_, B> {
    async fn depart(&mut self) -> Result<(), Unsent<B::Veto>> {
        self.before.before_send().await.map_err(Unsent::Vetoed)?;
        if self.permit.depart_within(DEPART_WAIT_MAX).await { Ok(()) } else { Err(Unsent::Withheld) }
    }

    fn sent_on(&mut self, signal: CloseSignal) {
        self.permit.sent_on(signal);
    }
}

/// How long the body of a refusal is read at most.
const REFUSAL_BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// An unwanted body is read for no longer than this; then the connection is dropped instead.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);
/// An unwanted body larger than this is not read to the end.
const DRAIN_MAX: u64 = 64 << 10;

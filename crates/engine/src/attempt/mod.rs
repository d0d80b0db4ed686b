//! One attempt, the only way out on the wire:
//!
//! ```text
//!  permit ─► connect ─► before ─► depart ─► write ─► head: heeded ─► body: into a sink ─► outcome: recorded
//!                │         │         │                  │                  │
//!                └─────────┴─────────┴ withheld         └ a refusal is     └ an answer that is not whole is no
//!                          nothing was sent               recorded here      success, whatever its head said
//! ```
//!
//! Whoever sends something has a [`Sink`] for what comes back, and perhaps something to do right [`Before`] it leaves;
//! what a server says counts from the moment its head is there. Everything else is the same for all.
//!
//! - here: the way
//! - `head`: what the head of an answer says, for layers around other clients too
//! - `sink`: where bodies go
//! - `hop`: where an answer leads, who leads there, and what goes along
//! - `again`: whether it may be sent once more
//!
//! Deliberately absent: waiting in line ([`crate::gate`]), trying again and following redirects (whoever sends).

mod again;
mod head;
mod hop;
mod sink;

use std::borrow::Cow;
use std::time::Duration;

use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Recorded, Standing};
use comity_core::time::{Span, Timestamp};
use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;

use crate::archive::{ArchiveError, Ending, Recording};
use crate::clock::micros;
use crate::gate::{Permit, Recall};
use crate::request::Trust;
use crate::transport::{Answered, Body, Depart, Line, Request, SendError, Transport, TransportError};

pub(crate) use again::{NOT_REPEATED, may_repeat};
pub(crate) use head::{Heard, hear, told};
pub(crate) use hop::{Footing, Lists, Next, footing, lead as redirected_lead, next_hop, onward, origins};
pub(crate) use sink::{Collect, Sink, Wanted};

/// What is sent, and who sees it pass.
pub(crate) struct Out<'a> {
    pub(crate) transport: &'a Transport,
    pub(crate) request: Request<'a>,
    /// How far it is trusted with credentials.
    pub(crate) trust: Trust,
    pub(crate) recording: Option<Recording>,
}

/// Something that is done when the connection is open, right before the request may leave.
pub(crate) trait Before: Send {
    /// Why it does not leave after all.
    type Stays: Send;

    /// `Ok` when it may leave. It may be asked more than once.
    fn before(&mut self) -> impl Future<Output = Result<(), Self::Stays>> + Send;
}

/// Nothing.
impl Before for () {
    type Stays = std::convert::Infallible;

    async fn before(&mut self) -> Result<(), Self::Stays> {
        Ok(())
    }
}

/// Why nothing was sent. The permit is as it was.
#[derive(Debug)]
pub(crate) enum Unsent<S = std::convert::Infallible> {
    /// It was not its time after all, or there was no descriptor for it.
    Withheld,
    /// What is done before held it back.
    Stays(S),
    /// It is not to be sent, now or later: the site is not to blame.
    Never(TransportError),
}

/// What an attempt came to. It is recorded.
#[derive(Debug)]
pub(crate) struct Ended<E> {
    pub(crate) came: Came<E>,
    /// When the head of the answer came, if one did.
    pub(crate) answered_at: Option<Timestamp>,
    pub(crate) outcome: Outcome,
    pub(crate) standing: Standing,
    /// Whether the records of the exchange could be kept.
    pub(crate) kept: Result<(), ArchiveError>,
}

/// What came back.
#[derive(Debug)]
pub(crate) enum Came<E> {
    /// An answer, as much of it as was wanted.
    Answer(Head),
    /// None, or one that broke off.
    Broken(TransportError),
    /// One that the sink could not take.
    Refused(E),
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// When it came.
    pub(crate) at: Timestamp,
}

/// How much of a body was read.
enum Read<E> {
    /// All of it, or nothing of it was wanted.
    Whole,
    /// As much as was wanted.
    Cut,
    /// It broke off.
    Broken(TransportError),
    /// The sink could not take it.
    Refused(E),
}

/// Makes an attempt with a permit, which is settled when it ends.
pub(crate) async fn attempt<B: Before, S: Sink>(
    out: Out<'_>,
    permit: &mut Permit,
    before: B,
    sink: &mut S,
) -> Result<Ended<S::Error>, Unsent<B::Stays>> {
    let Out { transport, request, trust, recording } = out;
    let requests = transport.requests();
    let url = request.url;
    let prepared = requests.prepare(url, trust, permit.now());
    let headers = with_own(prepared.headers, request.headers);
    let witness = recording.as_ref().map(Recording::witness);
    let request = Request { witness, headers: &headers, way: prepared.way.as_deref(), ..request };
    let mut answered = match send(transport, request, permit, before).await {
        Ok(answered) => answered,
        Err(SendError::Withheld(unsent)) => return Err(unsent),
        // Our own trouble: it takes its place in line again.
        Err(SendError::Failed(cause)) if cause.is_ours() => return Err(Unsent::Withheld),
        Err(SendError::Failed(cause)) if cause.is_final() => return Err(Unsent::Never(cause)),
        Err(SendError::Failed(cause)) => {
            let answer = Answer::of_breakdown(cause.breakdown());
            let standing = permit.settle(&answer).standing;
            let (came, outcome) = (Came::Broken(cause), answer.outcome);
            return Ok(Ended { came, answered_at: None, outcome, standing, kept: Ok(()) });
        }
    };
    permit.answered(answered.written_at.map(|written_at| micros(written_at.elapsed())));
    let (status, headers) = (answered.status, std::mem::take(&mut answered.headers));
    let head = Head { status, headers, at: permit.now() };
    let heard = hear(permit, status, &head.headers);
    requests.heard(url, &head.headers, head.at).await;
    // The page of a refusal is read for a while only, unless it is recorded: then as a whole.
    let taking = take(&mut answered, &head, permit, sink);
    let read = match heard.recorded.is_some() && recording.is_none() {
        true => timeout(REFUSED, taking).await.unwrap_or(Read::Cut),
        false => taking.await,
    };
    let kept = match recording {
        Some(recording) => recording.finish(ending(&read)).await,
        None => Ok(()),
    };
    Ok(end(head, heard, read, kept, permit, sink))
}

/// The headers of a request over those that all requests to its site have; cookies are sent together.
fn with_own<'a>(
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

/// The answer is as whole as it will be: it is judged and recorded, unless that was done when its head came.
fn end<S: Sink>(
    head: Head,
    heard: Heard,
    read: Read<S::Error>,
    kept: Result<(), ArchiveError>,
    permit: &mut Permit,
    sink: &mut S,
) -> Ended<S::Error> {
    let Heard { answer, recorded } = heard;
    let answered_at = Some(head.at);
    let (came, judged) = match read {
        Read::Refused(error) => (Came::Refused(error), answer),
        Read::Broken(cause) if (200..300).contains(&head.status) => {
            let judged = match cause.is_final() {
                // It answered more than we want: it is not to blame.
                true => answer,
                false => Answer { told: answer.told, ..Answer::of_breakdown(cause.breakdown()) },
            };
            (Came::Broken(cause), judged)
        }
        // What is no success is told by its head.
        Read::Whole | Read::Cut | Read::Broken(_) => {
            let judged = sink.judge(&head, answer);
            (Came::Answer(head), judged)
        }
    };
    let Recorded { standing, .. } = recorded.unwrap_or_else(|| permit.settle(&judged));
    Ended { came, answered_at, outcome: judged.outcome, standing, kept }
}

/// Sends a request when its connection is open and its permit still says so (B25), and waits for the head of its answer.
/// It ends when its connection is closed, if that is of no more use: until then it takes room (B10).
async fn send<B: Before>(
    transport: &Transport,
    request: Request<'_>,
    permit: &mut Permit,
    before: B,
) -> Result<Answered, SendError<Unsent<B::Stays>>> {
    let recall = permit.recall();
    let departing = Departing { permit, before };
    let sent = unless_recalled(recall, transport.send(request, departing)).await;
    if let Err(SendError::Failed(_)) = sent {
        permit.hung_up().await;
    }
    sent
}

/// Takes the body of an answer, as far as it is wanted.
async fn take<S: Sink>(
    answered: &mut Answered,
    head: &Head,
    permit: &mut Permit,
    sink: &mut S,
) -> Read<S::Error> {
    let body = &mut answered.body;
    let (max, cut) = match sink.begin(head).await {
        Ok(Wanted::Whole { max }) => (max, u64::MAX),
        Ok(Wanted::Cut(bytes)) => {
            body.cut_at(bytes);
            (u64::MAX, bytes)
        }
        Ok(Wanted::Nothing) => {
            // Read only to keep the connection, and not for long.
            let _ = timeout(DRAIN, drain(body)).await;
            return Read::Whole;
        }
        Err(error) => return Read::Refused(error),
    };
    let recall = permit.recall();
    let reading = async {
        while let Some(chunk) = body.chunk().await {
            let chunk = chunk.map_err(Read::Broken)?;
            permit.came(chunk.len());
            if body.decoded_bytes() > max {
                return Err(Read::Broken(TransportError::BodyTooLarge { body_max: max }));
            }
            sink.piece(chunk).map_err(Read::Refused)?;
        }
        Ok(())
    };
    let read = unless_recalled(recall, reading).await;
    if read.is_err() {
        body.give_up();
        permit.hung_up().await;
    }
    match read {
        Ok(()) if body.decoded_bytes() >= cut => Read::Cut,
        Ok(()) => Read::Whole,
        Err(read) => read,
    }
}

/// Waits for a request until it is recalled: then it makes way for others.
async fn unless_recalled<T, E: From<TransportError>>(
    recall: Recall,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        biased;
        done = request => done,
        () = recall.comes() => Err(TransportError::GivenUp.into()),
    }
}

impl<E> From<TransportError> for Read<E> {
    fn from(cause: TransportError) -> Self {
        Self::Broken(cause)
    }
}

fn ending<E>(read: &Read<E>) -> Ending {
    match read {
        Read::Whole => Ending::Whole,
        Read::Cut => Ending::Cut("length"),
        Read::Broken(cause) => Ending::of(cause),
        Read::Refused(_) => Ending::Lost,
    }
}

/// Reads the rest of an answer that nobody wants, if there is little of it.
async fn drain(body: &mut Body) {
    while let Some(Ok(_)) = body.chunk().await {
        if body.wire_bytes() > DRAIN_MAX {
            return;
        }
    }
}

/// A permit whose connection is open.
struct Departing<'a, B> {
    permit: &'a mut Permit,
    before: B,
}

impl<B: Before> Depart<Unsent<B::Stays>> for Departing<'_, B> {
    async fn depart(&mut self) -> Result<(), Unsent<B::Stays>> {
        self.before.before().await.map_err(Unsent::Stays)?;
        if self.permit.departs(PATIENCE).await { Ok(()) } else { Err(Unsent::Withheld) }
    }

    fn takes(&mut self, line: Line) {
        self.permit.takes(line);
    }
}

/// A request whose connection is open waits this long for its departure, and then takes its place in line again. So a
/// source whose interval is its site's pace is not put off for a few milliseconds.
pub(crate) const PATIENCE: Span = Span::from_millis(250);
/// The page of a refusal is read for no longer than this.
const REFUSED: Duration = Duration::from_secs(5);
/// Longer than this is not worth a connection,
const DRAIN: Duration = Duration::from_millis(50);
/// and neither is more than this.
const DRAIN_MAX: u64 = 64 << 10;

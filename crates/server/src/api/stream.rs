//! The stream of server-sent events (SSE).

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::broadcast::error::RecvError;

use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::service::Service;

/// Stream what happens in this process from now on, as server-sent events.
///
/// A client that reads too slowly misses events; the event `missed` contains how many. The stream ends when the client's
/// token is removed or its role changes.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    responses((status = 200, description = "A stream of events, each with a JSON object as data", content_type = "text/event-stream", body = String)))]
pub(crate) async fn events(
    State(service): State<Service>,
    caller: Caller,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let stream =
        event_stream(service, caller, || true, |kind, object| Event::default().event(kind).data(object))?;
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// The events of this process from now on, until the caller loses its access or `continues` returns false.
pub(crate) fn event_stream(
    service: Service,
    caller: Caller,
    continues: impl Fn() -> bool,
    shape: impl Fn(&'static str, String) -> Event,
) -> Result<impl Stream<Item = Result<Event, Infallible>>, Problem> {
    let subscribed = service.sse().subscribe();
    let receiver =
        subscribed.ok_or_else(|| Problem::new(Kind::Full, "too many clients listen to events already"))?;
    Ok(unfold(
        (receiver, service, caller, continues, shape),
        async |(mut receiver, service, caller, continues, shape)| {
            let received = loop {
                tokio::select! {
                    biased;
                    () = service.supervisor().until_revoked(caller) => return None,
                    () = service.stopping() => return None,
                    received = receiver.recv() => break received,
                    () = tokio::time::sleep(LOOK) => {}
                }
                if !continues() {
                    return None;
                }
            };
            let event = match received {
                Ok((kind, object)) => shape(kind, object),
                Err(RecvError::Lagged(count)) => shape("missed", format!("{{\"count\":{count}}}")),
                Err(RecvError::Closed) => return None,
            };
            Some((Ok(event), (receiver, service, caller, continues, shape)))
        },
    ))
}

/// How often a comment is sent while nothing happens, so that proxies and clients don't drop the connection.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often to check whether the stream should continue while nothing happens.
const LOOK: Duration = Duration::from_secs(2);

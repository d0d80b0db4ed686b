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
    let subscribed = service.sse().subscribe();
    let receiver =
        subscribed.ok_or_else(|| Problem::new(Kind::Full, "too many clients listen to events already"))?;
    let stream = unfold((receiver, service, caller), async |(mut receiver, service, caller)| {
        let received = tokio::select! {
            biased;
            () = service.supervisor().until_revoked(caller) => return None,
            () = service.stopping() => return None,
            received = receiver.recv() => received,
        };
        let event = match received {
            Ok((kind, object)) => Event::default().event(kind).data(object),
            Err(RecvError::Lagged(count)) => {
                Event::default().event("missed").data(format!("{{\"count\":{count}}}"))
            }
            Err(RecvError::Closed) => return None,
        };
        Some((Ok(event), (receiver, service, caller)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// How often a comment is sent while nothing happens, so that proxies and clients don't drop the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

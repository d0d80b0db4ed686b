//! What happens, as server-sent events.

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

/// What happens from now on. Who reads too slowly misses some, and is told how many with the event `missed`. The stream
/// ends when its token is revoked or gets another role.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn events(
    State(service): State<Service>,
    caller: Caller,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let listening = service.happenings().listen();
    let receiver = listening.ok_or_else(|| Problem::new(Kind::Full, "too many listen to events already"))?;
    let stream = unfold((receiver, service, caller), async |(mut receiver, service, caller)| {
        let heard = tokio::select! {
            biased;
            () = service.current().until_barred(caller) => return None,
            () = service.stopping() => return None,
            heard = receiver.recv() => heard,
        };
        let event = match heard {
            Ok((kind, object)) => Event::default().event(kind).data(object),
            Err(RecvError::Lagged(count)) => {
                Event::default().event("missed").data(format!("{{\"count\":{count}}}"))
            }
            Err(RecvError::Closed) => return None,
        };
        Some((Ok(event), (receiver, service, caller)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(QUIET)))
}

/// A comment is sent after so long a silence, so that nobody takes the connection for dead.
const QUIET: Duration = Duration::from_secs(15);

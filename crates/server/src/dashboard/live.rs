//! The stream that keeps pages up to date: it says when something changed, and the page is fetched again. For the page of
//! events, it sends the events themselves.
//!
//! A change is noticed by the version of the store and by the counters of this process, so a stream costs next to nothing.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use comity::event::CounterValues;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::events::EventView;
use super::guard::{Values, Viewer};
use super::page::Failure;
use crate::api::stream::{KEEP_ALIVE, event_stream};
use crate::service::Service;

/// The stream of a page.
pub(super) async fn stream(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    if values.get("what") == "events" {
        let open = service.clone();
        let (caller, clock) = (viewer.caller, service.clock().clone());
        let events = event_stream(
            service,
            caller,
            move || is_open(&open, &viewer),
            move |kind, object| {
                let shown = EventView::of(clock.now(), kind, &object);
                Event::default().event("happened").data(shown.to_json())
            },
        )?;
        return Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response());
    }
    let stream = changes(service, viewer);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// What a stream of changes remembers.
struct Watch {
    service: Service,
    viewer: Viewer,
    tick: Interval,
    seen: Option<(i64, CounterValues)>,
    /// How often nothing had changed since the last message.
    quiet: u32,
}

fn changes(service: Service, viewer: Viewer) -> impl Stream<Item = Result<Event, Infallible>> {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watch = Watch { service, viewer, tick, seen: None, quiet: QUIET_MAX };
    unfold(watch, async |mut watch| {
        loop {
            tokio::select! {
                biased;
                () = watch.service.supervisor().until_revoked(watch.viewer.caller) => return None,
                () = watch.service.stopping() => return None,
                _ = watch.tick.tick() => {}
            }
            if !is_open(&watch.service, &watch.viewer) {
                return None;
            }
            let seen = watch.look().await;
            if seen != watch.seen || watch.quiet >= QUIET_MAX {
                let kind = if watch.seen.is_none() { "begin" } else { "change" };
                (watch.seen, watch.quiet) = (seen, 0);
                return Some((Ok(Event::default().event(kind).data("now")), watch));
            }
            watch.quiet += 1;
        }
    })
}

/// Whether the session is still open. A stream keeps it in use.
fn is_open(service: &Service, viewer: &Viewer) -> bool {
    viewer.open || service.sessions().caller(&viewer.session, service.now()).is_some()
}

impl Watch {
    async fn look(&self) -> Option<(i64, CounterValues)> {
        let state = self.service.state().ok()?;
        let version = state.store.version().await.ok()?;
        Some((version, self.service.events().counters().values()))
    }
}

/// How often to look for changes.
const TICK: Duration = Duration::from_secs(1);
/// Pages are brought up to date after this many looks even if nothing changed: waits end, and statuses grow old.
const QUIET_MAX: u32 = 5;

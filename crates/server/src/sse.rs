//! Engine events as server-sent events (SSE): each event becomes one JSON object, sent to all connected clients.
//!
//! Nothing is serialized while no client is connected. A client that reads too slowly misses events. The HTTP side,
//! which also reports how many were missed, is in `api/stream`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use comity::clock::Clock;
use comity::core::time::{Span, Timestamp};
use comity::event::{Event, Listener, TaskEvent};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;

/// The name of an event, and its data as JSON.
pub(crate) type SseEvent = (&'static str, String);

/// Sends events to all connected clients.
#[derive(Debug)]
pub(crate) struct SseBroadcast {
    clients: broadcast::Sender<SseEvent>,
    clock: Clock,
    recent: Mutex<Recent>,
}

/// The latest events, for those who look at a page now and then instead of listening.
#[derive(Debug)]
struct Recent {
    /// When somebody last looked.
    looked_at: Timestamp,
    events: VecDeque<(Timestamp, SseEvent)>,
}

impl SseBroadcast {
    pub(crate) fn new(clock: Clock) -> Self {
        let recent = Recent { looked_at: Timestamp::MIN, events: VecDeque::new() };
        Self { clients: broadcast::Sender::new(BUFFERED_MAX), clock, recent: Mutex::new(recent) }
    }

    /// The latest events, oldest first. They are collected for as long as somebody asks for them now and then.
    pub(crate) fn recent(&self) -> Vec<(Timestamp, SseEvent)> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.looked_at = self.clock.now();
        recent.events.iter().cloned().collect()
    }

    fn is_looked_at(&self) -> bool {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.looked_at != Timestamp::MIN && self.clock.now().since(recent.looked_at) < LOOKED_AT
    }

    fn remember(&self, event: SseEvent) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.events.len() >= RECENT_MAX {
            recent.events.pop_front();
        }
        recent.events.push_back((self.clock.now(), event));
    }

    /// Subscribes to events from now on. `None` if there are too many clients already.
    pub(crate) fn subscribe(&self) -> Option<broadcast::Receiver<SseEvent>> {
        (self.clients.receiver_count() < CLIENTS_MAX).then(|| self.clients.subscribe())
    }
}

impl Listener for SseBroadcast {
    fn on_event(&self, event: &Event<'_>) {
        let (heard, looked_at) = (self.clients.receiver_count() > 0, self.is_looked_at());
        if !heard && !looked_at {
            return;
        }
        if let Some((kind, object)) = sse_event(event) {
            let event = (kind, Value::Object(object).to_string());
            if looked_at {
                self.remember(event.clone());
            }
            // An error means that the last client has just disconnected.
            let _ = self.clients.send(event);
        }
    }

    fn wants_waits(&self) -> bool {
        self.clients.receiver_count() > 0 || self.is_looked_at()
    }
}

fn sse_event(event: &Event<'_>) -> Option<(&'static str, Map<String, Value>)> {
    let (kind, object) = match event {
        Event::Granted { domain } => ("granted", json!({ "domain": domain.as_str() })),
        Event::Abandoned { domain } => ("abandoned", json!({ "domain": domain.as_str() })),
        Event::Waiting { domain, reason } => (
            "waits",
            json!({ "domain": domain.as_str(), "limit": reason.limit.as_str(), "reason": reason.to_string() }),
        ),
        Event::Recorded { domain, answer, recorded, streaks, .. } => (
            "recorded",
            json!({
                "domain": domain.as_str(),
                "outcome": answer.outcome.as_str(),
                "held_until": recorded.held_until.map(|until| until.to_string()),
                "adaptive_delay_seconds": recorded.delay.map(|change| change.to.as_secs_f64()),
                "success_streak": streaks.success,
                "error_streak": streaks.error,
            }),
        ),
        Event::HeldElsewhere { domain, by } => {
            ("held_elsewhere", json!({ "domain": domain.as_str(), "by": by }))
        }
        Event::TookOver { domain, .. } => ("took_over", json!({ "domain": domain.as_str() })),
        Event::HandedOver { domain } => ("handed_over", json!({ "domain": domain.as_str() })),
        Event::DomainsLost { domains } => ("lost_all", json!({ "domains": domains })),
        Event::StoreFailed { .. } => ("store_failed", json!({})),
        Event::ConcurrencyChanged { domain, from, to } => {
            ("concurrency", json!({ "domain": domain.as_str(), "fewer_before": from, "fewer": to }))
        }
        Event::Task { url, final_url, step } => {
            let (what, more) = task(step);
            ("task", json!({ "url": url, "final_url": final_url, "step": what, "why": more }))
        }
        Event::JobEnded { job, state, message } => {
            ("job_ended", json!({ "job": job, "state": state.as_str(), "message": message }))
        }
        _ => return None,
    };
    match object {
        Value::Object(object) => Some((kind, object)),
        _ => None,
    }
}

fn task(step: &TaskEvent<'_>) -> (&'static str, Option<String>) {
    match step {
        TaskEvent::Done { status, .. } => ("done", Some(status.to_string())),
        TaskEvent::Failed { error } => ("failed", Some((*error).to_owned())),
        TaskEvent::Skipped { reason } => ("skipped", Some((*reason).to_owned())),
        TaskEvent::Retried { outcome, .. } => ("retried", Some(outcome.to_string())),
        TaskEvent::Moved { domain } => ("moved", Some(domain.to_string())),
        TaskEvent::Deferred { deferred } => ("deferred", Some(deferred.to_string())),
        TaskEvent::Fenced => ("fenced", None),
    }
}

/// How many events a client may lag behind before it misses some.
const BUFFERED_MAX: usize = 1_024;
const CLIENTS_MAX: usize = 100;
/// How many of the latest events are kept, and for how long after somebody looked.
const RECENT_MAX: usize = 200;
const LOOKED_AT: Span = Span::from_secs(600);

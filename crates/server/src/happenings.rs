//! What happens, for whoever listens: each event as one JSON object. Nothing is written when nobody listens, and who
//! listens too slowly misses some and is told how many.

use comity::event::{Event, Listener, TaskEvent};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;

/// One thing that happened: its kind, and the object.
pub(crate) type Happening = (&'static str, String);

/// Where it is told.
#[derive(Debug)]
pub(crate) struct Happenings(broadcast::Sender<Happening>);

impl Happenings {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Listens from now on; `None` when too many do.
    pub(crate) fn listen(&self) -> Option<broadcast::Receiver<Happening>> {
        (self.0.receiver_count() < LISTENERS_MAX).then(|| self.0.subscribe())
    }
}

impl Listener for Happenings {
    fn hear(&self, event: &Event<'_>) {
        if self.0.receiver_count() == 0 {
            return;
        }
        if let Some((kind, object)) = happening(event) {
            // Whoever left meanwhile need not be told.
            let _ = self.0.send((kind, Value::Object(object).to_string()));
        }
    }

    fn hears_waits(&self) -> bool {
        self.0.receiver_count() > 0
    }
}

fn happening(event: &Event<'_>) -> Option<(&'static str, Map<String, Value>)> {
    let (kind, object) = match event {
        Event::Granted { domain } => ("granted", json!({ "domain": domain.as_str() })),
        Event::Abandoned { domain } => ("abandoned", json!({ "domain": domain.as_str() })),
        Event::Waits { domain, reason } => (
            "waits",
            json!({ "domain": domain.as_str(), "limit": reason.limit.as_str(), "reason": reason.to_string() }),
        ),
        Event::Recorded { domain, answer, recorded, streaks } => (
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
        Event::LostAll { domains } => ("lost_all", json!({ "domains": domains })),
        Event::StoreFailed { .. } => ("store_failed", json!({})),
        Event::Concurrency { domain, from, to } => {
            ("concurrency", json!({ "domain": domain.as_str(), "fewer_before": from, "fewer": to }))
        }
        Event::Task { url, step } => {
            let (what, more) = task(step);
            ("task", json!({ "url": url, "step": what, "why": more }))
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

/// Events that a listener may lag behind.
const KEPT: usize = 1_024;
const LISTENERS_MAX: usize = 100;

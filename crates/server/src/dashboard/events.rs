//! What happens in this process: the latest events, and with the page's script all further ones.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::core::time::Timestamp;
use serde_json::{Value, json};

use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, show};
use crate::service::Service;

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    shell: Shell,
    like: String,
    kind: String,
    kinds: &'static [(&'static str, &'static str)],
    events: Vec<EventView>,
}

/// An event as people read it.
pub(super) struct EventView {
    at: Timestamp,
    kind: &'static str,
    word: &'static str,
    subject: String,
    what: String,
}

impl EventView {
    /// An event by its name and its JSON object in the stream of the API.
    pub(super) fn of(at: Timestamp, kind: &'static str, object: &str) -> Self {
        let event: Value = serde_json::from_str(object).unwrap_or_default();
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let subject = ["domain", "job", "url"].into_iter().map(text).find(|text| !text.is_empty());
        let both = |first: &str, then: &str| {
            let parts = [text(first), text(then)];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
        };
        let what = match kind {
            "waits" => text("reason"),
            "recorded" => recorded(&event),
            "task" => both("step", "why"),
            "job_ended" => both("state", "message"),
            "held_elsewhere" => format!("{} is in charge", text("by")),
            "concurrency" => format!("{} fewer at a time", event["fewer"]),
            "missed" => format!("{} events", event["count"]),
            "lost_all" => format!("{} sites", event["domains"]),
            _ => String::new(),
        };
        let word = KINDS.iter().find(|(name, _)| *name == kind).map_or(kind, |(_, word)| word);
        Self { at, kind, word, subject: subject.unwrap_or_default(), what }
    }

    pub(super) fn to_json(&self) -> String {
        let Self { at, kind, word, subject, what } = self;
        json!({ "at": at.to_string(), "kind": kind, "word": word, "subject": subject, "what": what })
            .to_string()
    }

    fn time(&self) -> String {
        self.at.to_string().get(11..19).unwrap_or_default().to_owned()
    }

    fn fits(&self, kind: &str, like: &str) -> bool {
        let contains = |text: &str| text.to_lowercase().contains(like);
        (kind.is_empty() || self.kind == kind)
            && (like.is_empty() || contains(&self.subject) || contains(&self.what) || contains(self.word))
    }
}

fn recorded(event: &Value) -> String {
    let outcome = super::sites::outcome_text(event["outcome"].as_str().unwrap_or_default()).to_owned();
    let until = event["held_until"].as_str().map(|until| {
        format!("closed until {}", until.chars().take(19).collect::<String>().replace('T', " "))
    });
    let delay = event["adaptive_delay_seconds"].as_f64().map(|delay| format!("learned delay {delay} s"));
    [Some(outcome), until, delay].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let (like, kind) = (values.get("like").to_owned(), values.get("kind").to_owned());
    let lower = like.to_lowercase();
    let recent = service.sse().recent().into_iter().rev();
    let events = recent.map(|(at, (kind, object))| EventView::of(at, kind, &object));
    let page = EventsPage {
        shell: Shell::new(&service, viewer, Section::Events, "Events"),
        events: events.filter(|event| event.fits(&kind, &lower)).collect(),
        kinds: &KINDS,
        like,
        kind,
    };
    show(&page)
}

/// The names of events in the stream of the API, and in words.
const KINDS: [(&str, &str); 13] = [
    ("granted", "permit granted"),
    ("waits", "waits"),
    ("recorded", "outcome"),
    ("abandoned", "permit returned"),
    ("task", "URL"),
    ("job_ended", "job ended"),
    ("concurrency", "concurrency"),
    ("held_elsewhere", "elsewhere"),
    ("took_over", "took over"),
    ("handed_over", "handed over"),
    ("lost_all", "sites lost"),
    ("store_failed", "store failed"),
    ("missed", "missed"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_like_sentences() {
        let what = |kind, object: Value| {
            let view = EventView::of(Timestamp::from_secs(0), kind, &object.to_string());
            format!("{} {} {}", view.word, view.subject, view.what)
        };
        let recorded = json!({ "domain": "a.example", "outcome": "rate_limited", "held_until": "2026-11-19T20:00:00.5Z",
            "adaptive_delay_seconds": 0.25 });
        assert_eq!(
            what("recorded", recorded),
            "outcome a.example rate limited, closed until 2026-11-19 20:00:00, learned delay 0.25 s"
        );
        let ended = json!({ "job": "nightly", "state": "cancelled", "message": "cancelled by hand" });
        assert_eq!(what("job_ended", ended), "job ended nightly cancelled: cancelled by hand");
        assert_eq!(
            what("task", json!({ "url": "http://a.example/", "step": "done", "why": "200" })),
            "URL http://a.example/ done: 200"
        );
        assert_eq!(what("granted", json!({ "domain": "a.example" })), "permit granted a.example ");
    }
}

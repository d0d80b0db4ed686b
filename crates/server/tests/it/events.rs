//! Server-sent events.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::acquire::acquire;
use crate::served::{Ask, COLLECTOR, Served, serve, soon};

#[tokio::test]
async fn what_happens_is_told_as_it_happens() {
    let served = serve(COLLECTOR).await;
    let mut events = listen(&served).await;
    let permit = served.permit("a.example").await;
    served.record(json!({ "permit": permit, "status": 429, "retry_after": 30 })).await;
    assert_eq!(events.next("granted").await, json!({ "domain": "a.example" }));
    assert_eq!(
        events.next("recorded").await,
        json!({
            "domain": "a.example", "outcome": "rate_limited", "held_until": "2026-11-16T10:00:30Z",
            "adaptive_delay_seconds": null, "success_streak": 0, "error_streak": 1,
        })
    );
    served.post("/v1/jobs", json!({ "name": "news", "urls": ["https://a.example/"] })).await;
    served.post("/v1/jobs/news/cancel", json!(null)).await.ok();
    assert_eq!(
        events.next("job_ended").await,
        json!({ "job": "news", "state": "cancelled", "message": "cancelled by hand" })
    );
}

/// B2: what a caller in line waits for.
#[tokio::test]
async fn who_waits_is_told_with_the_reason() {
    let served = Arc::new(serve("[default]\nmin_delay = \"10s\"\nin_flight = \"unlimited\"\n").await);
    served.permit("a.example").await;
    let mut events = listen(&served).await;
    let waits = acquire(&served, "a.example");
    let told = events.next("waits").await;
    assert_eq!((&told["domain"], &told["limit"]), (&json!("a.example"), &json!("min_delay")));
    assert!(told["reason"].as_str().unwrap().contains("10000 ms"), "{told}");
    waits.abort();
}

/// B75: no permit goes to whoever listens.
#[tokio::test]
async fn whoever_listens_hears_no_secret() {
    let served = serve(COLLECTOR).await;
    let mut events = listen(&served).await;
    let ask = json!({ "url": "https://user:hidden@a.example/p?key=hidden" });
    let permit = crate::served::permit(&served.post("/v1/check", ask).await.ok());
    served.record(json!({ "permit": permit, "status": 200 })).await;
    events.next("recorded").await;
    assert!(!events.heard.contains("hidden") && !events.heard.contains(&permit), "{}", events.heard);
}

#[tokio::test]
async fn when_the_service_stops_the_stream_ends() {
    let served = serve(COLLECTOR).await;
    let mut events = listen(&served).await;
    served.stop_soon();
    soon("the end", async { while events.more().await {} }).await;
    served.stopped().await;
}

pub(crate) struct Events {
    body: Incoming,
    pub(crate) heard: String,
    read: usize,
}

pub(crate) async fn listen(served: &Served) -> Events {
    opened(served.ask(http::Method::GET, "/v1/events")).await
}

/// Listens with a token of its own.
pub(crate) async fn listen_by(served: &Served, token: &str) -> Events {
    let bearer = format!("Bearer {token}");
    opened(served.ask(http::Method::GET, "/v1/events").header("authorization", &bearer)).await
}

async fn opened(ask: Ask<'_>) -> Events {
    let response = ask.open().await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Events { body: response.into_body(), heard: String::new(), read: 0 }
}

impl Events {
    /// The next event of this kind.
    pub(crate) async fn next(&mut self, kind: &str) -> Value {
        soon(kind, async {
            loop {
                while let Some(end) = self.heard[self.read..].find("\n\n") {
                    let event = self.heard[self.read..self.read + end].to_owned();
                    self.read += end + 2;
                    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                    if field("event: ") == Some(kind) {
                        return serde_json::from_str(field("data: ").unwrap()).unwrap();
                    }
                }
                assert!(self.more().await, "it ended: {}", self.heard);
            }
        })
        .await
    }

    /// Reads on; false at the end.
    pub(crate) async fn more(&mut self) -> bool {
        let Some(Ok(frame)) = self.body.frame().await else { return false };
        if let Some(data) = frame.data_ref() {
            self.heard.push_str(std::str::from_utf8(data).unwrap());
        }
        true
    }
}

//! Server-sent events.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::acquire::acquire;
use crate::server::{COLLECTOR, TestRequest, TestServer, serve, with_timeout};

#[tokio::test]
async fn events_are_sent_as_they_happen() {
    let server = serve(COLLECTOR).await;
    let mut events = listen(&server).await;
    let permit = server.permit("a.example").await;
    server.record(json!({ "permit": permit, "status": 429, "retry_after": 30 })).await;
    assert_eq!(events.next("granted").await, json!({ "domain": "a.example" }));
    assert_eq!(
        events.next("recorded").await,
        json!({
            "domain": "a.example", "outcome": "rate_limited", "held_until": "2026-11-16T10:00:30Z",
            "adaptive_delay_seconds": null, "success_streak": 0, "error_streak": 1,
        })
    );
    server.post("/v1/jobs", json!({ "name": "news", "urls": ["https://a.example/"] })).await;
    server.post("/v1/jobs/news/cancel", json!(null)).await.ok();
    assert_eq!(
        events.next("job_ended").await,
        json!({ "job": "news", "state": "cancelled", "message": "cancelled by hand" })
    );
}

/// B2
#[tokio::test]
async fn a_waiting_caller_is_reported_with_its_reason() {
    let server = Arc::new(serve("[default]\nmin_delay = \"10s\"\nin_flight = \"unlimited\"\n").await);
    server.permit("a.example").await;
    let mut events = listen(&server).await;
    let waits = acquire(&server, "a.example");
    let event = events.next("waits").await;
    assert_eq!((&event["domain"], &event["limit"]), (&json!("a.example"), &json!("min_delay")));
    assert!(event["reason"].as_str().unwrap().contains("10000 ms"), "{event}");
    waits.abort();
}

/// B75: events contain neither passwords nor permits.
#[tokio::test]
async fn events_contain_no_secrets() {
    let server = serve(COLLECTOR).await;
    let mut events = listen(&server).await;
    let ask = json!({ "url": "https://user:hidden@a.example/p?key=hidden" });
    let permit = crate::server::permit(&server.post("/v1/check", ask).await.ok());
    server.record(json!({ "permit": permit, "status": 200 })).await;
    events.next("recorded").await;
    assert!(!events.received.contains("hidden") && !events.received.contains(&permit), "{}", events.received);
}

#[tokio::test]
async fn the_stream_ends_when_the_service_stops() {
    let server = serve(COLLECTOR).await;
    let mut events = listen(&server).await;
    server.begin_stop();
    with_timeout("the end of the stream", async { while events.more().await {} }).await;
    server.wait_stopped().await;
}

pub(crate) struct Events {
    body: Incoming,
    pub(crate) received: String,
    read: usize,
}

pub(crate) async fn listen(server: &TestServer) -> Events {
    opened(server.request(http::Method::GET, "/v1/events")).await
}

/// Listens with this token.
pub(crate) async fn listen_by(server: &TestServer, token: &str) -> Events {
    let bearer = format!("Bearer {token}");
    opened(server.request(http::Method::GET, "/v1/events").header("authorization", &bearer)).await
}

async fn opened(ask: TestRequest<'_>) -> Events {
    let response = ask.open().await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Events { body: response.into_body(), received: String::new(), read: 0 }
}

impl Events {
    /// The next event of this kind.
    pub(crate) async fn next(&mut self, kind: &str) -> Value {
        with_timeout(kind, async {
            loop {
                while let Some(end) = self.received[self.read..].find("\n\n") {
                    let event = self.received[self.read..self.read + end].to_owned();
                    self.read += end + 2;
                    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                    if field("event: ") == Some(kind) {
                        return serde_json::from_str(field("data: ").unwrap()).unwrap();
                    }
                }
                assert!(self.more().await, "the stream ended: {}", self.received);
            }
        })
        .await
    }

    /// Reads more of the stream; false at its end.
    pub(crate) async fn more(&mut self) -> bool {
        let Some(Ok(frame)) = self.body.frame().await else { return false };
        if let Some(data) = frame.data_ref() {
            self.received.push_str(std::str::from_utf8(data).unwrap());
        }
        true
    }
}

//! Secrets don't leak into responses, metrics or logs.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::server::{COLLECTOR, config_with_env, permit, secs, serve_with, store_in};

/// B75
#[tokio::test]
async fn no_secret_appears_in_any_response_metric_or_log() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_max_level(tracing::Level::TRACE);
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let token = "token-HIDDEN-of-the-test";
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let config = config_with_env(&toml, &[("COMITY_SERVE_TOKENS", &format!("admin:{token}"))]);
    let server = serve_with(config).await.with_token(token);
    let url = "https://user:HIDDEN@a.example/path?key=HIDDEN#HIDDEN";
    let mut answers = Vec::new();
    let granted = server.post("/v1/check", json!({ "url": url })).await.ok();
    let permit = permit(&granted);
    answers.push(granted.to_string().replace(&permit, "…"));
    let mut post = async |path: &str, body: serde_json::Value| {
        answers.push(server.post(path, body).await.text());
    };
    post("/v1/check", json!({ "url": url })).await;
    post("/v1/peek", json!({ "url": url })).await;
    post("/v1/acquire", json!({ "url": url, "max_wait_ms": 1 })).await;
    post("/v1/record", json!({ "url": url, "status": 429, "headers": { "Set-Cookie": "HIDDEN" } })).await;
    post("/v1/record", json!({ "permit": permit, "status": 500 })).await;
    post("/v1/record", json!({ "permit": permit, "status": 5 })).await;
    post("/v1/record", json!({ "permit": format!("{permit}HIDDEN"), "status": 500 })).await;
    post("/v1/record", json!({ "permit": permit, "domain": "a.example", "status": 500 })).await;
    post("/v1/record", json!({ "url": url, "status": 429, "headers": { "Retry-After": ["HIDDEN"] } })).await;
    for wrong in [
        "https://user:HIDDEN@",
        "user:HIDDEN@a b",
        "https://user:HIDDEN@a b/?q=HIDDEN",
        "x://HIDDEN@h/?HIDDEN",
    ] {
        post("/v1/check", json!({ "url": wrong })).await;
        post("/v1/check", json!({ "domain": wrong })).await;
        post("/v1/check/batch", json!({ "checks": [{ "url": wrong }] })).await;
        post("/v1/jobs", json!({ "name": "wrong", "urls": [wrong] })).await;
    }
    post("/v1/check", json!({ "url": ["https://user:HIDDEN@a.example/"] })).await;
    post("/v1/check", json!({ "url": { "HIDDEN": "HIDDEN" } })).await;
    post("/v1/check", json!(url)).await;
    post("/v1/record", json!(permit)).await;
    post("/v1/jobs", json!({ "name": "news", "urls": [url] })).await;
    post("/v1/jobs/news/cancel", json!(null)).await;
    let refused =
        server.request(http::Method::GET, "/v1/domains?key=HIDDEN").header("authorization", "Bearer HIDDEN");
    answers.push(refused.send().await.text());
    let keyed =
        server.post_request("/v1/check", &json!({ "url": url })).header("idempotency-key", "HIDDEN key");
    answers.push(keyed.send().await.text());
    server.advance(secs(5)).await;
    for path in [
        "/metrics",
        "/v1/domains",
        "/v1/domains/a.example",
        "/v1/domains/a.example/explain",
        "/v1/jobs/news",
        "/v1/jobs",
    ] {
        answers.push(server.get(path).await.text());
    }
    server.stop().await;
    for answer in &answers {
        assert!(!answer.contains("HIDDEN") && !answer.contains(&permit), "{answer}");
    }
    let log = log.text();
    assert!(log.contains("answered") && log.contains("backing off"), "the log has content:\n{log}");
    for line in log.lines() {
        assert!(!line.contains("HIDDEN") && !line.contains(&permit), "{line}");
    }
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

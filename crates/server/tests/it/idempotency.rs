//! Idempotency keys.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::acquire::waiting;
use crate::script::decided;
use crate::server::{COLLECTOR, TestResponse, TestServer, config_with_env, secs, serve, serve_with};

/// B3: a repeated call with the same key reserves no second slot.
#[tokio::test]
async fn the_same_key_gets_the_same_response() {
    let server = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    let first = keyed(&server, "/v1/check", "one", &ask).await;
    assert_eq!(decided(&first.ok()), "proceed");
    assert_eq!(first.header("idempotency-replayed"), "");
    server.advance(secs(5)).await;
    let again = keyed(&server, "/v1/check", "one", &ask).await;
    assert_eq!(again.ok(), first.ok(), "the same permit");
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(decided(&server.check("a.example").await), "proceed", "no second slot was reserved");
}

#[tokio::test]
async fn recording_again_with_the_same_key_charges_nothing() {
    let server = serve(COLLECTOR).await;
    let record = json!({ "domain": "a.example", "outcome": "server_error" });
    let first = keyed(&server, "/v1/record", "one", &record).await.ok();
    assert_eq!(keyed(&server, "/v1/record", "one", &record).await.ok(), first);
    assert_eq!(server.get("/v1/domains/a.example").await.ok()["live"]["penalties"], 1);
}

#[tokio::test]
async fn a_key_used_for_another_body_or_path_is_refused() {
    let server = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    keyed(&server, "/v1/check", "one", &ask).await.ok();
    let problem = keyed(&server, "/v1/check", "one", &json!({ "domain": "b.example" })).await.problem(422);
    assert_eq!(problem["field"], "Idempotency-Key");
    keyed(&server, "/v1/acquire", "one", &ask).await.problem(422);
    assert_eq!(decided(&server.check("b.example").await), "proceed");
}

#[tokio::test]
async fn a_request_in_progress_is_not_started_twice() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.permit("a.example").await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 60_000 });
    let (asking, body) = (server.clone(), ask.clone());
    let first = tokio::spawn(async move { keyed(&asking, "/v1/acquire", "one", &body).await });
    waiting(&server, "a.example", 1).await;
    keyed(&server, "/v1/acquire", "one", &ask).await.problem(409);
    server.advance(secs(1)).await;
    let first = first.await.unwrap().ok();
    assert_eq!(decided(&first), "proceed");
    assert_eq!(keyed(&server, "/v1/acquire", "one", &ask).await.ok(), first);
}

/// B11
#[tokio::test]
async fn a_key_can_be_reused_after_its_caller_hung_up() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.permit("a.example").await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 60_000 });
    let (asking, body) = (server.clone(), ask.clone());
    let first = tokio::spawn(async move { keyed(&asking, "/v1/acquire", "one", &body).await });
    waiting(&server, "a.example", 1).await;
    first.abort();
    waiting(&server, "a.example", 0).await;
    server.advance(secs(1)).await;
    assert_eq!(decided(&keyed(&server, "/v1/acquire", "one", &ask).await.ok()), "proceed");
}

#[tokio::test]
async fn a_key_is_forgotten_after_ten_minutes() {
    let server = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    let first = keyed(&server, "/v1/check", "one", &ask).await.ok();
    server.until(secs(599)).await;
    assert_eq!(keyed(&server, "/v1/check", "one", &ask).await.ok(), first);
    server.until(secs(600)).await;
    assert_ne!(keyed(&server, "/v1/check", "one", &ask).await.ok(), first);
}

#[tokio::test]
async fn a_key_is_visible_text_of_at_most_200_characters() {
    let server = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    for key in ["", " ", "a key", &"k".repeat(201)] {
        let problem = keyed(&server, "/v1/check", key, &ask).await.problem(422);
        assert_eq!(problem["field"], "Idempotency-Key", "{key:?}");
    }
    assert_eq!(keyed(&server, "/v1/check", &"k".repeat(200), &ask).await.status, 200);
}

#[tokio::test]
async fn refusals_are_replayed_too() {
    let server = serve(COLLECTOR).await;
    let wrong = json!({ "domain": "" });
    let first = keyed(&server, "/v1/check", "one", &wrong).await;
    let again = keyed(&server, "/v1/check", "one", &wrong).await;
    assert_eq!(first.problem(422), again.problem(422));
}

/// Two callers may use the same key.
#[tokio::test]
async fn keys_belong_to_their_caller() {
    let (one, other) = ("a-token-of-somebody", "a-token-of-another");
    let config = config_with_env(COLLECTOR, &[("COMITY_SERVE_TOKENS", &format!("use:{one},use:{other}"))]);
    let server = serve_with(config).await.with_token(one);
    let ask = json!({ "domain": "a.example" });
    let first = keyed(&server, "/v1/check", "one", &ask).await.ok();
    let server = server.with_token(other);
    let second = keyed(&server, "/v1/check", "one", &ask).await.ok();
    assert_ne!(first, second);
    assert_eq!(decided(&second), "wait 1000 (min_delay)");
}

async fn keyed(server: &TestServer, path: &str, key: &str, body: &Value) -> TestResponse {
    server.post_request(path, body).header("idempotency-key", key).send().await
}

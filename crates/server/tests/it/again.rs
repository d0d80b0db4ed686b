//! Idempotency keys.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::acquire::waiting;
use crate::script::decided;
use crate::served::{Answer, COLLECTOR, Served, configured, secs, serve, serve_with};

/// B3: whoever asks again with its key takes no second slot.
#[tokio::test]
async fn the_same_key_gets_the_same_answer() {
    let served = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    let first = keyed(&served, "/v1/check", "one", &ask).await;
    assert_eq!(decided(&first.ok()), "proceed");
    assert_eq!(first.header("idempotency-replayed"), "");
    served.advance(secs(5)).await;
    let again = keyed(&served, "/v1/check", "one", &ask).await;
    assert_eq!(again.ok(), first.ok(), "the same permit");
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(decided(&served.check("a.example").await), "proceed", "no slot was taken meanwhile");
}

#[tokio::test]
async fn recording_again_with_the_same_key_charges_nothing() {
    let served = serve(COLLECTOR).await;
    let record = json!({ "domain": "a.example", "outcome": "server_error" });
    let first = keyed(&served, "/v1/record", "one", &record).await.ok();
    assert_eq!(keyed(&served, "/v1/record", "one", &record).await.ok(), first);
    assert_eq!(served.get("/v1/domains/a.example").await.ok()["live"]["penalties"], 1);
}

#[tokio::test]
async fn another_body_or_path_is_refused() {
    let served = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    keyed(&served, "/v1/check", "one", &ask).await.ok();
    let problem = keyed(&served, "/v1/check", "one", &json!({ "domain": "b.example" })).await.refused(422);
    assert_eq!(problem["field"], "Idempotency-Key");
    keyed(&served, "/v1/acquire", "one", &ask).await.refused(422);
    assert_eq!(decided(&served.check("b.example").await), "proceed");
}

#[tokio::test]
async fn what_is_under_way_is_not_done_twice() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.permit("a.example").await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 60_000 });
    let (asking, body) = (served.clone(), ask.clone());
    let first = tokio::spawn(async move { keyed(&asking, "/v1/acquire", "one", &body).await });
    waiting(&served, "a.example", 1).await;
    keyed(&served, "/v1/acquire", "one", &ask).await.refused(409);
    served.advance(secs(1)).await;
    let first = first.await.unwrap().ok();
    assert_eq!(decided(&first), "proceed");
    assert_eq!(keyed(&served, "/v1/acquire", "one", &ask).await.ok(), first);
}

/// B11: who hung up while waiting may ask again with its key.
#[tokio::test]
async fn a_key_is_free_again_when_its_caller_hangs_up() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.permit("a.example").await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 60_000 });
    let (asking, body) = (served.clone(), ask.clone());
    let first = tokio::spawn(async move { keyed(&asking, "/v1/acquire", "one", &body).await });
    waiting(&served, "a.example", 1).await;
    first.abort();
    waiting(&served, "a.example", 0).await;
    served.advance(secs(1)).await;
    assert_eq!(decided(&keyed(&served, "/v1/acquire", "one", &ask).await.ok()), "proceed");
}

#[tokio::test]
async fn a_key_is_forgotten_after_ten_minutes() {
    let served = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    let first = keyed(&served, "/v1/check", "one", &ask).await.ok();
    served.until(secs(599)).await;
    assert_eq!(keyed(&served, "/v1/check", "one", &ask).await.ok(), first);
    served.until(secs(600)).await;
    assert_ne!(keyed(&served, "/v1/check", "one", &ask).await.ok(), first);
}

#[tokio::test]
async fn a_key_is_visible_text_of_at_most_200_characters() {
    let served = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example" });
    for key in ["", " ", "a key", &"k".repeat(201)] {
        let problem = keyed(&served, "/v1/check", key, &ask).await.refused(422);
        assert_eq!(problem["field"], "Idempotency-Key", "{key:?}");
    }
    assert_eq!(keyed(&served, "/v1/check", &"k".repeat(200), &ask).await.status, 200);
}

/// What was refused is refused again; what is not there is not kept from being there later.
#[tokio::test]
async fn a_refusal_is_an_answer_too() {
    let served = serve(COLLECTOR).await;
    let wrong = json!({ "domain": "" });
    let first = keyed(&served, "/v1/check", "one", &wrong).await;
    let again = keyed(&served, "/v1/check", "one", &wrong).await;
    assert_eq!(first.refused(422), again.refused(422));
}

/// Callers do not see each other's keys.
#[tokio::test]
async fn keys_belong_to_their_caller() {
    let (one, other) = ("a-token-of-somebody", "a-token-of-another");
    let config = configured(COLLECTOR, &[("COMITY_SERVE_TOKENS", &format!("use:{one},use:{other}"))]);
    let served = serve_with(config).await.by(one);
    let ask = json!({ "domain": "a.example" });
    let first = keyed(&served, "/v1/check", "one", &ask).await.ok();
    let served = served.by(other);
    let second = keyed(&served, "/v1/check", "one", &ask).await.ok();
    assert_ne!(first, second);
    assert_eq!(decided(&second), "wait 1000 (min_delay)");
}

async fn keyed(served: &Served, path: &str, key: &str, body: &Value) -> Answer {
    served.posting(path, body).header("idempotency-key", key).send().await
}

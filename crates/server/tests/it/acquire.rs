//! Waiting in line.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::script::decided;
use crate::server::{COLLECTOR, TestServer, eventually, ms, secs, serve};

/// B12
#[tokio::test]
async fn callers_in_line_are_served_in_order() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.permit("a.example").await;
    let mut line = Vec::new();
    for nth in 1..=4 {
        line.push(acquire(&server, "a.example"));
        waiting(&server, "a.example", nth).await;
    }
    for nth in 1..=4 {
        server.until(ms(nth * 1_000 - 1)).await;
        short_pause().await;
        assert!(!line[0].is_finished(), "number {nth} proceeded early");
        server.until(secs(nth)).await;
        let decision = line.remove(0).await.unwrap();
        assert_eq!((decided(&decision), &decision["waited_ms"]), ("proceed".to_owned(), &json!(nth * 1_000)));
        short_pause().await;
        assert!(line.iter().all(|other| !other.is_finished()), "each gets its own slot");
    }
}

/// B12: there is no stampede when a hold ends.
#[tokio::test]
async fn after_a_hold_callers_proceed_one_by_one() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.record(json!({ "domain": "a.example", "status": 429, "retry_after": 10 })).await;
    let line: Vec<_> = (0..3).map(|_| acquire(&server, "a.example")).collect();
    waiting(&server, "a.example", 3).await;
    for granted in 1..=3 {
        server.until(secs(9 + granted)).await;
        eventually("a grant", async || line.iter().filter(|one| one.is_finished()).count() as u64 >= granted)
            .await;
        short_pause().await;
        assert_eq!(line.iter().filter(|one| one.is_finished()).count() as u64, granted);
    }
}

/// B3
#[tokio::test]
async fn a_check_does_not_overtake_the_line() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.permit("a.example").await;
    let first = acquire(&server, "a.example");
    waiting(&server, "a.example", 1).await;
    let behind = server.check("a.example").await;
    assert_eq!((decided(&behind), &behind["origin"]), ("wait 2000 (line)".to_owned(), &json!("line")));
    let behind = server.peek("a.example").await;
    assert_eq!(behind["limit"], "line");
    server.advance(secs(1)).await;
    assert_eq!(decided(&first.await.unwrap()), "proceed");
    assert_eq!(decided(&server.check("a.example").await), "wait 1000 (min_delay)");
}

/// B10
#[tokio::test]
async fn callers_in_line_do_not_delay_other_domains() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.record(json!({ "domain": "a.example", "status": 429, "retry_after": 3_600 })).await;
    let line: Vec<_> = (0..20).map(|_| acquire(&server, "a.example")).collect();
    waiting(&server, "a.example", 20).await;
    for nth in 0..10 {
        let decision = acquire(&server, &format!("b{nth}.example")).await.unwrap();
        assert_eq!(decided(&decision), "proceed");
    }
    line.iter().for_each(JoinHandle::abort);
}

/// B2
#[tokio::test]
async fn a_caller_that_times_out_gets_the_remaining_wait() {
    let server = serve(COLLECTOR).await;
    server.permit("a.example").await;
    server.advance(ms(400)).await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 30 });
    let decision = server.post("/v1/acquire", ask).await.ok();
    assert_eq!(decided(&decision), "wait 600 (min_delay)");
    assert_eq!(live_field(&server, "a.example", "waiting").await, 0, "it left the line");
    server.advance(ms(600)).await;
    assert_eq!(decided(&server.check("a.example").await), "proceed");
}

/// B2: this also holds for a domain that nobody asked for before.
#[tokio::test]
async fn acquire_with_zero_wait_is_a_check() {
    let server = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 0 });
    assert_eq!(decided(&server.post("/v1/acquire", ask.clone()).await.ok()), "proceed");
    assert_eq!(decided(&server.post("/v1/acquire", ask).await.ok()), "wait 1000 (min_delay)");
}

#[tokio::test]
async fn max_wait_is_capped_by_the_service() {
    let server = serve("[serve]\nmax_wait = \"50ms\"\n").await;
    server.permit("a.example").await;
    for max in [json!(86_400_000), json!(i64::MAX)] {
        let ask = json!({ "domain": "a.example", "max_wait_ms": max });
        assert_eq!(server.post("/v1/acquire", ask).await.ok()["proceed"], false);
    }
}

/// B11
#[tokio::test]
async fn a_caller_that_hangs_up_leaves_the_line() {
    let server = Arc::new(serve(COLLECTOR).await);
    let permit = server.permit("a.example").await;
    server.record(json!({ "permit": permit, "outcome": "success" })).await;
    let hung_up = acquire(&server, "a.example");
    waiting(&server, "a.example", 1).await;
    let next = acquire(&server, "a.example");
    waiting(&server, "a.example", 2).await;
    hung_up.abort();
    waiting(&server, "a.example", 1).await;
    server.advance(secs(1)).await;
    let decision = next.await.unwrap();
    assert_eq!((decided(&decision), &decision["waited_ms"]), ("proceed".to_owned(), &json!(1_000)));
    assert_eq!(live_field(&server, "a.example", "in_flight").await, 1, "no permit leaked");
    server.advance(secs(1)).await;
    assert_eq!(decided(&server.check("a.example").await), "proceed");
}

/// B11
#[tokio::test]
async fn a_hundred_callers_that_hang_up_leak_nothing() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.permit("a.example").await;
    let line: Vec<_> = (0..100).map(|_| acquire(&server, "a.example")).collect();
    waiting(&server, "a.example", 100).await;
    line.iter().for_each(JoinHandle::abort);
    waiting(&server, "a.example", 0).await;
    server.advance(secs(1)).await;
    assert_eq!(decided(&server.check("a.example").await), "proceed");
    assert_eq!(live_field(&server, "a.example", "in_flight").await, 2);
}

/// B39: nobody waits in line for a domain that is paused until further notice. Callers of a domain with a limited pause
/// proceed when it is resumed.
#[tokio::test]
async fn a_paused_domain_grants_nothing_until_it_is_resumed() {
    let server = Arc::new(serve(COLLECTOR).await);
    server.patch("/v1/domains/a.example", json!({ "paused": true })).await.ok();
    let response = acquire(&server, "a.example").await.unwrap();
    assert_eq!((&response["refused"], &response["limit"]), (&json!(true), &json!("paused")));
    server.patch("/v1/domains/a.example", json!({ "paused_until": "2999-01-01T00:00:00Z" })).await.ok();
    let waits = acquire(&server, "a.example");
    waiting(&server, "a.example", 1).await;
    server.patch("/v1/domains/a.example", json!({ "paused": false })).await.ok();
    assert_eq!(decided(&waits.await.unwrap()), "proceed");
}

/// Starts a call of `acquire`, which waits in line.
pub(crate) fn acquire(server: &Arc<TestServer>, domain: &str) -> JoinHandle<Value> {
    let (server, ask) = (server.clone(), json!({ "domain": domain, "max_wait_ms": 600_000 }));
    tokio::spawn(async move { server.post("/v1/acquire", ask).await.ok() })
}

/// Waits until this many callers are in line.
pub(crate) async fn waiting(server: &TestServer, domain: &str, count: u64) {
    let mut last = String::new();
    for _ in 0..2_000 {
        let answer = server.get(&format!("/v1/domains/{domain}")).await;
        if answer.status == 200 && answer.json()["live"]["waiting"] == count {
            return;
        }
        last = answer.text();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("expected {count} callers in line: {last}");
}

/// A number from the `live` object of a domain.
pub(crate) async fn live_field(server: &TestServer, domain: &str, what: &str) -> u64 {
    server.get(&format!("/v1/domains/{domain}")).await.ok()["live"][what].as_u64().unwrap_or(0)
}

/// Gives callers that must not proceed the time to do so.
pub(crate) async fn short_pause() {
    tokio::time::sleep(Duration::from_millis(15)).await;
}

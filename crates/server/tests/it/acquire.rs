//! Waiting in line.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::script::decided;
use crate::served::{COLLECTOR, Served, eventually, ms, secs, serve};

/// B12
#[tokio::test]
async fn callers_in_line_are_served_in_order() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.permit("a.example").await;
    let mut line = Vec::new();
    for nth in 1..=4 {
        line.push(acquire(&served, "a.example"));
        waiting(&served, "a.example", nth).await;
    }
    for nth in 1..=4 {
        served.until(ms(nth * 1_000 - 1)).await;
        a_moment().await;
        assert!(!line[0].is_finished(), "number {nth} went early");
        served.until(secs(nth)).await;
        let decision = line.remove(0).await.unwrap();
        assert_eq!((decided(&decision), &decision["waited_ms"]), ("proceed".to_owned(), &json!(nth * 1_000)));
        a_moment().await;
        assert!(line.iter().all(|other| !other.is_finished()), "each gets its own slot");
    }
}

/// B12: nobody stampedes when a hold ends.
#[tokio::test]
async fn after_a_hold_they_go_one_by_one() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.record(json!({ "domain": "a.example", "status": 429, "retry_after": 10 })).await;
    let line: Vec<_> = (0..3).map(|_| acquire(&served, "a.example")).collect();
    waiting(&served, "a.example", 3).await;
    for gone in 1..=3 {
        served.until(secs(9 + gone)).await;
        eventually("a grant", async || line.iter().filter(|one| one.is_finished()).count() as u64 >= gone)
            .await;
        a_moment().await;
        assert_eq!(line.iter().filter(|one| one.is_finished()).count() as u64, gone);
    }
}

/// B3
#[tokio::test]
async fn a_check_does_not_overtake_the_line() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.permit("a.example").await;
    let first = acquire(&served, "a.example");
    waiting(&served, "a.example", 1).await;
    let behind = served.check("a.example").await;
    assert_eq!((decided(&behind), &behind["origin"]), ("wait 2000 (line)".to_owned(), &json!("line")));
    let behind = served.peek("a.example").await;
    assert_eq!(behind["limit"], "line");
    served.advance(secs(1)).await;
    assert_eq!(decided(&first.await.unwrap()), "proceed");
    assert_eq!(decided(&served.check("a.example").await), "wait 1000 (min_delay)");
}

/// B10: who waits on one domain delays nobody on another.
#[tokio::test]
async fn a_line_delays_no_other_domain() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.record(json!({ "domain": "a.example", "status": 429, "retry_after": 3_600 })).await;
    let line: Vec<_> = (0..20).map(|_| acquire(&served, "a.example")).collect();
    waiting(&served, "a.example", 20).await;
    for nth in 0..10 {
        let decision = acquire(&served, &format!("b{nth}.example")).await.unwrap();
        assert_eq!(decided(&decision), "proceed");
    }
    line.iter().for_each(JoinHandle::abort);
}

/// B2: at the end of its patience a caller hears how long is left.
#[tokio::test]
async fn who_waits_long_enough_hears_what_is_left() {
    let served = serve(COLLECTOR).await;
    served.permit("a.example").await;
    served.advance(ms(400)).await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 30 });
    let decision = served.post("/v1/acquire", ask).await.ok();
    assert_eq!(decided(&decision), "wait 600 (min_delay)");
    assert_eq!(live(&served, "a.example", "waiting").await, 0, "its place is free");
    served.advance(ms(600)).await;
    assert_eq!(decided(&served.check("a.example").await), "proceed");
}

/// B2: without patience `acquire` is a check, also for a domain that nobody asked for before.
#[tokio::test]
async fn without_patience_it_goes_or_hears_why_not() {
    let served = serve(COLLECTOR).await;
    let ask = json!({ "domain": "a.example", "max_wait_ms": 0 });
    assert_eq!(decided(&served.post("/v1/acquire", ask.clone()).await.ok()), "proceed");
    assert_eq!(decided(&served.post("/v1/acquire", ask).await.ok()), "wait 1000 (min_delay)");
}

#[tokio::test]
async fn the_service_caps_the_patience_of_callers() {
    let served = serve("[serve]\nmax_wait = \"50ms\"\n").await;
    served.permit("a.example").await;
    for max in [json!(86_400_000), json!(i64::MAX)] {
        let ask = json!({ "domain": "a.example", "max_wait_ms": max });
        assert_eq!(served.post("/v1/acquire", ask).await.ok()["proceed"], false);
    }
}

/// B11
#[tokio::test]
async fn who_hangs_up_gives_its_place_to_the_next() {
    let served = Arc::new(serve(COLLECTOR).await);
    let permit = served.permit("a.example").await;
    served.record(json!({ "permit": permit, "outcome": "success" })).await;
    let gone = acquire(&served, "a.example");
    waiting(&served, "a.example", 1).await;
    let next = acquire(&served, "a.example");
    waiting(&served, "a.example", 2).await;
    gone.abort();
    waiting(&served, "a.example", 1).await;
    served.advance(secs(1)).await;
    let decision = next.await.unwrap();
    assert_eq!((decided(&decision), &decision["waited_ms"]), ("proceed".to_owned(), &json!(1_000)));
    assert_eq!(live(&served, "a.example", "in_flight").await, 1, "nothing leaked");
    served.advance(secs(1)).await;
    assert_eq!(decided(&served.check("a.example").await), "proceed");
}

/// B11: a hundred hang up; nothing is left of them.
#[tokio::test]
async fn a_hundred_that_hang_up_leave_nothing() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.permit("a.example").await;
    let line: Vec<_> = (0..100).map(|_| acquire(&served, "a.example")).collect();
    waiting(&served, "a.example", 100).await;
    line.iter().for_each(JoinHandle::abort);
    waiting(&served, "a.example", 0).await;
    served.advance(secs(1)).await;
    assert_eq!(decided(&served.check("a.example").await), "proceed");
    assert_eq!(live(&served, "a.example", "in_flight").await, 2);
}

/// B39: nobody waits in line for a domain that an operator closed for good; who waits on one that is closed for a
/// while goes when it is resumed.
#[tokio::test]
async fn a_paused_domain_lets_nobody_go_until_it_is_resumed() {
    let served = Arc::new(serve(COLLECTOR).await);
    served.patch("/v1/domains/a.example", json!({ "paused": true })).await.ok();
    let told = acquire(&served, "a.example").await.unwrap();
    assert_eq!((&told["refused"], &told["limit"]), (&json!(true), &json!("paused")));
    served.patch("/v1/domains/a.example", json!({ "paused_until": "2999-01-01T00:00:00Z" })).await.ok();
    let waits = acquire(&served, "a.example");
    waiting(&served, "a.example", 1).await;
    served.patch("/v1/domains/a.example", json!({ "paused": false })).await.ok();
    assert_eq!(decided(&waits.await.unwrap()), "proceed");
}

/// Asks for a slot and waits for it.
pub(crate) fn acquire(served: &Arc<Served>, domain: &str) -> JoinHandle<Value> {
    let (served, ask) = (served.clone(), json!({ "domain": domain, "max_wait_ms": 600_000 }));
    tokio::spawn(async move { served.post("/v1/acquire", ask).await.ok() })
}

/// Waits until so many are in line.
pub(crate) async fn waiting(served: &Served, domain: &str, count: u64) {
    let mut last = String::new();
    for _ in 0..2_000 {
        let answer = served.get(&format!("/v1/domains/{domain}")).await;
        if answer.status == 200 && answer.json()["live"]["waiting"] == count {
            return;
        }
        last = answer.text();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("there are not {count} in line: {last}");
}

pub(crate) async fn live(served: &Served, domain: &str, what: &str) -> u64 {
    served.get(&format!("/v1/domains/{domain}")).await.ok()["live"][what].as_u64().unwrap_or(0)
}

/// Gives whoever could go wrongly the time to do so.
pub(crate) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(15)).await;
}

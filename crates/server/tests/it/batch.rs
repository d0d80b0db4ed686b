//! Batches of checks and records.

use serde_json::{Value, json};

use crate::script::decided;
use crate::server::{COLLECTOR, serve};

/// B3
#[tokio::test]
async fn a_batch_is_answered_in_order() {
    let server = serve(COLLECTOR).await;
    let checks = json!({ "checks": [
        { "domain": "finance.yahoo.com" },
        { "url": "https://reuters.com/x" },
        { "domain": "finance.yahoo.com", "intent": "api" },
        { "domain": "www.reuters.com" },
        { "domain": "c.example" },
    ] });
    let answer = server.post("/v1/check/batch", checks).await.ok();
    let results: Vec<String> = results(&answer).iter().map(decided).collect();
    assert_eq!(results, ["proceed", "proceed", "wait 2000 (min_delay)", "wait 3000 (min_delay)", "proceed"]);
}

/// B3
#[tokio::test]
async fn of_a_thousand_checks_on_one_domain_one_proceeds() {
    let server = serve(COLLECTOR).await;
    let checks: Vec<Value> = (0..1_000).map(|_| json!({ "domain": "a.example" })).collect();
    let answer = server.post("/v1/check/batch", json!({ "checks": checks })).await.ok();
    let results = results(&answer);
    assert_eq!(results.len(), 1_000);
    assert_eq!(decided(&results[0]), "proceed");
    assert!(results[1..].iter().all(|decision| decided(decision) == "wait 1000 (min_delay)"));
}

#[tokio::test]
async fn a_thousand_domains_are_checked_and_recorded_in_one_batch() {
    let server = serve(COLLECTOR).await;
    let checks: Vec<Value> = (0..1_000).map(|nth| json!({ "domain": format!("d{nth}.example") })).collect();
    let answer = server.post("/v1/check/batch", json!({ "checks": checks })).await.ok();
    let records: Vec<Value> = results(&answer)
        .iter()
        .map(|decision| json!({ "permit": decision["permit"], "status": 200, "latency_ms": 5 }))
        .collect();
    let answer = server.post("/v1/record/batch", json!({ "records": records })).await.ok();
    assert_eq!(results(&answer).len(), 1_000);
    assert!(results(&answer).iter().all(|recorded| recorded["standing"] == "fresh"));
    assert_eq!(results(&answer)[7]["domain"], "d7.example");
}

#[tokio::test]
async fn empty_and_oversized_batches_are_refused() {
    let server = serve(COLLECTOR).await;
    for count in [0, 1_001] {
        let checks: Vec<Value> = (0..count).map(|_| json!({ "domain": "a.example" })).collect();
        let problem = server.post("/v1/check/batch", json!({ "checks": checks })).await.problem(422);
        assert_eq!((&problem["field"], &problem["allowed"]), (&json!("checks"), &json!("1 to 1000 entries")));
        let records: Vec<Value> =
            (0..count).map(|_| json!({ "domain": "a.example", "outcome": "timeout" })).collect();
        let problem = server.post("/v1/record/batch", json!({ "records": records })).await.problem(422);
        assert_eq!(problem["field"], "records");
    }
    assert_eq!(decided(&server.check("a.example").await), "proceed", "nothing was reserved or recorded");
}

/// B3: all entries are validated before anything is reserved or recorded.
#[tokio::test]
async fn one_invalid_entry_refuses_the_whole_batch() {
    let server = serve(COLLECTOR).await;
    for (wrong, field) in [
        (json!({ "domain": "" }), "checks[1].domain"),
        (json!({ "url": "ftp://a.example/" }), "checks[1].url"),
        (json!({ "domain": "b.example", "intent": "post" }), "checks[1].intent"),
        (json!({ "domain": 5 }), "checks[1].domain"),
        (json!({}), "checks[1].domain"),
    ] {
        let checks = json!({ "checks": [{ "domain": "a.example" }, wrong] });
        assert_eq!(server.post("/v1/check/batch", checks).await.problem(422)["field"], field);
    }
    for (wrong, field) in [
        (json!({ "domain": "b.example" }), "records[1].outcome"),
        (json!({ "permit": "p1.x", "outcome": "success" }), "records[1].permit"),
        (json!({ "domain": "b.example", "status": 99 }), "records[1].status"),
    ] {
        let records = json!({ "records": [{ "domain": "a.example", "status": 429 }, wrong] });
        assert_eq!(server.post("/v1/record/batch", records).await.problem(422)["field"], field);
    }
    assert_eq!(decided(&server.check("a.example").await), "proceed", "nothing was reserved or recorded");
}

fn results(answer: &Value) -> &[Value] {
    answer["results"].as_array().unwrap()
}

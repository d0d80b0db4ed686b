//! The limit `serve.domains_max`: random domains can't make the service grow.

use futures_util::future::join_all;
use serde_json::json;

use crate::script::decided;
use crate::server::{TestServer, eventually, secs, serve};

const SMALL: &str = "[default]\nmin_delay = \"30s\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n[serve]\ndomains_max = 8\n";

#[tokio::test]
async fn at_the_limit_new_domains_are_refused_and_held_ones_continue() {
    let server = serve(SMALL).await;
    let permit = server.permit("d0.example").await;
    server.advance(secs(30)).await;
    fill(&server).await;
    let response = server.record(json!({ "permit": permit, "outcome": "success" })).await;
    assert_eq!(response["standing"], "fresh", "an outcome with a permit is always recorded");
    for path in ["/v1/check", "/v1/acquire"] {
        let answer = server.post(path, json!({ "domain": "more.example" })).await;
        let problem = answer.problem(503);
        assert!(problem["detail"].as_str().unwrap().contains("serve.domains_max"), "{problem}");
        assert_eq!(answer.header("retry-after"), "2");
    }
    let record = json!({ "domain": "more.example", "outcome": "timeout" });
    server.post("/v1/record", record).await.problem(503);
    server.patch("/v1/domains/more.example", json!({ "paused": true })).await.problem(503);
    // Looking takes no domain, so the limit does not apply (B81).
    server.get("/v1/domains/more.example/explain").await.ok();
    assert_eq!(decided(&server.post("/v1/peek", json!({ "domain": "more.example" })).await.ok()), "proceed");
    assert_eq!(server.metric("comity_domains").await, 8.0);
    assert_eq!(decided(&server.check("d3.example").await), "wait 30000 (min_delay)");
}

/// B3, B25
#[tokio::test]
async fn idle_domains_make_room_and_keep_their_pace() {
    let server = serve(SMALL).await;
    fill(&server).await;
    server.advance(secs(5)).await;
    // They are released after the heartbeat that the clock waits for.
    eventually("idle domains are released", async || server.metric("comity_domains").await < 8.0).await;
    assert_eq!(decided(&server.check("more.example").await), "proceed", "there is room again");
    assert_eq!(decided(&server.check("d0.example").await), "wait 25000 (min_delay)");
    for nth in 0..100 {
        server.post("/v1/check", json!({ "domain": format!("r{nth}.example") })).await;
    }
    assert!(server.metric("comity_domains").await <= 8.0);
}

#[tokio::test]
async fn concurrent_checks_do_not_exceed_the_limit() {
    let server = serve(SMALL).await;
    let crowd = (0..100).map(async |nth| {
        let ask = json!({ "domain": format!("r{nth}.example") });
        server.post("/v1/check", ask).await.status
    });
    let answered = join_all(crowd).await;
    assert!(answered.iter().all(|status| [200, 503].contains(status)));
    assert!(server.metric("comity_domains").await <= 8.0, "{}", server.metric("comity_domains").await);
}

/// Peeks, changes and records checked the limit, but reserved nothing.
#[tokio::test]
async fn concurrent_peeks_and_changes_do_not_exceed_the_limit() {
    let server = serve(SMALL).await;
    let crowd = (0..100).map(async |nth| {
        let name = format!("r{nth}.example");
        match nth % 4 {
            0 => server.post("/v1/peek", json!({ "domain": name })).await.status,
            1 => server.get(&format!("/v1/domains/{name}/explain")).await.status,
            2 => server.patch(&format!("/v1/domains/{name}"), json!({ "pinned": true })).await.status,
            _ => server.post("/v1/record", json!({ "domain": name, "outcome": "timeout" })).await.status,
        }
    });
    let answered = join_all(crowd).await;
    assert!(answered.iter().all(|status| [200, 503].contains(status)), "{answered:?}");
    assert!(server.metric("comity_domains").await <= 8.0, "{}", server.metric("comity_domains").await);
}

/// Checks beyond the limit get a wait, with the limit as the reason.
#[tokio::test]
async fn a_batch_over_the_limit_is_decided_as_far_as_it_fits() {
    let server = serve(SMALL).await;
    let checks: Vec<_> = (0..9).map(|nth| json!({ "domain": format!("d{nth}.example") })).collect();
    let answer = server.post("/v1/check/batch", json!({ "checks": checks })).await.ok();
    let results = answer["results"].as_array().unwrap();
    assert!(results[..8].iter().all(|decision| decided(decision) == "proceed"), "{answer}");
    assert_eq!(decided(&results[8]), "wait 1000 (unavailable)");
    assert!(results[8]["reason"].as_str().unwrap().contains("serve.domains_max"), "{answer}");
}

async fn fill(server: &TestServer) {
    for nth in 0..8 {
        assert_eq!(decided(&server.check(&format!("d{nth}.example")).await), "proceed");
    }
}

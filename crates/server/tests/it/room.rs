//! Random domains cannot grow the service.

use futures_util::future::join_all;
use serde_json::json;

use crate::script::decided;
use crate::served::{Served, secs, serve};

const SMALL: &str = "[default]\nmin_delay = \"30s\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n[serve]\ndomains_max = 8\n";

#[tokio::test]
async fn when_it_is_full_others_are_refused_and_its_own_go_on() {
    let served = serve(SMALL).await;
    let permit = served.permit("d0.example").await;
    served.advance(secs(30)).await;
    fill(&served).await;
    let told = served.record(json!({ "permit": permit, "outcome": "success" })).await;
    assert_eq!(told["standing"], "fresh", "what came of a permit is always heard");
    for path in ["/v1/check", "/v1/acquire"] {
        let answer = served.post(path, json!({ "domain": "more.example" })).await;
        let problem = answer.refused(503);
        assert!(problem["detail"].as_str().unwrap().contains("serve.domains_max"), "{problem}");
        assert_eq!(answer.header("retry-after"), "2");
    }
    let record = json!({ "domain": "more.example", "outcome": "timeout" });
    served.post("/v1/record", record).await.refused(503);
    served.patch("/v1/domains/more.example", json!({ "paused": true })).await.refused(503);
    // Looking takes nothing, so it needs no room (B81).
    served.get("/v1/domains/more.example/explain").await.ok();
    assert_eq!(decided(&served.post("/v1/peek", json!({ "domain": "more.example" })).await.ok()), "proceed");
    assert_eq!(served.metric("comity_domains").await, 8.0);
    assert_eq!(decided(&served.check("d3.example").await), "wait 30000 (min_delay)");
}

/// B3, B25: whoever comes back finds its pace as it left it.
#[tokio::test]
async fn those_that_nobody_uses_make_room_and_keep_their_pace() {
    let served = serve(SMALL).await;
    fill(&served).await;
    served.advance(secs(5)).await;
    assert_eq!(decided(&served.check("more.example").await), "proceed", "there is room again");
    assert_eq!(decided(&served.check("d0.example").await), "wait 25000 (min_delay)");
    for nth in 0..100 {
        served.post("/v1/check", json!({ "domain": format!("r{nth}.example") })).await;
    }
    assert!(served.metric("comity_domains").await <= 8.0);
}

/// However many come at once.
#[tokio::test]
async fn a_crowd_does_not_get_past_the_limit() {
    let served = serve(SMALL).await;
    let crowd = (0..100).map(async |nth| {
        let ask = json!({ "domain": format!("r{nth}.example") });
        served.post("/v1/check", ask).await.status
    });
    let answered = join_all(crowd).await;
    assert!(answered.iter().all(|status| [200, 503].contains(status)));
    assert!(served.metric("comity_domains").await <= 8.0, "{}", served.metric("comity_domains").await);
}

/// Of those who look, steer and tell the room was looked at and not kept.
#[tokio::test]
async fn a_crowd_that_only_looks_does_not_get_past_it_either() {
    let served = serve(SMALL).await;
    let crowd = (0..100).map(async |nth| {
        let name = format!("r{nth}.example");
        match nth % 4 {
            0 => served.post("/v1/peek", json!({ "domain": name })).await.status,
            1 => served.get(&format!("/v1/domains/{name}/explain")).await.status,
            2 => served.patch(&format!("/v1/domains/{name}"), json!({ "pinned": true })).await.status,
            _ => served.post("/v1/record", json!({ "domain": name, "outcome": "timeout" })).await.status,
        }
    });
    let answered = join_all(crowd).await;
    assert!(answered.iter().all(|status| [200, 503].contains(status)), "{answered:?}");
    assert!(served.metric("comity_domains").await <= 8.0, "{}", served.metric("comity_domains").await);
}

/// Of a batch that does not fit, what fits is decided; the rest is told to come again.
#[tokio::test]
async fn a_batch_that_does_not_fit_is_decided_as_far_as_it_does() {
    let served = serve(SMALL).await;
    let checks: Vec<_> = (0..9).map(|nth| json!({ "domain": format!("d{nth}.example") })).collect();
    let answer = served.post("/v1/check/batch", json!({ "checks": checks })).await.ok();
    let results = answer["results"].as_array().unwrap();
    assert!(results[..8].iter().all(|decision| decided(decision) == "proceed"), "{answer}");
    assert_eq!(decided(&results[8]), "wait 1000 (unavailable)");
    assert!(results[8]["reason"].as_str().unwrap().contains("serve.domains_max"), "{answer}");
}

async fn fill(served: &Served) {
    for nth in 0..8 {
        assert_eq!(decided(&served.check(&format!("d{nth}.example")).await), "proceed");
    }
}

//! Two services on one store.

use serde_json::json;

use crate::script::{decided, recorded};
use crate::server::{COLLECTOR, TestServer, config, eventually, ms, serve, serve_with_clock, store_in};

/// B9: a domain is handed over to the service that asks for it, with its complete pace.
#[tokio::test]
async fn two_services_on_one_store_share_one_pace() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = two(&format!("{}{COLLECTOR}", store_in(folder.path()))).await;
    let permit = a.permit("finance.yahoo.com").await;
    a.advance(ms(600)).await;
    assert_eq!(decided(&b.check("finance.yahoo.com").await), "wait 1400 (min_delay)");
    let response = b.record(json!({ "permit": permit, "status": 429, "retry_after": 60 })).await;
    assert_eq!(
        recorded(&response),
        "fresh, held to 60.6s",
        "a permit of one service is recorded at the other"
    );
    a.advance(ms(600)).await;
    assert_eq!(decided(&a.check("finance.yahoo.com").await), "wait 59400 (retry_after)");
}

/// B81: looking at a domain does not make its holder hand it over.
#[tokio::test]
async fn each_service_shows_domains_the_other_holds() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = two(&format!("{}{COLLECTOR}", store_in(folder.path()))).await;
    a.permit("finance.yahoo.com").await;
    let own = a.get("/v1/domains/finance.yahoo.com").await.ok();
    for _ in 0..3 {
        let shown = b.get("/v1/domains/finance.yahoo.com").await.ok();
        assert!(shown["holder"].is_string() && shown["as_of"].is_string(), "{shown}");
        assert_eq!(shown["live"], own["live"]);
        let listed = b.get("/v1/domains").await.ok();
        assert_eq!(listed["domains"][0]["live"], own["live"], "{listed}");
        let peeked = b.post("/v1/peek", json!({ "domain": "finance.yahoo.com" })).await.ok();
        assert_eq!(decided(&peeked), "wait 2000 (min_delay)", "{peeked}");
        assert!(peeked["as_of"].is_string(), "{peeked}");
        let explained = b.get("/v1/domains/finance.yahoo.com/explain").await.ok();
        assert_eq!(
            (&explained["wait_ms"], explained["as_of"].is_string()),
            (&json!(2000), true),
            "{explained}"
        );
    }
    assert_eq!(a.get("/v1/domains/finance.yahoo.com").await.ok(), own, "the domain was not handed over");
    assert!(!a.get("/metrics").await.text().contains("comity_handovers_total 1"));
}

/// B73, B81: the panel of the slowest domains was empty if another process did the work.
#[tokio::test]
async fn each_service_has_metrics_of_domains_the_other_holds() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = two(&format!("{}{COLLECTOR}", store_in(folder.path()))).await;
    a.permit("reuters.com").await;
    a.advance(ms(2_500)).await;
    let delay = "comity_domain_delay_seconds{domain=\"reuters.com\"} 3";
    eventually("the metrics of the other service", async || b.get("/metrics").await.text().contains(delay))
        .await;
}

async fn two(toml: &str) -> (TestServer, TestServer) {
    let a = serve(toml).await;
    let b = serve_with_clock(config(toml), a.clock.clone(), a.clock_control()).await.unwrap();
    (a, b)
}

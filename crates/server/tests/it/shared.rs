//! Two services on one store.

use serde_json::json;

use crate::script::{decided, recorded};
use crate::served::{COLLECTOR, Served, config, eventually, ms, serve, serve_by, store_in};

/// B9: a domain goes to whoever asks for it, with its whole pace.
#[tokio::test]
async fn they_keep_one_pace() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = two(&format!("{}{COLLECTOR}", store_in(folder.path()))).await;
    let permit = a.permit("finance.yahoo.com").await;
    a.advance(ms(600)).await;
    assert_eq!(decided(&b.check("finance.yahoo.com").await), "wait 1400 (min_delay)");
    let told = b.record(json!({ "permit": permit, "status": 429, "retry_after": 60 })).await;
    assert_eq!(recorded(&told), "fresh, held to 60.6s", "a permit of the one is recorded at the other");
    a.advance(ms(600)).await;
    assert_eq!(decided(&a.check("finance.yahoo.com").await), "wait 59400 (retry_after)");
}

/// B81: both can tell what one of them holds, and looking does not make it hand anything over.
#[tokio::test]
async fn both_show_what_the_other_holds() {
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
    assert_eq!(a.get("/v1/domains/finance.yahoo.com").await.ok(), own, "it is still its own");
    assert!(!a.get("/metrics").await.text().contains("comity_handovers_total 1"));
}

/// B73, B81: the panel of the slowest domains was empty where another process did the work.
#[tokio::test]
async fn both_have_metrics_of_what_one_holds() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = two(&format!("{}{COLLECTOR}", store_in(folder.path()))).await;
    a.permit("reuters.com").await;
    a.advance(ms(2_500)).await;
    let delay = "comity_domain_delay_seconds{domain=\"reuters.com\"} 3";
    eventually("its metrics", async || b.get("/metrics").await.text().contains(delay)).await;
}

async fn two(toml: &str) -> (Served, Served) {
    let a = serve(toml).await;
    let b = serve_by(config(toml), a.clock.clone(), a.hands()).await.unwrap();
    (a, b)
}

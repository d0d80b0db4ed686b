//! Two services on one store.

use serde_json::json;

use crate::script::{decided, recorded};
use crate::served::{COLLECTOR, Served, config, ms, serve, serve_by, store_in};

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

/// B9: which one holds it, both can tell.
#[tokio::test]
async fn both_show_what_the_other_holds() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = two(&format!("{}{COLLECTOR}", store_in(folder.path()))).await;
    a.permit("a.example").await;
    assert!(a.get("/v1/domains/a.example").await.ok()["live"].is_object());
    let shown = b.get("/v1/domains/a.example").await.ok();
    assert!(shown["live"].is_null() && shown["holder"].as_str().is_some(), "{shown}");
}

async fn two(toml: &str) -> (Served, Served) {
    let a = serve(toml).await;
    let b = serve_by(config(toml), a.clock.clone(), a.hands()).await.unwrap();
    (a, b)
}

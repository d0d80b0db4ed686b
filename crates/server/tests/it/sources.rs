//! Sources, read-only.

use comity::store;
use comity::store::sources::{Kind, NewSource};
use serde_json::{Value, json};

use crate::server::{START, serve, store_in};

/// B75
#[tokio::test]
async fn sources_are_listed_and_shown_without_their_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&store_in(folder.path())).await;
    let store = store::open(&format!("sqlite:{}", folder.path().join("comity.db").display())).unwrap();
    for nth in 1..=3 {
        let Value::Object(config) = json!({ "cadence": { "mode": "interval", "every_minutes": 30 } }) else {
            unreachable!()
        };
        let source = NewSource {
            name: format!("source {nth}"),
            kind: Kind::Feed,
            url: format!("https://user:hidden@s{nth}.example/feed?key=hidden"),
            lead: comity::store::tasks::Lead::Listed,
            enabled: true,
            scraping: true,
            auto_scrape: true,
            interval: comity::core::interval::SourceInterval::Every(comity::core::time::Span::from_millis(
                2_500,
            )),
            config,
        };
        store.add_source(source, START).await.unwrap();
    }
    let first = server.get("/v1/sources?limit=2").await;
    assert!(!first.text().contains("hidden"), "{}", first.text());
    assert_eq!((first.ok()["sources"].as_array().unwrap().len(), &first.ok()["next"]), (2, &json!(2)));
    let second = server.get("/v1/sources?after=2").await.ok();
    assert_eq!((second["sources"].as_array().unwrap().len(), &second["next"]), (1, &Value::Null));
    let shown = server.get("/v1/sources/1").await.ok();
    assert_eq!(
        shown,
        json!({
            "id": 1, "name": "source 1", "kind": "feed", "url": "https://s1.example/feed?…", "enabled": true,
            "scraping_enabled": true, "min_scrape_interval": 2.5, "every_minutes": 30.0, "last_fetch_at": null,
            "failures": 0, "retry_at": null,
        })
    );
    server.get("/v1/sources/4").await.problem(404);
    server.get("/v1/sources/one").await.problem(404);
    for query in ["after=-1", "limit=0", "limit=1001", "what=1"] {
        server.get(&format!("/v1/sources?{query}")).await.problem(422);
    }
}

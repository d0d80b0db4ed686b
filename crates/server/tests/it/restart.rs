//! What survives a restart on the same store.

use serde_json::json;

use crate::script::{decided, play, recorded};
use crate::served::{COLLECTOR, Served, config, ms, secs, serve, serve_by, store_in};

/// E11, B37
#[tokio::test]
async fn a_deadline_of_the_server_survives_and_our_guess_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let served = serve(&toml).await;
    assert_eq!(
        play(&served, "said.example", "10s check A | 10s 429 of A after=120").await,
        "proceed | fresh, held to 130s"
    );
    served.until(ms(19_900)).await;
    served.check("eia.gov").await;
    assert_eq!(play(&served, "eia.gov", "20s 429").await, "fresh, held to 80s");
    let served = again(served, &toml).await;
    served.until(secs(30)).await;
    assert_eq!(decided(&served.check("said.example").await), "wait 100000 (retry_after)");
    assert_eq!(decided(&served.check("eia.gov").await), "proceed");
    let shown = served.get("/v1/domains/said.example").await.ok();
    assert_eq!(shown["server_until"], "2026-11-16T10:02:10Z");
    served.until(secs(130)).await;
    assert_eq!(decided(&served.check("said.example").await), "proceed");
}

/// B35, B36, B37
#[tokio::test]
async fn what_was_learnt_survives() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}profile = \"crawler\"\n", store_in(folder.path()));
    let served = serve(&toml).await;
    play(&served, "a.example", "0s check A | 0s 429 of A").await;
    served
        .patch("/v1/domains/b.example", json!({ "adaptive_delay_seconds": 6.25, "pinned": true }))
        .await
        .ok();
    served.patch("/v1/domains/c.example", json!({ "paused": true })).await.ok();
    let served = again(served, &toml).await;
    let shown = served.get("/v1/domains/a.example").await.ok();
    assert_eq!(shown["adaptive_delay_seconds"], 1.5);
    served.until(secs(10)).await;
    assert_eq!(play(&served, "a.example", "10s check | 10s check").await, "proceed | wait 1500 (learned)");
    let shown = served.get("/v1/domains/b.example").await.ok();
    assert_eq!((&shown["adaptive_delay_seconds"], &shown["pinned"]), (&json!(6.25), &json!(true)));
    let told = served.check("c.example").await;
    assert_eq!((&told["refused"], &told["limit"]), (&json!(true), &json!("paused")));
}

/// B25: who fetched while the service was away tells it afterwards.
#[tokio::test]
async fn a_permit_of_before_is_recorded_after() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let served = serve(&toml).await;
    let (one, two) = (served.permit("a.example").await, served.permit("b.example").await);
    served.advance(ms(200)).await;
    let served = again(served, &toml).await;
    let told = served.record(json!({ "permit": one, "status": 429, "retry_after": 90 })).await;
    assert_ne!(told["standing"], "repeated", "{told}");
    assert!(recorded(&told).ends_with(", held to 90.2s"), "{told}");
    assert_eq!(decided(&served.check("a.example").await), "wait 90000 (retry_after)");
    let told = served.record(json!({ "permit": two, "status": 200 })).await;
    assert_ne!(told["standing"], "repeated", "{told}");
}

/// B3: a restart is no way to send twice.
#[tokio::test]
async fn the_spacing_goes_on_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let served = serve(&toml).await;
    play(&served, "finance.yahoo.com", "0s check | 2s check | 4s check").await;
    let served = again(served, &toml).await;
    assert_eq!(
        play(&served, "finance.yahoo.com", "5s check | 60s check").await,
        "wait 55000 (burst) | proceed"
    );
}

/// Stops it and starts it anew, by the same clock.
async fn again(served: Served, toml: &str) -> Served {
    let (clock, hands) = (served.clock.clone(), served.hands());
    served.stop().await;
    serve_by(config(toml), clock, hands).await.unwrap()
}

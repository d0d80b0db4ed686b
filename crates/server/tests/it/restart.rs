//! What survives a restart on the same store.

use serde_json::json;

use crate::script::{decided, play, recorded};
use crate::server::{COLLECTOR, TestServer, config, ms, secs, serve, serve_with_clock, store_in};

/// E11, B37
#[tokio::test]
async fn a_deadline_the_server_stated_survives_and_our_guess_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let server = serve(&toml).await;
    assert_eq!(
        play(&server, "said.example", "10s check A | 10s 429 of A after=120").await,
        "proceed | fresh, held to 130s"
    );
    server.until(ms(19_900)).await;
    server.check("eia.gov").await;
    assert_eq!(play(&server, "eia.gov", "20s 429").await, "fresh, held to 80s");
    let server = restart(server, &toml).await;
    server.until(secs(30)).await;
    assert_eq!(decided(&server.check("said.example").await), "wait 100000 (retry_after)");
    assert_eq!(decided(&server.check("eia.gov").await), "proceed");
    let shown = server.get("/v1/domains/said.example").await.ok();
    assert_eq!(shown["server_until"], "2026-11-16T10:02:10Z");
    server.until(secs(130)).await;
    // A deadline that has passed is not shown, whether or not somebody holds the domain.
    let server = restart(server, &toml).await;
    let listed = server.get("/v1/domains").await.ok();
    assert_eq!(listed["domains"].as_array().unwrap().len(), 2, "{listed}");
    for domain in listed["domains"].as_array().unwrap() {
        assert!(domain["server_until"].is_null(), "{domain}");
    }
    assert_eq!(decided(&server.check("said.example").await), "proceed");
    let shown = server.get("/v1/domains/said.example").await.ok();
    assert!(shown["server_until"].is_null(), "{shown}");
}

/// B35, B36, B37
#[tokio::test]
async fn learned_delays_pins_and_pauses_survive() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}profile = \"crawler\"\n", store_in(folder.path()));
    let server = serve(&toml).await;
    play(&server, "a.example", "0s check A | 0s 429 of A").await;
    server
        .patch("/v1/domains/b.example", json!({ "adaptive_delay_seconds": 6.25, "pinned": true }))
        .await
        .ok();
    server.patch("/v1/domains/c.example", json!({ "paused": true })).await.ok();
    let server = restart(server, &toml).await;
    let shown = server.get("/v1/domains/a.example").await.ok();
    assert_eq!(shown["adaptive_delay_seconds"], 1.5);
    server.until(secs(10)).await;
    assert_eq!(play(&server, "a.example", "10s check | 10s check").await, "proceed | wait 1500 (learned)");
    let shown = server.get("/v1/domains/b.example").await.ok();
    assert_eq!((&shown["adaptive_delay_seconds"], &shown["pinned"]), (&json!(6.25), &json!(true)));
    let response = server.check("c.example").await;
    assert_eq!((&response["refused"], &response["limit"]), (&json!(true), &json!("paused")));
}

/// B25: a caller that fetched while the service was down records afterwards.
#[tokio::test]
async fn a_permit_can_be_recorded_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let server = serve(&toml).await;
    let (one, two) = (server.permit("a.example").await, server.permit("b.example").await);
    server.advance(ms(200)).await;
    let server = restart(server, &toml).await;
    let response = server.record(json!({ "permit": one, "status": 429, "retry_after": 90 })).await;
    assert_ne!(response["standing"], "repeated", "{response}");
    assert!(recorded(&response).ends_with(", held to 90.2s"), "{response}");
    assert_eq!(decided(&server.check("a.example").await), "wait 90000 (retry_after)");
    let response = server.record(json!({ "permit": two, "status": 200 })).await;
    assert_ne!(response["standing"], "repeated", "{response}");
}

/// B3: a restart doesn't allow an extra request.
#[tokio::test]
async fn spacing_and_burst_continue_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let server = serve(&toml).await;
    play(&server, "finance.yahoo.com", "0s check | 2s check | 4s check").await;
    let server = restart(server, &toml).await;
    assert_eq!(
        play(&server, "finance.yahoo.com", "5s check | 60s check").await,
        "wait 55000 (burst) | proceed"
    );
}

/// Stops the service and starts it again, with the same clock.
async fn restart(server: TestServer, toml: &str) -> TestServer {
    let (clock, control) = (server.clock.clone(), server.clock_control());
    server.stop().await;
    serve_with_clock(config(toml), clock, control).await.unwrap()
}

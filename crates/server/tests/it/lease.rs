//! Leases of permits.

use serde_json::{Value, json};

use crate::script::{decided, play};
use crate::server::{TestServer, config, ms, secs, serve, serve_with_clock, store_in};

/// B80: without recording, the site was closed to everybody for ten minutes.
#[tokio::test]
async fn a_permit_that_nobody_records_frees_the_site_after_a_minute() {
    let server = serve("").await;
    let response = play(&server, "a.example", "0s check | 12s check | 59s peek | 60s check").await;
    assert_eq!(response, "proceed | wait 48000 (lease) | wait 1000 (lease) | proceed");
    server.advance(secs(12)).await;
    let waits = server.check("a.example").await;
    let reason = "a permit given out 12s ago has not been recorded; its lease ends in 48s";
    assert_eq!((&waits["reason"], &waits["origin"]), (&json!(reason), &json!("rule")));
    let explained = server.get("/v1/domains/a.example/explain").await.ok();
    assert_eq!(
        (&explained["constraints"][0]["limit"], &explained["wait_ms"]),
        (&json!("lease"), &json!(48_000))
    );
}

/// B80
#[tokio::test]
async fn a_lease_can_be_requested_renewed_and_returned() {
    let server = serve("").await;
    let granted = ask(&server, "/v1/check", json!({ "domain": "a.example", "lease_ms": 300_000 })).await;
    assert_eq!(granted["lease_ms"], 300_000);
    assert_eq!(decided(&server.check("a.example").await), "wait 300000 (lease)");
    server.advance(secs(290)).await;
    let renewed = ask(&server, "/v1/renew", json!({ "permit": granted["permit"] })).await;
    assert_eq!(renewed, json!({ "domain": "a.example", "renewed": true, "lease_ms": 60_000 }));
    assert_eq!(decided(&server.check("a.example").await), "wait 60000 (lease)");
    let given_back = server.record(json!({ "permit": granted["permit"], "outcome": "abandoned" })).await;
    assert_eq!((&given_back["standing"], &given_back["wait_ms"]), (&json!("fresh"), &json!(0)));
    let gone = ask(&server, "/v1/renew", json!({ "permit": granted["permit"], "lease_ms": 1 })).await;
    assert_eq!(gone, json!({ "domain": "a.example", "renewed": false, "lease_ms": 0 }));
    let next = json!({ "domain": "a.example", "lease_ms": 1_000, "max_wait_ms": 0 });
    assert_eq!(ask(&server, "/v1/acquire", next).await["lease_ms"], 1_000);
    server.advance(secs(1)).await;
    let batch =
        json!({ "checks": [{ "domain": "a.example", "lease_ms": 5_000 }, { "domain": "b.example" }] });
    let results = ask(&server, "/v1/check/batch", batch).await["results"].clone();
    assert_eq!((&results[0]["lease_ms"], &results[1]["lease_ms"]), (&json!(5_000), &json!(60_000)));
}

/// B71, B80
#[tokio::test]
async fn leases_outside_the_limits_are_refused() {
    let server = serve("").await;
    let permit = server.permit("a.example").await;
    for (path, body, field) in [
        ("/v1/check", json!({ "domain": "a.example", "lease_ms": 600_001 }), "lease_ms"),
        ("/v1/acquire", json!({ "domain": "a.example", "lease_ms": 0 }), "lease_ms"),
        (
            "/v1/check/batch",
            json!({ "checks": [{ "domain": "a.example", "lease_ms": 600_001 }] }),
            "checks[0].lease_ms",
        ),
        ("/v1/renew", json!({ "permit": permit, "lease_ms": 600_001 }), "lease_ms"),
        ("/v1/renew", json!({ "permit": "p1.made-up" }), "permit"),
        ("/v1/renew", json!({ "permit": permit, "lease_ms": "long" }), "lease_ms"),
    ] {
        let problem = server.post(path, body).await.problem(422);
        assert_eq!(problem["field"], field, "{path}");
    }
    let problem =
        server.post("/v1/check", json!({ "domain": "b.example", "lease_ms": 600_001 })).await.problem(422);
    assert_eq!(problem["detail"], "lease_ms = 600001: expected milliseconds from 1 to 600000");
    let long = json!({ "domain": "b.example", "lease_ms": 600_000 });
    assert_eq!(decided(&ask(&server, "/v1/check", long).await), "proceed");
}

/// B39, B80: releasing permits frees the site, and forgets nothing.
#[tokio::test]
async fn an_operator_releases_permits() {
    let server = serve("").await;
    server.post("/v1/domains/a.example/release", json!({})).await.problem(404);
    play(&server, "a.example", "0s check A | 100ms 429 of A | 10s check B").await;
    assert_eq!(decided(&server.check("a.example").await), "wait 60000 (lease)");
    let waiting = server.post_request("/v1/acquire", &json!({ "domain": "a.example" })).send();
    let releasing = async {
        while server.get("/v1/domains/a.example").await.ok()["live"]["waiting"] != 1 {}
        server.advance(secs(3)).await;
        server.post("/v1/domains/a.example/release", json!({})).await.ok()
    };
    let (waited, released) = tokio::join!(waiting, releasing);
    assert_eq!((&released["domain"], &released["released"]), (&json!("a.example"), &json!(1)));
    assert_eq!(decided(&waited.ok()), "proceed", "the caller in line proceeds");
    let shown = server.get("/v1/domains/a.example").await.ok();
    assert_eq!((&shown["adaptive_delay_seconds"], &shown["live"]["penalties"]), (&json!(2.0), &json!(1)));
    let again = server.post("/v1/domains/a.example/release", json!({})).await.ok();
    assert_eq!(again["released"], 1, "the permit of the caller that waited");
}

/// B80: after a clean restart, outstanding permits are known.
#[tokio::test]
async fn leases_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let toml = store_in(folder.path());
    let server = serve(&toml).await;
    let permit = server.permit("a.example").await;
    server.advance(secs(5)).await;
    server.stop().await;
    let server = serve_with_clock(config(&toml), server.clock.clone(), server.clock_control()).await.unwrap();
    assert_eq!(decided(&server.check("a.example").await), "wait 55000 (lease)");
    server.record(json!({ "permit": permit, "status": 200 })).await;
    server.advance(ms(1_000)).await;
    assert_eq!(decided(&server.check("a.example").await), "proceed");
}

async fn ask(server: &TestServer, path: &str, body: Value) -> Value {
    server.post(path, body).await.ok()
}

//! Recording the outcome of a request.

use serde_json::{Value, json};

use crate::script::{decided, play, recorded, seconds_since_start};
use crate::server::{COLLECTOR, TestServer, ms, secs, serve};

/// B25
#[tokio::test]
async fn recording_a_permit_twice_is_harmless() {
    let server = serve(COLLECTOR).await;
    let permit = server.permit("a.example").await;
    let first = server.record(json!({ "permit": permit, "outcome": "server_error" })).await;
    assert_eq!(recorded(&first), "fresh, held to 5s");
    assert_eq!(
        (&first["domain"], &first["outcome"], &first["wait_ms"]),
        (&json!("a.example"), &json!("server_error"), &json!(5_000))
    );
    for _ in 0..3 {
        let again = server.record(json!({ "permit": permit, "status": 429, "retry_after": 99 })).await;
        assert_eq!(recorded(&again), "repeated");
        assert_eq!(again["wait_ms"], 5_000, "nothing changed");
    }
    assert_eq!(server.get("/v1/domains/a.example").await.ok()["live"]["penalties"], 1);
}

/// B20, B21, B27: values may be numbers, text or dates, in a field of their own or among the headers.
#[tokio::test]
async fn retry_after_and_rate_limit_headers_are_understood() {
    let far = "Mon, 16 Nov 2026 10:02:00 GMT";
    let cases: &[(Value, f64)] = &[
        (json!({ "status": 429, "retry_after": 120 }), 120.0),
        (json!({ "status": 429, "retry_after": "120" }), 120.0),
        (json!({ "status": 429, "retry_after": 1.5 }), 1.5),
        (json!({ "status": 429, "retry_after": "1.5" }), 1.5),
        (json!({ "status": 429, "retry_after": far }), 120.0),
        (json!({ "status": 429, "headers": { "Retry-After": "120" } }), 120.0),
        (
            json!({ "status": 429, "headers": { "RETRY-AFTER": far, "Date": "Mon, 16 Nov 2026 10:01:00 GMT" } }),
            60.0,
        ),
        (json!({ "outcome": "rate_limited", "retry_after": "120" }), 120.0),
        (json!({ "status": 503, "retry_after": 7 }), 7.0),
        (json!({ "status": 200, "retry_after": 9 }), 9.0),
        (json!({ "status": 429, "retry_after": 90_000_000 }), 86_400.0),
        (json!({ "status": 429, "retry_after": -5 }), 60.0),
        (json!({ "status": 429, "retry_after": 0 }), 60.0),
        (json!({ "status": 429, "retry_after": "soon" }), 60.0),
        (json!({ "status": 429, "retry_after": "" }), 60.0),
        (json!({ "status": 429, "retry_after": 1e300 }), 86_400.0),
        (json!({ "status": 200, "ratelimit": "\"default\";r=0;t=45" }), 45.0),
        (
            json!({ "status": 200, "headers": { "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30" } }),
            30.0,
        ),
        (
            json!({ "status": 200, "headers": { "RateLimit-Remaining": "0", "RateLimit-Reset": "20", "RateLimit-Limit": "9" } }),
            20.0,
        ),
    ];
    for (what, held) in cases {
        let server = serve(COLLECTOR).await;
        let permit = server.permit("a.example").await;
        let mut record = what.clone();
        record["permit"] = permit.into();
        let response = server.record(record).await;
        assert_eq!(seconds_since_start(&response["held_until"]), Some(*held), "{what}: {response}");
        assert_eq!(server.check("a.example").await["wait_ms"], held * 1_000.0, "{what}");
    }
}

/// B27
#[tokio::test]
async fn a_remaining_quota_is_spread_until_its_reset() {
    for what in [
        json!({ "ratelimit": "\"default\";r=4;t=60" }),
        json!({ "headers": { "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "60", "Server": "nginx" } }),
    ] {
        let server = serve(COLLECTOR).await;
        let mut record = what.clone();
        record["permit"] = server.permit("a.example").await.into();
        record["status"] = 200.into();
        let response = server.record(record).await;
        assert_eq!(response["wait_ms"], 15_000, "{what}");
        assert_eq!(
            play(&server, "a.example", "14999ms check | 15s check").await,
            "wait 1 (quota) | proceed",
            "{what}"
        );
    }
}

/// B27
#[tokio::test]
async fn a_malformed_quota_is_ignored() {
    for headers in [
        json!({ "X-RateLimit-Remaining": "many", "X-RateLimit-Reset": "60" }),
        json!({ "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "tomorrow" }),
        json!({ "RateLimit": "…" }),
        json!({}),
        json!({ "X-Other": "\u{0}\r\n" }),
    ] {
        let server = serve(COLLECTOR).await;
        let permit = server.permit("a.example").await;
        let response = server.record(json!({ "permit": permit, "status": 200, "headers": headers })).await;
        assert_eq!(
            (recorded(&response), &response["wait_ms"]),
            ("fresh".to_owned(), &json!(1_000)),
            "{headers}"
        );
    }
}

/// B24
#[tokio::test]
async fn a_status_is_classified() {
    let server = serve(COLLECTOR).await;
    for (status, outcome) in [
        (200, "success"),
        (304, "success"),
        (302, "success"),
        (404, "answered"),
        (401, "answered"),
        (410, "answered"),
        (403, "blocked"),
        (429, "rate_limited"),
        (503, "unavailable"),
        (500, "server_error"),
        (599, "server_error"),
        (600, "server_error"),
        (999, "server_error"),
        (100, "network_error"),
    ] {
        let response =
            server.record(json!({ "domain": format!("s{status}.example"), "status": status })).await;
        assert_eq!(response["outcome"], outcome, "{status}");
    }
    for outcome in [
        "success",
        "answered",
        "rate_limited",
        "blocked",
        "unavailable",
        "server_error",
        "timeout",
        "network_error",
    ] {
        let response = server.record(json!({ "domain": "o.example", "outcome": outcome })).await;
        assert_eq!(response["outcome"], outcome);
    }
}

/// B25
#[tokio::test]
async fn a_latency_only_moves_the_start_later() {
    for (took, at) in [(300, 1_500), (0, 1_800), (800, 1_000), (5_000, 1_000), (86_400_000, 1_000)] {
        let server = serve(COLLECTOR).await;
        let script =
            format!("0s check A | 800ms success of A took={took} | {}ms check | {at}ms check", at - 1);
        assert_eq!(
            play(&server, "a.example", &script).await,
            "proceed | fresh | wait 1 (min_delay) | proceed",
            "{took}"
        );
    }
}

/// B25: requests of other intents stay open.
#[tokio::test]
async fn without_a_permit_the_oldest_request_of_the_intent_is_settled() {
    let server = serve(COLLECTOR).await;
    assert_eq!(
        play(&server, "a.example", "0s check A | 1s check search B | 2s check C").await,
        "proceed | proceed | proceed"
    );
    let response =
        server.record(json!({ "domain": "a.example", "intent": "search", "outcome": "success" })).await;
    assert_eq!(recorded(&response), "fresh");
    assert_eq!(in_flight(&server, "a.example").await, 2);
    server.record(json!({ "url": "https://a.example/x", "outcome": "success" })).await;
    server.record(json!({ "url": "https://www.a.example/y", "outcome": "success" })).await;
    assert_eq!(in_flight(&server, "a.example").await, 0);
    // No request is open any more, so this one was sent without asking and is charged now.
    server.record(json!({ "domain": "a.example", "outcome": "success" })).await;
    assert_eq!(decided(&server.check("a.example").await), "wait 1000 (min_delay)");
}

/// B25, B80: a permit that is never recorded counts as in flight until its lease ends. Its slot is not refunded.
#[tokio::test]
async fn a_permit_expires_and_its_slot_stays_charged() {
    let server =
        serve("[default]\nmin_delay = \"1s\"\nin_flight = 1\nburst = 2\nburst_window = \"20m\"\n").await;
    let permit = server.permit("a.example").await;
    assert_eq!(
        play(&server, "a.example", "1s check | 59999ms check | 60s check B | 61s success of B | 61s check")
            .await,
        "wait 59000 (lease) | wait 1 (lease) | proceed | fresh | wait 1139000 (burst)"
    );
    // The lease has ended, but the response still counts.
    let late = server.record(json!({ "permit": permit, "status": 429, "retry_after": 1_000 })).await;
    assert_eq!(recorded(&late), "fresh, held to 1061s");
    let again = server.record(json!({ "permit": permit, "status": 429, "retry_after": 5_000 })).await;
    assert_eq!(recorded(&again), "repeated", "once is enough");
}

/// B25, B75
#[tokio::test]
async fn a_forged_permit_is_refused() {
    let (server, other) = (serve(COLLECTOR).await, serve(COLLECTOR).await);
    let strange = other.permit("a.example").await;
    for permit in [strange.as_str(), "p1.", "", "p1.AAAA", "nonsense"] {
        let refused = server.post("/v1/record", json!({ "permit": permit, "outcome": "success" })).await;
        let problem = refused.problem(422);
        assert_eq!(problem["field"], "permit");
        assert!(permit.is_empty() || permit == "p1." || !refused.text().contains(permit), "{problem}");
    }
}

/// B39: while pinned, a response doesn't change the learned delay, but a hold still applies.
#[tokio::test]
async fn a_429_raises_the_learned_delay_unless_it_is_pinned() {
    let server = serve("profile = \"crawler\"\n").await;
    let response = server.record(json!({ "domain": "a.example", "status": 429 })).await;
    assert_eq!(response["adaptive_delay_seconds"], 1.5);
    server.advance(secs(10)).await;
    server.patch("/v1/domains/a.example", json!({ "pinned": true })).await.ok();
    let response = server.record(json!({ "domain": "a.example", "status": 429, "retry_after": 30 })).await;
    assert_eq!(
        (&response["adaptive_delay_seconds"], seconds_since_start(&response["held_until"])),
        (&Value::Null, Some(40.0))
    );
    server.advance(ms(1)).await;
    assert_eq!(decided(&server.check("a.example").await), "wait 29999 (retry_after)");
}

async fn in_flight(server: &TestServer, domain: &str) -> u64 {
    server.get(&format!("/v1/domains/{domain}")).await.ok()["live"]["in_flight"].as_u64().unwrap()
}

/// B15: no rule matches the group itself, so its hosts used to wait by the rule of `[default]`.
#[tokio::test]
async fn a_host_in_a_group_waits_by_its_own_rule() {
    let server = serve(
        "[default]\nmin_delay = \"1s\"\n[domains.\"a.example\"]\ngroup = \"press\"\nmin_delay = \"30s\"\n\
         [domains.\"b.example\"]\ngroup = \"press\"\nmin_delay = \"20s\"\n",
    )
    .await;
    let permit = server.permit("a.example").await;
    let response = server.record(json!({ "permit": permit, "status": 200 })).await;
    assert_eq!((&response["domain"], &response["wait_ms"]), (&json!("group:press"), &json!(30_000)));
    assert_eq!(decided(&server.check("a.example").await), "wait 30000 (min_delay)");
    let shown = server.get("/v1/domains/a.example").await.ok();
    assert_eq!((&shown["live"]["spacing_ms"], &shown["live"]["wait_ms"]), (&json!(30_000), &json!(30_000)));
    assert_eq!(server.metric("comity_domain_delay_seconds{domain=\"group:press\"}").await, 30.0);
    assert_eq!(server.metric("comity_domain_backoff_seconds{domain=\"group:press\"}").await, 30.0);
}

/// B39: a pause was missing from the wait that `record` returns, and from the metrics.
#[tokio::test]
async fn a_pause_is_included_in_the_reported_wait() {
    let server = serve(COLLECTOR).await;
    let permit = server.permit("a.example").await;
    server.patch("/v1/domains/a.example", json!({ "paused_until": "2026-11-16T11:00:00Z" })).await.ok();
    let response = server.record(json!({ "permit": permit, "status": 200 })).await;
    assert_eq!((recorded(&response), &response["wait_ms"]), ("fresh".to_owned(), &json!(3_600_000)));
    assert_eq!(server.metric("comity_domain_backoff_seconds{domain=\"a.example\"}").await, 3_600.0);
    server.patch("/v1/domains/a.example", json!({ "paused": true })).await.ok();
    assert_eq!(server.get("/v1/domains/a.example").await.ok()["live"]["wait_ms"], 60_000, "until resumed");
}

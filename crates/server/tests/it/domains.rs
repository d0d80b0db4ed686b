//! Inspecting and controlling domains.

use serde_json::{Value, json};

use crate::script::{decided, play};
use crate::server::{COLLECTOR, TestServer, ms, secs, serve};

#[tokio::test]
async fn domains_are_listed_by_name_page_by_page() {
    let server = serve(COLLECTOR).await;
    assert_eq!(server.get("/v1/domains").await.ok(), json!({ "domains": [], "next": null }));
    for name in ["c.example", "a.example", "d.other", "b.example", "e.example"] {
        server.check(name).await;
    }
    let (all, next) = page(&server, "").await;
    assert_eq!(
        (all.join(" "), next),
        ("a.example b.example c.example d.other e.example".to_owned(), Value::Null)
    );
    let (first, next) = page(&server, "limit=2").await;
    assert_eq!((first.join(" "), &next), ("a.example b.example".to_owned(), &json!("b.example")));
    let (second, next) = page(&server, "limit=2&after=b.example").await;
    assert_eq!((second.join(" "), &next), ("c.example d.other".to_owned(), &json!("d.other")));
    let (last, next) = page(&server, "limit=2&after=d.other").await;
    assert_eq!((last.join(" "), next), ("e.example".to_owned(), Value::Null));
    let (exactly, next) = page(&server, "limit=5").await;
    assert_eq!((exactly.len(), next), (5, Value::Null), "a full last page has no next");
    let (like, _) = page(&server, "like=other").await;
    assert_eq!(like, ["d.other"]);
    for like in ["%25", "_", "*", "%27", "nothing"] {
        assert!(page(&server, &format!("like={like}")).await.0.is_empty(), "{like}");
    }
}

#[tokio::test]
async fn page_sizes_outside_the_limits_are_refused() {
    let server = serve(COLLECTOR).await;
    for limit in ["0", "1001"] {
        let problem = server.get(&format!("/v1/domains?limit={limit}")).await.problem(422);
        assert_eq!((&problem["field"], &problem["value"]), (&json!("limit"), &json!(limit)));
    }
    for query in ["limit=many", "limit=-1", "nonsense=1", "limit=99999999999999999999"] {
        server.get(&format!("/v1/domains?{query}")).await.problem(422);
    }
}

/// B39
#[tokio::test]
async fn a_domain_is_shown_as_it_is_now() {
    let server = serve("profile = \"crawler\"\n").await;
    server.get("/v1/domains/a.example").await.problem(404);
    play(&server, "a.example", "0s check A | 100ms 429 of A after=30 | 200ms peek").await;
    let shown = server.get("/v1/domains/A.example.").await.ok();
    assert_eq!(
        shown,
        json!({
            "domain": "a.example", "adaptive_delay_seconds": 1.5, "adaptive_delay_floor_seconds": 0.0,
            "as_of": "2026-11-16T10:00:00.2Z", "pinned": false, "paused": false, "paused_until": null, "server_until": "2026-11-16T10:00:30.1Z",
            "holder": shown["holder"], "tasks_waiting": 0,
            "live": {
                "spacing_ms": 1_500, "wait_ms": 29_900, "next_available": "2026-11-16T10:00:30.1Z", "in_flight": 0,
                "waiting": 0, "penalties": 1,
                "success_streak": 0, "error_streak": 1, "last_request": "2026-11-16T10:00:00Z",
                "last_success": null,
            },
        })
    );
    assert!(shown["holder"].as_str().unwrap().starts_with("serve, pid "), "{shown}");
    server.get("/v1/domains/www.a.example").await.ok();
    server.get("/v1/domains/b.a.example").await.problem(404);
    server.get("/v1/domains/%20").await.problem(422);
    server.get("/v1/domains/%ff").await.problem(404);
}

/// B39
#[tokio::test]
async fn the_learned_delay_can_be_set_and_reset() {
    let server = serve("profile = \"crawler\"\n").await;
    let set = json!({ "adaptive_delay_seconds": 6.25, "adaptive_delay_floor_seconds": 2 });
    let shown = server.patch("/v1/domains/a.example", set).await.ok();
    assert_eq!(
        (&shown["adaptive_delay_seconds"], &shown["adaptive_delay_floor_seconds"]),
        (&json!(6.25), &json!(2.0))
    );
    assert_eq!(play(&server, "a.example", "0s check | 0s check").await, "proceed | wait 6250 (learned)");
    let shown = server.delete("/v1/domains/a.example").await.ok();
    assert_eq!(
        (&shown["adaptive_delay_seconds"], &shown["adaptive_delay_floor_seconds"]),
        (&json!(0.0), &json!(0.0))
    );
    assert_eq!(decided(&server.check("a.example").await), "wait 500 (min_delay)", "the pace stays charged");
    server.delete("/v1/domains/unknown.example").await.problem(404);
}

/// B39, B37: our own guesses are forgotten, the server's `Retry-After` is not.
#[tokio::test]
async fn a_reset_keeps_deadlines_the_server_stated() {
    let server = serve(COLLECTOR).await;
    play(&server, "guess.example", "0s 500").await;
    play(&server, "said.example", "0s 429 after=100").await;
    server.delete("/v1/domains/guess.example").await.ok();
    server.delete("/v1/domains/said.example").await.ok();
    assert_eq!(decided(&server.check("guess.example").await), "wait 1000 (min_delay)");
    assert_eq!(decided(&server.check("said.example").await), "wait 100000 (retry_after)");
}

/// B39
#[tokio::test]
async fn a_domain_is_paused_and_resumed() {
    let server = serve(COLLECTOR).await;
    let shown = server.patch("/v1/domains/a.example", json!({ "paused": true })).await.ok();
    assert_eq!((&shown["paused"], &shown["paused_until"]), (&json!(true), &Value::Null));
    let response = server.check("a.example").await;
    assert_eq!(
        (decided(&response), &response["refused"], &response["origin"]),
        ("wait 60000 (paused)".to_owned(), &json!(true), &json!("operator"))
    );
    assert_eq!(response["reason"], "paused by an operator until resumed");
    let explained = server.get("/v1/domains/a.example/explain").await.ok();
    assert_eq!(
        (&explained["constraints"][0]["limit"], &explained["constraints"][0]["until"]),
        (&json!("paused"), &Value::Null)
    );
    let shown = server.patch("/v1/domains/a.example", json!({ "paused": false })).await.ok();
    assert_eq!(shown["paused"], false);
    assert_eq!(decided(&server.check("a.example").await), "proceed");
}

/// B39
#[tokio::test]
async fn a_pause_with_an_end_time_ends_automatically() {
    let server = serve(COLLECTOR).await;
    let until = json!({ "paused_until": "2026-11-16T10:05:00Z" });
    let shown = server.patch("/v1/domains/a.example", until).await.ok();
    assert_eq!((&shown["paused"], &shown["paused_until"]), (&json!(true), &json!("2026-11-16T10:05:00Z")));
    let response = server.check("a.example").await;
    assert_eq!(
        (decided(&response), &response["refused"]),
        ("wait 300000 (paused)".to_owned(), &json!(false))
    );
    server.until(ms(299_999)).await;
    assert_eq!(decided(&server.check("a.example").await), "wait 1 (paused)");
    server.until(secs(300)).await;
    assert_eq!(decided(&server.check("a.example").await), "proceed");
    let shown = server.get("/v1/domains/a.example").await.ok();
    assert_eq!(shown["paused"], false);
    assert_eq!(shown["paused_until"], Value::Null, "a pause that is over is not shown");
}

#[tokio::test]
async fn invalid_changes_are_refused() {
    let server = serve(COLLECTOR).await;
    for (change, field) in [
        (json!({ "adaptive_delay_seconds": -1 }), "adaptive_delay_seconds"),
        (json!({ "adaptive_delay_seconds": 86_401 }), "adaptive_delay_seconds"),
        (json!({ "adaptive_delay_seconds": "6" }), "adaptive_delay_seconds"),
        (json!({ "adaptive_delay_floor_seconds": -0.5 }), "adaptive_delay_floor_seconds"),
        (json!({ "pinned": "yes" }), "pinned"),
        (json!({ "paused": null }), "paused"),
        (json!({ "paused_until": "tomorrow" }), "paused_until"),
        (json!({ "paused": false, "paused_until": "2026-11-16T10:05:00Z" }), "paused_until"),
        (json!({ "min_delay": 3 }), "min_delay"),
    ] {
        let problem = server.patch("/v1/domains/a.example", change.clone()).await.problem(422);
        assert_eq!(problem["field"], field, "{change}: {problem}");
    }
    server.get("/v1/domains/a.example").await.problem(404);
}

/// B26
#[tokio::test]
async fn explain_respects_the_intent() {
    let server = serve("[default]\nintent.search.min_delay = \"10s\"\nin_flight = \"unlimited\"\n").await;
    play(&server, "a.example", "0s check search").await;
    let wait = async |intent: &str| {
        server.get(&format!("/v1/domains/a.example/explain{intent}")).await.ok()["wait_ms"].clone()
    };
    assert_eq!(
        (wait("").await, wait("?intent=search").await, wait("?intent=api").await),
        (json!(1_000), json!(10_000), json!(1_000))
    );
    server.get("/v1/domains/a.example/explain?intent=post").await.problem(422);
}

async fn page(server: &TestServer, query: &str) -> (Vec<String>, Value) {
    let page = server.get(&format!("/v1/domains?{query}")).await.ok();
    let name = |domain: &Value| domain["domain"].as_str().unwrap().to_owned();
    (page["domains"].as_array().unwrap().iter().map(name).collect(), page["next"].clone())
}

/// B39: only the operator's express command drops what the server asked for.
#[tokio::test]
async fn a_reset_drops_the_servers_deadline_only_if_told_to() {
    let server = serve("profile = \"crawler\"\n").await;
    play(&server, "a.example", "0s check A | 100ms 429 of A after=30 | 200ms peek").await;
    let kept = server.delete("/v1/domains/a.example").await.ok();
    assert_eq!(kept["server_until"], "2026-11-16T10:00:30.1Z", "{kept}");
    let dropped = server.delete("/v1/domains/a.example?deadline=true").await.ok();
    assert_eq!(dropped["server_until"], Value::Null, "{dropped}");
    server.delete("/v1/domains/a.example?deadline=perhaps").await.problem(422);
}

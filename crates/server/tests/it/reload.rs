//! Reloading the configuration without a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::acquire::{acquire, live_field, waiting};
use crate::events::{listen, listen_by};
use crate::script::{decided, play, recorded};
use crate::server::{
    TestResponse, TestServer, config, config_with_env, eventually, ms, permit, secs, serve, serve_with,
    store_in, with_timeout,
};

const SLOW: &str = "[default]\nmin_delay = \"10s\"\nin_flight = \"unlimited\"\nwait_on_429 = \"60s\"\n";
const SLOWER: &str = "[default]\nmin_delay = \"20s\"\nin_flight = \"unlimited\"\nwait_on_429 = \"60s\"\n";

/// B3, B37: nothing is forgotten, with the store on disk or in memory.
#[tokio::test]
async fn a_reload_changes_rules_and_keeps_paces() {
    let folder = tempfile::tempdir().unwrap();
    for store in [store_in(folder.path()), String::new()] {
        let server = serve(&format!("{store}{SLOW}")).await;
        let permit = server.permit("a.example").await;
        play(&server, "guess.example", "0s 429").await;
        play(&server, "said.example", "0s 429 after=100").await;
        server
            .patch("/v1/domains/set.example", json!({ "adaptive_delay_seconds": 30, "pinned": true }))
            .await
            .ok();
        server.advance(secs(1)).await;
        server.reload(config(&format!("{store}{SLOWER}"))).await.unwrap();
        assert_eq!(decided(&server.check("a.example").await), "wait 19000 (min_delay)", "{store}");
        assert_eq!(decided(&server.check("guess.example").await), "wait 59000 (wait_on_429)", "{store}");
        assert_eq!(decided(&server.check("said.example").await), "wait 99000 (retry_after)", "{store}");
        let shown = server.get("/v1/domains/set.example").await.ok();
        assert_eq!((&shown["adaptive_delay_seconds"], &shown["pinned"]), (&json!(30.0), &json!(true)));
        let response = server.record(json!({ "permit": permit, "outcome": "success" })).await;
        assert_eq!(recorded(&response), "fresh", "{store}");
    }
}

/// B11, B12: callers stay in line, in order, and the new rules apply to them.
#[tokio::test]
async fn callers_in_line_keep_waiting_across_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    for store in [store_in(folder.path()), String::new()] {
        let server = Arc::new(serve(&format!("{store}{SLOW}")).await);
        server.permit("a.example").await;
        let first = acquire(&server, "a.example");
        waiting(&server, "a.example", 1).await;
        server.advance(secs(1)).await;
        let second = acquire(&server, "a.example");
        waiting(&server, "a.example", 2).await;
        server.reload(config(&format!("{store}{SLOWER}"))).await.unwrap();
        // The second caller of a domain that is being taken looks again after half a second of virtual time.
        for _ in 0..1_000 {
            if live_field(&server, "a.example", "waiting").await == 2 {
                break;
            }
            server.advance(ms(5)).await;
        }
        waiting(&server, "a.example", 2).await;
        server.until(secs(19)).await;
        assert!(!first.is_finished() && !second.is_finished());
        server.until(secs(20)).await;
        let decision = first.await.unwrap();
        assert_eq!(
            (decided(&decision), &decision["waited_ms"]),
            ("proceed".to_owned(), &json!(20_000)),
            "{store}"
        );
        assert!(!second.is_finished());
        server.until(secs(40)).await;
        assert_eq!(decided(&second.await.unwrap()), "proceed");
    }
}

#[tokio::test]
async fn a_reload_changes_tokens() {
    let tokens = |tokens: &str| config_with_env(SLOW, &[("COMITY_SERVE_TOKENS", tokens)]);
    let (old, new) = ("a-token-that-was-known", "a-token-that-is-known");
    let server = serve_with(tokens(&format!("admin:{old}"))).await.with_token(old);
    server.permit("a.example").await;
    server.reload(tokens(&format!("admin:{new}"))).await.unwrap();
    server.get("/v1/domains").await.problem(401);
    let server = server.with_token(new);
    assert_eq!(decided(&server.check("a.example").await), "wait 10000 (min_delay)");
}

/// A token that is removed, or gets another role, loses its streams and waits. Those of other tokens continue.
#[tokio::test]
async fn revoking_a_token_ends_its_streams_and_waits() {
    let tokens = |tokens: &str| config_with_env(SLOW, &[("COMITY_SERVE_TOKENS", tokens)]);
    let (kept, gone, changed) = ("a-token-that-stays", "a-token-that-goes", "a-token-that-changes");
    let server = serve_with(tokens(&format!("use:{kept},use:{gone},admin:{changed}"))).await.with_token(kept);
    let mut stays = listen_by(&server, kept).await;
    let mut ends = [listen_by(&server, gone).await, listen_by(&server, changed).await];
    let server = Arc::new(server);
    server.permit("a.example").await;
    let line: Vec<_> = [kept, gone, changed].map(|token| waits(&server, token, None)).into();
    let keyed = waits(&server, gone, Some("a-key"));
    waiting(&server, "a.example", 4).await;
    server.reload(tokens(&format!("use:{kept},use:{changed}"))).await.unwrap();
    for events in &mut ends {
        with_timeout("the end of a stream", async { while events.more().await {} }).await;
    }
    let mut line = line.into_iter();
    let waits_on = line.next().unwrap();
    for refused in line.chain([keyed]) {
        refused.await.unwrap().problem(401);
    }
    assert!(!waits_on.is_finished());
    // The remaining caller is first in line, and its stream still gets events.
    waiting(&server, "a.example", 1).await;
    server.until(secs(10)).await;
    assert_eq!(decided(&waits_on.await.unwrap().ok()), "proceed");
    for _ in 0..2 {
        assert_eq!(stays.next("granted").await, json!({ "domain": "a.example" }));
    }
}

/// Without tokens everybody has access. With the first token, callers without one lose it.
#[tokio::test]
async fn adding_the_first_token_ends_streams_opened_without_one() {
    let server = serve(SLOW).await;
    let mut events = listen(&server).await;
    server
        .reload(config_with_env(SLOW, &[("COMITY_SERVE_TOKENS", "use:a-token-that-is-new")]))
        .await
        .unwrap();
    with_timeout("the end of the stream", async { while events.more().await {} }).await;
}

/// Waits in line with this token.
fn waits(server: &Arc<TestServer>, token: &str, key: Option<&str>) -> JoinHandle<TestResponse> {
    let (server, token) = (server.clone(), format!("Bearer {token}"));
    let key = key.map(str::to_owned);
    tokio::spawn(async move {
        let ask = json!({ "domain": "a.example", "max_wait_ms": 60_000 });
        let mut ask = server.post_request("/v1/acquire", &ask).header("authorization", &token);
        if let Some(key) = &key {
            ask = ask.header("idempotency-key", key);
        }
        ask.send().await
    })
}

/// Losing a line of the configuration must not give everybody access.
#[tokio::test]
async fn a_reload_cannot_remove_all_tokens() {
    let token = "a-token-that-was-known";
    let tokens = format!("admin:{token}");
    let server = serve_with(config_with_env(SLOW, &[("COMITY_SERVE_TOKENS", &tokens)])).await;
    let error = server.reload(config(SLOW)).await.unwrap_err().to_string();
    assert!(error.starts_with("serve.tokens: removing all tokens would give everybody access"), "{error}");
    server.get("/v1/domains").await.problem(401);
}

#[tokio::test]
async fn an_invalid_configuration_changes_nothing() {
    let server = serve(SLOW).await;
    server.permit("a.example").await;
    let missing = config(&format!("{SLOWER}[serve]\ntokens_file = \"/nowhere/tokens\"\n"));
    server.reload(missing).await.unwrap_err();
    let elsewhere = config(&format!("store = \"sqlite:/nowhere/at/all/comity.db\"\n{SLOWER}"));
    server.reload(elsewhere).await.unwrap_err();
    continues_unchanged(&server).await;
}

#[tokio::test]
async fn requests_during_a_reload_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{}", store_in(folder.path()), SLOW.replace("10s", "10h"));
    let server = Arc::new(serve(&toml).await);
    server.permit("a.example").await;
    let answered = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = (0..4)
        .map(|who| {
            let (server, answered) = (server.clone(), answered.clone());
            tokio::spawn(async move {
                for nth in 0..30 {
                    let name = format!("w{who}n{nth}.example");
                    let decision = server.check(&name).await;
                    if decision["proceed"] == true {
                        let response =
                            server.record(json!({ "permit": permit(&decision), "status": 200 })).await;
                        assert_eq!(response["standing"], "fresh");
                    }
                    assert_eq!(server.peek("a.example").await["proceed"], false);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    while asking.iter().any(|one| !one.is_finished()) {
        let before = answered.load(Ordering::Relaxed);
        server.reload(config(&toml)).await.unwrap();
        // Between two reloads somebody makes progress. The clock advances for callers that have to look again, as
        // above.
        eventually("an answer", async || {
            server.advance(ms(20)).await;
            answered.load(Ordering::Relaxed) > before || asking.iter().all(JoinHandle::is_finished)
        })
        .await;
    }
    for one in asking {
        one.await.unwrap();
    }
    assert_eq!(server.check("a.example").await["limit"], "min_delay");
    assert_eq!(server.get("/readyz").await.status, 200);
}

async fn continues_unchanged(server: &TestServer) {
    assert_eq!(decided(&server.check("a.example").await), "wait 10000 (min_delay)");
    assert_eq!(server.get("/readyz").await.status, 200);
    server.until(secs(10)).await;
    assert_eq!(decided(&server.check("a.example").await), "proceed");
}

//! Another configuration, without a stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::acquire::{acquire, live, waiting};
use crate::events::{listen, listen_by};
use crate::script::{decided, play, recorded};
use crate::served::{
    Answer, Served, config, configured, eventually, ms, permit, secs, serve, serve_with, soon, store_in,
};

const SLOW: &str = "[default]\nmin_delay = \"10s\"\nin_flight = \"unlimited\"\nwait_on_429 = \"60s\"\n";
const SLOWER: &str = "[default]\nmin_delay = \"20s\"\nin_flight = \"unlimited\"\nwait_on_429 = \"60s\"\n";

/// B3, B37: in a file and in memory alike, nothing is forgotten.
#[tokio::test]
async fn rules_change_and_paces_stay() {
    let folder = tempfile::tempdir().unwrap();
    for store in [store_in(folder.path()), String::new()] {
        let served = serve(&format!("{store}{SLOW}")).await;
        let permit = served.permit("a.example").await;
        play(&served, "guess.example", "0s 429").await;
        play(&served, "said.example", "0s 429 after=100").await;
        served
            .patch("/v1/domains/set.example", json!({ "adaptive_delay_seconds": 30, "pinned": true }))
            .await
            .ok();
        served.advance(secs(1)).await;
        served.reload(config(&format!("{store}{SLOWER}"))).await.unwrap();
        assert_eq!(decided(&served.check("a.example").await), "wait 19000 (min_delay)", "{store}");
        assert_eq!(decided(&served.check("guess.example").await), "wait 59000 (wait_on_429)", "{store}");
        assert_eq!(decided(&served.check("said.example").await), "wait 99000 (retry_after)", "{store}");
        let shown = served.get("/v1/domains/set.example").await.ok();
        assert_eq!((&shown["adaptive_delay_seconds"], &shown["pinned"]), (&json!(30.0), &json!(true)));
        let told = served.record(json!({ "permit": permit, "outcome": "success" })).await;
        assert_eq!(recorded(&told), "fresh", "{store}");
    }
}

/// B11, B12: whoever waits goes on waiting, and goes by the new rules, in order.
#[tokio::test]
async fn whoever_waits_goes_on_waiting() {
    let folder = tempfile::tempdir().unwrap();
    for store in [store_in(folder.path()), String::new()] {
        let served = Arc::new(serve(&format!("{store}{SLOW}")).await);
        served.permit("a.example").await;
        let first = acquire(&served, "a.example");
        waiting(&served, "a.example", 1).await;
        served.advance(secs(1)).await;
        let second = acquire(&served, "a.example");
        waiting(&served, "a.example", 2).await;
        served.reload(config(&format!("{store}{SLOWER}"))).await.unwrap();
        // The second to ask for a domain that is being taken looks again after half a second by its clock.
        for _ in 0..1_000 {
            if live(&served, "a.example", "waiting").await == 2 {
                break;
            }
            served.advance(ms(5)).await;
        }
        waiting(&served, "a.example", 2).await;
        served.until(secs(19)).await;
        assert!(!first.is_finished() && !second.is_finished());
        served.until(secs(20)).await;
        let decision = first.await.unwrap();
        assert_eq!(
            (decided(&decision), &decision["waited_ms"]),
            ("proceed".to_owned(), &json!(20_000)),
            "{store}"
        );
        assert!(!second.is_finished());
        served.until(secs(40)).await;
        assert_eq!(decided(&second.await.unwrap()), "proceed");
    }
}

#[tokio::test]
async fn tokens_change() {
    let tokens = |tokens: &str| configured(SLOW, &[("COMITY_SERVE_TOKENS", tokens)]);
    let (old, new) = ("a-token-that-was-known", "a-token-that-is-known");
    let served = serve_with(tokens(&format!("admin:{old}"))).await.by(old);
    served.permit("a.example").await;
    served.reload(tokens(&format!("admin:{new}"))).await.unwrap();
    served.get("/v1/domains").await.refused(401);
    let served = served.by(new);
    assert_eq!(decided(&served.check("a.example").await), "wait 10000 (min_delay)");
}

/// What was opened with a token that is gone, or has another role, ends; what others opened goes on.
#[tokio::test]
async fn a_revoked_token_ends_what_it_opened() {
    let tokens = |tokens: &str| configured(SLOW, &[("COMITY_SERVE_TOKENS", tokens)]);
    let (kept, gone, changed) = ("a-token-that-stays", "a-token-that-goes", "a-token-that-changes");
    let served = serve_with(tokens(&format!("use:{kept},use:{gone},admin:{changed}"))).await.by(kept);
    let mut stays = listen_by(&served, kept).await;
    let mut ends = [listen_by(&served, gone).await, listen_by(&served, changed).await];
    let served = Arc::new(served);
    served.permit("a.example").await;
    let line: Vec<_> = [kept, gone, changed].map(|token| waits(&served, token, None)).into();
    let keyed = waits(&served, gone, Some("a-key"));
    waiting(&served, "a.example", 4).await;
    served.reload(tokens(&format!("use:{kept},use:{changed}"))).await.unwrap();
    for events in &mut ends {
        soon("the end of a stream", async { while events.more().await {} }).await;
    }
    let mut line = line.into_iter();
    let waits_on = line.next().unwrap();
    for refused in line.chain([keyed]) {
        refused.await.unwrap().refused(401);
    }
    assert!(!waits_on.is_finished());
    // Whoever is left is the first in line, and hears of it.
    waiting(&served, "a.example", 1).await;
    served.until(secs(10)).await;
    assert_eq!(decided(&waits_on.await.unwrap().ok()), "proceed");
    for _ in 0..2 {
        assert_eq!(stays.next("granted").await, json!({ "domain": "a.example" }));
    }
}

/// Without tokens everybody may ask; with the first one, those who have none may not.
#[tokio::test]
async fn the_first_token_ends_what_was_opened_without_one() {
    let served = serve(SLOW).await;
    let mut events = listen(&served).await;
    served.reload(configured(SLOW, &[("COMITY_SERVE_TOKENS", "use:a-token-that-is-new")])).await.unwrap();
    soon("the end of the stream", async { while events.more().await {} }).await;
}

/// Waits in line for the site, with a token of its own.
fn waits(served: &Arc<Served>, token: &str, key: Option<&str>) -> JoinHandle<Answer> {
    let (served, token) = (served.clone(), format!("Bearer {token}"));
    let key = key.map(str::to_owned);
    tokio::spawn(async move {
        let ask = json!({ "domain": "a.example", "max_wait_ms": 60_000 });
        let mut ask = served.posting("/v1/acquire", &ask).header("authorization", &token);
        if let Some(key) = &key {
            ask = ask.header("idempotency-key", key);
        }
        ask.send().await
    })
}

/// Nobody is let in because a line was lost.
#[tokio::test]
async fn a_door_that_was_locked_stays_locked() {
    let token = "a-token-that-was-known";
    let tokens = format!("admin:{token}");
    let served = serve_with(configured(SLOW, &[("COMITY_SERVE_TOKENS", &tokens)])).await;
    let error = served.reload(config(SLOW)).await.unwrap_err().to_string();
    assert!(error.starts_with("serve.tokens: none is left"), "{error}");
    served.get("/v1/domains").await.refused(401);
}

/// What cannot be used leaves everything as it is.
#[tokio::test]
async fn a_configuration_that_cannot_be_used_changes_nothing() {
    let served = serve(SLOW).await;
    served.permit("a.example").await;
    let missing = config(&format!("{SLOWER}[serve]\ntokens_file = \"/nowhere/tokens\"\n"));
    served.reload(missing).await.unwrap_err();
    let elsewhere = config(&format!("store = \"sqlite:/nowhere/at/all/comity.db\"\n{SLOWER}"));
    served.reload(elsewhere).await.unwrap_err();
    goes_on(&served).await;
}

/// Requests that come while it changes are answered.
#[tokio::test]
async fn nobody_who_asks_meanwhile_is_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{}", store_in(folder.path()), SLOW.replace("10s", "10h"));
    let served = Arc::new(serve(&toml).await);
    served.permit("a.example").await;
    let answered = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = (0..4)
        .map(|who| {
            let (served, answered) = (served.clone(), answered.clone());
            tokio::spawn(async move {
                for nth in 0..30 {
                    let name = format!("w{who}n{nth}.example");
                    let decision = served.check(&name).await;
                    if decision["proceed"] == true {
                        let told = served.record(json!({ "permit": permit(&decision), "status": 200 })).await;
                        assert_eq!(told["standing"], "fresh");
                    }
                    assert_eq!(served.peek("a.example").await["proceed"], false);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    while asking.iter().any(|one| !one.is_finished()) {
        let before = answered.load(Ordering::Relaxed);
        served.reload(config(&toml)).await.unwrap();
        // Somebody gets on between two changes. As above: whoever comes second looks again by the clock.
        eventually("an answer", async || {
            served.advance(ms(20)).await;
            answered.load(Ordering::Relaxed) > before || asking.iter().all(JoinHandle::is_finished)
        })
        .await;
    }
    for one in asking {
        one.await.unwrap();
    }
    assert_eq!(served.check("a.example").await["limit"], "min_delay");
    assert_eq!(served.get("/readyz").await.status, 200);
}

async fn goes_on(served: &Served) {
    assert_eq!(decided(&served.check("a.example").await), "wait 10000 (min_delay)");
    assert_eq!(served.get("/readyz").await.status, 200);
    served.until(secs(10)).await;
    assert_eq!(decided(&served.check("a.example").await), "proceed");
}

//! Checks: the rules of requirements document 003, over HTTP.

use futures_util::future::join_all;
use serde_json::json;

use crate::script::{decided, play};
use crate::server::{COLLECTOR, config, ms, secs, serve};

/// B1, B2, B3
#[tokio::test]
async fn a_decision_says_whether_how_long_and_why() {
    let server = serve(COLLECTOR).await;
    let yes = server.check("finance.yahoo.com").await;
    assert!(yes["permit"].as_str().unwrap().starts_with("p1."));
    assert_eq!(
        yes,
        json!({
            "proceed": true, "wait_ms": 0, "reason": "nothing delays this request",
            "permit": yes["permit"], "lease_ms": 60_000, "domain": "finance.yahoo.com", "limit": null,
            "origin": null, "refused": false, "waited_ms": 0,
        })
    );
    server.advance(ms(520)).await;
    assert_eq!(
        server.check("finance.yahoo.com").await,
        json!({
            "proceed": false, "wait_ms": 1480, "reason": "minimum delay 2000 ms: last request 520 ms ago",
            "permit": null, "lease_ms": null, "domain": "finance.yahoo.com", "limit": "min_delay", "origin": "rule",
            "refused": false, "waited_ms": 0,
        })
    );
    server.advance(ms(1_480)).await;
    assert_eq!(
        server.check("finance.yahoo.com").await["proceed"],
        true,
        "one sleep of that length is enough"
    );
}

/// B1: a wait is rounded up to whole milliseconds, so that one sleep of that length is enough.
#[tokio::test]
async fn a_wait_is_never_too_short() {
    let server = serve(COLLECTOR).await;
    server.check("finance.yahoo.com").await;
    server.advance(comity::core::time::Span::from_micros(1_999_999)).await;
    assert_eq!(server.check("finance.yahoo.com").await["wait_ms"], 1);
}

/// B6, B16, B17: every row of requirements document 003, checked as early as possible.
#[tokio::test]
async fn each_row_of_the_table_enforces_its_delay_and_burst() {
    let rows = [
        ("finance.yahoo.com", 2, 3),
        ("reuters.com", 3, 2),
        ("shell.company-ir", 1, 5),
        ("eia.gov", 1, 10),
        ("elsewhere.example", 1, 5),
    ];
    for (domain, delay, burst) in rows {
        let server = serve(COLLECTOR).await;
        for nth in 0..burst {
            server.until(secs(delay * nth)).await;
            assert_eq!(decided(&server.check(domain).await), "proceed", "{domain}, {nth}");
            let then = server.check(domain).await;
            let (wait, limit) = match nth + 1 < burst {
                true => (delay * 1_000, "min_delay"),
                false => (60_000 - delay * nth * 1_000, "burst"),
            };
            assert_eq!(decided(&then), format!("wait {wait} ({limit})"), "{domain}, {nth}");
        }
        server.until(ms(59_999)).await;
        assert_eq!(decided(&server.check(domain).await), "wait 1 (burst)", "{domain}");
        server.until(secs(60)).await;
        assert_eq!(decided(&server.check(domain).await), "proceed", "{domain}");
    }
}

/// E1, B17
#[tokio::test]
async fn a_full_burst_waits_until_its_oldest_start_leaves_the_window() {
    let server = serve(COLLECTOR).await;
    let yahoo = "0s check | 2s check | 4s check | 4s check | 60s check | 62s check | 64s check | 64s check | 120s check";
    assert_eq!(
        play(&server, "finance.yahoo.com", yahoo).await,
        "proceed | proceed | proceed | wait 56000 (burst) | proceed | proceed | proceed | wait 56000 (burst) | proceed"
    );
    let server = serve(COLLECTOR).await;
    assert_eq!(
        play(&server, "reuters.com", "0s check | 3s check | 3500ms check | 60s check | 63s check").await,
        "proceed | proceed | wait 56500 (burst) | proceed | proceed"
    );
}

/// E2, B18, B24
#[tokio::test]
async fn backoff_and_burst_combine() {
    let server = serve(COLLECTOR).await;
    let script = "0s check | 400ms 500 | 1s check | 5400ms check | 15400ms timeout | 25400ms check | 25600ms 500 | \
                  25600ms check | 60s check | 60200ms success | 65399ms check | 65400ms check";
    assert_eq!(
        play(&server, "finance.yahoo.com", script).await,
        "proceed | fresh, held to 5.4s | wait 4400 (backoff) | proceed | fresh, held to 25.4s | proceed | \
         fresh, held to 45.6s | wait 34400 (burst) | proceed | fresh | wait 1 (burst) | proceed"
    );
}

/// E3, B20, B22, B23
#[tokio::test]
async fn late_responses_count_once() {
    for (late, held, wait) in
        [("429 of A", "late", 29_800), ("429 of A after=120", "late, held to 122.5s", 120_000)]
    {
        let server = serve(COLLECTOR).await;
        let script =
            format!("0s check A | 2s check B | 2300ms 429 of B after=30 | 2500ms {late} | 2500ms check");
        assert_eq!(
            play(&server, "finance.yahoo.com", &script).await,
            format!("proceed | proceed | fresh, held to 32.3s | {held} | wait {wait} (retry_after)")
        );
        let shown = server.get("/v1/domains/finance.yahoo.com").await.ok();
        assert_eq!(shown["live"]["penalties"], 1, "{shown}");
    }
}

/// E7, B20, B21
#[tokio::test]
async fn a_small_retry_after_does_not_shorten_the_learned_delay() {
    let cases = [
        ("1", "fresh, held to 101.2s", "wait 6800 (learned)"),
        ("90", "fresh, held to 190.2s", "wait 90000 (retry_after)"),
        ("0", "fresh, held to 107.2s", "wait 7000 (learned_hold)"),
        ("-5", "fresh, held to 107.2s", "wait 7000 (learned_hold)"),
        ("soon", "fresh, held to 107.2s", "wait 7000 (learned_hold)"),
    ];
    for (after, recorded, wait) in cases {
        let server = serve("profile = \"crawler\"\n").await;
        server.patch("/v1/domains/a.example", json!({ "adaptive_delay_seconds": 6 })).await.ok();
        let script = format!("100s check A | 100200ms 429 of A after={after} | 100200ms check");
        assert_eq!(
            play(&server, "a.example", &script).await,
            format!("proceed | {recorded} | {wait}"),
            "{after}"
        );
        let shown = server.get("/v1/domains/a.example").await.ok();
        assert_eq!(shown["adaptive_delay_seconds"], 7.0, "{after}");
    }
}

/// E12, B26
#[tokio::test]
async fn an_intent_has_its_own_delay_in_addition_to_the_domains() {
    let server = serve(
        "[default]\nmin_delay = \"3s\"\nin_flight = \"unlimited\"\nlearning = \"off\"\nintent.search.min_delay = \"10s\"\n",
    )
    .await;
    let script = "0s check search | 3s check | 6s check | 6s check search | 9s check | 9500ms check search | 12s check search";
    assert_eq!(
        play(&server, "a.example", script).await,
        "proceed | proceed | proceed | wait 4000 (intent_min_delay) | proceed | wait 2500 (min_delay) | proceed"
    );
}

/// B26
#[tokio::test]
async fn an_intents_burst_only_slows_that_intent() {
    let server = serve(
        "[default]\nmin_delay = \"1s\"\nin_flight = \"unlimited\"\nlearning = \"off\"\nintent.api.burst = 1\n",
    )
    .await;
    assert_eq!(
        play(
            &server,
            "a.example",
            "0s check api | 1s check api | 1s check | 2s check search | 60s check api"
        )
        .await,
        "proceed | wait 59000 (intent_burst) | proceed | proceed | proceed"
    );
}

/// B18
#[tokio::test]
async fn backoff_grows_as_each_row_says() {
    for domain in ["finance.yahoo.com", "reuters.com"] {
        let server = serve(COLLECTOR).await;
        assert_eq!(
            play(&server, domain, "0s 500 | 5s timeout | 15s 502 | 35s network_error | 75s 500 | 135s 500")
                .await,
            "fresh, held to 5s | fresh, held to 15s | fresh, held to 35s | fresh, held to 75s | \
             fresh, held to 135s | fresh, held to 195s",
            "{domain}"
        );
    }
    for domain in ["shell.company-ir", "elsewhere.example"] {
        let server = serve(COLLECTOR).await;
        assert_eq!(
            play(&server, domain, "0s 500 | 5s 503 | 15s 403 | 30s 500 | 50s 500 | 75s 500 | 105s 500").await,
            "fresh, held to 5s | fresh, held to 15s | fresh, held to 30s | fresh, held to 50s | \
             fresh, held to 75s | fresh, held to 105s | fresh, held to 135s",
            "{domain}"
        );
    }
    let server = serve(COLLECTOR).await;
    assert_eq!(
        play(&server, "eia.gov", "0s 500 | 0s check | 1s 500 | 2s check").await,
        "fresh | wait 1000 (min_delay) | fresh | proceed"
    );
}

/// B20
#[tokio::test]
async fn a_429_waits_for_retry_after_or_a_minute() {
    for domain in ["finance.yahoo.com", "shell.company-ir", "eia.gov", "elsewhere.example"] {
        let server = serve(COLLECTOR).await;
        assert_eq!(
            play(
                &server,
                domain,
                "0s check | 0s 429 | 0s check | 60s check | 60s 429 after=7 | 60s check | 67s check"
            )
            .await,
            "proceed | fresh, held to 60s | wait 60000 (wait_on_429) | proceed | fresh, held to 67s | \
             wait 7000 (retry_after) | proceed",
            "{domain}"
        );
    }
}

/// B24: only a fresh success or other answer resets backoff.
#[tokio::test]
async fn a_success_resets_backoff_but_ends_no_hold() {
    let server = serve(COLLECTOR).await;
    assert_eq!(
        play(
            &server,
            "elsewhere.example",
            "0s check A | 1s check B | 1s 500 of B | 2s success of A | 2s check | 6s 500"
        )
        .await,
        "proceed | proceed | fresh, held to 6s | late | wait 4000 (backoff) | fresh, held to 16s",
        "a late success changes nothing"
    );
    assert_eq!(
        play(&server, "elsewhere.example", "16s check | 16s 404 | 17s 500").await,
        "proceed | fresh | fresh, held to 22s"
    );
}

/// B25: the usage in requirements document 003: check, sleep, fetch without asking again, record by domain.
#[tokio::test]
async fn a_caller_that_sleeps_and_fetches_without_asking_again_is_counted() {
    let server = serve(COLLECTOR).await;
    assert_eq!(
        play(&server, "finance.yahoo.com", "0s check | 0s success | 500ms check | 2s success | 2s check")
            .await,
        "proceed | fresh | wait 1500 (min_delay) | fresh | wait 2000 (min_delay)"
    );
    // Another program that does the same: each request is counted, and the burst is full.
    assert_eq!(
        play(&server, "finance.yahoo.com", "4s success | 4s check").await,
        "fresh | wait 56000 (burst)"
    );
}

/// B3
#[tokio::test]
async fn of_fifty_concurrent_checks_one_proceeds() {
    let server = serve(COLLECTOR).await;
    for round in 0..3 {
        server.until(secs(2 * round)).await;
        let all = join_all((0..50).map(|_| server.check("finance.yahoo.com"))).await;
        assert_eq!(all.iter().filter(|decision| decision["proceed"] == true).count(), 1, "round {round}");
        let waits = all.iter().filter(|decision| decision["proceed"] == false);
        let wait = if round < 2 { 2_000 } else { 56_000 };
        assert!(waits.clone().all(|decision| decision["wait_ms"] == wait), "{all:?}");
    }
}

/// B3
#[tokio::test]
async fn a_peek_reserves_nothing() {
    let server = serve(COLLECTOR).await;
    for _ in 0..3 {
        let peeked = server.peek("finance.yahoo.com").await;
        assert_eq!((decided(&peeked), peeked["permit"].is_null()), ("proceed".to_owned(), true));
    }
    assert_eq!(
        play(&server, "finance.yahoo.com", "1s check | 1s peek | 3s peek | 3s check").await,
        "proceed | wait 2000 (min_delay) | proceed | proceed"
    );
}

/// B10
#[tokio::test]
async fn domains_do_not_wait_for_each_other() {
    let server = serve(COLLECTOR).await;
    assert_eq!(play(&server, "a.example", "0s 429 after=3600").await, "fresh, held to 3600s");
    assert_eq!(decided(&server.check("b.example").await), "proceed");
    assert_eq!(decided(&server.check("a.example").await), "wait 3600000 (retry_after)");
}

/// B13
#[tokio::test]
async fn a_disabled_rule_does_not_pace() {
    let server = serve("[domains.\"free.example\"]\nenabled = false\n").await;
    for _ in 0..20 {
        assert_eq!(decided(&server.check("free.example").await), "proceed");
    }
    assert_eq!(play(&server, "free.example", "0s 429 after=60 | 0s check").await, "fresh | proceed");
}

/// B15
#[tokio::test]
async fn one_domain_has_many_spellings() {
    let server = serve(COLLECTOR).await;
    server.check("reuters.com").await;
    let spellings = ["REUTERS.com", "reuters.com.", "www.reuters.com", "Www.Reuters.Com."];
    for spelling in spellings {
        let decision = server.check(spelling).await;
        assert_eq!(
            (decided(&decision), &decision["domain"]),
            ("wait 3000 (min_delay)".into(), &json!("reuters.com"))
        );
    }
    for url in ["https://www.reuters.com/markets?page=2", "http://reuters.com", "https://reuters.com:443/"] {
        let decision = server.post("/v1/check", json!({ "url": url })).await.ok();
        assert_eq!(decided(&decision), "wait 3000 (min_delay)", "{url}");
    }
    for other in ["feeds.reuters.com", "reuters.com:8443", "reuters.com.example"] {
        let decision = server.check(other).await;
        assert_eq!((decided(&decision), &decision["domain"]), ("proceed".into(), &json!(other)));
    }
    server.check("bücher.example").await;
    assert_eq!(decided(&server.check("XN--BCHER-KVA.example").await), "wait 1000 (min_delay)");
}

/// B15: an exact host wins over the longest wildcard, which wins over the default. Also ports and groups.
#[tokio::test]
async fn the_most_specific_rule_applies() {
    let server = serve(
        "[default]\nmin_delay = \"1s\"\n[domains.\"*.wild.example\"]\nmin_delay = \"2s\"\n\
         [domains.\"*.very.wild.example\"]\nmin_delay = \"3s\"\n[domains.\"a.wild.example\"]\nmin_delay = \"4s\"\n\
         [domains.\"ported.example:8080\"]\nmin_delay = \"5s\"\n\
         [domains.\"one.example\"]\ngroup = \"press\"\nin_flight = \"unlimited\"\n\
         [domains.\"two.example\"]\ngroup = \"press\"\nmin_delay = \"6s\"\nin_flight = \"unlimited\"\n",
    )
    .await;
    for (domain, seconds) in [
        ("wild.example", 1),
        ("b.wild.example", 2),
        ("a.b.wild.example", 2),
        ("very.wild.example", 2),
        ("x.very.wild.example", 3),
        ("a.wild.example", 4),
        ("ported.example:8080", 5),
        ("ported.example", 1),
    ] {
        assert_eq!(server.check(domain).await["proceed"], true, "{domain}");
        let explained = server.get(&format!("/v1/domains/{domain}/explain")).await.ok();
        let delay =
            explained["constraints"].as_array().unwrap().iter().find(|one| one["limit"] == "min_delay");
        assert_eq!(delay.unwrap()["wait_ms"], seconds * 1_000, "{domain}: {explained}");
    }
    let one = server.check("one.example").await;
    assert_eq!((decided(&one), &one["domain"]), ("proceed".to_owned(), &json!("group:press")));
    assert_eq!(decided(&server.check("two.example").await), "wait 6000 (min_delay)");
    assert_eq!(decided(&server.check("one.example").await), "wait 1000 (min_delay)");
}

/// B2: all constraints are listed, the one that ends last first; the decision names that one.
#[tokio::test]
async fn explain_lists_the_constraints_that_check_applies() {
    let server = serve(COLLECTOR).await;
    let script = "0s check A | 2s check B | 4s check C | 4s 429 of C after=30 | 5s peek";
    assert_eq!(
        play(&server, "finance.yahoo.com", script).await,
        "proceed | proceed | proceed | fresh, held to 34s | wait 55000 (burst)"
    );
    let explained = server.get("/v1/domains/finance.yahoo.com/explain").await.ok();
    assert_eq!(explained["wait_ms"], 55_000);
    let binding: Vec<(&str, &str, u64)> = explained["constraints"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["binds"] == true)
        .map(|one| {
            (
                one["limit"].as_str().unwrap(),
                one["origin"].as_str().unwrap(),
                one["wait_ms"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        binding,
        [("burst", "rule", 55_000), ("retry_after", "server", 29_000), ("min_delay", "rule", 1_000)]
    );
    let first = &explained["constraints"][0];
    assert_eq!(first["until"], "2026-11-16T10:01:00Z");
    assert!(first["text"].as_str().unwrap().contains("burst 3 per 60s"), "{first}");
}

/// B2: the server's `Retry-After` is named if it ends at the same time as our own delay.
#[tokio::test]
async fn on_a_tie_the_server_is_named() {
    let server = serve(COLLECTOR).await;
    assert_eq!(
        play(&server, "finance.yahoo.com", "0s check A | 0s 429 of A after=2 | 0s check").await,
        "proceed | fresh, held to 2s | wait 2000 (retry_after)"
    );
}

/// B16
#[test]
fn the_profile_has_the_documented_delays() {
    let rules = config(COLLECTOR);
    let rule = rules.rules().rule(&comity::core::domain::Domain::parse("reuters.com").unwrap());
    assert_eq!(rule.min_delay(), secs(3));
}

//! The worked examples E1–E12, value for value.

use comity_core::interval;
use comity_core::time::{Span, Timestamp};
use comity_sim::scenario::{Scenario, run};
use serde_json::json;

const YAHOO: &str = "finance.yahoo.com";
const ANY: &str = "example.org";

/// E1: B4, B6, B17
#[test]
fn e1_burst() {
    let seven = "start x7";
    assert_eq!(run("collector", YAHOO, seven), "0 | 2 | 4 | 60 | 62 | 64 | 120");
    assert_eq!(run("collector", YAHOO, "start x3 | 4 ask"), "0 | 2 | 4 | wait 56s (burst)");
    assert_eq!(run("collector", "reuters.com", "start x4"), "0 | 3 | 60 | 63");
    assert_eq!(run("collector", "reuters.com", "start x2 | 3.5 ask"), "0 | 3 | wait 56.5s (burst)");
}

/// E2: B2, B18, B24
#[test]
fn e2_ladder_meets_burst() {
    let script = "start | 0.4 500 | 1 ask | start | 15.4 timeout | n | start | 25.6 500 | n | hold | start \
                  | 60.2 200 | n | start";
    let output = "0 | wait 4.4s (backoff) | 5.4 | n 2 | 25.4 | n 3 | hold 45.6 | 60 | n 0 | 65.4";
    assert_eq!(run("collector", YAHOO, script), output);
}

/// E3: B22, B23
#[test]
fn e3_late_answers() {
    let both = "start as A | start as B | 2.3 429 retry-after=30 of B | hold | 2.5 429 of A | hold | n";
    assert_eq!(run("collector", YAHOO, both), "0 | 2 | hold 32.3 | hold 32.3 | n 1");
    let longer =
        "start as A | start as B | 2.3 429 retry-after=30 of B | 2.5 429 retry-after=120 of A | hold | n";
    assert_eq!(run("collector", YAHOO, longer), "0 | 2 | hold 122.5 | n 1");
}

/// E4: B4, B20, B29, B41
#[test]
fn e4_crawler_one_task() {
    let script = "0.5 start as T | +0.1 429 of T | learned | start as T | +0.1 429 of T | learned \
                  | start as T | +0.1 429 of T | learned | start as T | +0.1 429 of T | learned | retries T | next";
    let output = "0.5 | learned 1.5 floor 0 | 2.1 | learned 2.5 floor 0 | 4.7 | learned 3.5 floor 0 | 8.3 \
                | learned 4.5 floor 0 | retries 3 | next 12.9";
    assert_eq!(run("crawler", ANY, script), output);
}

/// E5: B23, B29
#[test]
fn e5_one_episode() {
    let script = "start as A | start as B | start as C | start as D | 2 429 of A | 2.5 429 of B | 3 429 of C \
                  | 3.5 429 of D | learned | retries A | retries B | retries C | retries D | start";
    let output =
        "0 | 0.5 | 1 | 1.5 | learned 1.5 floor 0 | retries 1 | retries 0 | retries 0 | retries 0 | 3.5";
    assert_eq!(run("crawler", ANY, script), output);
}

/// E6: B30, B31, B32
#[test]
fn e6_probe() {
    let learned = "set 4.5 | successes 20 | learned";
    let in_probe = format!(
        "{learned} | start as P | 429 of P | learned | successes 40 | learned | start as Q | 429 of Q | learned \
         | successes 20 | learned | successes 60 | learned"
    );
    let output = run("crawler", ANY, &in_probe);
    let output: Vec<&str> = output.split(" | ").filter(|word| word.starts_with('l')).collect();
    assert_eq!(
        output,
        [
            "learned 3.5 floor 0",
            "learned 4.5 floor 4.5",
            "learned 4.5 floor 4.5",
            "learned 5.5 floor 4.5",
            "learned 4.5 floor 4.5",
            "learned 4.5 floor 4.5",
        ]
    );
    let before = "set 4.5 | successes 19 | start as OLD | successes 1 | learned | 429 of OLD | learned";
    let output = run("crawler", ANY, before);
    assert!(output.ends_with("learned 3.5 floor 0 | learned 5.5 floor 0"), "{output}");
}

/// E7: B4, B20, B21
#[test]
fn e7_small_retry_after() {
    let after = |header: &str| {
        run("crawler", ANY, &format!("set 6 | 100 start | 100.2 429 {header} | learned | next | ask"))
    };
    assert_eq!(after("retry-after=1"), "100 | learned 7 floor 0 | next 107 | wait 6.8s (learned)");
    assert_eq!(after("retry-after=90"), "100 | learned 7 floor 0 | next 190.2 | wait 90s (retry_after)");
    for header in ["retry-after=0", "retry-after=-5", "retry-after=soon"] {
        assert_eq!(after(header), "100 | learned 7 floor 0 | next 107.2 | wait 7s (learned_hold)");
    }
}

/// E8: B18, B19, B41, B45
#[test]
fn e8_archiver_one_request_and_the_facade() {
    let attempt = "start as R | +0.2 429 of R";
    let four = [attempt; 4].join(" | ");
    let output = run("archiver", ANY, &format!("{four} | retries R | hold"));
    assert_eq!(output, "0 | 5.2 | 15.4 | 35.6 | retries 3 | hold 75.8");
    let eight = format!("{} | n", ["start | 429"; 9].join(" | "));
    assert_eq!(run("archiver", ANY, &eight), "0 | 5 | 15 | 35 | 75 | 155 | 315 | 615 | 915 | n 9");
    assert_eq!(run("archiver", ANY, "start | 200 | backoff 0 | start"), "0 | 5 | 6");
}

/// E9: B40
#[test]
fn e9_concurrency() {
    let at = |base: u32, spacing: f64, baseline: f64| {
        let [spacing, baseline] = [spacing, baseline].map(|secs| Span::from_secs_f64(secs).unwrap());
        comity_core::guard::concurrency(base, spacing, baseline)
    };
    assert_eq!([5.4, 5.5, 10.5, 60.0].map(|spacing| at(16, spacing, 0.5)), [16, 15, 14, 5]);
    assert_eq!(at(4, 60.0, 0.5), 1);
    // robots.txt asks for 10 s and nothing was learned: the spacing is the baseline.
    let robots = Scenario::of("crawler", ANY, &serde_json::Value::Null).robots("10s");
    assert_eq!(robots.run("start | 200 | spacing"), "0 | spacing 10");
    assert_eq!(at(16, 10.0, 10.0), 16);
}

/// E10: B52, B55
#[test]
fn e10_interval() {
    let interval = Some(Span::from_millis(2_500));
    let at = |millis: i64| Timestamp::from_millis(millis);
    let mut last_wake = None;
    let mut deferrals = Vec::new();
    for _ in 0..3 {
        let deferred = interval::check(interval, Some(at(10_000)), last_wake, at(11_200)).unwrap_err();
        last_wake = Some(deferred.wake_at);
        deferrals.push((deferred.wait_seconds, deferred.wake_at));
    }
    assert_eq!(deferrals, [(2, at(13_200)), (5, at(16_200)), (8, at(19_200))]);
    assert_eq!(interval::check(interval, Some(at(10_000)), None, at(12_500)), Ok(()));
}

/// E11: B37, B77
#[test]
fn e11_restart() {
    let killed = "9 start | 10 429 retry-after=120 | 20 kill | 30 ask";
    assert_eq!(run("crawler", ANY, killed), "9 | wait 100s (retry_after)");
    let guessed = "9.9 start | 10 429 | hold | 20";
    let stopped = run("collector", "eia.gov", &format!("{guessed} stop | 30 ask"));
    assert_eq!(stopped, "9.9 | hold 70 | proceed");
    let handed = run("collector", "eia.gov", &format!("{guessed} handover | 30 ask"));
    assert_eq!(handed, "9.9 | hold 70 | wait 40s (wait_on_429)");
}

/// E12: B26
#[test]
fn e12_intent() {
    let settings =
        json!({ "min_delay": "3s", "burst": "none", "intent": { "search": { "min_delay": "10s" } } });
    let script = "start search | start x3 | 9.5 ask search | start search";
    let output = Scenario::of("collector", ANY, &settings).run(script);
    assert_eq!(output, "0 | 3 | 6 | 9 | wait 2.5s (min_delay) | 12");
}

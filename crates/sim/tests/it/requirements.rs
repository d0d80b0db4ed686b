//! The examples and tables of the five requirement documents, with their exact values.

use comity_core::cadence::{Cadence, Due, FetchStatus, RunWindow, last_fetch_at};
use comity_core::interval::{self, SourceInterval};
use comity_core::rule::Backoff;
use comity_core::time::{Span, Timestamp};
use comity_sim::scenario::{Scenario, run};
use serde_json::{Map, Value, json};

const ANY: &str = "example.org";

/// The minimum interval between two scrapes of a source.
mod document_0 {
    use super::*;

    fn at(secs: f64) -> Timestamp {
        Timestamp::from_micros((secs * 1e6) as i64)
    }

    fn check(source: &str, global: &str, last: Option<f64>, now: f64) -> String {
        let source = SourceInterval::parse(source).unwrap();
        let interval = source.effective(interval::parse_global(global).unwrap());
        match interval::check(interval, last.map(at), None, at(now)) {
            Ok(()) => "enqueued".to_owned(),
            Err(deferred) => format!("deferred {}", deferred.wait_seconds),
        }
    }

    /// B50, B52: no previous scrape
    #[test]
    fn the_first_scrape_is_never_too_soon() {
        assert_eq!(check("default", "1.0", None, 0.0), "enqueued");
    }

    /// B52: elapsed above the interval, and exactly the interval
    #[test]
    fn a_scrape_after_the_interval_is_not_too_soon() {
        assert_eq!(check("default", "1.0", Some(10.0), 11.5), "enqueued");
        assert_eq!(check("default", "1.0", Some(10.0), 11.0), "enqueued");
    }

    /// B52: elapsed below the interval, with the exact wait
    #[test]
    fn a_scrape_within_the_interval_waits_the_rest_in_whole_seconds() {
        assert_eq!(check("default", "1.0", Some(10.0), 10.4), "deferred 1");
        assert_eq!(check("30", "1.0", Some(10.0), 12.5), "deferred 28");
        assert_eq!(check("30", "1.0", Some(10.0), 12.0), "deferred 28");
        assert_eq!(check("30", "1.0", Some(10.0), 39.999_999), "deferred 1");
    }

    /// B50: the source's own interval wins over the global one
    #[test]
    fn a_sources_own_interval_wins() {
        assert_eq!(check("5", "60", Some(10.0), 15.0), "enqueued");
        assert_eq!(check("60", "5", Some(10.0), 15.0), "deferred 55");
    }

    /// B50: null, zero and negative
    #[test]
    fn null_zero_and_negative_turn_the_interval_off() {
        assert_eq!(check("default", "", Some(10.0), 10.0), "enqueued");
        assert_eq!(check("default", "0", Some(10.0), 10.0), "enqueued");
        assert_eq!(check("0", "60", Some(10.0), 10.0), "enqueued");
        assert_eq!(check("-1", "60", Some(10.0), 10.0), "enqueued");
    }

    /// B50: the default is one second
    #[test]
    fn the_default_interval_is_one_second() {
        assert_eq!(interval::MIN_INTERVAL, Span::from_secs(1));
    }
}

/// Learned delays.
mod document_1 {
    use super::*;

    /// B29: +1 s for each 429, up to the ceiling
    #[test]
    fn each_429_adds_a_second_up_to_the_ceiling() {
        let output = run("crawler", ANY, &format!("{} | learned", ["start | 429"; 70].join(" | ")));
        assert!(output.ends_with("learned 60 floor 0"), "{output}");
    }

    /// B28, B30: after every 20 successes, a probe tries one second less, down to the base
    #[test]
    fn every_twenty_successes_subtract_a_second() {
        let script = "set 3.5 | successes 19 | learned | successes 1 | learned | streaks | successes 20 | learned \
                      | successes 20 | learned | successes 200 | learned";
        assert_eq!(
            run("crawler", ANY, script),
            "learned 3.5 floor 0 | learned 2.5 floor 0 | streaks 0/0 | learned 1.5 floor 0 | learned 0.5 floor 0 \
             | learned 0.5 floor 0"
        );
    }

    /// B33: other failures end the run of successes and add no delay
    #[test]
    fn other_failures_only_end_the_run_of_successes() {
        let script = "set 3.5 | successes 19 | start | 500 | streaks | learned | successes 19 | learned";
        assert_eq!(
            run("crawler", ANY, script),
            "66.5 | streaks 0/0 | learned 3.5 floor 0 | learned 3.5 floor 0"
        );
    }

    /// B29, B34: the crawl-delay of robots.txt is the base, even above the ceiling
    #[test]
    fn a_crawl_delay_is_the_base_and_is_honored_above_the_ceiling() {
        let slow = Scenario::of("crawler", ANY, &Value::Null).robots("10s");
        assert_eq!(slow.run("start x2 | 429 | learned | next"), "0 | 10 | learned 11 floor 0 | next 21");
        let slower = Scenario::of("crawler", ANY, &Value::Null).robots("90s");
        assert_eq!(slower.run("start x2 | 429 | learned | next"), "0 | 90 | learned 90 floor 0 | next 180");
        let fraction = Scenario::of("crawler", ANY, &Value::Null).robots("1.5s");
        assert_eq!(fraction.run("start x3"), "0 | 1.5 | 3");
    }

    /// B35, B36: learned delays are restored after a restart, even after kill -9
    #[test]
    fn learned_delays_survive_a_kill() {
        let script = "start | 429 | start | 429 | learned | 10 kill | learned | start";
        assert_eq!(run("crawler", ANY, script), "0 | 1.5 | learned 2.5 floor 0 | learned 2.5 floor 0 | 12.5");
    }

    /// B36: a restored delay is raised to the floor, limited to base and ceiling, and never replaces newer state
    #[test]
    fn a_restored_delay_is_limited_and_never_replaces_newer_state() {
        use comity_core::pace::{Pace, SavedLimits};
        let scenario = Scenario::of("crawler", ANY, &Value::Null);
        let seeded = |delay: f64, floor: f64| {
            let mut pace = Pace::default();
            let [delay, floor] = [delay, floor].map(|secs| Span::from_secs_f64(secs).unwrap());
            let kept = SavedLimits { delay, floor, ..SavedLimits::default() };
            pace.seed(scenario.rule().into(), &kept, Timestamp::from_secs(0));
            let older = SavedLimits { delay: Span::from_secs(33), ..kept };
            pace.seed(scenario.rule().into(), &older, Timestamp::from_secs(0));
            pace.learned().delay().as_secs_f64()
        };
        assert_eq!(seeded(2.25, 0.0), 2.25);
        assert_eq!(seeded(2.0, 4.5), 4.5);
        assert_eq!(seeded(0.1, 0.0), 0.5);
        assert_eq!(seeded(500.0, 0.0), 60.0);
        assert_eq!(seeded(0.0, 0.0), 33.0, "a pace without a learned delay has no newer state");
    }

    /// B38: after a week without confirmation, the next probe goes one step below the floor
    #[test]
    fn an_old_floor_gives_way_one_step_at_a_time() {
        let week = 7 * 86_400;
        let floor = "set 4.5 | successes 20 | start | 429 | learned";
        let young = format!("{floor} | {} successes 20 | learned", week - 1_000);
        assert!(run("crawler", ANY, &young).ends_with("learned 4.5 floor 4.5 | learned 4.5 floor 4.5"));
        let old = format!("{floor} | {} successes 20 | learned | start | 429 | learned", week + 1_000);
        let output = run("crawler", ANY, &old);
        assert!(output.contains("learned 4.5 floor 4.5 | learned 3.5 floor 3.5"), "{output}");
        assert!(output.ends_with("learned 4.5 floor 4.5"), "a failed probe confirms the old floor: {output}");
    }

    /// B39: neither 429s nor successes change a pinned delay; holds still apply
    #[test]
    fn a_pinned_delay_does_not_change() {
        let script = "set 3.5 | pin | start | 429 | learned | ask | successes 50 | learned | unpin | start | 429 | learned";
        let output = run("crawler", ANY, script);
        assert!(output.starts_with("0 | learned 3.5 floor 0 | wait 3.5s (learned)"), "{output}");
        assert!(output.contains("learned 3.5 floor 0 | 178.5 | learned 4.5"), "{output}");
    }

    /// B39: reset forgets what was learned, but not the server's deadlines
    #[test]
    fn reset_forgets_learned_delays_and_keeps_server_deadlines() {
        let script = "start | 429 retry-after=30 | start | 429 | learned | reset | learned | ask";
        assert_eq!(
            run("crawler", ANY, script),
            "0 | 30 | learned 2.5 floor 0 | learned 0 floor 0 | wait 0.5s (min_delay)"
        );
        assert_eq!(
            run("crawler", ANY, "start | 429 retry-after=30 | 5 reset | ask"),
            "0 | wait 25s (retry_after)"
        );
    }
}

/// The limiter's `wait` and `backoff`.
mod document_2 {
    use super::*;

    /// B5: the first request never waits, even with the clock at zero
    #[test]
    fn the_first_request_never_waits() {
        assert_eq!(run("archiver", ANY, "0 start"), "0");
    }

    /// B4: the second request waits for the rest of the delay
    #[test]
    fn the_second_request_waits_for_the_rest_of_the_delay() {
        assert_eq!(run("archiver", ANY, "start | 200 | 0.5 ask"), "0 | wait 0.5s (min_delay)");
        assert_eq!(run("archiver", ANY, "start | 200 | start | 200 | start"), "0 | 1 | 2");
    }

    /// B4: a rate is a delay in whole milliseconds, rounded up
    #[test]
    fn a_rate_is_rounded_up_to_whole_milliseconds() {
        for (rate, second) in [(1.0, "1"), (3.0, "0.334"), (0.1, "10"), (0.7, "1.429"), (1000.0, "0.001")] {
            let settings = json!({ "min_delay": "0s", "requests_per_second": rate });
            let output = Scenario::of("archiver", ANY, &settings).run("start | 200 | start");
            assert_eq!(output, format!("0 | {second}"), "{rate}");
        }
    }

    /// B19: 5, 10, 20 s, up to the maximum, and then one more delay
    #[test]
    fn backoff_doubles_and_is_followed_by_one_more_delay() {
        assert_eq!(run("archiver", ANY, "backoff 0"), "5");
        assert_eq!(run("archiver", ANY, "backoff 1"), "10");
        assert_eq!(run("archiver", ANY, "backoff 2"), "20");
        assert_eq!(run("archiver", ANY, "backoff 30"), "300");
        let settings = json!({ "backoff_max": "30s" });
        assert_eq!(Scenario::of("archiver", ANY, &settings).run("backoff 5 | start"), "30 | 31");
    }

    /// B13: a disabled limiter neither waits nor backs off
    #[test]
    fn a_disabled_limiter_never_waits() {
        let disabled = Scenario::of("archiver", ANY, &json!({ "enabled": false }));
        assert_eq!(disabled.run("start x3 | 429 retry-after=60 | n | ask"), "0 | 0 | 0 | n 0 | proceed");
        assert_eq!(disabled.run("backoff 3 | ask"), "0 | proceed");
    }

    /// B13: without a limiter, the pace is one request per second
    #[test]
    fn the_default_is_one_request_per_second() {
        assert_eq!(comity_core::rule::Rule::default().min_delay(), Span::from_secs(1));
    }
}

/// The domain table, backoff, and recording.
mod document_3 {
    use super::*;
    use comity_core::backoff::Ladder;

    /// B16, B18: the table
    #[test]
    fn the_domain_table() {
        for (host, delay, burst, backoff, max) in [
            ("finance.yahoo.com", 2_000, 3, Backoff::Exponential, 60),
            ("www.reuters.com", 3_000, 2, Backoff::Exponential, 60),
            ("acme.company-ir", 1_000, 5, Backoff::Linear, 30),
            ("eia.gov", 1_000, 10, Backoff::None, 0),
            ("example.org", 1_000, 5, Backoff::Linear, 30),
            ("company-ir", 1_000, 5, Backoff::Linear, 30),
        ] {
            let rule = Scenario::of("collector", host, &Value::Null).rule().clone();
            assert_eq!(rule.min_delay(), Span::from_millis(delay), "{host}");
            assert_eq!(rule.burst().unwrap().count, burst, "{host}");
            assert_eq!(rule.burst().unwrap().window, Span::from_secs(60), "{host}");
            let (base, max) = (Span::from_secs(5), Span::from_secs(max));
            let ladder = match backoff {
                Backoff::Exponential => Ladder::Exponential { base, max },
                Backoff::Linear => Ladder::Linear { base, max },
                Backoff::None => Ladder::None,
            };
            assert_eq!(rule.ladder(), ladder, "{host}");
        }
    }

    fn holds(host: &str, failures: usize) -> String {
        let output = run("collector", host, &["start | 500 | hold"; 10][..failures].join(" | "));
        let mut starts_at = 0.0;
        let mut waits = Vec::new();
        for word in output.split(" | ") {
            match word.strip_prefix("hold ") {
                Some("none") => waits.push("none".to_owned()),
                Some(until) => waits.push((until.parse::<f64>().unwrap() - starts_at).to_string()),
                None => starts_at = word.parse().unwrap(),
            }
        }
        waits.join(" ")
    }

    /// B18: the waits after consecutive failures
    #[test]
    fn backoff_has_the_documented_waits() {
        assert_eq!(holds("finance.yahoo.com", 6), "5 10 20 40 60 60");
        assert_eq!(holds("acme.company-ir", 7), "5 10 15 20 25 30 30");
        assert_eq!(holds("eia.gov", 2), "none none");
    }

    /// B20: after a 429, the wait is Retry-After, otherwise 60 s
    #[test]
    fn a_429_waits_retry_after_or_a_minute() {
        assert_eq!(run("collector", ANY, "start | 429 retry-after=7 | ask"), "0 | wait 7s (retry_after)");
        assert_eq!(run("collector", ANY, "start | 429 | ask"), "0 | wait 60s (wait_on_429)");
        // A 429 has its own wait, but still counts as a penalty for the backoff of the next failure.
        assert_eq!(run("collector", ANY, "start | 429 | start | 500 | hold"), "0 | 60 | hold 70");
    }

    /// B1, B25: a caller checks, sleeps for exactly wait_ms, fetches and records, without asking again
    #[test]
    fn a_caller_that_sleeps_and_does_not_ask_again_is_still_counted() {
        let script = "ask | 0.1 200 | 0.2 ask | 2 unasked 200 | 2.5 ask | 4 ask";
        assert_eq!(
            run("collector", "finance.yahoo.com", script),
            "proceed | wait 1.8s (min_delay) | wait 1.5s (min_delay) | proceed"
        );
    }
}

/// Cadence: when a source is due.
mod document_4 {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::parse("2026-01-05T00:00:00Z").unwrap() + Span::from_secs(minutes as u64 * 60)
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn cadence(every: Value) -> Result<Option<Cadence>, String> {
        let config = map(json!({ "cadence": { "mode": "interval", "every_minutes": every } }));
        Cadence::of_config(&config).map_err(|error| error.to_string())
    }

    fn due(every: Option<u64>, last: Option<i64>, end: i64) -> Due {
        let cadence = every.map(|every| cadence(json!(every)).unwrap().unwrap());
        RunWindow::ending(at(end), at(10_000)).unwrap().due(cadence, last.map(at))
    }

    /// B59: without a cadence, never fetched, before, exactly at and after the interval
    #[test]
    fn a_source_is_due_when_its_interval_has_passed() {
        assert_eq!(due(None, Some(479), 480), Due::Due);
        assert_eq!(due(Some(480), None, 480), Due::Due);
        assert_eq!(due(Some(480), Some(0), 479), Due::NotDue { due_at: at(480) });
        assert_eq!(due(Some(480), Some(0), 480), Due::Due);
        assert_eq!(due(Some(480), Some(0), 900), Due::Due);
    }

    /// B64
    #[test]
    fn times_in_the_future_are_detected() {
        assert_eq!(due(Some(480), Some(10_001), 500), Due::DueDespiteFuture { last_fetch_at: at(10_001) });
        assert_eq!(due(Some(480), Some(600), 500), Due::NotDue { due_at: at(1_080) });
        let error = RunWindow::ending(at(2), at(1)).unwrap_err().to_string();
        assert!(
            error.starts_with("window end 2026-01-05T00:02:00Z: expected a time that is not in the future")
        );
    }

    /// B62
    #[test]
    fn an_invalid_cadence_is_an_error() {
        assert!(cadence(json!(0.5)).is_ok());
        for every in [json!(0), json!(-5), json!("480"), json!(null), json!([]), json!(1e300)] {
            let error = cadence(every.clone()).unwrap_err();
            assert_eq!(
                error,
                format!("cadence.every_minutes = {every}: expected a finite number of minutes above zero")
            );
        }
        for (config, key) in [
            (json!({ "cadence": 480 }), "cadence = 480"),
            (json!({ "cadence": null }), "cadence = null"),
            (json!({ "cadence": { "every_minutes": 5 } }), "cadence.mode = null"),
            (json!({ "cadence": { "mode": "cron", "every_minutes": 5 } }), "cadence.mode = \"cron\""),
            (
                json!({ "cadence": { "mode": "interval", "every_minutes": 5, "jitter": 1 } }),
                "cadence = \"jitter: 1\"",
            ),
        ] {
            let error = Cadence::of_config(&map(config)).unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
        assert_eq!(Cadence::of_config(&map(json!({ "other": 1 }))), Ok(None));
        assert!(Cadence::every_minutes(f64::NAN).is_err() && Cadence::every_minutes(f64::INFINITY).is_err());
        let eight_hours = Cadence::every_minutes(480.0).unwrap();
        assert_eq!(eight_hours.to_json(), json!({ "mode": "interval", "every_minutes": 480 }));
        assert_eq!(eight_hours.every(), Span::from_hours(8));
        assert_eq!(Cadence::every_minutes(0.5).unwrap().to_json()["every_minutes"], json!(0.5));
    }

    /// B60
    #[test]
    fn only_ok_and_partial_fetches_advance_the_cursor_and_never_back() {
        let window = RunWindow::ending(at(480), at(1_000)).unwrap();
        let cursor = map(json!({ "last_fetch_at": at(0).to_string(), "etag": "\"x\"" }));
        for status in [FetchStatus::Error, FetchStatus::Skipped] {
            assert_eq!(window.advance(&cursor, status), cursor);
        }
        for status in [FetchStatus::Ok, FetchStatus::Partial] {
            let moved = window.advance(&cursor, status);
            assert_eq!(last_fetch_at(&moved), Ok(Some(at(480))));
            assert_eq!(moved["etag"], "\"x\"");
        }
        let ahead = map(json!({ "last_fetch_at": at(900).to_string() }));
        assert_eq!(last_fetch_at(&window.advance(&ahead, FetchStatus::Ok)), Ok(Some(at(900))));
        let future = map(json!({ "last_fetch_at": at(5_000).to_string() }));
        assert_eq!(last_fetch_at(&window.advance(&future, FetchStatus::Ok)), Ok(Some(at(480))));
        assert_eq!(last_fetch_at(&window.advance(&Map::new(), FetchStatus::Ok)), Ok(Some(window.end())));
        assert_eq!(last_fetch_at(&map(json!({ "last_fetch_at": null }))), Ok(None));
        let error = last_fetch_at(&map(json!({ "last_fetch_at": 5 }))).unwrap_err().to_string();
        assert!(error.starts_with("cursor_json.last_fetch_at = 5: expected a timestamp"), "{error}");
    }
}

//! Behaviors that the worked examples don't cover, one test each.

use comity_core::decision::{Decision, Origin};
use comity_core::intent::Intent;
use comity_core::pace::{Pace, Terms};
use comity_core::rule::{Fields, Rule};
use comity_core::time::{Span, Timestamp};
use comity_sim::scenario::{Scenario, run};
use serde_json::{Value, json};

pub(crate) const ANY: &str = "example.org";

pub(crate) fn with(profile: &str, settings: Value, script: &str) -> String {
    Scenario::of(profile, ANY, &settings).run(script)
}

/// B1, B2: the constraint that lasts longest decides and is reported; waiting as long as it says is enough
#[test]
fn the_longest_constraint_wins() {
    let script = "start | 429 retry-after=3 | ask | 3 ask";
    assert_eq!(
        with("archiver", json!({ "min_delay": "5s" }), script),
        "0 | wait 5s (min_delay) | wait 2s (min_delay)"
    );
    assert_eq!(with("archiver", json!({ "min_delay": "1s" }), script), "0 | wait 3s (retry_after) | proceed");
}

/// B2: on a tie, the server is reported before robots.txt, then the rule, then the learned delay
#[test]
fn ties_are_reported_in_order_of_origin() {
    let rule = |learn: &str| json!({ "min_delay": "2s", "learn": { "base": learn } });
    let robots = Scenario::of("crawler", ANY, &rule("2s")).robots("2s");
    assert_eq!(robots.run("start | 429 retry-after=2 | ask"), "0 | wait 3s (learned)");
    assert_eq!(robots.run("start | 200 retry-after=2 | ask"), "0 | wait 2s (retry_after)");
    assert_eq!(robots.run("start | 200 | ask"), "0 | wait 2s (crawl_delay)");
    assert_eq!(with("crawler", rule("2s"), "set 2 | start | 200 | ask"), "0 | wait 2s (min_delay)");
    assert!(
        Origin::Server < Origin::Robots && Origin::Robots < Origin::Rule && Origin::Rule < Origin::Learned
    );
}

/// B2: explain lists all constraints with number and origin, the deciding one first
#[test]
fn explain_lists_all_constraints() {
    let fields = Fields::read(
        json!({ "min_delay": "2s", "requests_per_second": 1, "burst": 3, "in_flight": 2,
                "intent": { "search": { "min_delay": "10s", "burst": 1 } } })
        .as_object()
        .unwrap(),
    );
    let rule = Rule::new(&fields.unwrap()).unwrap();
    let terms = Terms { rule: &rule, crawl_delay: Span::from_secs(1) };
    let mut pace = Pace::default();
    let at = |secs: f64| Timestamp::from_secs(0) + Span::from_secs_f64(secs).unwrap();
    pace.set_learned(terms, Span::from_secs(4), Span::ZERO, at(0.0));
    pace.admit(terms, Intent::Search, at(0.0));
    let explained: Vec<String> = pace
        .explain(terms, Intent::Search, at(0.5))
        .iter()
        .map(|reason| format!("{}: {reason}", reason.origin()))
        .collect();
    assert_eq!(
        explained,
        [
            "rule: search: burst 1 per 60s reached; next slot in 59.5s",
            "rule: minimum delay for search 10000 ms: last request 500 ms ago",
            "learned: learned delay 4000 ms: last request 500 ms ago",
            "rule: minimum delay 2000 ms: last request 500 ms ago",
            "robots: robots.txt crawl-delay 1000 ms: last request 500 ms ago",
            "rule: requests per second: one per 1000 ms: last request 500 ms ago",
            "rule: burst 3 per 60s",
        ]
    );
}

/// B1: the messages people read
#[test]
fn reasons_are_readable_messages() {
    let output = |script: &str, settings: Value| {
        let scenario = Scenario::of("standard", ANY, &settings);
        let mut pace = Pace::default();
        let terms: Terms<'_> = scenario.rule().into();
        let at = |secs: u64| Timestamp::from_secs(0) + Span::from_secs(secs);
        for word in script.split(' ') {
            match word {
                "ask" => _ = pace.admit(terms, Intent::Fetch, at(0)),
                "429" => {
                    let answer = comity_core::outcome::Outcome::RateLimited.into();
                    pace.record_unasked(terms, Intent::Fetch, &answer, at(0));
                }
                "pause" => pace.pause(None),
                "hour" => pace.pause(Some(at(3_600))),
                "lost" => pace.lost(at(0)),
                _ => panic!("{word}"),
            }
        }
        match pace.admit(terms, Intent::Fetch, Timestamp::from_millis(200)) {
            Decision::Proceed(_) => "proceed".to_owned(),
            Decision::Wait { reason, .. } => reason.to_string(),
            Decision::Refuse(reason) => format!("no: {reason}"),
        }
    };
    let null = || json!({});
    assert_eq!(output("429", null()), "backing off after a failure; 4.8s left");
    assert_eq!(output("429 429", null()), "backing off after 2 failures in a row; 9.8s left");
    assert_eq!(
        output("429", json!({ "wait_on_429": "90s" })),
        "waiting after a 429 (wait_on_429); 89.8s left"
    );
    assert_eq!(
        output("429", json!({ "wait_on_429": "learned" })),
        "learned delay 2000 ms: last request 200 ms ago"
    );
    assert_eq!(output("ask", null()), "1 request in flight, which is the limit");
    assert_eq!(output("pause", null()), "no: paused by an operator until resumed");
    assert_eq!(output("hour", null()), "paused by an operator until 1970-01-01T01:00:00Z; 60m left");
    assert_eq!(output("lost", null()), "minimum delay 1000 ms: last request may have been 200 ms ago");
}

/// B7: after the clock steps back, nothing waits longer than it was set for, and nothing is forgotten
#[test]
fn a_clock_that_steps_back_makes_no_wait_longer() {
    assert_eq!(
        run("archiver", ANY, "1000 start | 200 | clock 10 | ask | 11 ask"),
        "1000 | wait 1s (min_delay) | proceed"
    );
    let held = "1000 start | 429 retry-after=30 | clock 10 | ask | 39 ask | 40 ask";
    assert_eq!(run("archiver", ANY, held), "1000 | wait 30s (retry_after) | wait 1s (retry_after) | proceed");
    let burst = "1000 start x3 | clock 0 | ask | start";
    assert_eq!(run("collector", "finance.yahoo.com", burst), "1000 | 1002 | 1004 | wait 56s (burst) | 56");
    let peeked = "1000 start | 200 | clock 10 | peek | 10.5 peek";
    assert_eq!(run("archiver", ANY, peeked), "1000 | wait 1s (min_delay) | wait 1s (min_delay)");
    // A 429 that is received after the step still counts: its request did not start before the penalty.
    let counted = "1000 start | 429 | clock 10 | start | 429 | n";
    assert_eq!(run("archiver", ANY, counted), "1000 | 15 | n 2");
}

/// B7: a clock that jumps ahead grants one extra slot, then the spacing is normal
#[test]
fn a_clock_that_jumps_ahead_grants_one_extra_slot() {
    assert_eq!(
        run("archiver", ANY, "start | 200 | clock 5000 | ask | 200 | ask"),
        "0 | proceed | wait 1s (min_delay)"
    );
}

/// B20: the wait after a 429 without Retry-After
#[test]
fn a_429_without_retry_after_waits_as_the_rule_says() {
    let script = "start | 429 | ask";
    assert_eq!(with("standard", json!({ "wait_on_429": "7s" }), script), "0 | wait 7s (wait_on_429)");
    assert_eq!(with("archiver", json!({}), script), "0 | wait 5s (backoff)");
    let learned_off = json!({ "wait_on_429": "learned", "learning": "off" });
    assert_eq!(with("archiver", learned_off, script), "0 | wait 5s (backoff)");
    let no_ladder = json!({ "wait_on_429": "backoff", "backoff": "none" });
    assert_eq!(with("archiver", no_ladder, script), "0 | wait 60s (backoff)");
    let neither = json!({ "wait_on_429": "learned", "learning": "off", "backoff": "none" });
    assert_eq!(with("archiver", neither, script), "0 | wait 60s (backoff)");
}

/// B20: Retry-After replaces the rule's own wait, whatever the status
#[test]
fn retry_after_is_honored_for_any_status() {
    for status in [403, 404, 429, 500, 503, 301] {
        let script = format!("start | {status} retry-after=90 | ask");
        assert_eq!(run("archiver", ANY, &script), "0 | wait 90s (retry_after)", "{status}");
    }
    assert_eq!(run("archiver", ANY, "start | 503 retry-after=2 | ask"), "0 | wait 2s (retry_after)");
}

/// B21: nothing stalls a domain forever
#[test]
fn an_absurd_retry_after_is_clamped() {
    let script = "start | 429 retry-after=99999999999999999999 | ask";
    assert_eq!(run("archiver", ANY, script), "0 | wait 86400s (retry_after)");
    assert_eq!(with("archiver", json!({ "retry_after_max": "1h" }), script), "0 | wait 3600s (retry_after)");
    let quota = "start | 200 quota=0/999999999 | ask";
    assert_eq!(with("archiver", json!({ "retry_after_max": "1h" }), quota), "0 | wait 3600s (quota_spent)");
}

/// B22: neither a shorter hold nor a success shortens a hold
#[test]
fn holds_only_get_longer() {
    let shorter = "start as A | 1 start as B | 1 429 retry-after=60 of A | 2 503 retry-after=5 of B | hold";
    assert_eq!(with("archiver", json!({ "in_flight": "unlimited" }), shorter), "0 | 1 | hold 61");
    let success = "start as A | 1 start as B | 1 429 retry-after=60 of A | 2 200 of B | hold | ask";
    assert_eq!(
        with("archiver", json!({ "in_flight": "unlimited" }), success),
        "0 | 1 | hold 61 | wait 59s (retry_after)"
    );
}

/// B23, B24: the only thing a late response can change is a longer deadline
#[test]
fn late_responses_only_extend_deadlines() {
    let free = || json!({ "in_flight": "unlimited", "min_delay": "0s" });
    let late_success = "start as A | start as B | 1 500 of A | n | 2 200 of B | n";
    assert_eq!(with("archiver", free(), late_success), "0 | 0 | n 1 | n 1");
    let late_failure = "start as A | start as B | 1 500 of A | 2 429 of B | n | hold | retries B";
    assert_eq!(with("archiver", free(), late_failure), "0 | 0 | n 1 | hold 6 | retries 0");
    // Only a 429 is forgiven (B79).
    let late_timeout = "start as A | start as B | 1 500 of A | 2 timeout of B | n | hold | retries B";
    assert_eq!(with("archiver", free(), late_timeout), "0 | 0 | n 1 | hold 6 | retries 1");
    // A request that starts exactly at the time of the penalty is not before it.
    let same_moment = "start as A | 1 start as B | 1 500 of A | 2 500 of B | n";
    assert_eq!(with("archiver", free(), same_moment), "0 | 1 | n 2");
}

/// B24: only success and answered reset the backoff
#[test]
fn only_success_and_answered_reset_the_backoff() {
    let after =
        |last: &str| run("archiver", ANY, &format!("start | 500 | start | 500 | n | start | {last} | n"));
    assert_eq!(after("200"), "0 | 5 | n 2 | 15 | n 0");
    assert_eq!(after("404"), "0 | 5 | n 2 | 15 | n 0");
    assert_eq!(after("304"), "0 | 5 | n 2 | 15 | n 0");
    for last in ["403", "503", "429", "502", "timeout", "disconnect", "refused"] {
        assert_eq!(after(last), "0 | 5 | n 2 | 15 | n 3", "{last}");
    }
}

/// B18, B22, B24, B43: refused connections count as penalties, but are retried soon, because nothing was sent
#[test]
fn an_unreachable_host_is_retried_soon() {
    let refused = "start | refused | start | refused | start | refused | start | refused | n | hold";
    assert_eq!(run("archiver", ANY, refused), "0 | 1 | 2.5 | 4 | n 4 | hold 5.5");
    assert_eq!(run("standard", ANY, refused), "0 | 1 | 2.5 | 4 | n 4 | hold 5.5");
    // Any other failure has the full backoff for the number of penalties so far.
    for last in ["disconnect", "timeout", "500"] {
        let script = format!("start | refused | start | refused | start | {last} | n | hold");
        assert_eq!(run("archiver", ANY, &script), "0 | 1 | 2.5 | n 3 | hold 22.5", "{last}");
    }
    // A longer hold stays, whatever its origin.
    let held = "start as A | start as B | 0.5 503 retry-after=30 of A | 0.6 refused of B | hold";
    assert_eq!(
        with(
            "archiver",
            json!({ "min_delay": "0s", "requests_per_second": "none", "in_flight": "unlimited" }),
            held
        ),
        "0 | 0 | hold 30.5"
    );
    // If the rule has no backoff, there is no wait at all.
    let none = json!({ "backoff": "none" });
    assert_eq!(with("archiver", none, "start | refused | start"), "0 | 1");
}

/// B25: a request starts when it is written; its charge moves to a later time, never to an earlier one
#[test]
fn a_request_starts_when_it_is_written() {
    let slow = "start as A | 0.4 depart of A | 200 of A | 1 ask";
    assert_eq!(run("archiver", ANY, slow), "0 | go | wait 0.4s (min_delay)");
    let many = || json!({ "in_flight": "unlimited" });
    // B was sent while A was connecting: A has to keep its distance to B.
    let overtaken = "start as A | start as B | 1 depart of B | 1.2 depart of A | 2 depart of A | ask";
    assert_eq!(
        with("archiver", many(), overtaken),
        "0 | 1 | go | wait 0.8s (min_delay) | go | wait 1s (min_delay)"
    );
    // A hold that began meanwhile applies to it too (B23).
    let held = "start as A | start as B | 1.1 429 retry-after=30 of A | 1.2 depart of B";
    assert_eq!(with("archiver", many(), held), "0 | 1 | wait 29.9s (retry_after)");
}

/// B25: a permit is charged once, whether its response is recorded or not
#[test]
fn an_unrecorded_permit_stays_charged_and_expires() {
    let script = "start as A | lend 600 of A | 1 ask | 600 ask";
    assert_eq!(run("archiver", ANY, script), "0 | wait 599s (lease) | proceed");
    // Without a permit the oldest open one of that intent is settled; nothing more is charged.
    assert_eq!(run("archiver", ANY, "start | 0.5 unasked 200 | 1 ask"), "0 | proceed");
    // If there is none, the request is charged now.
    assert_eq!(run("archiver", ANY, "5 unasked 200 | 5.5 ask"), "wait 0.5s (min_delay)");
}

/// B26: limits of an intent apply in addition, and count its own starts
#[test]
fn an_intent_can_only_be_slower() {
    let rule =
        || json!({ "intent": { "search": { "min_delay": "10s", "burst": 2 } }, "in_flight": "unlimited" });
    let script = "start search x3 | start x2 | ask search";
    assert_eq!(with("archiver", rule(), script), "0 | 10 | 60 | 61 | 62 | wait 8s (intent_min_delay)");
    let burst = "start search x2 | 25 ask search | start api";
    assert_eq!(with("archiver", rule(), burst), "0 | 10 | wait 35s (intent_burst) | 25");
    let faster =
        json!({ "min_delay": "5s", "intent": { "fetch": { "min_delay": "1s" } }, "in_flight": "unlimited" });
    assert_eq!(with("archiver", faster, "start x3"), "0 | 5 | 10");
    let fetch = json!({ "intent": { "fetch": { "min_delay": "7s" } }, "in_flight": "unlimited" });
    assert_eq!(with("archiver", fetch, "start x2 | start api | start fetch"), "0 | 7 | 8 | 14");
}

/// B27: the remaining requests of a quota are spread evenly until its reset
#[test]
fn a_quota_is_spread_until_its_reset() {
    let many = || json!({ "in_flight": "unlimited" });
    assert_eq!(with("archiver", many(), "start | 200 quota=4/60 | start x5"), "0 | 15 | 30 | 45 | 60 | 61");
    assert_eq!(with("archiver", many(), "start | 200 quota=0/60 | ask"), "0 | wait 60s (quota_spent)");
    // A quota applies until its reset, whatever a later response says.
    let loosened = "start as A | start as B | 1 200 quota=4/60 of A | 1 200 quota=100/10 of B | start x2";
    assert_eq!(with("archiver", many(), loosened), "0 | 1 | 16 | 31");
    let tightened = "start as A | start as B | 1 200 quota=6/60 of A | 1 200 quota=1/20 of B | start x2";
    assert_eq!(with("archiver", many(), tightened), "0 | 1 | 21 | 31");
}

/// B35, B37: the server's deadline and what was learned survive a kill -9, the backoff doesn't
#[test]
fn deadlines_and_learned_delays_survive_a_kill() {
    let script = "start | 500 | start | 429 retry-after=100 | 10 kill | n | learned | ask";
    assert_eq!(run("standard", ANY, script), "0 | 5 | n 0 | learned 2 floor 0 | wait 95s (retry_after)");
}

/// B39: an operator can pause a domain; holds still apply
#[test]
fn an_operator_pauses_and_resumes() {
    assert_eq!(run("archiver", ANY, "pause | ask | resume | ask"), "refused (paused) | proceed");
    let hour = "pause 60 | 10 ask | 60 ask";
    assert_eq!(run("archiver", ANY, hour), "wait 50s (paused) | proceed");
    let held = "start | 429 retry-after=90 | pause 60 | ask | resume | ask";
    assert_eq!(run("archiver", ANY, held), "0 | wait 90s (retry_after) | wait 90s (retry_after)");
    let pinned = "set 30 | pin | start | 200 | ask";
    assert_eq!(
        run("archiver", ANY, pinned),
        "0 | wait 30s (learned)",
        "a pinned delay applies even if learning is off"
    );
}

/// B77: after lost state, a domain continues as if the last holder had just sent a request and all windows were full
#[test]
fn lost_state_costs_time_never_politeness() {
    assert_eq!(
        run("archiver", ANY, "start | 200 | 10 kill | ask | 11 ask"),
        "0 | wait 1s (min_delay) | proceed"
    );
    let burst = "start | 10 kill | ask | start x4";
    assert_eq!(run("collector", "finance.yahoo.com", burst), "0 | wait 60s (burst) | 70 | 72 | 74 | 130");
    let search = json!({ "intent": { "search": { "min_delay": "10s", "burst": 1 } } });
    assert_eq!(with("archiver", search, "10 kill | ask search"), "wait 60s (intent_burst)");
}

/// B41: a retry is ready when the pace allows it, not when the requests in flight would expire
#[test]
fn a_retry_does_not_wait_for_requests_in_flight() {
    let two = json!({ "in_flight": 2 });
    let script = "start as A | start as B | 1.5 500 of A | next";
    assert_eq!(with("archiver", two, script), "0 | 1 | next 6.5");
}

/// B78: requests in flight are limited
#[test]
fn requests_in_flight_are_limited() {
    let two = || json!({ "in_flight": 2, "min_delay": "0s" });
    let script = "start as A | start as B | 1 ask | 2 200 of A | ask | 3 ask";
    assert_eq!(
        with("archiver", two(), script),
        "0 | 0 | wait 59s (in_flight) | proceed | wait 57s (in_flight)"
    );
    assert_eq!(
        with("archiver", json!({ "in_flight": "unlimited", "min_delay": "0s" }), "start x3"),
        "0 | 0 | 0"
    );
}

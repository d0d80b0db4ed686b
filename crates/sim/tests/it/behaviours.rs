//! Behaviours that the worked examples leave open, one sentence each.

use comity_core::decision::{Decision, Origin};
use comity_core::intent::Intent;
use comity_core::pace::{Pace, Terms};
use comity_core::rule::{Fields, Rule};
use comity_core::time::{Span, Timestamp};
use comity_sim::scenario::{Scenario, run};
use serde_json::{Value, json};

const ANY: &str = "example.org";

fn with(profile: &str, settings: Value, script: &str) -> String {
    Scenario::of(profile, ANY, &settings).run(script)
}

/// B1, B2: the latest constraint binds and is named; the sleep it asks for is enough
#[test]
fn the_latest_constraint_binds() {
    let script = "start | 429 retry-after=3 | ask | 3 ask";
    assert_eq!(
        with("archiver", json!({ "min_delay": "5s" }), script),
        "0 | wait 5s (min_delay) | wait 2s (min_delay)"
    );
    assert_eq!(with("archiver", json!({ "min_delay": "1s" }), script), "0 | wait 3s (retry_after) | proceed");
}

/// B2: on a tie the server is named before robots, robots before the rule, the rule before what was learnt
#[test]
fn ties_are_named_in_order() {
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

/// B2: explain lists every constraint with its number and origin, the binding one first
#[test]
fn explain_lists_every_constraint() {
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
            "rule: search: burst 1 per 60s reached; oldest leaves in 59.5s",
            "rule: minimum delay of search 10000 ms: last request 500 ms ago",
            "learned: learned delay 4000 ms: last request 500 ms ago",
            "rule: minimum delay 2000 ms: last request 500 ms ago",
            "robots: crawl-delay of robots.txt 1000 ms: last request 500 ms ago",
            "rule: requests per second: one per 1000 ms: last request 500 ms ago",
            "rule: burst 3 per 60s",
        ]
    );
}

/// B1: the sentences people read
#[test]
fn reasons_read_as_sentences() {
    let said = |script: &str, settings: Value| {
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
    assert_eq!(said("429", null()), "backing off after a failure; 4.8s left");
    assert_eq!(said("429 429", null()), "backing off after 2 failures in a row; 9.8s left");
    assert_eq!(said("429", json!({ "wait_on_429": "90s" })), "the rule's wait after a 429; 89.8s left");
    assert_eq!(
        said("429", json!({ "wait_on_429": "learned" })),
        "learned delay 2000 ms: last request 200 ms ago"
    );
    assert_eq!(said("ask", null()), "1 request is on the wire, which is all that is allowed at once");
    assert_eq!(said("pause", null()), "no: paused by an operator until resumed");
    assert_eq!(said("hour", null()), "paused by an operator until 1970-01-01T01:00:00Z; 60m left");
    assert_eq!(said("lost", null()), "minimum delay 1000 ms: last request may have left 200 ms ago");
}

/// B7: after a clock steps back, nothing waits longer than it was set for, and nothing is forgotten
#[test]
fn a_clock_that_steps_back_lengthens_no_wait() {
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
    // A 429 that is heard after the step still counts: its request did not start before the penalty.
    let counted = "1000 start | 429 | clock 10 | start | 429 | n";
    assert_eq!(run("archiver", ANY, counted), "1000 | 15 | n 2");
}

/// B7: a jump ahead grants one slot more, then the spacing is normal
#[test]
fn a_clock_that_jumps_ahead_grants_one_slot() {
    assert_eq!(
        run("archiver", ANY, "start | 200 | clock 5000 | ask | 200 | ask"),
        "0 | proceed | wait 1s (min_delay)"
    );
}

/// B20: what a 429 waits without a Retry-After
#[test]
fn a_429_without_a_word_waits_what_the_rule_says() {
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

/// B20: Retry-After replaces the rule's own wait on any status
#[test]
fn retry_after_counts_on_any_status() {
    for status in [403, 404, 429, 500, 503, 301] {
        let script = format!("start | {status} retry-after=90 | ask");
        assert_eq!(run("archiver", ANY, &script), "0 | wait 90s (retry_after)", "{status}");
    }
    assert_eq!(run("archiver", ANY, "start | 503 retry-after=2 | ask"), "0 | wait 2s (retry_after)");
}

/// B21: nothing stalls a domain for ever
#[test]
fn an_absurd_retry_after_is_clamped() {
    let script = "start | 429 retry-after=99999999999999999999 | ask";
    assert_eq!(run("archiver", ANY, script), "0 | wait 86400s (retry_after)");
    assert_eq!(with("archiver", json!({ "retry_after_max": "1h" }), script), "0 | wait 3600s (retry_after)");
    let quota = "start | 200 quota=0/999999999 | ask";
    assert_eq!(with("archiver", json!({ "retry_after_max": "1h" }), quota), "0 | wait 3600s (quota_spent)");
}

/// B22: a shorter hold shortens nothing, and a success ends nothing
#[test]
fn holds_only_grow() {
    let shorter = "start as A | 1 start as B | 1 429 retry-after=60 of A | 2 503 retry-after=5 of B | hold";
    assert_eq!(with("archiver", json!({ "in_flight": "unlimited" }), shorter), "0 | 1 | hold 61");
    let success = "start as A | 1 start as B | 1 429 retry-after=60 of A | 2 200 of B | hold | ask";
    assert_eq!(
        with("archiver", json!({ "in_flight": "unlimited" }), success),
        "0 | 1 | hold 61 | wait 59s (retry_after)"
    );
}

/// B23, B24: what a late answer may change
#[test]
fn late_answers_change_nothing_but_a_longer_deadline() {
    let free = || json!({ "in_flight": "unlimited", "min_delay": "0s" });
    let late_success = "start as A | start as B | 1 500 of A | n | 2 200 of B | n";
    assert_eq!(with("archiver", free(), late_success), "0 | 0 | n 1 | n 1");
    let late_failure = "start as A | start as B | 1 500 of A | 2 timeout of B | n | hold | retries B";
    assert_eq!(with("archiver", free(), late_failure), "0 | 0 | n 1 | hold 6 | retries 0");
    // At the very moment of the penalty a request is no longer before it.
    let same_moment = "start as A | 1 start as B | 1 500 of A | 2 500 of B | n";
    assert_eq!(with("archiver", free(), same_moment), "0 | 1 | n 2");
}

/// B24: only success and answered reset the ladder
#[test]
fn what_resets_the_ladder() {
    let after =
        |last: &str| run("archiver", ANY, &format!("start | 500 | start | 500 | n | start | {last} | n"));
    assert_eq!(after("200"), "0 | 5 | n 2 | 15 | n 0");
    assert_eq!(after("404"), "0 | 5 | n 2 | 15 | n 0");
    assert_eq!(after("304"), "0 | 5 | n 2 | 15 | n 0");
    for last in ["403", "503", "429", "502", "timeout", "disconnect"] {
        assert_eq!(after(last), "0 | 5 | n 2 | 15 | n 3", "{last}");
    }
}

/// B25: the start is when the request is written; it moves the charge later, never earlier
#[test]
fn a_request_starts_when_it_is_written() {
    let slow = "start as A | 0.4 depart of A | 200 of A | 1 ask";
    assert_eq!(run("archiver", ANY, slow), "0 | go | wait 0.4s (min_delay)");
    let many = || json!({ "in_flight": "unlimited" });
    // B left while A was connecting: A waits for its distance to B.
    let overtaken = "start as A | start as B | 1 depart of B | 1.2 depart of A | 2 depart of A | ask";
    assert_eq!(
        with("archiver", many(), overtaken),
        "0 | 1 | go | wait 0.8s (min_delay) | go | wait 1s (min_delay)"
    );
    // A hold that began meanwhile stops it like everybody else (B23).
    let held = "start as A | start as B | 1.1 429 retry-after=30 of A | 1.2 depart of B";
    assert_eq!(with("archiver", many(), held), "0 | 1 | wait 29.9s (retry_after)");
}

/// B25: a permit is charged once, whether its answer is recorded or not
#[test]
fn an_unrecorded_permit_stays_charged_and_expires() {
    assert_eq!(run("archiver", ANY, "start | 1 ask | 600 ask"), "0 | wait 599s (in_flight) | proceed");
    // Without a permit the oldest open one of that intent is settled; nothing more is charged.
    assert_eq!(run("archiver", ANY, "start | 0.5 unasked 200 | 1 ask"), "0 | proceed");
    // If there is none, it is charged now.
    assert_eq!(run("archiver", ANY, "5 unasked 200 | 5.5 ask"), "wait 0.5s (min_delay)");
}

/// B26: an intent is slowed in addition, by its own starts
#[test]
fn an_intent_only_slows() {
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

/// B27: what is left of a quota is spread until its reset
#[test]
fn a_quota_is_spread_until_its_reset() {
    let many = || json!({ "in_flight": "unlimited" });
    assert_eq!(with("archiver", many(), "start | 200 quota=4/60 | start x5"), "0 | 15 | 30 | 45 | 60 | 61");
    assert_eq!(with("archiver", many(), "start | 200 quota=0/60 | ask"), "0 | wait 60s (quota_spent)");
    // What one answer asked for goes until its reset, whatever a later one says.
    let loosened = "start as A | start as B | 1 200 quota=4/60 of A | 1 200 quota=100/10 of B | start x2";
    assert_eq!(with("archiver", many(), loosened), "0 | 1 | 16 | 31");
    let tightened = "start as A | start as B | 1 200 quota=6/60 of A | 1 200 quota=1/20 of B | start x2";
    assert_eq!(with("archiver", many(), tightened), "0 | 1 | 21 | 31");
}

/// B35, B37: a kill -9 keeps the server's word and what was learnt, and voids the ladder
#[test]
fn what_survives_a_kill() {
    let script = "start | 500 | start | 429 retry-after=100 | 10 kill | n | learned | ask";
    assert_eq!(run("standard", ANY, script), "0 | 5 | n 0 | learned 2 floor 0 | wait 95s (retry_after)");
}

/// B39: an operator's pause closes a domain, and holds stay underneath
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
        "a pinned delay goes without learning too"
    );
}

/// B77: after lost state a domain goes on as if the last holder had sent at the last moment, windows full
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

/// B41: a retry is ready when the pace is, not when the requests on the wire would expire
#[test]
fn a_retry_does_not_wait_for_what_is_on_the_wire() {
    let two = json!({ "in_flight": 2 });
    let script = "start as A | start as B | 1.5 500 of A | next";
    assert_eq!(with("archiver", two, script), "0 | 1 | next 6.5");
}

/// B78: at most so many on the wire at once
#[test]
fn requests_on_the_wire_are_limited() {
    let two = || json!({ "in_flight": 2, "min_delay": "0s" });
    let script = "start as A | start as B | 1 ask | 2 200 of A | ask | 3 ask";
    assert_eq!(
        with("archiver", two(), script),
        "0 | 0 | wait 599s (in_flight) | proceed | wait 597s (in_flight)"
    );
    assert_eq!(
        with("archiver", json!({ "in_flight": "unlimited", "min_delay": "0s" }), "start x3"),
        "0 | 0 | 0"
    );
}

/// B20, B25, B78: a permit that expired while it waited to depart is on the wire once it does
#[test]
fn an_expired_permit_that_departs_counts_again() {
    let script = "start as A | 0.5 start as B | 0.6 429 retry-after=900 of B | 1 depart of A | 900.6 start as C \
                  | 902.1 depart of A | 902.2 429 retry-after=900 of A | hold | n";
    assert_eq!(
        run("crawler", ANY, script),
        "0 | 0.5 | wait 899.6s (retry_after) | 900.6 | go | hold 1802.2 | n 2"
    );
}

/// B20: an answer that comes after its permit expired still moves the server's deadline, and nothing else
#[test]
fn an_answer_after_the_expiry_is_late() {
    let script = "start as A | 700 ask as B | 701 429 retry-after=60 of A | hold | n | streaks";
    assert_eq!(run("standard", ANY, script), "0 | proceed | hold 761 | n 0 | streaks 0/0");
}

/// B23, B24: a late failure ends the run of successes, though it changes nothing else
#[test]
fn a_late_failure_ends_the_run_of_successes() {
    let free = json!({ "in_flight": "unlimited", "min_delay": "0s", "backoff": "none" });
    let script = "start as A | start as B | 1 500 of A | 2 successes 3 | streaks | 3 500 of B | streaks | n";
    assert_eq!(with("crawler", free, script), "0 | 0 | streaks 3/0 | streaks 0/0 | n 0");
}

/// B29–B32: what counts is the spacing and the probe in force when the request is written
#[test]
fn a_permit_is_judged_by_the_moment_it_departs() {
    // Drawn before the probe began, written in it: its 429 breaks the probe.
    let script = "set 4.5 | successes 19 | start as LATE | 200 successes 1 | learned | +3.5 depart of LATE | 429 of LATE \
                  | learned";
    let said = run("crawler", ANY, script);
    assert!(said.ends_with("learned 3.5 floor 0 | go | learned 4.5 floor 4.5"), "{said}");
}

/// B39: a pin ends the probe that runs, and a 429 is still held for
#[test]
fn a_pin_ends_the_probe() {
    let script = "set 4.5 | successes 20 | learned | pin | unpin | start | 429 | learned";
    let said = run("crawler", ANY, script);
    assert!(said.starts_with("learned 3.5 floor 0 | ") && said.ends_with("learned 4.5 floor 0"), "{said}");
    assert_eq!(run("crawler", ANY, "pin | start | 429 | hold"), "0 | hold 0.5", "nothing learnt: the base");
}

/// B29: what was learnt over a base that has fallen since is limited by the base of now
#[test]
fn a_fallen_base_takes_the_learned_delay_along() {
    let rule = Rule::default();
    let (robots, free) = (Terms { rule: &rule, crawl_delay: Span::from_secs(300) }, Terms::from(&rule));
    let mut pace = Pace::default();
    let rate_limited = comity_core::outcome::Outcome::RateLimited.into();
    pace.record_unasked(robots, Intent::Fetch, &rate_limited, Timestamp::from_secs(0));
    assert_eq!(pace.spacing(robots), Span::from_secs(300));
    assert_eq!(pace.spacing(free), Span::from_secs(60));
    assert_eq!(pace.next_at(free, Intent::Fetch, Timestamp::from_secs(10)), Timestamp::from_secs(60));
    pace.record_unasked(free, Intent::Fetch, &rate_limited, Timestamp::from_secs(400));
    assert_eq!(pace.learned().delay(), Span::from_secs(60));
}

/// B7: a clock that jumps ahead and comes back voids no hold, and lengthens none
#[test]
fn a_clock_that_jumps_and_comes_back_voids_no_hold() {
    let script = "start | 429 retry-after=3600 | clock 5000 | start | 200 | clock 1 | ask | 3600 ask";
    assert_eq!(run("archiver", ANY, script), "0 | 5000 | wait 3599s (retry_after) | proceed");
    let longer = "100 start | 429 retry-after=60 | clock 0 | ask";
    assert_eq!(run("archiver", ANY, longer), "100 | wait 60s (retry_after)");
    assert_eq!(run("archiver", ANY, "100 start | 500 | clock 0 | ask"), "100 | wait 5s (backoff)");
    let quota = "100 start | 200 quota=1/60 | clock 0 | ask";
    assert_eq!(run("archiver", ANY, quota), "100 | wait 60s (quota)");
}

/// B7, B37: a deadline read back under a clock that is behind waits no longer than it was stated for
#[test]
fn a_restored_deadline_is_no_longer_than_it_was() {
    let mut pace = Pace::default();
    let at = Timestamp::from_secs;
    pace.restore_server_until(at(1_120), at(1_000), at(10));
    let rule = Rule::default();
    assert_eq!(pace.next_at((&rule).into(), Intent::Fetch, at(10)), at(130));
    pace.restore_server_until(at(50), at(20), at(20));
    assert_eq!(pace.server_until(), Some(at(130)), "a shorter one shortens nothing");
}

/// B77: windows that remember something are full after a loss, too
#[test]
fn a_loss_fills_windows_that_remember_something() {
    let scenario = Scenario::of("collector", "finance.yahoo.com", &Value::Null);
    let (terms, at) = (Terms::from(scenario.rule()), Timestamp::from_secs);
    let mut pace = Pace::default();
    for start in [0, 2, 4] {
        assert!(pace.admit(terms, Intent::Fetch, at(start)).proceeds());
    }
    let mut pace = Pace::decode(&pace.encode()).unwrap();
    pace.lost(at(100));
    assert_eq!(pace.next_at(terms, Intent::Fetch, at(100)), at(160));
}

/// B35, B38: a floor whose age nobody kept is taken for young
#[test]
fn a_floor_without_an_age_is_young() {
    use comity_core::pace::Kept;
    let scenario = Scenario::of("crawler", ANY, &Value::Null);
    let (terms, mut pace) = (Terms::from(scenario.rule()), Pace::default());
    let delay = Span::from_millis(4_500);
    pace.seed(terms, &Kept { delay, floor: delay, ..Kept::default() }, Timestamp::from_secs(0));
    for nth in 1..=40 {
        let now = Timestamp::from_secs(nth * 10);
        pace.record_unasked(terms, Intent::Fetch, &comity_core::outcome::Outcome::Success.into(), now);
    }
    assert_eq!((pace.learned().delay(), pace.learned().floor()), (delay, delay));
}

/// A pace may be forgotten once nothing of it matters, also when somebody never recorded
#[test]
fn a_pace_goes_idle() {
    let (rule, mut pace) = (Rule::default(), Pace::default());
    let (terms, at) = (Terms::from(&rule), Timestamp::from_secs);
    assert!(pace.is_idle(terms, at(0)));
    pace.admit(terms, Intent::Fetch, at(0));
    assert!(!pace.is_idle(terms, at(599)));
    assert!(pace.is_idle(terms, at(600)));
    pace.record_unasked(terms, Intent::Fetch, &comity_core::outcome::Outcome::ServerError.into(), at(700));
    assert!(!pace.is_idle(terms, at(3_600)), "the ladder is remembered");
    assert!(pace.is_idle(terms, at(700 + 86_400)));
    assert!(pace.permit(1).is_none());
    // What is left of a quota matters until its reset.
    let mut pace = Pace::default();
    let told = comity_core::headers::Told {
        quota: Some(comity_core::headers::Quota {
            remaining: 4.try_into().unwrap(),
            reset: Span::from_secs(100),
        }),
        ..Default::default()
    };
    pace.record_unasked(terms, Intent::Fetch, &comity_core::outcome::Answer::of_status(200, told), at(0));
    assert!(!pace.is_idle(terms, at(99)));
    assert!(pace.is_idle(terms, at(100)));
}

/// B25: with more permits open than are kept, the oldest is let go; what the server says to it still counts
#[test]
fn too_many_open_permits_lose_no_deadline() {
    let free = json!({ "in_flight": "unlimited", "min_delay": "0s" });
    let script = "start as FIRST | start as NEXT | start x1100 | 1 429 retry-after=120 of NEXT | hold | n";
    let said = with("archiver", free, script);
    assert!(said.ends_with("hold 121 | n 0"), "{}", &said[said.len() - 40..]);
}

/// B28: what is tracked is shown
#[test]
fn what_is_tracked_is_shown() {
    let script = "start | 429 | streaks | start | 429 | streaks | start | 500 | streaks | start | 200 | streaks | learned";
    let said = run("crawler", ANY, script);
    let shown: Vec<&str> = said.split(" | ").filter(|word| word.starts_with(['s', 'l'])).collect();
    assert_eq!(shown, ["streaks 0/1", "streaks 0/2", "streaks 0/2", "streaks 1/0", "learned 2.5 floor 0"]);
    let (rule, mut pace, at) = (Rule::default(), Pace::default(), Timestamp::from_secs);
    assert_eq!((pace.last_start(), pace.last_success(), pace.server_until()), (None, None, None));
    pace.record_unasked((&rule).into(), Intent::Fetch, &comity_core::outcome::Outcome::Success.into(), at(7));
    assert_eq!((pace.last_start(), pace.last_success()), (Some(at(7)), Some(at(7))));
    pace.set_learned((&rule).into(), Span::from_secs(9), Span::from_secs(4), at(8));
    pace.pin(comity_core::pace::Pinned::Yes);
    let learned = pace.learned();
    assert_eq!((learned.delay(), learned.floor()), (Span::from_secs(9), Span::from_secs(4)));
    assert_eq!((learned.pinned(), learned.floor_confirmed_at()), (true, Some(at(8))));
    pace.pin(comity_core::pace::Pinned::No);
    assert!(!pace.learned().pinned());
}

/// B35, B38: the age of a floor survives a kill
#[test]
fn the_age_of_a_floor_survives_a_kill() {
    let week = 7 * 86_400;
    let floor = "set 4.5 | successes 20 | start | 429 | 200 start | 200";
    let old = format!("{floor} | {week} kill | {} successes 21 | learned", week + 500);
    let said = run("crawler", ANY, &old);
    assert!(said.ends_with("learned 3.5 floor 3.5"), "{said}");
}

/// B25: recording again is harmless, however late
#[test]
fn recording_again_is_harmless_however_late() {
    let (rule, mut pace, at) = (Rule::default(), Pace::default(), Timestamp::from_secs);
    let terms = Terms::from(&rule);
    let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, at(0)) else { panic!() };
    let told = comity_core::headers::Told::retry_after(Span::from_secs(1_000));
    let answer = comity_core::outcome::Answer { outcome: comity_core::outcome::Outcome::RateLimited, told };
    pace.record(terms, &permit, &answer, at(1));
    let again = pace.record(terms, &permit, &answer, at(700));
    assert_eq!(again.standing, comity_core::pace::Standing::Repeated);
    assert_eq!(pace.server_until(), Some(at(1_001)));
}

/// B20: pinned with nothing learnt, and learning off: a 429 waits the ladder
#[test]
fn a_pin_without_a_delay_leaves_the_ladder() {
    let off = json!({ "learning": "off", "wait_on_429": "learned" });
    assert_eq!(with("archiver", off, "pin | start | 429 | hold"), "0 | hold 5");
}

/// B7, B77: a moment that the clock has not reached is not waited for
#[test]
fn a_death_in_the_future_is_a_death_now() {
    use comity_core::pace::{Kept, Left};
    let (rule, at) = (Rule::default(), Timestamp::from_secs);
    let terms = Terms::from(&rule);
    let left = Left::Died { latest: at(3_600) };
    let pace = Pace::inherit(terms, &Kept::default(), left, at(100)).unwrap();
    assert_eq!(pace.next_at(terms, Intent::Fetch, at(100)), at(101));
}

/// B15, B25, B48, B78: what a permit carries is of the moment its request is written, and what is on the wire counts
#[test]
fn a_departing_request_sees_what_is_on_the_wire() {
    use comity_core::pace::Departure;
    let of = |settings: Value| Scenario::of("crawler", ANY, &settings).rule().clone();
    let (one, many) = (of(json!({ "in_flight": 1, "min_delay": "0s" })), of(json!({ "min_delay": "0s" })));
    let (one, many, at) = (Terms::from(&one), Terms::from(&many), Timestamp::from_secs);
    let mut pace = Pace::default();
    // Two hosts of a group: the first allows one at once, the second any number.
    let Decision::Proceed(mut first) = pace.admit(one, Intent::Fetch, at(0)) else { panic!() };
    let Decision::Proceed(mut second) = pace.admit(many, Intent::Fetch, at(0)) else { panic!() };
    assert_eq!(pace.permit(first.id()), Some(&first));
    assert_eq!(pace.depart(many, &mut second, at(1)), Departure::Go);
    let Departure::Wait { reason, .. } = pace.depart(one, &mut first, at(2)) else { panic!("two at once") };
    assert_eq!(reason.limit.as_str(), "in_flight");
    pace.record(many, &second, &comity_core::outcome::Outcome::Success.into(), at(3));
    assert_eq!(first.spacing(), Span::ZERO);
    pace.set_learned(one, Span::from_secs(2), Span::ZERO, at(3));
    assert_eq!(pace.depart(one, &mut first, at(4)), Departure::Go);
    assert_eq!(
        (first.started_at(), first.spacing(), first.intent()),
        (at(4), Span::from_secs(2), Intent::Fetch)
    );
    assert_eq!(pace.permit(first.id()), Some(&first));
    assert_eq!(pace.permit(second.id()), None, "it was recorded");
}

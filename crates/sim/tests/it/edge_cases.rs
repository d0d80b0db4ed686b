//! Edge cases: permits that expire, clocks that jump, state that is lost, bases that fall.

use comity_core::decision::Decision;
use comity_core::intent::Intent;
use comity_core::pace::{Pace, Terms};
use comity_core::rule::Rule;
use comity_core::time::{Span, Timestamp};
use comity_sim::scenario::{Scenario, run};
use serde_json::{Value, json};

use crate::behaviours::{ANY, with};

/// B20, B25, B78: a held permit stays valid, however long it waits to depart
#[test]
fn a_permit_that_departs_late_counts() {
    let script = "start as A | 0.5 start as B | 0.6 429 retry-after=900 of B | 1 depart of A | 900.6 start as C \
                  | 902.1 depart of A | 902.2 429 retry-after=900 of A | hold | n";
    assert_eq!(
        run("crawler", ANY, script),
        "0 | 0.5 | wait 899.6s (retry_after) | 900.6 | go | hold 1802.2 | n 2"
    );
}

/// B80: a permit that is never recorded counts as in flight until its lease ends, and no longer
#[test]
fn a_lease_that_ends_frees_the_site() {
    let script = "start as A | lend 60 of A | 12 ask | 59.9 ask | 60 ask as B";
    assert_eq!(run("standard", ANY, script), "0 | wait 48s (lease) | wait 0.1s (lease) | proceed");
    let script = "start as A | lend 600 of A | 3 ask | release | ask as B | learned | hold";
    let output = run("standard", ANY, script);
    assert_eq!(output, "0 | wait 597s (lease) | released 1 | proceed | learned 0 floor 0 | hold none");
}

/// B78, B80: a permit that a process holds itself doesn't expire like a lease
#[test]
fn a_held_request_counts_as_in_flight_until_it_is_recorded() {
    let script = "start as A | 59 ask | 61 ask | 700 ask | 701 200 of A | ask";
    let output = "0 | wait 1s (in_flight) | wait 59s (in_flight) | wait 20s (in_flight) | proceed";
    assert_eq!(run("standard", ANY, script), output);
}

/// B80: releasing the leases of a site doesn't forget anything about it
#[test]
fn releasing_leases_keeps_what_was_learned() {
    let script = "start as A | 0.1 429 retry-after=30 of A | 40 start as B | lend 60 of B | 42 release | learned \
                  | n | spacing | 43 ask";
    let output = run("standard", ANY, script);
    assert_eq!(output, "0 | 40 | released 1 | learned 2 floor 0 | n 1 | spacing 2 | proceed");
}

/// B20, B25, B80: a response that arrives after the lease of its permit ended still counts, once
#[test]
fn a_response_after_the_lease_ended_still_counts() {
    let script =
        "start as A | lend 60 of A | 700 ask as B | 701 429 retry-after=60 of A | hold | n | streaks";
    assert_eq!(run("standard", ANY, script), "0 | proceed | hold 761 | n 1 | streaks 0/1");
}

/// B80: lent permits, and permits that a process held when it gave up the site, have a lease under the next holder too
#[test]
fn leases_survive_a_handover_and_a_stop() {
    for how in ["handover", "stop"] {
        let lent = format!("start as A | lend 60 of A | 20 {how} | ask | 60 ask");
        assert_eq!(run("standard", ANY, &lent), "0 | wait 40s (lease) | proceed", "{how}");
        let held = format!("start as A | 20 {how} | ask | 60 ask");
        assert_eq!(run("standard", ANY, &held), "0 | wait 40s (lease) | proceed", "{how}");
    }
}

/// B23, B24: a late failure ends the run of successes, but changes nothing else
#[test]
fn a_late_failure_ends_the_run_of_successes() {
    let free = json!({ "in_flight": "unlimited", "min_delay": "0s", "backoff": "none" });
    let script = "start as A | start as B | 1 500 of A | 2 successes 3 | streaks | 3 500 of B | streaks | n";
    assert_eq!(with("crawler", free, script), "0 | 0 | streaks 3/0 | streaks 0/0 | n 0");
}

/// B29–B32: a response is judged by the spacing and the probe at the time its request was written
#[test]
fn a_permit_is_judged_by_when_it_departs() {
    // The permit was drawn before the probe began, but written during it: its 429 ends the probe.
    let script = "set 4.5 | successes 19 | start as LATE | 200 successes 1 | learned | +3.5 depart of LATE | 429 of LATE \
                  | learned";
    let output = run("crawler", ANY, script);
    assert!(output.ends_with("learned 3.5 floor 0 | go | learned 4.5 floor 4.5"), "{output}");
}

/// B39: pinning ends the running probe; a 429 still causes a hold
#[test]
fn pinning_ends_the_probe() {
    let script = "set 4.5 | successes 20 | learned | pin | unpin | start | 429 | learned";
    let output = run("crawler", ANY, script);
    assert!(
        output.starts_with("learned 3.5 floor 0 | ") && output.ends_with("learned 4.5 floor 0"),
        "{output}"
    );
    assert_eq!(
        run("crawler", ANY, "pin | start | 429 | hold"),
        "0 | hold 0.5",
        "nothing learned: the base applies"
    );
}

/// B29: a delay that was learned with a higher base is limited by the current base
#[test]
fn a_lower_base_lowers_the_learned_delay() {
    let rule = Rule::default();
    let (robots, free) = (Terms { rule: &rule, crawl_delay: Span::from_secs(300) }, Terms::from(&rule));
    let mut pace = Pace::default();
    let rate_limited = comity_core::outcome::Outcome::RateLimited.into();
    pace.record_unasked(robots, Intent::Fetch, &rate_limited, Timestamp::from_secs(0));
    assert_eq!(pace.spacing(robots), Span::from_secs(300));
    assert_eq!(pace.spacing(free), Span::from_secs(60));
    assert_eq!(pace.retry_at(free, Intent::Fetch, Timestamp::from_secs(10)), Timestamp::from_secs(60));
    pace.record_unasked(free, Intent::Fetch, &rate_limited, Timestamp::from_secs(400));
    assert_eq!(pace.learned().delay(), Span::from_secs(60));
}

/// B7: a clock that jumps ahead and back neither ends nor extends a hold
#[test]
fn a_clock_that_jumps_ahead_and_back_keeps_holds() {
    let script = "start | 429 retry-after=3600 | clock 5000 | start | 200 | clock 1 | ask | 3600 ask";
    assert_eq!(run("archiver", ANY, script), "0 | 5000 | wait 3599s (retry_after) | proceed");
    let longer = "100 start | 429 retry-after=60 | clock 0 | ask";
    assert_eq!(run("archiver", ANY, longer), "100 | wait 60s (retry_after)");
    assert_eq!(run("archiver", ANY, "100 start | 500 | clock 0 | ask"), "100 | wait 5s (backoff)");
    let quota = "100 start | 200 quota=1/60 | clock 0 | ask";
    assert_eq!(run("archiver", ANY, quota), "100 | wait 60s (quota)");
}

/// B7, B37: if the clock is behind, a restored deadline waits no longer than it was stated for
#[test]
fn a_restored_deadline_is_no_longer_than_it_was() {
    let mut pace = Pace::default();
    let at = Timestamp::from_secs;
    pace.restore_server_until(at(1_120), at(1_000), at(10));
    let rule = Rule::default();
    assert_eq!(pace.retry_at((&rule).into(), Intent::Fetch, at(10)), at(130));
    pace.restore_server_until(at(50), at(20), at(20));
    assert_eq!(pace.server_until(), Some(at(130)), "a shorter one doesn't shorten it");
}

/// B77: after lost state, windows count as full even if they remembered some starts
#[test]
fn lost_state_fills_windows_that_are_not_empty() {
    let scenario = Scenario::of("collector", "finance.yahoo.com", &Value::Null);
    let (terms, at) = (Terms::from(scenario.rule()), Timestamp::from_secs);
    let mut pace = Pace::default();
    for start in [0, 2, 4] {
        assert!(pace.admit(terms, Intent::Fetch, at(start)).proceeds());
    }
    let mut pace = Pace::decode(&pace.encode()).unwrap();
    pace.lost(at(100));
    assert_eq!(pace.retry_at(terms, Intent::Fetch, at(100)), at(160));
}

/// B35, B38: a floor of unknown age counts as just confirmed
#[test]
fn a_floor_without_an_age_is_young() {
    use comity_core::pace::SavedLimits;
    let scenario = Scenario::of("crawler", ANY, &Value::Null);
    let (terms, mut pace) = (Terms::from(scenario.rule()), Pace::default());
    let delay = Span::from_millis(4_500);
    pace.seed(terms, &SavedLimits { delay, floor: delay, ..SavedLimits::default() }, Timestamp::from_secs(0));
    for nth in 1..=40 {
        let now = Timestamp::from_secs(nth * 10);
        pace.record_unasked(terms, Intent::Fetch, &comity_core::outcome::Outcome::Success.into(), now);
    }
    assert_eq!((pace.learned().delay(), pace.learned().floor()), (delay, delay));
}

/// A pace can be forgotten once nothing in it matters, even if a permit was never recorded
#[test]
fn a_pace_becomes_idle() {
    let (rule, mut pace) = (Rule::default(), Pace::default());
    let (terms, at) = (Terms::from(&rule), Timestamp::from_secs);
    assert!(pace.is_idle(terms, at(0)));
    let id = pace.admit(terms, Intent::Fetch, at(0)).permit().unwrap().id();
    assert!(!pace.is_idle(terms, at(86_400)), "a request is in flight");
    pace.lend(id, Span::from_secs(60), at(0));
    assert!(!pace.is_idle(terms, at(59)));
    assert!(pace.is_idle(terms, at(60)));
    pace.record_unasked(terms, Intent::Fetch, &comity_core::outcome::Outcome::ServerError.into(), at(700));
    assert!(!pace.is_idle(terms, at(3_600)), "the penalty is remembered");
    assert!(pace.is_idle(terms, at(700 + 86_400)));
    assert!(pace.permit(1).is_none());
    // A quota matters until its reset.
    let mut pace = Pace::default();
    let hints = comity_core::headers::PacingHints {
        quota: Some(comity_core::headers::Quota {
            remaining: 4.try_into().unwrap(),
            reset: Span::from_secs(100),
        }),
        ..Default::default()
    };
    pace.record_unasked(terms, Intent::Fetch, &comity_core::outcome::Answer::of_status(200, hints), at(0));
    assert!(!pace.is_idle(terms, at(99)));
    assert!(pace.is_idle(terms, at(100)));
}

/// B25: if too many permits are open, the oldest is dropped, but the server's response to it still counts
#[test]
fn deadlines_count_even_for_dropped_permits() {
    let free = json!({ "in_flight": "unlimited", "min_delay": "0s" });
    let script = "start as FIRST | start as NEXT | start x1100 | 1 429 retry-after=120 of NEXT | hold | n";
    let output = with("archiver", free, script);
    assert!(output.ends_with("hold 121 | n 0"), "{}", &output[output.len() - 40..]);
}

/// B28: everything that is tracked can be shown
#[test]
fn tracked_values_can_be_read() {
    let script = "start | 429 | streaks | start | 429 | streaks | start | 500 | streaks | start | 200 | streaks | learned";
    let output = run("crawler", ANY, script);
    let shown: Vec<&str> = output.split(" | ").filter(|word| word.starts_with(['s', 'l'])).collect();
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
    let output = run("crawler", ANY, &old);
    assert!(output.ends_with("learned 3.5 floor 3.5"), "{output}");
}

/// B25: recording twice is harmless, however late
#[test]
fn recording_twice_is_harmless_however_late() {
    let (rule, mut pace, at) = (Rule::default(), Pace::default(), Timestamp::from_secs);
    let terms = Terms::from(&rule);
    let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, at(0)) else { panic!() };
    let hints = comity_core::headers::PacingHints::retry_after(Span::from_secs(1_000));
    let answer = comity_core::outcome::Answer { hints, ..comity_core::outcome::Outcome::RateLimited.into() };
    pace.record(terms, &permit, &answer, at(1));
    let again = pace.record(terms, &permit, &answer, at(700));
    assert_eq!(again.freshness, comity_core::pace::Freshness::Repeated);
    assert_eq!(pace.server_until(), Some(at(1_001)));
}

/// B20: if learning is off and nothing was learned, a 429 uses the backoff even if the delay is pinned
#[test]
fn a_pin_without_a_delay_uses_the_backoff() {
    let off = json!({ "learning": "off", "wait_on_429": "learned" });
    assert_eq!(with("archiver", off, "pin | start | 429 | hold"), "0 | hold 5");
}

/// B7, B77: if the last holder seems to have died in the future, it died now
#[test]
fn a_death_in_the_future_counts_as_now() {
    use comity_core::pace::{LastHolder, SavedLimits};
    let (rule, at) = (Rule::default(), Timestamp::from_secs);
    let terms = Terms::from(&rule);
    let left = LastHolder::Died { latest: at(3_600) };
    let pace = Pace::inherit(terms, &SavedLimits::default(), left, at(100)).unwrap();
    assert_eq!(pace.retry_at(terms, Intent::Fetch, at(100)), at(101));
}

/// B15, B25, B48, B78: a permit carries the state at the time its request is written, and requests in flight count
#[test]
fn a_departing_request_respects_requests_in_flight() {
    use comity_core::pace::Departure;
    let of = |settings: Value| Scenario::of("crawler", ANY, &settings).rule().clone();
    let (one, many) = (of(json!({ "in_flight": 1, "min_delay": "0s" })), of(json!({ "min_delay": "0s" })));
    let (one, many, at) = (Terms::from(&one), Terms::from(&many), Timestamp::from_secs);
    let mut pace = Pace::default();
    // Two hosts of a group: the first allows one request in flight, the second any number.
    let Decision::Proceed(mut first) = pace.admit(one, Intent::Fetch, at(0)) else { panic!() };
    let Decision::Proceed(mut second) = pace.admit(many, Intent::Fetch, at(0)) else { panic!() };
    assert_eq!(pace.permit(first.id()), Some(&first));
    assert_eq!(pace.depart(many, &mut second, at(1)), Departure::Go);
    let Departure::Wait { reason, .. } = pace.depart(one, &mut first, at(2)) else { panic!("two in flight") };
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

//! Recording single requests: late writes, repeated and late reports, response headers before the body.

use comity_core::decision::Decision;
use comity_core::headers::PacingHints;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Departure, Freshness, LEASE, Pace, PermitRef, Terms};
use comity_core::rule::{Fields, Rule};
use comity_core::time::{Span, Timestamp};

/// B25: a request that was written a little after it departed is charged at the time of the write.
#[test]
fn a_late_write_moves_the_charge_later_and_never_earlier() {
    let rule =
        Rule::new(&Fields { burst: Some(Some(2)), in_flight: Some(None), ..Fields::default() }).unwrap();
    let (terms, mut pace) = (Terms::from(&rule), Pace::default());
    let at = Timestamp::from_millis;
    let Decision::Proceed(mut permit) = pace.admit(terms, Intent::Fetch, at(0)) else {
        panic!("the first goes")
    };
    pace.written(terms, &mut permit, at(500));
    assert_eq!(permit.started_at(), at(0), "it has not departed");
    assert_eq!(pace.depart(terms, &mut permit, at(10)), Departure::Go);
    pace.written(terms, &mut permit, at(5));
    assert_eq!(permit.started_at(), at(10));
    pace.written(terms, &mut permit, at(40));
    assert_eq!((permit.started_at(), pace.last_start()), (at(40), Some(at(40))));
    assert_eq!(pace.retry_at(terms, Intent::Fetch, at(50)), at(1_040), "spacing counts from there");
    assert!(pace.admit(terms, Intent::Fetch, at(1_040)).proceeds());
    assert_eq!(pace.retry_at(terms, Intent::Fetch, at(2_040)), at(60_040), "and so does the window");
    pace.record(terms, &permit, &Outcome::Success.into(), at(2_100));
    let mut late = permit;
    pace.written(terms, &mut late, at(2_200));
    assert_eq!(late.started_at(), at(40), "what was recorded stays");
}

/// B25. Regression: an expired permit was taken as a sign that all older ones had expired too, so a permit that had
/// been recorded long ago counted again once a younger one expired; and when two late permits were reported
/// alternately, each report counted.
#[test]
fn reporting_twice_is_harmless_even_after_other_permits_expired() {
    let rule = Rule::new(&Fields { in_flight: Some(None), ..Fields::default() }).unwrap();
    let (terms, mut pace) = (Terms::from(&rule), Pace::default());
    let at = Timestamp::from_secs;
    let mut permits = [0, 10, 20].map(|secs| {
        let id = pace.admit(terms, Intent::Fetch, at(secs)).permit().unwrap().id();
        pace.lend(id, LEASE, at(secs));
        PermitRef { id, granted_at: at(secs), took: None }
    });
    let limited =
        Answer { hints: PacingHints::retry_after(Span::from_secs(60)), ..Outcome::RateLimited.into() };
    assert_eq!(
        pace.record_lent(terms, permits[0], &Outcome::Success.into(), at(21)).freshness,
        Freshness::Fresh
    );
    // The other two are not reported, and their leases end.
    let id = pace.admit(terms, Intent::Fetch, at(700)).permit().unwrap().id();
    pace.lend(id, LEASE, at(700));
    assert_eq!(pace.in_flight(at(701)), 1);
    assert_eq!(pace.record_lent(terms, permits[0], &limited, at(701)).freshness, Freshness::Repeated);
    assert_eq!(pace.server_until(), None);
    permits.reverse();
    for round in 0..2 {
        let freshness = permits.map(|permit| pace.record_lent(terms, permit, &limited, at(702)).freshness);
        let expected = match round {
            0 => [Freshness::Fresh, Freshness::Late, Freshness::Repeated],
            _ => [Freshness::Repeated; 3],
        };
        assert_eq!(freshness, expected);
        // The next holder of the domain knows what was reported.
        pace = Pace::decode(&pace.encode()).unwrap();
    }
}

/// B25, B77: the same for permits that were lost together with their pace.
#[test]
fn a_lost_permit_can_be_reported_once() {
    let rule = Rule::default();
    let (terms, mut pace, at) = (Terms::from(&rule), Pace::default(), Timestamp::from_secs);
    pace.lost(at(100));
    let permits = [3, 4].map(|id| PermitRef { id, granted_at: at(99), took: None });
    let limited =
        Answer { hints: PacingHints::retry_after(Span::from_secs(60)), ..Outcome::RateLimited.into() };
    for expected in [Freshness::Late, Freshness::Repeated, Freshness::Repeated] {
        for permit in permits {
            assert_eq!(pace.record_lent(terms, permit, &limited, at(101)).freshness, expected);
        }
        pace = Pace::decode(&pace.encode()).unwrap();
    }
}

/// B39: the wait shown to people includes an operator's pause, but not requests in flight.
#[test]
fn the_displayed_wait_includes_a_pause_but_not_requests_in_flight() {
    let rule = Rule::default();
    let (terms, mut pace, at) = (Terms::from(&rule), Pace::default(), Timestamp::from_secs);
    let wait = |pace: &Pace, secs| pace.wait(terms, Intent::Fetch, at(secs));
    pace.admit(terms, Intent::Fetch, at(0));
    assert_eq!(pace.peek(terms, Intent::Fetch, at(0)).unwrap().limit.as_str(), "in_flight");
    assert_eq!((wait(&pace, 0), wait(&pace, 5)), (Span::from_secs(1), Span::ZERO));
    pace.pause(Some(at(3_600)));
    assert_eq!(
        (wait(&pace, 600), pace.retry_at(terms, Intent::Fetch, at(600))),
        (Span::from_secs(3_000), at(600))
    );
    assert_eq!((pace.paused_at(at(3_599)), pace.paused_at(at(3_600))), (Some(at(3_600)), None));
    pace.pause(None);
    assert_eq!(wait(&pace, 4_000), Span::from_secs(60), "checked again in a minute");
    let decision = pace.admit(terms, Intent::Fetch, at(4_000));
    assert_eq!((decision.proceeds(), decision.wait_ms(at(4_000))), (false, 60_000));
}

/// B20, B37: response headers take effect when they arrive, and not again when the body ends.
#[test]
fn response_headers_count_before_the_response_is_recorded() {
    let rule = Rule::new(&Fields::default()).unwrap();
    let (terms, mut pace) = (Terms::from(&rule), Pace::default());
    let at = Timestamp::from_secs;
    let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, at(0)) else {
        panic!("the first request may go")
    };
    let answer = Answer::of_status(200, PacingHints::retry_after(Span::from_secs(60)));
    assert_eq!(pace.record_head(terms, &answer, at(1)).server_until, Some(at(61)));
    assert_eq!(pace.in_flight(at(30)), 1, "the body is still being received");
    pace.record(terms, &permit, &Outcome::Success.into(), at(40));
    assert_eq!((pace.in_flight(at(40)), pace.retry_at(terms, Intent::Fetch, at(40))), (0, at(61)));
}

/// B20: if the body shows that the request was rate limited, the wait that the headers asked for replaces the rule's
/// own, and ends at the time the headers stated.
#[test]
fn headers_that_were_applied_early_keep_their_deadline_when_the_response_is_recorded() {
    let rule = Rule::default();
    let (terms, mut pace, at) = (Terms::from(&rule), Pace::default(), Timestamp::from_secs);
    for (begins, takes) in [(0, 1), (100, 30)] {
        let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, at(begins)) else {
            panic!("no request is in flight")
        };
        let hints = PacingHints::retry_after(Span::from_secs(3));
        pace.record_head(terms, &Answer::of_status(200, hints), at(begins));
        let ended = at(begins + takes);
        let refused =
            Answer { hints: hints.aged(Span::from_secs(takes as u64)), ..Outcome::RateLimited.into() };
        pace.record(terms, &permit, &refused, ended);
        assert_eq!(
            pace.server_until(),
            Some((at(begins) + Span::from_secs(3)).max(ended + Span::from_micros(1)))
        );
        let wait = pace.peek(terms, Intent::Fetch, ended + Span::from_secs(4));
        assert_eq!(wait, None, "no backoff on top of it");
    }
}

//! What is heard of single requests, and when it counts.

use comity_core::decision::Decision;
use comity_core::headers::Told;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Departure, LEASE, Pace, Passed, Standing, Terms};
use comity_core::rule::{Fields, Rule};
use comity_core::time::{Span, Timestamp};

/// B25: a request that was written a little after it departed is charged for when it was written.
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

/// B25: what expired was taken for a line below which everything had, so that a permit that was recorded long ago was
/// heard again once a younger one expired; and of two that were told late in turn each was heard every time.
#[test]
fn telling_twice_is_harmless_also_after_others_expired() {
    let rule = Rule::new(&Fields { in_flight: Some(None), ..Fields::default() }).unwrap();
    let (terms, mut pace) = (Terms::from(&rule), Pace::default());
    let at = Timestamp::from_secs;
    let mut passed = [0, 10, 20].map(|secs| {
        let id = pace.admit(terms, Intent::Fetch, at(secs)).permit().unwrap().id();
        pace.lend(id, LEASE, at(secs));
        Passed { id, granted_at: at(secs), took: None }
    });
    let limited = Answer { told: Told::retry_after(Span::from_secs(60)), ..Outcome::RateLimited.into() };
    assert_eq!(
        pace.record_passed(terms, passed[0], &Outcome::Success.into(), at(21)).standing,
        Standing::Fresh
    );
    // Nobody told of the other two, and their leases end.
    let id = pace.admit(terms, Intent::Fetch, at(700)).permit().unwrap().id();
    pace.lend(id, LEASE, at(700));
    assert_eq!(pace.in_flight(at(701)), 1);
    assert_eq!(pace.record_passed(terms, passed[0], &limited, at(701)).standing, Standing::Repeated);
    assert_eq!(pace.server_until(), None);
    passed.reverse();
    for told in 0..2 {
        let standings = passed.map(|passed| pace.record_passed(terms, passed, &limited, at(702)).standing);
        let expected = match told {
            0 => [Standing::Fresh, Standing::Late, Standing::Repeated],
            _ => [Standing::Repeated; 3],
        };
        assert_eq!(standings, expected);
        // Whoever takes the domain over knows what was heard.
        pace = Pace::decode(&pace.encode()).unwrap();
    }
}

/// B25, B77: the same for permits that were lost with their pace.
#[test]
fn what_was_lost_is_heard_once() {
    let rule = Rule::default();
    let (terms, mut pace, at) = (Terms::from(&rule), Pace::default(), Timestamp::from_secs);
    pace.lost(at(100));
    let passed = [3, 4].map(|id| Passed { id, granted_at: at(99), took: None });
    let limited = Answer { told: Told::retry_after(Span::from_secs(60)), ..Outcome::RateLimited.into() };
    for standing in [Standing::Late, Standing::Repeated, Standing::Repeated] {
        for passed in passed {
            assert_eq!(pace.record_passed(terms, passed, &limited, at(101)).standing, standing);
        }
        pace = Pace::decode(&pace.encode()).unwrap();
    }
}

/// B39: how long people are told to wait counts an operator's pause, and does not count requests on the wire.
#[test]
fn a_pause_is_part_of_the_wait_and_an_answer_that_is_awaited_is_not() {
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
    assert_eq!(wait(&pace, 4_000), Span::from_secs(60), "looked at again in a minute");
    let decision = pace.admit(terms, Intent::Fetch, at(4_000));
    assert_eq!((decision.proceeds(), decision.wait_ms(at(4_000))), (false, 60_000));
}

/// B20, B37: what a head says counts from when it came, and is not said again when its body ended.
#[test]
fn what_a_head_says_counts_before_its_answer_is_recorded() {
    let rule = Rule::new(&Fields::default()).unwrap();
    let (terms, mut pace) = (Terms::from(&rule), Pace::default());
    let at = Timestamp::from_secs;
    let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, at(0)) else {
        panic!("nobody was before it")
    };
    let answer = Answer::of_status(200, Told::retry_after(Span::from_secs(60)));
    assert_eq!(pace.heed(terms, &answer, at(1)).server_until, Some(at(61)));
    assert_eq!(pace.in_flight(at(30)), 1, "the body is on the wire");
    pace.record(terms, &permit, &Outcome::Success.into(), at(40));
    assert_eq!((pace.in_flight(at(40)), pace.retry_at(terms, Intent::Fetch, at(40))), (0, at(61)));
}

/// B20: an answer whose body says that it was refused repeats what its head asked for: that replaces the rule's own wait,
/// and ends when the head said.
#[test]
fn what_a_head_said_is_no_news_when_its_answer_is_recorded() {
    let rule = Rule::default();
    let (terms, mut pace, at) = (Terms::from(&rule), Pace::default(), Timestamp::from_secs);
    for (begins, takes) in [(0, 1), (100, 30)] {
        let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, at(begins)) else {
            panic!("nobody is before it")
        };
        let told = Told::retry_after(Span::from_secs(3));
        pace.heed(terms, &Answer::of_status(200, told), at(begins));
        let ended = at(begins + takes);
        let refused =
            Answer { told: told.aged(Span::from_secs(takes as u64)), ..Outcome::RateLimited.into() };
        pace.record(terms, &permit, &refused, ended);
        assert_eq!(
            pace.server_until(),
            Some((at(begins) + Span::from_secs(3)).max(ended + Span::from_micros(1)))
        );
        let wait = pace.peek(terms, Intent::Fetch, ended + Span::from_secs(4));
        assert_eq!(wait, None, "not the ladder on top of it");
    }
}

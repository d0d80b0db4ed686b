//! Who goes next: lines, lanes, jobs and domains.

use std::sync::Arc;

use comity_core::decision::{Decision, Limit};
use comity_core::dispatch::{Dispatch, Grant, Next};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::{Lane, Waiter};
use comity_core::outcome::Outcome;
use comity_core::pace::Terms;
use comity_core::rule::{Fields, Rule};
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq)]
struct Named(&'static str, Arc<Rule>);

impl Waiter for Named {
    fn terms(&self) -> Terms<'_> {
        self.1.as_ref().into()
    }
}

fn rule(settings: Value) -> Arc<Rule> {
    Arc::new(Rule::new(&Fields::read(settings.as_object().unwrap()).unwrap()).unwrap())
}

fn at(secs: f64) -> Timestamp {
    Timestamp::from_secs(0) + Span::from_secs_f64(secs).unwrap()
}

fn host(name: &str) -> Domain {
    Domain::parse(name).unwrap()
}

const FETCH: Lane = Lane { job: None, intent: Intent::Fetch };
const SEARCH: Lane = Lane { job: None, intent: Intent::Search };

fn lane(job: u64) -> Lane {
    Lane { job: Some(JobId(job)), intent: Intent::Fetch }
}

/// Grants everything that can go until `until`, and records each as an immediate success; returns `name time` pairs.
fn drain(dispatch: &mut Dispatch<Named>, until: f64) -> String {
    drain_from(dispatch, 0.0, until)
}

fn drain_from(dispatch: &mut Dispatch<Named>, from: f64, until: f64) -> String {
    let mut now = at(from);
    let mut granted = Vec::new();
    loop {
        match dispatch.next(now) {
            Next::Go(grant) => {
                granted.push(format!("{} {}", grant.waiter.0, now.since(at(0.0)).as_secs_f64()));
                finish(dispatch, grant, Outcome::Success, now);
            }
            Next::Sleep { until: next } if next <= at(until) => now = next,
            Next::Sleep { .. } | Next::Idle => return granted.join(", "),
        }
    }
}

fn finish(dispatch: &mut Dispatch<Named>, grant: Grant<Named>, outcome: Outcome, now: Timestamp) {
    let terms = grant.waiter.terms();
    dispatch.record(grant.domain, terms, &grant.permit, &outcome.into(), now).unwrap();
    dispatch.ended(grant.domain, &grant.ticket, now);
}

fn go(dispatch: &mut Dispatch<Named>, now: f64) -> Grant<Named> {
    match dispatch.next(at(now)) {
        Next::Go(grant) => grant,
        other => panic!("nobody goes: {other:?}"),
    }
}

/// B12: waiters are served in order, each in its own slot; there is no stampede when a hold ends
#[test]
fn waiters_are_served_in_order_when_a_hold_ends() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    let [first, a, b, c] = ["first", "a", "b", "c"].map(|name| Named(name, Arc::clone(&rule)));
    dispatch.join(&host("x.org"), FETCH, at(0.0), first).unwrap();
    let grant = go(&mut dispatch, 0.0);
    for waiter in [a, b, c] {
        dispatch.join(&host("x.org"), FETCH, at(0.0), waiter).unwrap();
    }
    let hints = comity_core::headers::PacingHints::retry_after(Span::from_secs(30));
    let answer = comity_core::outcome::Answer { hints, ..Outcome::RateLimited.into() };
    dispatch.record(grant.domain, rule.as_ref().into(), &grant.permit, &answer, at(0.5)).unwrap();
    assert_eq!(dispatch.waiting(grant.domain), 3);
    dispatch.ended(grant.domain, &grant.ticket, at(0.5));
    assert_eq!(dispatch.next(at(0.5)), Next::Sleep { until: at(30.5) });
    assert_eq!(drain_from(&mut dispatch, 30.5, 100.0), "a 30.5, b 32.5, c 34.5");
}

/// B12, B41: a retry goes when it is ready, behind those who were ready before it and ahead of later ones
#[test]
fn a_retry_goes_behind_those_who_were_ready_before_it() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({ "learning": "off" })));
    let named = |name| Named(name, Arc::clone(&rule));
    dispatch.join(&host("x.org"), FETCH, at(5.0), named("retry")).unwrap();
    for name in ["a", "b", "c"] {
        dispatch.join(&host("x.org"), FETCH, at(0.0), named(name)).unwrap();
    }
    dispatch.join(&host("x.org"), FETCH, at(6.0), named("later")).unwrap();
    assert_eq!(drain(&mut dispatch, 100.0), "a 0, b 1, c 2, retry 5, later 6");
}

/// B12, B26: an intent that has to wait doesn't delay other intents, and nobody overtakes within an intent
#[test]
fn intents_do_not_delay_each_other() {
    let slow_search = rule(json!({ "learning": "off", "intent": { "search": { "min_delay": "10s" } } }));
    let mut dispatch = Dispatch::new(1);
    let named = |name| Named(name, Arc::clone(&slow_search));
    for (name, lane) in
        [("s1", SEARCH), ("s2", SEARCH), ("f1", FETCH), ("f2", FETCH), ("s3", SEARCH), ("f3", FETCH)]
    {
        dispatch.join(&host("x.org"), lane, at(0.0), named(name)).unwrap();
    }
    assert_eq!(drain(&mut dispatch, 100.0), "s1 0, f1 1, f2 2, f3 3, s2 10, s3 20");
}

/// B10: waiting for one domain never delays another
#[test]
fn a_blocked_domain_does_not_delay_other_domains() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    let named = |name| Named(name, Arc::clone(&rule));
    dispatch.pace_mut(&host("blocked.org"), at(0.0)).unwrap().pause(None);
    for _ in 0..1_000 {
        dispatch.join(&host("blocked.org"), FETCH, at(0.0), named("blocked")).unwrap();
    }
    for name in ["a", "b"] {
        dispatch.join(&host("free.org"), FETCH, at(0.0), named(name)).unwrap();
    }
    dispatch.join(&host("other.org"), FETCH, at(0.0), named("c")).unwrap();
    assert_eq!(drain(&mut dispatch, 10.0), "a 0, c 0, b 1");
    dispatch.pace_mut(&host("blocked.org"), at(0.0)).unwrap().resume();
    assert_eq!(go(&mut dispatch, 11.0).waiter.0, "blocked");
}

/// B3: a caller that only checks never overtakes those who wait in line
#[test]
fn a_check_never_overtakes_the_line() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({ "in_flight": "unlimited" })));
    let terms: Terms<'_> = rule.as_ref().into();
    let x = host("x.org");
    assert!(dispatch.check(&x, terms, Intent::Fetch, at(0.0)).proceeds());
    for name in ["a", "b"] {
        dispatch.join(&x, FETCH, at(0.0), Named(name, Arc::clone(&rule))).unwrap();
    }
    // The slot at 1.0 is a's, the one at 2.0 is b's.
    let Decision::Wait { until, reason } = dispatch.check(&x, terms, Intent::Fetch, at(1.0)) else {
        panic!()
    };
    assert_eq!((until, reason.limit.as_str()), (at(3.0), "line"));
    assert_eq!(reason.to_string(), "2 callers ahead in line; about 2s left");
    assert_eq!(drain_from(&mut dispatch, 1.0, 10.0), "a 1, b 2");
    assert!(dispatch.check(&x, terms, Intent::Fetch, at(3.0)).proceeds());
}

/// B11: a waiter that gives up is removed immediately, and nothing is charged
#[test]
fn a_waiter_that_gives_up_is_not_charged() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    let named = |name| Named(name, Arc::clone(&rule));
    let (id, a) = dispatch.join(&host("x.org"), FETCH, at(0.0), named("a")).unwrap();
    let (_, b) = dispatch.join(&host("x.org"), FETCH, at(0.0), named("b")).unwrap();
    assert_eq!(dispatch.leave(id, &a).unwrap().0, "a");
    assert_eq!(dispatch.leave(id, &a), None);
    assert_eq!(drain(&mut dispatch, 10.0), "b 0");
    assert_eq!(dispatch.leave(id, &b), None, "it has already gone");
}

/// B40: limits on the tasks of a job in flight, in total and on a domain that slowed down
#[test]
fn a_jobs_concurrency_is_enforced_and_falls_on_a_domain_that_slows_down() {
    let rule = rule(json!({ "in_flight": "unlimited", "min_delay": "0s", "learn": { "base": "0s" } }));
    let mut dispatch = Dispatch::new(1);
    dispatch.job(JobId(1), 3);
    for name in ["a", "b", "c", "d"] {
        dispatch.join(&host("x.org"), lane(1), at(0.0), Named(name, Arc::clone(&rule))).unwrap();
        dispatch.join(&host("y.org"), lane(1), at(0.0), Named(name, Arc::clone(&rule))).unwrap();
    }
    let grants: Vec<Grant<Named>> = (0..3).map(|_| go(&mut dispatch, 0.0)).collect();
    let full = dispatch.next(at(0.0));
    assert_eq!(full, Next::Sleep { until: at(1.0) }, "three are in flight, which is the limit");
    for grant in grants {
        finish(&mut dispatch, grant, Outcome::Success, at(0.0));
    }
    // x.org slowed down by five seconds: two at a time there, while y.org keeps three.
    let slow: Terms<'_> = rule.as_ref().into();
    let learn = |dispatch: &mut Dispatch<Named>, secs: u64, now: f64| {
        let pace = dispatch.pace_mut(&host("x.org"), at(now)).unwrap();
        pace.set_learned(slow, Span::from_secs(secs), Span::ZERO, at(now));
    };
    let mut dispatch = Dispatch::new(1);
    dispatch.job(JobId(1), 3);
    for _ in 0..9 {
        dispatch.join(&host("x.org"), lane(1), at(0.0), Named("x", Arc::clone(&rule))).unwrap();
    }
    learn(&mut dispatch, 5, 0.0);
    let grants = |dispatch: &mut Dispatch<Named>, seconds: [f64; 4]| {
        let mut grants = Vec::new();
        for second in seconds {
            while let Next::Go(grant) = dispatch.next(at(second)) {
                grants.push(grant);
            }
        }
        grants
    };
    let first = grants(&mut dispatch, [0.0, 10.0, 20.0, 30.0]);
    assert_eq!(first.len(), 2, "three minus one for five seconds");
    dispatch.join(&host("y.org"), lane(1), at(30.0), Named("y", Arc::clone(&rule))).unwrap();
    let elsewhere = go(&mut dispatch, 30.0);
    assert_eq!(elsewhere.waiter.0, "y", "the third goes to another domain, whose limit didn't change");
    finish(&mut dispatch, elsewhere, Outcome::Success, at(30.0));
    // When the learned delay falls, a third is allowed again.
    learn(&mut dispatch, 4, 40.0);
    assert_eq!(grants(&mut dispatch, [40.0, 50.0, 60.0, 70.0]).len(), 1);
    learn(&mut dispatch, 60, 80.0);
    for grant in first {
        finish(&mut dispatch, grant, Outcome::Success, at(80.0));
    }
    assert_eq!(
        grants(&mut dispatch, [80.0, 200.0, 300.0, 400.0]).len(),
        0,
        "one is still in flight, which is the limit"
    );
}

/// B40, B49: requests in flight still count when their job is reopened
#[test]
fn a_reopened_job_counts_its_requests_in_flight() {
    let rule = rule(json!({ "in_flight": "unlimited", "min_delay": "0s" }));
    let mut dispatch = Dispatch::new(1);
    let named = |name| Named(name, Arc::clone(&rule));
    dispatch.job(JobId(1), 1);
    dispatch.join(&host("x.org"), lane(1), at(0.0), named("a")).unwrap();
    let a = go(&mut dispatch, 0.0);
    dispatch.end_job(JobId(1));
    dispatch.job(JobId(1), 1);
    dispatch.join(&host("x.org"), lane(1), at(0.0), named("b")).unwrap();
    assert_eq!(dispatch.next(at(1.0)), Next::Idle, "a is still in flight");
    finish(&mut dispatch, a, Outcome::Success, at(1.0));
    assert_eq!(go(&mut dispatch, 1.0).waiter.0, "b");
}

/// B3, B26: a check waits behind those who want the same slot, but not behind those who cannot take it
#[test]
fn a_check_does_not_wait_for_those_who_cannot_go() {
    let rule = rule(
        json!({ "learning": "off", "in_flight": "unlimited", "intent": { "search": { "min_delay": "10m" } } }),
    );
    let terms: Terms<'_> = rule.as_ref().into();
    let named = |name| Named(name, Arc::clone(&rule));
    let mut dispatch = Dispatch::new(1);
    dispatch.job(JobId(1), 1);
    dispatch.join(&host("busy.org"), lane(1), at(0.0), named("busy")).unwrap();
    _ = go(&mut dispatch, 0.0);
    for _ in 0..1_000 {
        dispatch.join(&host("x.org"), lane(1), at(0.0), named("full")).unwrap();
    }
    assert!(
        dispatch.check(&host("x.org"), terms, Intent::Fetch, at(0.5)).proceeds(),
        "the job is full elsewhere"
    );
    for name in ["first", "second"] {
        dispatch.join(&host("y.org"), SEARCH, at(0.0), named(name)).unwrap();
    }
    assert_eq!(go(&mut dispatch, 0.6).waiter.0, "first");
    assert!(
        dispatch.check(&host("y.org"), terms, Intent::Fetch, at(5.0)).proceeds(),
        "only the search is delayed"
    );
    assert!(
        !dispatch.check(&host("y.org"), terms, Intent::Search, at(9.0)).proceeds(),
        "another search is ahead"
    );
}

/// B49: a job that ended accepts no tasks, and its waiters are removed
#[test]
fn a_job_that_ended_accepts_no_tasks() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    let named = |name| Named(name, Arc::clone(&rule));
    assert_eq!(dispatch.join(&host("x.org"), lane(1), at(0.0), named("early")).unwrap_err().0, "early");
    dispatch.job(JobId(1), 16);
    dispatch.job(JobId(2), 16);
    for name in ["a", "b", "c"] {
        dispatch.join(&host("x.org"), lane(1), at(0.0), named(name)).unwrap();
    }
    dispatch.join(&host("x.org"), lane(2), at(0.0), named("other")).unwrap();
    let a = go(&mut dispatch, 0.0);
    let gone: Vec<&str> = dispatch.end_job(JobId(1)).iter().map(|waiter| waiter.0).collect();
    assert_eq!(gone, ["b", "c"]);
    assert_eq!(dispatch.rejoin(a.domain, a.ticket, a.waiter.clone(), at(0.0)).unwrap_err().0, "a");
    finish(&mut dispatch, a, Outcome::Success, at(0.0));
    assert_eq!(drain(&mut dispatch, 10.0), "other 1");
}

/// B9: a domain is handed over only when it has no requests in flight, together with its pace
#[test]
fn a_domain_is_handed_over_with_its_pace() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    let named = |name| Named(name, Arc::clone(&rule));
    dispatch.job(JobId(1), 16);
    for name in ["a", "b"] {
        dispatch.join(&host("x.org"), lane(1), at(0.0), named(name)).unwrap();
    }
    let a = go(&mut dispatch, 0.0);
    let id = a.domain;
    dispatch.drain(id);
    assert!(dispatch.release(id).is_none(), "a is in flight");
    let Decision::Wait { reason, .. } =
        dispatch.check(&host("x.org"), rule.as_ref().into(), Intent::Fetch, at(5.0))
    else {
        panic!("a draining domain grants nothing");
    };
    assert_eq!(reason.to_string(), "another process is taking over the site; about 1s left");
    finish(&mut dispatch, a, Outcome::Success, at(0.5));
    assert_eq!(dispatch.next(at(5.0)), Next::Idle, "a draining domain grants nothing");
    assert!(dispatch.check(&host("y.org"), rule.as_ref().into(), Intent::Fetch, at(5.0)).proceeds());
    let (pace, waiters) = dispatch.release(id).unwrap();
    assert_eq!(pace.last_start(), Some(at(0.0)));
    assert_eq!(waiters.len(), 1);
    assert_eq!(dispatch.paces().find(&host("x.org")), None);
}

/// B37: while a server's deadline is being saved, nobody goes, and callers see the real reason rather than a handover;
/// a handover that began meanwhile continues after saving
#[test]
fn a_domain_that_is_being_saved_grants_nothing_and_gives_the_reason() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    let terms: Terms<'_> = rule.as_ref().into();
    let named = |name| Named(name, Arc::clone(&rule));
    let (id, _) = dispatch.join(&host("x.org"), FETCH, at(0.0), named("a")).unwrap();
    let a = go(&mut dispatch, 0.0);
    dispatch.join(&host("x.org"), FETCH, at(0.0), named("b")).unwrap();
    finish(&mut dispatch, a, Outcome::Success, at(0.5));
    dispatch.save(id);
    assert_eq!(dispatch.next(at(9.0)), Next::Idle);
    let why = |dispatch: &mut Dispatch<Named>, now: f64| match dispatch.check(
        &host("x.org"),
        terms,
        Intent::Fetch,
        at(now),
    ) {
        Decision::Wait { reason, .. } => reason.limit.as_str(),
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&mut dispatch, 0.6), "min_delay", "the pace of the site is more informative");
    assert_eq!(why(&mut dispatch, 9.0), "saving");
    dispatch.drain(id);
    assert_eq!(why(&mut dispatch, 9.0), "changing_hands");
    dispatch.saved(id, at(9.0));
    assert_eq!(why(&mut dispatch, 9.0), "changing_hands", "another process still wants it");
    assert_eq!(dispatch.next(at(9.0)), Next::Idle);
}

/// B42: a waiter that could not go after all keeps its turn, and loses only the slot
#[test]
fn a_waiter_that_could_not_go_keeps_its_turn() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({ "learning": "off" })));
    dispatch.job(JobId(1), 16);
    for name in ["a", "b"] {
        dispatch.join(&host("x.org"), lane(1), at(0.0), Named(name, Arc::clone(&rule))).unwrap();
    }
    let a = go(&mut dispatch, 0.0);
    dispatch.pace_mut(&host("x.org"), at(0.0)).unwrap().abandon(&a.permit, at(0.0));
    dispatch.ended(a.domain, &a.ticket, at(0.0));
    dispatch.rejoin(a.domain, a.ticket, a.waiter, at(0.0)).unwrap();
    assert_eq!(drain(&mut dispatch, 10.0), "a 1, b 2", "the slot at 0 is lost");
}

/// B11, B12: tickets are unique, even if the line was empty in between
#[test]
fn a_ticket_is_never_reused() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({ "learning": "off" })));
    let named = |name| Named(name, Arc::clone(&rule));
    let (id, old) = dispatch.join(&host("x.org"), FETCH, at(0.0), named("a")).unwrap();
    let a = go(&mut dispatch, 0.0);
    assert_eq!(dispatch.next(at(0.0)), Next::Idle, "the line is empty");
    dispatch.join(&host("x.org"), FETCH, at(0.0), named("b")).unwrap();
    assert_eq!(dispatch.leave(id, &old), None, "b has another ticket than a");
    dispatch.pace_of(id, at(0.0)).unwrap().abandon(&a.permit, at(0.0));
    dispatch.ended(a.domain, &a.ticket, at(0.0));
    dispatch.rejoin(a.domain, a.ticket, a.waiter, at(0.0)).unwrap();
    assert_eq!(dispatch.waiting(id), 2);
    assert_eq!(drain(&mut dispatch, 10.0), "a 1, b 2");
}

/// B10: domains that wait for capacity in their job take turns
#[test]
fn domains_of_a_job_take_turns() {
    let rule = rule(json!({ "learning": "off", "min_delay": "1s" }));
    let mut dispatch = Dispatch::new(1);
    dispatch.job(JobId(1), 2);
    for name in ["a", "b", "c", "d", "e"] {
        for _ in 0..4 {
            dispatch
                .join(&host(&format!("{name}.org")), lane(1), at(0.0), Named(name, Arc::clone(&rule)))
                .unwrap();
        }
    }
    let mut order = String::new();
    for second in 0..10 {
        let mut flying = Vec::new();
        while let Next::Go(grant) = dispatch.next(at(f64::from(second))) {
            order.push_str(grant.waiter.0);
            flying.push(grant);
        }
        // Responses take as long as the delay, so that every domain is due again when its task ends.
        for grant in flying {
            finish(&mut dispatch, grant, Outcome::Success, at(f64::from(second) + 1.0));
        }
    }
    let served = |name: char| order.chars().filter(|served| *served == name).count();
    assert_eq!(order.len(), 20, "{order}");
    assert!(('a'..='e').all(|name| served(name) == 4), "{order}");
}

/// B39, B41: a retry of a task that failed during a pause runs when the domain is resumed
#[test]
fn a_retry_runs_after_a_pause_is_resumed() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({})));
    dispatch.join(&host("x.org"), FETCH, at(0.0), Named("a", Arc::clone(&rule))).unwrap();
    let a = go(&mut dispatch, 0.0);
    dispatch.pace_of(a.domain, at(0.5)).unwrap().pause(None);
    let (id, terms) = (a.domain, a.waiter.terms());
    dispatch.record(id, terms, &a.permit, &Outcome::ServerError.into(), at(1.0)).unwrap();
    dispatch.ended(id, &a.ticket, at(1.0));
    let ready_at = dispatch.paces().pace(id).unwrap().retry_at(terms, Intent::Fetch, at(1.0));
    assert_eq!(ready_at, at(6.0));
    dispatch.join(&host("x.org"), FETCH, ready_at, a.waiter.clone()).unwrap();
    dispatch.pace_of(id, at(10.0)).unwrap().resume();
    assert_eq!(go(&mut dispatch, 10.0).waiter.0, "a");
}

/// B12, B40: when the first in line leaves, or a job gets more capacity, the next waiter is checked immediately
#[test]
fn a_change_wakes_the_next_waiter_immediately() {
    let slow = rule(json!({ "min_delay": "60s", "in_flight": "unlimited" }));
    let fast = rule(json!({ "min_delay": "1s", "in_flight": "unlimited", "learn": { "base": "0s" } }));
    let x = host("group:x");
    let mut dispatch = Dispatch::new(1);
    dispatch.join(&x, FETCH, at(0.0), Named("now", Arc::clone(&fast))).unwrap();
    _ = go(&mut dispatch, 0.0);
    let (id, first) = dispatch.join(&x, FETCH, at(0.0), Named("slow", slow)).unwrap();
    dispatch.join(&x, FETCH, at(0.0), Named("fast", Arc::clone(&fast))).unwrap();
    assert_eq!(dispatch.next(at(0.0)), Next::Sleep { until: at(60.0) });
    assert_eq!(dispatch.leave(id, &first).unwrap().0, "slow");
    assert_eq!(go(&mut dispatch, 2.0).waiter.0, "fast");
    dispatch.job(JobId(1), 1);
    for _ in 0..2 {
        dispatch.join(&host("y.org"), lane(1), at(0.0), Named("task", Arc::clone(&fast))).unwrap();
    }
    _ = go(&mut dispatch, 3.0);
    assert_eq!(dispatch.next(at(5.0)), Next::Idle);
    dispatch.job(JobId(1), 2);
    assert_eq!(go(&mut dispatch, 5.0).waiter.0, "task");
}

/// B3. Regression: a waiter that wasn't ready for another hour counted as ahead of a caller that asked now.
#[test]
fn retries_that_are_not_ready_are_not_ahead() {
    let (mut dispatch, rule) = (Dispatch::new(1), rule(json!({ "learning": "off" })));
    let named = |name| Named(name, Arc::clone(&rule));
    for (name, ready_at) in [("a", 0.0), ("b", 0.0), ("retry", 3_600.0), ("other", 3_601.0)] {
        dispatch.join(&host("x.org"), FETCH, at(ready_at), named(name)).unwrap();
    }
    let reason = dispatch.peek(&host("x.org"), rule.as_ref().into(), Intent::Fetch, at(0.0)).unwrap();
    assert_eq!(reason.limit, Limit::Line { ahead: 2 });
    let reason = dispatch.peek(&host("x.org"), rule.as_ref().into(), Intent::Fetch, at(4_000.0)).unwrap();
    assert_eq!(reason.limit, Limit::Line { ahead: 4 });
}

//! The rate limiter on a manual clock.

use std::sync::{Arc, Mutex};

use comity::clock::{Clock, ClockControl};
use comity::limiter::{Limits, RateLimiter};
use comity_core::time::{Span, Timestamp};

use crate::support::{a_moment, at, eventually, ms, soon};

fn limiter(limits: Limits) -> (RateLimiter, Clock, ClockControl) {
    let (clock, control) = Clock::manual(at(0));
    (RateLimiter::with_clock(limits, clock.clone()).unwrap(), clock, control)
}

fn one_a_second() -> (RateLimiter, Clock, ClockControl) {
    limiter(Limits::default())
}

/// Advances the clock by `millis` at a time until the task has ended, and returns the time.
async fn until_done(
    control: &ClockControl,
    clock: &Clock,
    millis: u64,
    task: tokio::task::JoinHandle<()>,
) -> Timestamp {
    for _ in 0..10_000 {
        for _ in 0..12 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            if task.is_finished() {
                task.await.unwrap();
                return clock.now();
            }
        }
        control.advance(ms(millis));
    }
    panic!("the task never ended");
}

/// B5, B6, B19, E8: the examples from the specification, in a single thread on an automatic clock.
#[test]
fn one_thread_can_wait_on_an_automatic_clock() {
    let (clock, control) = Clock::automatic(at(0));
    let limiter = RateLimiter::with_clock(Limits::default(), clock.clone()).unwrap();
    limiter.wait();
    assert_eq!(clock.now(), at(0), "the first request doesn't wait");
    limiter.wait();
    assert_eq!(clock.now(), at(1_000), "the second one waits a second");
    control.advance(ms(400));
    limiter.wait();
    assert_eq!(clock.now(), at(2_000), "time that has already passed counts");
    for _ in 0..5 {
        limiter.wait();
    }
    assert_eq!(clock.now(), at(7_000));
    for (attempt, ends) in [(0, 12_000), (1, 22_000), (2, 42_000), (3, 82_000), (9, 382_000)] {
        limiter.backoff(attempt);
        assert_eq!(clock.now(), at(ends), "attempt {attempt}");
    }
    limiter.wait();
    assert_eq!(clock.now(), at(383_000), "and one more interval");
}

/// B5, B13, B19, E8
#[tokio::test]
async fn backoff_holds_the_next_request() {
    let (limiter, clock, control) = one_a_second();
    soon("the first", limiter.wait_async()).await;
    assert_eq!(clock.now(), at(0));
    let theirs = limiter.clone();
    let backoff = tokio::spawn(async move { theirs.backoff_async(0).await });
    assert_eq!(until_done(&control, &clock, 500, backoff).await, at(5_000));
    let theirs = limiter.clone();
    let next = tokio::spawn(async move { theirs.wait_async().await });
    assert_eq!(until_done(&control, &clock, 250, next).await, at(6_000));
}

/// B14, B19, E8: the same in threads.
#[tokio::test]
async fn backoff_holds_the_next_request_in_threads_too() {
    let (limiter, clock, control) = one_a_second();
    limiter.wait();
    let theirs = limiter.clone();
    let backoff = tokio::task::spawn_blocking(move || theirs.backoff(0));
    assert_eq!(until_done(&control, &clock, 500, backoff).await, at(5_000));
    let theirs = limiter.clone();
    let next = tokio::task::spawn_blocking(move || theirs.wait());
    assert_eq!(until_done(&control, &clock, 250, next).await, at(6_000));
}

/// B19
#[tokio::test]
async fn backoff_doubles_up_to_five_minutes_and_does_not_overflow() {
    for (attempt, secs) in
        [(0, 5), (1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (7, 300), (64, 300), (u32::MAX, 300)]
    {
        let (limiter, clock, control) = one_a_second();
        let backoff = tokio::spawn(async move { limiter.backoff_async(attempt).await });
        a_moment().await;
        control.advance(ms(secs * 1_000 - 1));
        a_moment().await;
        assert!(!backoff.is_finished(), "attempt {attempt}");
        control.advance(ms(1));
        soon("the backoff", backoff).await.unwrap();
        assert_eq!(clock.now(), at(secs as i64 * 1_000), "attempt {attempt}");
    }
}

/// B19, B23: a backoff applies to everybody.
#[tokio::test]
async fn other_users_wait_during_a_backoff() {
    let (limiter, clock, control) = one_a_second();
    soon("the first", limiter.wait_async()).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        let theirs = limiter.clone();
        others.push(tokio::spawn(async move { theirs.wait_async().await }));
    }
    a_moment().await;
    let theirs = limiter.clone();
    let backoff = tokio::spawn(async move { theirs.backoff_async(0).await });
    a_moment().await;
    control.advance(ms(4_999));
    a_moment().await;
    let gone = || others.iter().filter(|other| other.is_finished()).count();
    assert_eq!(gone(), 0, "nothing is granted during a backoff");
    control.advance(ms(1));
    soon("the backoff", backoff).await.unwrap();
    while gone() < 3 {
        let before = gone();
        control.advance(ms(1_000));
        a_moment().await;
        assert!(gone() <= before + 1 + usize::from(before == 0), "each request takes one slot");
    }
    assert!(clock.now() >= at(7_000), "{}", clock.now());
}

/// B14
#[tokio::test]
async fn threads_and_tasks_share_one_pace() {
    let (limiter, clock, control) = one_a_second();
    let went: Arc<Mutex<Vec<Timestamp>>> = Arc::default();
    let mut threads = Vec::new();
    for nth in 0..16 {
        let (limiter, clock, went) = (limiter.clone(), clock.clone(), went.clone());
        if nth % 2 == 0 {
            threads.push(std::thread::spawn(move || {
                limiter.wait();
                went.lock().unwrap().push(clock.now());
            }));
        } else {
            tokio::spawn(async move {
                limiter.wait_async().await;
                went.lock().unwrap().push(clock.now());
            });
        }
    }
    eventually("the first", || went.lock().unwrap().len() == 1).await;
    for nth in 2..=16 {
        // Only one is granted per interval.
        control.advance(ms(1_000));
        eventually("the next", || went.lock().unwrap().len() == nth).await;
    }
    let times = went.lock().unwrap().clone();
    assert_eq!(times, (0..16).map(|nth| at(nth * 1_000)).collect::<Vec<_>>());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// B14: on a real clock.
#[test]
fn many_threads_keep_the_spacing_in_real_time() {
    let limiter = RateLimiter::new(100.0).unwrap();
    let clock = Clock::new();
    let began = clock.now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| limiter.wait()));
        }
    });
    assert!(clock.now().since(began) >= ms(390), "forty requests are 39 intervals of 10 ms");
}

/// B13
#[tokio::test]
async fn a_disabled_limiter_never_waits_but_the_default_does() {
    let (limiter, clock, control) = limiter(Limits { enabled: false, ..Limits::default() });
    for attempt in 0..50 {
        limiter.wait();
        limiter.backoff(attempt);
        limiter.wait_async().await;
        limiter.backoff_async(attempt).await;
    }
    assert_eq!(clock.now(), at(0));
    drop(control);
    let disabled = RateLimiter::disabled();
    disabled.backoff(5);
    (0..100).for_each(|_| disabled.wait());
    let clock = Clock::new();
    let (began, default) = (clock.now(), RateLimiter::default());
    (0..2).for_each(|_| default.wait());
    assert!(clock.now().since(began) >= Span::from_secs(1), "the default is one request per second");
}

/// B14: tokio's channels make busy tasks yield, which once made blocking waits inside a runtime hang.
#[tokio::test]
async fn blocking_waits_inside_a_runtime_never_hang() {
    let limiter = RateLimiter::disabled();
    (0..1_000).for_each(|_| limiter.wait());
}

/// B71
#[test]
fn an_invalid_rate_is_reported_with_its_key_and_value() {
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let problems = RateLimiter::new(rate).unwrap_err();
        let [problem] = &problems.0[..] else { panic!("{problems}") };
        assert!(problem.key.contains("requests_per_second"), "{problem}");
        assert_eq!(problem.value.parse::<f64>().unwrap().to_string(), rate.to_string(), "{problem}");
    }
    let limits = Limits { requests_per_second: -2.0, backoff_base: Span::ZERO, ..Limits::default() };
    let problems = RateLimiter::with(limits).unwrap_err();
    assert!(problems.0.len() >= 2, "all problems are reported: {problems}");
    assert!(problems.to_string().contains("backoff_base"), "{problems}");
}

/// B4: 3 per second is 334 ms, rounded to the polite side.
#[tokio::test]
async fn rates_are_rounded_to_the_polite_side() {
    let (limiter, clock, control) = limiter(Limits { requests_per_second: 3.0, ..Limits::default() });
    soon("the first", limiter.wait_async()).await;
    let next = tokio::spawn(async move { limiter.wait_async().await });
    a_moment().await;
    control.advance(ms(333));
    a_moment().await;
    assert!(!next.is_finished());
    control.advance(ms(1));
    soon("the next", next).await.unwrap();
    assert_eq!(clock.now(), at(334));
}

//! All processes on a store share one time, whatever the database's clock does (B7). A heartbeat that brings another time has
//! the same effect as a step of the database's clock the other way.

use std::io::Write;
use std::sync::Arc;

use comity_conformance::Opened;
use comity_conformance::follower::feed;
use comity_conformance::process::{Process, retry, tenure_of};
use comity_core::headers::{PacingHints, RetryAfter};
use comity_core::intent::Intent;
use comity_core::outcome::Answer;
use comity_core::pace::{LastHolder, Pace, Terms};
use comity_core::rule::Rule;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{LastHolderBuf, ReleaseMode, Released, Saved, Steering, Taken};
use comity_store::postgres::Postgres;
use comity_store::time::{StoreTime, TimeStore};
use serde_json::Value;

use super::server::Server;

/// B7
#[tokio::test]
async fn a_process_that_joins_others_uses_their_time_whatever_the_databases_clock_does() {
    for step in [3_600, -3_600] {
        let url = fresh_url().await;
        let (one, began) = start(&url, "one").await;
        let later = moved(began.now, step);
        one.beat(later).await.unwrap();
        let (other, joined) = start(&url, "other").await;
        assert_about(joined.now - joined.up, moved(began.now - began.up, step));
        let reader = Postgres::open(&url).unwrap().time().await.unwrap();
        assert_about(reader.now - reader.up, joined.now - joined.up);
        other.store.deregister(other.holder, joined.now).await.unwrap();
    }
}

/// B7: each answer takes a different while.
#[tokio::test]
async fn a_process_that_reads_the_time_again_continues_with_its_clock() {
    let url = fresh_url().await;
    let (one, began) = start(&url, "one").await;
    for _ in 0..5 {
        let again = one.store.time().await.unwrap();
        assert_eq!(again.now - again.up, began.now - began.up);
        let again = one.store.join_time(one.holder).await.unwrap();
        assert_eq!(again.now - again.up, began.now - began.up);
    }
}

/// B7, B37: the database's clock stepped while processes ran. The next one that is alone returns to it, and loses no deadline.
#[tokio::test]
async fn everything_that_waits_moves_along_when_the_time_is_set() {
    for step in [3_600, -3_600] {
        let url = fresh_url().await;
        let (one, began) = start(&url, "one").await;
        let now = moved(began.now, step);
        one.beat(now).await.unwrap();
        let left = closed_domain(&one, now).await;
        let job = one.job_of("job", &["https://b.example/1"], now).await;
        let lane = one.claim_one(job, now).await;
        one.settle(job, tenure_of(&lane), lane.tasks[0].id, retry(now + WAIT), now).await;
        one.store.park(one.holder, vec![(lane.lane, now + WAIT)]).await.unwrap();
        let source = one.store.add_source(feed("https://feeds.example/"), now).await.unwrap().0.id;
        set_cursor(&url, &format!(r#"{{"not_before": "{}", "etag": "x"}}"#, now + WAIT)).await;
        one.store.deregister(one.holder, now).await.unwrap();

        let (two, alone) = start(&url, "two").await;
        assert_about(alone.now - alone.up, began.now - began.up);
        let now = alone.now;
        let taken = two.taken("a.example", now).await;
        assert_about(taken.kept.server.unwrap().0, now + WAIT);
        assert_about(now + wait(&taken, now), now + WAIT);
        assert_ne!(taken.kept.server, left.kept.server);
        assert_about(two.next_due(job).await.unwrap(), now + WAIT);
        let source = two.store.find_source(source).await.unwrap().unwrap();
        let cursor: Value = serde_json::from_str(&source.cursor_json).unwrap();
        let not_before = Timestamp::parse(cursor["not_before"].as_str().unwrap()).unwrap();
        assert_about(not_before, now + WAIT);
        assert_eq!(cursor["etag"], "x");
    }
}

/// Opens the store as a process does.
async fn start(url: &str, name: &str) -> (Process, StoreTime) {
    let opened = Opened::without_pause(Arc::new(Postgres::open(url).unwrap()));
    let now = opened.store.time().await.unwrap().now;
    let one = Process::with(opened, name, now).await;
    let time = one.store.join_time(one.holder).await.unwrap();
    (one, time)
}

/// Takes a domain that its server closes for a while, and releases it. Returns it as it is then.
async fn closed_domain(one: &Process, now: Timestamp) -> Taken {
    let taken = one.taken("a.example", now).await;
    let (rule, mut pace) = (Rule::default(), Pace::default());
    let permit = *pace.admit(Terms::from(&rule), Intent::Fetch, now).permit().unwrap();
    let hints = PacingHints { retry_after: RetryAfter::After(WAIT), ..PacingHints::default() };
    pace.record(Terms::from(&rule), &permit, &Answer::of_status(429, hints), now);
    let kept = pace.saved_limits();
    let saved = Saved { tenure: taken.tenure, kept, steering: Steering::default() };
    let released = Released { saved, pace: pace.encode(), mode: ReleaseMode::HandOver };
    one.store.release(one.holder, vec![released], now).await.unwrap();
    Taken { kept, ..taken }
}

/// How long the next holder of a domain that was handed over waits.
fn wait(taken: &Taken, now: Timestamp) -> Span {
    let LastHolderBuf::HandedOver(pace) = &taken.last_holder else { panic!("{taken:?}") };
    let (rule, left) = (Rule::default(), LastHolder::HandedOver(pace));
    let pace = Pace::inherit(Terms::from(&rule), &taken.kept, left, now).unwrap();
    pace.wait(Terms::from(&rule), Intent::Fetch, now)
}

async fn set_cursor(url: &str, cursor: &str) {
    let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap();
    let sql = format!("UPDATE {schema}.source SET cursor_json = '{cursor}';");
    let run = move || {
        let mut psql = Server::shared().psql();
        psql.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
        assert!(psql.wait().unwrap().success(), "{sql}");
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

async fn fresh_url() -> String {
    tokio::task::spawn_blocking(|| Server::shared().fresh_url()).await.unwrap()
}

fn moved(at: Timestamp, secs: i64) -> Timestamp {
    Timestamp::from_micros(at.as_micros() + secs * 1_000_000)
}

/// Asserts that two times are the same, but for the time that this test took. The steps are an hour.
#[track_caller]
fn assert_about(one: Timestamp, other: Timestamp) {
    let apart = one.since(other).max(other.since(one));
    assert!(apart < Span::from_mins(10), "{apart:?} apart: {one} and {other}");
}

/// How long things wait: longer than this test takes.
const WAIT: Span = Span::from_mins(20);

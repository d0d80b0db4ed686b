//! What the end of a scrape, or of its job, means for its item and for the log.

use comity_core::interval::SourceInterval;
use comity_core::outcome::Outcome;
use comity_core::task::{JobState, JobStep};
use comity_store::items::{Item, ItemState};
use comity_store::tasks::{Attempt, Settle, Settled, Step};
use serde_json::Value;

use crate::backend::Backend;
use crate::follower::{Follower, every};
use crate::process::{Process, at, done, failed, ms, retry, skipped};

pub(crate) async fn a_fetched_item_is_done(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.begun(task, at(10)).await;
    let file = Some("a.example/0.html".to_owned());
    one.settle(
        task,
        Step::Done { status: 203, bytes: 1_234, file: file.clone(), content_type: None },
        at(12),
    )
    .await;
    let item = one.item(0).await;
    assert_eq!((item.state, item.wake_at, item.error), (ItemState::Done, None, None));
    assert_eq!((item.scraped_at, item.status, item.bytes), (Some(at(12)), Some(203), Some(1_234)));
    assert_eq!(item.file, file);
    assert_eq!(one.logs(0).await, "10 ok at 12 203 1234 bytes");
}

pub(crate) async fn an_empty_response_is_partial(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.begun(task, at(10)).await;
    one.settle(task, Step::Done { status: 204, bytes: 0, file: None, content_type: None }, at(12)).await;
    let item = one.item(0).await;
    assert_eq!((item.state, item.bytes, item.file), (ItemState::Partial, Some(0), None));
    assert_eq!(one.logs(0).await, "10 partial at 12 204 0 bytes");
}

/// What an earlier scrape saved is kept.
pub(crate) async fn an_item_that_was_given_up_has_failed(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 1).await;
    one.scrape(0, at(1)).await;
    let before = one.item(0).await;
    one.enqueue(&[0], at(5)).await;
    let task = one.task(0, at(5)).await;
    one.begun(task, at(10)).await;
    one.settle(task, failed(), at(12)).await;
    let expected = Item { state: ItemState::Failed, error: Some("status 500".to_owned()), ..before };
    assert_eq!(one.item(0).await, expected);
    assert_eq!(one.logs(0).await, "1 ok at 1 200 10 bytes | 10 failed at 12 500 (status 500)");
    one.scrape(0, at(20)).await;
    assert_eq!(one.item(0).await.error, None, "the earlier error is cleared");
}

/// B42, B51: each attempt that was sent has its own row, and the interval counts from it.
pub(crate) async fn a_retry_waits_again_and_has_its_row(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, every(60_000)).await;
    one.begun(task, at(10)).await;
    let attempt =
        Attempt { started_at: at(10), took: ms(500), outcome: Outcome::RateLimited, status: Some(429) };
    one.settle_with(task, vec![attempt], retry(at(30)), at(11)).await;
    let actual = (one.state(0).await, one.logs(0).await);
    assert_eq!(actual, ("waiting".to_owned(), "10 retry at 11 429 (status 429)".to_owned()));
    assert_eq!(one.enqueue(&[0], at(12)).await, "already");
    assert_eq!(one.ready_items(at(29)).await, "");
    assert_eq!(one.task(0, at(30)).await, task);
    assert_eq!(one.begin(task, at(30)).await, "wait 40 until 70", "too soon for the source");
    assert_eq!(one.begin(task, at(70)).await, "begun");
    one.settle(task, done(), at(71)).await;
    let expected = "10 retry at 11 429 (status 429) | 70 ok at 71 200 10 bytes";
    assert_eq!(one.logs(0).await, expected);
}

/// A page that robots.txt forbids was never requested: it fails with that reason and has no row.
pub(crate) async fn an_item_that_must_not_be_fetched_fails_with_the_reason(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, every(60_000)).await;
    one.settle(task, skipped(), at(12)).await;
    let item = one.item(0).await;
    assert_eq!((item.state, item.error.as_deref()), (ItemState::Failed, Some("robots.txt")));
    assert_eq!(one.logs(0).await, "");
}

pub(crate) async fn a_scrape_skipped_while_running_is_closed(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.begun(task, at(10)).await;
    one.settle(task, skipped(), at(12)).await;
    let actual = (one.state(0).await, one.logs(0).await);
    assert_eq!(actual, ("failed".to_owned(), "10 skipped at 12 (robots.txt)".to_owned()));
}

/// B51: for example, a failed DNS lookup; it counts all the same.
pub(crate) async fn an_attempt_that_failed_before_sending_has_a_row(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 2).await;
    one.enqueue(&[0], at(0)).await;
    let task = one.task(0, at(0)).await;
    let attempt = Attempt { started_at: at(9), took: ms(1), outcome: Outcome::NetworkError, status: None };
    let step = Step::Failed { error: "no such name".to_owned(), status: None };
    one.settle_with(task, vec![attempt], step, at(10)).await;
    let actual = (one.state(0).await, one.logs(0).await);
    assert_eq!(actual, ("failed".to_owned(), "9 failed at 10 (no such name)".to_owned()));
    assert_eq!(one.enqueue(&[1], at(11)).await, "wait 58 until 69");
}

/// B74
pub(crate) async fn a_fenced_settle_leaves_the_item_alone(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.begun(task, at(10)).await;
    let other = Process::start(backend, "other", at(0)).await;
    for step in [done(), failed(), skipped(), retry(at(60))] {
        let attempt = Attempt { started_at: at(9), took: ms(1), outcome: Outcome::Timeout, status: None };
        let settle = Settle {
            task,
            job: one.job,
            tenure: one.tenure,
            attempts: vec![attempt],
            url_key: None,
            robots: None,
            facts: Default::default(),
            step,
        };
        let settled = other.store.settle(other.holder, [settle].into(), at(11)).await.unwrap();
        assert_eq!(settled, [Settled::Fenced]);
    }
    assert_eq!((one.state(0).await, one.logs(0).await), ("running".to_owned(), "10 running".to_owned()));
    assert_eq!(one.item(0).await.scraped_at, None);
}

/// B49: both waiting and deferred items; those that were scraped stay as they are.
pub(crate) async fn items_fail_when_their_job_ends_and_wait_again_when_it_is_reopened(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 4).await;
    one.enqueue(&[1, 2], at(0)).await;
    let task = one.task(1, at(0)).await;
    one.scrape(0, at(1)).await;
    one.settle(task, skipped(), at(2)).await;
    one.enqueue(&[3], at(2)).await;
    let states = async || [one.state(0).await, one.state(1).await, one.state(2).await, one.state(3).await];
    assert_eq!(states().await, ["done", "failed", "waiting", "waiting until 61"]);

    one.one.step(one.job, JobStep::Cancel, at(3)).await;
    one.one.sweep(one.job, at(3)).await;
    assert_eq!(states().await, ["done", "failed", "failed", "failed"]);
    assert_eq!(one.item(3).await.error.as_deref(), Some("the job ended"));
    assert_eq!(one.item(1).await.error.as_deref(), Some("robots.txt"));

    one.one.step(one.job, JobStep::Reopen, at(4)).await;
    one.one.sweep(one.job, at(4)).await;
    assert_eq!(states().await, ["done", "failed", "waiting", "waiting"], "robots.txt still forbids it");
    assert_eq!(one.ready_items(at(4)).await, "2 3");
    assert_eq!(one.enqueue(&[2, 3], at(5)).await, "already | already");
    let task = one.task(2, at(61)).await;
    assert_eq!(one.begin(task, at(61)).await, "begun");
}

/// The log must not show a scrape that runs forever; the sweep fences its worker.
pub(crate) async fn a_scrape_whose_job_ended_does_not_stay_running(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.begun(task, at(10)).await;
    one.one.step(one.job, JobStep::Cancel, at(11)).await;
    one.one.sweep(one.job, at(11)).await;
    let late = Settle {
        task,
        job: one.job,
        tenure: one.tenure,
        attempts: vec![],
        url_key: None,
        robots: None,
        facts: Default::default(),
        step: done(),
    };
    let settled = one.store().settle(one.one.holder, [late].into(), at(12)).await.unwrap();
    assert_eq!(settled, [Settled::Fenced]);
    assert_eq!(one.state(0).await, "failed");
    let logs = one.logs(0).await;
    assert!(!logs.contains("running"), "{logs}");
}

/// What has ended stays ended: new work does not bring it back.
pub(crate) async fn a_scrape_job_that_ended_is_reopened_empty(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 3).await;
    let running = one.store().scrape_job(at(1)).await.unwrap();
    assert_eq!((running.id, running.name.as_str()), (one.job, "scrape"), "there is only one");
    one.enqueue(&[0, 1], at(1)).await;
    let task = one.task(0, at(1)).await;
    one.settle(task, failed(), at(1)).await;
    // Nobody has swept it yet, as if its worker had died.
    one.one.step(one.job, JobStep::Cancel, at(2)).await;

    let again = backend.store().await.scrape_job(at(3)).await.unwrap();
    assert_eq!(
        (again.id, again.state, again.ended_at, again.message),
        (one.job, JobState::Running, None, None)
    );
    assert_eq!(again.counts.waiting(), 0);
    assert_eq!([one.state(0).await, one.state(1).await, one.state(2).await], ["failed", "failed", "none"]);
    one.one.sweep(one.job, at(3)).await;
    assert_eq!(one.ready_items(at(4)).await, "");
    assert_eq!(one.enqueue(&[1, 2], at(5)).await, "enqueued | enqueued");
    assert_eq!(one.ready_items(at(5)).await, "1 2");
}

/// B49: if an item was enqueued again, reopening does not bring back older tasks.
pub(crate) async fn a_reopened_job_has_one_task_per_item(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 1).await;
    for secs in 1..4 {
        one.enqueue(&[0], at(secs)).await;
        let task = one.task(0, at(secs)).await;
        one.settle(task, failed(), at(secs)).await;
    }
    one.one.step(one.job, JobStep::Finish, at(5)).await;
    one.one.step(one.job, JobStep::Reopen, at(6)).await;
    one.one.sweep(one.job, at(6)).await;
    assert_eq!(one.ready_items(at(6)).await, "0");
    assert_eq!(one.one.counts(one.job).await.waiting(), 1);
    assert_eq!(one.state(0).await, "waiting");
}

pub(crate) async fn another_job_named_scrape_is_left_alone(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let theirs = one.job_of("scrape", &["https://a.example/1"], at(0)).await;
    one.step(theirs, JobStep::Cancel, at(1)).await;
    let before = one.job(theirs).await;
    let ours = one.store.scrape_job(at(2)).await.unwrap();
    assert_ne!(ours.id, theirs);
    assert_eq!(one.job(theirs).await, before);
    assert_eq!(
        (before.state, before.counts.waiting(), before.options),
        (JobState::Cancelled, 1, Value::Null)
    );
    assert_eq!(one.store.scrape_job(at(3)).await.unwrap(), ours, "the same one next time");
}

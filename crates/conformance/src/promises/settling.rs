//! Settling tasks: what is counted, and who is allowed to.

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobStep};
use comity_store::domains::{ReleaseMode, Tenure};
use comity_store::jobs::Counts;
use comity_store::tasks::{
    Attempt, Claimed, GAVE_UP, LaneId, RedirectBody, RemainingWork, Settle, Settled, Step,
};

use crate::backend::Backend;
use crate::process::{Process, at, domain, done, failed, moved, ms, retry, skipped, tenure_of, urls_of};

/// B42: each step is counted once; postponing and moving are not counted.
pub(crate) async fn each_step_is_counted(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let limited =
        Attempt { started_at: at(1), took: ms(20), outcome: Outcome::RateLimited, status: Some(429) };
    let again = Attempt { started_at: at(2), ..limited.clone() };
    let success = Attempt { outcome: Outcome::Success, status: Some(200), ..limited.clone() };
    let steps = [
        (done(), vec![limited.clone(), again, success]),
        (failed(), vec![]),
        (skipped(), vec![]),
        (retry(at(60)), vec![limited]),
        (retry(at(60)), vec![]),
        (moved("b.example"), vec![]),
    ];
    let settles = std::iter::zip(&lane.tasks, steps).map(|(task, (step, attempts))| Settle {
        task: task.id,
        job,
        tenure: tenure_of(&lane),
        attempts,
        url_key: None,
        robots: None,
        facts: Default::default(),
        step,
    });
    let settled = one.store.settle(one.holder, settles.collect(), at(5)).await.unwrap();
    assert_eq!(settled, [Settled::Yes; 6]);
    let counts = Counts { tasks: 6, done: 1, failed: 1, skipped: 1, rate_limited: 3, retries: 2 };
    assert_eq!(one.counts(job).await, counts);
    assert_eq!(counts.waiting(), 3);

    for (state, expected) in [
        ("done", "https://a.example/0 200 - at 5"),
        ("failed", "https://a.example/1 500 status 500 at 5"),
        ("skipped", "https://a.example/2 0 robots.txt at 5"),
    ] {
        let seen = one.store.list_tasks(job, state.to_owned(), 10).await.unwrap();
        let seen = seen.into_iter().map(|task| {
            let error = task.error.as_deref().unwrap_or("-");
            let secs = task.settled_at.unwrap().since(at(0)).as_secs_up();
            format!("{} {} {error} at {secs}", task.url, task.status.unwrap_or(0))
        });
        assert_eq!(seen.collect::<Vec<_>>(), [expected], "{state}");
    }
    assert_eq!(one.store.list_tasks(job, "waiting".to_owned(), 2).await.unwrap().len(), 2);
}

/// B74
pub(crate) async fn a_finished_task_is_never_settled_twice(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let every = || [done(), failed(), skipped(), retry(at(9)), moved("b.example")];
    for (task, end) in std::iter::zip(&lane.tasks, [done(), failed(), skipped()]) {
        assert_eq!(one.settle(job, tenure_of(&lane), task.id, end, at(1)).await, Settled::Yes);
        for step in every() {
            let again = one.settle(job, tenure_of(&lane), task.id, step.clone(), at(2)).await;
            assert_eq!(again, Settled::Fenced, "{step:?}");
        }
    }
    let counts = Counts { tasks: 6, done: 1, failed: 1, skipped: 1, ..Counts::default() };
    assert_eq!(one.counts(job).await, counts);
}

/// B74: of a batch, results for domains that are still held are committed, and the others are not.
pub(crate) async fn an_expired_tenure_cannot_settle(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let old = tenure_of(&lane);
    let kept = one.taken("b.example", at(0)).await.tenure;
    one.enqueue(job, &["https://b.example/"], at(0)).await;
    let task_b = one.claim_one(job, at(0)).await.tasks[0].id;
    one.release(old, b"pace", ReleaseMode::HandOver, at(1)).await;
    let new = one.taken("a.example", at(1)).await.tenure;

    let first = lane.tasks[0].id;
    let settle = |task, tenure: Tenure| Settle {
        task,
        job,
        tenure,
        attempts: Vec::new(),
        url_key: None,
        robots: None,
        facts: Default::default(),
        step: done(),
    };
    let batch = vec![settle(first, old), settle(task_b, kept), settle(first, Tenure { epoch: 99, ..new })];
    let settled = one.store.settle(one.holder, batch.into(), at(2)).await.unwrap();
    assert_eq!(settled, [Settled::Fenced, Settled::Yes, Settled::Fenced]);
    assert_eq!(other.settle(job, new, first, done(), at(2)).await, Settled::Fenced, "not its tenure");
    assert_eq!(one.settle(job, new, first, done(), at(2)).await, Settled::Yes);
    assert_eq!(one.counts(job).await.done, 2);
}

/// B79: the number of failures that did not use up a retry is known to the process that continues the task.
pub(crate) async fn failures_that_used_no_retry_are_remembered(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let (tenure, task) = (tenure_of(&lane), lane.tasks[0].id);
    assert_eq!((lane.tasks[0].retries, lane.tasks[0].forgiven), (0, 0));
    let step = Step::Retry { ready_at: at(10), retries: 1, forgiven: 2, error: "status 429".to_owned() };
    assert_eq!(one.settle(job, tenure, task, step, at(1)).await, Settled::Yes);
    one.release(tenure, b"pace", ReleaseMode::Stop, at(20)).await;
    let row = one.claim_one(job, at(20)).await.tasks.into_iter().find(|row| row.id == task).unwrap();
    assert_eq!((row.retries, row.forgiven), (1, 2));
}

/// B45
pub(crate) async fn a_failed_attempt_alone_is_not_a_retry(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let attempt = Attempt { started_at: at(1), took: ms(1), outcome: Outcome::Timeout, status: None };
    let step = Step::Failed { error: "no answer in 30s".to_owned(), status: None };
    let task = lane.tasks[0].id;
    let settle = Settle {
        task,
        job,
        tenure: tenure_of(&lane),
        attempts: vec![attempt],
        url_key: None,
        robots: None,
        facts: Default::default(),
        step,
    };
    one.store.settle(one.holder, [settle].into(), at(2)).await.unwrap();
    assert_eq!(one.counts(job).await, Counts { tasks: 6, failed: 1, ..Counts::default() });
    assert_eq!(one.store.list_tasks(job, "failed".to_owned(), 1).await.unwrap()[0].status, None);
}

/// B44
pub(crate) async fn a_moved_task_is_claimed_on_its_new_domain(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let task = lane.tasks[0].id;
    one.settle(job, tenure_of(&lane), task, moved("b.example"), at(3)).await;
    assert_eq!(one.next_due(job).await, Some(at(3)));

    let there = other.claim_one(job, at(3)).await;
    let row = &there.tasks[0];
    assert_eq!((there.domain.as_str(), row.id, row.url.as_str()), ("b.example", task, "https://a.example/0"));
    assert_eq!((row.at_url.as_deref(), row.hops), (Some("https://b.example/"), 1));

    // The domain whose pace applies can change without a redirect; the task's URL stays as it is.
    let step = Step::Moved { domain: domain("c.example"), at_url: None, hops: 1, body: RedirectBody::Kept };
    assert_eq!(other.settle(job, tenure_of(&there), task, step, at(4)).await, Settled::Yes);
    let again = one.claim_one(job, at(4)).await;
    assert_eq!(again.tasks[0].at_url.as_deref(), Some("https://b.example/"));
    assert_eq!(one.settle(job, tenure_of(&again), task, done(), at(5)).await, Settled::Yes);
    assert_eq!(one.counts(job).await.done, 1);
}

/// B74: another process may be fetching it by now, so a late result is refused.
pub(crate) async fn a_moved_task_cannot_be_settled_by_its_former_holder(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let task = lane.tasks[0].id;
    one.settle(job, tenure_of(&lane), task, moved("b.example"), at(1)).await;
    other.claim_one(job, at(1)).await;
    assert_eq!(one.settle(job, tenure_of(&lane), task, done(), at(2)).await, Settled::Fenced);
}

pub(crate) async fn a_tenure_settles_tasks_of_its_own_domain_only(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let tenure = other.taken("b.example", at(0)).await.tenure;
    assert_eq!(other.settle(job, tenure, lane.tasks[0].id, done(), at(1)).await, Settled::Fenced);
    assert_eq!(one.counts(job).await.done, 0);
}

pub(crate) async fn a_fenced_settle_leaves_no_trace(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let task = lane.tasks[0].id;
    one.settle(job, tenure_of(&lane), task, done(), at(1)).await;
    assert_eq!(one.settle(job, tenure_of(&lane), task, moved("b.example"), at(2)).await, Settled::Fenced);
    assert_eq!(one.next_due(job).await, None, "no lane is due for a task that did not move");
    assert_eq!(urls_of(&one.claim(job, at(2)).await), "");
}

/// A process that claimed a lane of six tasks.
async fn claimed(backend: &dyn Backend) -> (Process, JobId, Claimed) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls: Vec<String> = (0..6).map(|nth| format!("https://a.example/{nth}")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    (one, job, lane)
}

/// B47, B49: tasks waiting on a domain that was given up are skipped, and so are tasks added later; a retry makes them
/// wait again.
pub(crate) async fn a_domain_that_is_given_up_is_skipped_and_the_rest_continues(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls = ["https://a.example/0", "https://a.example/1", "https://a.example/2", "https://b.example/0"];
    let job = one.job_of("job", &urls, at(0)).await;
    let lanes = one.claim(job, at(0)).await;
    let [a, b] = &lanes[..] else { panic!("{lanes:?}") };
    one.settle(job, tenure_of(a), a.tasks[0].id, failed(), at(1)).await;
    let reason = format!("{GAVE_UP}a.example: 1 URLs in a row failed");
    let give_up = |lane: LaneId| one.store.give_up(one.holder, lane, reason.clone());
    assert_eq!(give_up(a.lane).await.unwrap(), RemainingWork::Tasks, "b.example has a task");
    // A request that was in flight meanwhile counts.
    assert_eq!(one.settle(job, tenure_of(a), a.tasks[1].id, done(), at(1)).await, Settled::Yes);
    one.store.park(one.holder, vec![(a.lane, at(1))]).await.unwrap();
    assert_eq!(one.claim(job, at(2)).await, [], "none of its tasks is worked on");
    let counts = Counts { tasks: 4, done: 1, failed: 1, skipped: 1, ..Counts::default() };
    assert_eq!(one.counts(job).await, counts);
    let skipped = one.store.list_tasks(job, "skipped".to_owned(), 9).await.unwrap();
    assert_eq!(skipped[0].error.as_ref(), Some(&reason));

    one.enqueue(job, &["https://a.example/late"], at(3)).await;
    assert_eq!(one.claim(job, at(3)).await, []);
    assert_eq!(one.counts(job).await.skipped, 2);

    one.settle(job, tenure_of(b), b.tasks[0].id, done(), at(4)).await;
    assert_eq!(give_up(b.lane).await.unwrap(), RemainingWork::Nothing);
    one.step(job, JobStep::Fail, at(5)).await;
    one.sweep(job, at(5)).await;
    one.step(job, JobStep::Reopen, at(6)).await;
    one.sweep(job, at(6)).await;
    let again = one.claim_one(job, at(6)).await;
    assert_eq!(urls_of(&[again]), "a.example/0 a.example/2 a.example/late");
}

/// B47: a process that lost a lane cannot give up on it.
pub(crate) async fn only_the_process_that_serves_a_lane_can_give_it_up(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let given_up = other.store.give_up(other.holder, lane.lane, format!("{GAVE_UP}it")).await.unwrap();
    assert_eq!(given_up, RemainingWork::Tasks);
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    assert_eq!(one.claim_one(job, at(2)).await.tasks.len(), lane.tasks.len());
}

//! Tasks, where PostgreSQL could differ from SQLite: a batch is written by a few statements, not one result after the other.

use std::sync::Arc;

use comity_conformance::Process;
use comity_conformance::process::{at, done, listed, retry, tenure_of};
use comity_core::outcome::Outcome;
use comity_core::time::Span;
use comity_store::jobs::Counts;
use comity_store::tasks::{Attempt, Claim, Enqueued, Refill, Settle, Settled, TaskFilter};

use super::schema;

/// Both results of a task that was retried within the batch count, in their order.
#[tokio::test(flavor = "multi_thread")]
async fn results_of_one_task_in_a_batch_are_written_in_order() {
    let one = Process::start(&schema().await, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://a.example/2"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let attempt = |secs, outcome, status| Attempt {
        started_at: at(secs),
        took: Span::from_millis(20),
        outcome,
        status: Some(status),
    };
    let settle = |nth: usize, attempt, step| Settle {
        task: lane.tasks[nth].id,
        job,
        tenure: tenure_of(&lane),
        attempts: vec![attempt],
        url_key: None,
        robots: None,
        facts: Arc::default(),
        step,
    };
    let batch = [
        settle(0, attempt(1, Outcome::RateLimited, 429), retry(at(2))),
        settle(1, attempt(2, Outcome::Success, 200), done()),
        settle(0, attempt(3, Outcome::Success, 200), done()),
        settle(0, attempt(4, Outcome::Success, 200), done()),
    ];
    let settled = one.store.settle(one.holder, batch.into(), at(5)).await.unwrap();
    assert_eq!(settled, [Settled::Yes, Settled::Yes, Settled::Yes, Settled::Fenced]);
    let counts = Counts { tasks: 2, done: 2, rate_limited: 1, retries: 1, ..Counts::default() };
    assert_eq!(one.counts(job).await, counts);
    let tasks = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap();
    assert_eq!((tasks[0].attempts, tasks[0].started_at), (2, Some(at(3))));
}

/// B74: after a failover that lost writes, the same ids are given out again.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_for_another_url_is_not_accepted() {
    let one = Process::start(&schema().await, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://a.example/2"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let settle = |nth: usize, url_key, attempts: &[Attempt], step| Settle {
        task: lane.tasks[nth].id,
        url_key,
        job,
        tenure: tenure_of(&lane),
        attempts: attempts.to_vec(),
        robots: None,
        facts: Arc::default(),
        step,
    };
    let success = Attempt {
        started_at: at(1),
        took: Span::from_millis(20),
        outcome: Outcome::Success,
        status: Some(200),
    };
    let keys = [lane.tasks[0].url_key, lane.tasks[1].url_key];
    assert!(keys[0].is_some() && keys[0] != keys[1]);
    let [plain, other] = [&[success][..], &[]];
    for attempts in [plain, other] {
        let swapped = vec![settle(0, keys[1], attempts, done()), settle(1, keys[0], attempts, done())];
        assert_eq!(one.store.settle(one.holder, swapped.into(), at(2)).await.unwrap(), [Settled::Fenced; 2]);
    }
    let right = vec![settle(0, keys[0], plain, done()), settle(1, keys[1], other, done())];
    assert_eq!(one.store.settle(one.holder, right.into(), at(2)).await.unwrap(), [Settled::Yes; 2]);
    assert_eq!(one.counts(job).await.done, 2);
}

/// PostgreSQL cannot store NUL, which becomes another character.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_with_a_null_byte_is_added_once() {
    let one = Process::start(&schema().await, "one", at(0)).await;
    let job = one.open_job("job").await;
    let strange = || {
        let mut task = listed("https://a.example/1");
        task.url.push('\0');
        task
    };
    let new = Enqueued { new: 1, known: 1, refused: 0 };
    assert_eq!(one.store.enqueue(job, vec![strange(), strange()], at(0)).await.unwrap(), new);
    assert_eq!(one.store.enqueue(job, vec![strange()], at(0)).await.unwrap().known, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_read_with_a_limit_of_their_own() {
    let one = Process::start(&schema().await, "one", at(0)).await;
    let urls: Vec<String> = (0..8).map(|nth| format!("https://{}.example/{nth}", nth % 2)).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let lanes = one.store.claim(one.holder, Claim { job, lanes: 9, tasks: 1 }, at(0)).await.unwrap();
    let refills =
        std::iter::zip(&lanes, [3, 1]).map(|(lane, limit)| Refill { lane: lane.lane, after: None, limit });
    let read = one.store.refill(refills.collect()).await.unwrap();
    assert_eq!(read.iter().map(|(_, tasks)| tasks.len()).collect::<Vec<_>>(), [3, 1]);
}

//! `attempts`, as people query it: the only request of a task is kept in the task's row, the others in a log, and the
//! view shows all of them once.

use comity_conformance::process::{Process, at, done, failed, ms, retry, tenure_of};
use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobStep};
use comity_store::jobs::RetryFilter;
use comity_store::tasks::{Attempt, Claimed, Settle, Step};

use crate::file::TestFile;

const ALL: &str =
    "SELECT group_concat(printf('%s %s', attempts.status, (started_us - 1800000000000000) / 1000000), ', '
    ORDER BY started_us) FROM attempts";

#[tokio::test]
async fn a_task_with_one_attempt_logs_nothing_and_the_view_shows_it() {
    let (file, one, job, lane) = claimed().await;
    settle(&one, job, &lane, &[(1, 200)], done()).await;
    assert_eq!(file.query_one(ALL), "200 1");
    assert_eq!(file.query_one("SELECT count(*) FROM logged_attempts"), "0");
    assert_eq!(file.query_one("SELECT took_us || outcome FROM attempts"), "20000success");
}

#[tokio::test]
async fn a_task_with_several_attempts_shows_each_of_them_once() {
    let (file, one, job, lane) = claimed().await;
    settle(&one, job, &lane, &[(1, 429)], retry(at(2))).await;
    assert_eq!(file.query_one(ALL), "429 1");
    settle(&one, job, &lane, &[(2, 503), (3, 200)], done()).await;
    assert_eq!(file.query_one(ALL), "429 1, 503 2, 200 3");
}

#[tokio::test]
async fn an_attempt_survives_a_refresh_and_a_retry() {
    let (file, one, job, lane) = claimed().await;
    settle(&one, job, &lane, &[(1, 200)], done()).await;
    one.step(job, JobStep::Finish, at(2)).await;
    let refresh = RetryFilter { done_before: Some(at(20)), ..RetryFilter::default() };
    one.store.reopen_job(job, refresh).await.unwrap();
    one.sweep(job, at(5)).await;
    assert_eq!(file.query_one(ALL), "200 1", "what it was fetched with before is still there");
    settle(&one, job, &lane, &[(6, 500)], failed()).await;
    assert_eq!(file.query_one(ALL), "200 1, 500 6");
    one.step(job, JobStep::Finish, at(7)).await;
    one.store.reopen_job(job, RetryFilter::default()).await.unwrap();
    one.sweep(job, at(8)).await;
    assert_eq!(file.query_one(ALL), "200 1, 500 6");
    settle(&one, job, &lane, &[(9, 200)], done()).await;
    assert_eq!(file.query_one(ALL), "200 1, 500 6, 200 9");
}

/// A job of one page, claimed.
async fn claimed() -> (TestFile, Process, JobId, Claimed) {
    let file = TestFile::new();
    let one = file.process("one").await;
    let job = one.job_of("news", &["https://a.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    (file, one, job, lane)
}

/// Settles the page with these attempts: when they left, and the status that came back.
async fn settle(one: &Process, job: JobId, lane: &Claimed, attempts: &[(i64, u16)], step: Step) {
    let attempt = |&(secs, status): &(i64, u16)| Attempt {
        started_at: at(secs),
        took: ms(20),
        outcome: if status == 200 { Outcome::Success } else { Outcome::ServerError },
        status: Some(status),
    };
    let attempts = attempts.iter().map(attempt).collect();
    let (task, tenure) = (lane.tasks[0].id, tenure_of(lane));
    let settle =
        Settle { task, job, tenure, attempts, url_key: None, robots: None, facts: Default::default(), step };
    one.store.settle(one.holder, [settle].into(), at(10)).await.unwrap();
}

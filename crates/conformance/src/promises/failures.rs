//! Finding jobs, and grouping what failed in them by reason.

use std::sync::Arc;

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobStep};
use comity_store::domains::Tenure;
use comity_store::jobs::{Counted, FailureKind, FailureReason, JobQuery, JobTally, RetryFilter, RowMark};
use comity_store::tasks::{Attempt, FORBIDDEN, GAVE_UP, JOB_ENDED, Settle, Step};

use crate::backend::Backend;
use crate::process::{Process, at, done, ms, tenure_of};

pub(crate) async fn jobs_are_found_by_name_and_state(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let mut jobs = Vec::new();
    for name in ["a-1", "a-2", "b-1", "b-2", "b_3"] {
        jobs.push(one.job_of(name, &["https://a.example/"], at(0)).await);
    }
    one.step(jobs[0], JobStep::Cancel, at(1)).await;
    let mark = RowMark { settled_before: at(0), index_bytes: None };
    one.store.work_on(jobs[1], one.holder, mark, at(1)).await.unwrap();
    one.store.work_on(jobs[3], one.holder, mark, at(1)).await.unwrap();
    let names = async |like: &str, state: Option<&str>, limit: u32| {
        let (mut found, mut older_than) = (Vec::new(), None);
        loop {
            let (like, state) = (like.to_owned(), state.map(str::to_owned));
            let page = one.store.search_jobs(JobQuery { like, state, older_than, limit }).await.unwrap();
            let Some(last) = page.last() else { return found.join(" ") };
            assert!(page.len() <= limit as usize);
            older_than = Some(last.id);
            found.extend(page.into_iter().map(|job| job.name));
        }
    };
    for limit in [1, 2, 9] {
        assert_eq!(names("", None, limit).await, "b_3 b-2 b-1 a-2 a-1");
        assert_eq!(names("b", None, limit).await, "b_3 b-2 b-1");
        assert_eq!(names("_", None, limit).await, "b_3");
        assert_eq!(names("", Some("running"), limit).await, "b-2 a-2");
        assert_eq!(names("", Some("stopped"), limit).await, "b_3 b-1");
        assert_eq!(names("a", Some("cancelled"), limit).await, "a-1");
        assert_eq!(names("", Some("done"), limit).await, "");
    }
    let expected = JobTally { running: 2, stopped: 2, cancelled: 1, ..JobTally::default() };
    assert_eq!(one.store.tally_jobs().await.unwrap(), expected);
}

/// A job of ten tasks: two fetched, three with status 500, one with 404, one timeout, and three skipped.
async fn job_with_failures(one: &Process) -> JobId {
    let urls: Vec<String> = (0..10).map(|nth| format!("https://a.example/{nth}")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let job = one.job_of("news", &urls, at(0)).await;
    let lane = one.claim_one(job, at(1)).await;
    let tenure = tenure_of(&lane);
    let fail = |status: Option<u16>| Step::Failed { error: format!("failed {status:?}"), status };
    let skip = |reason: &str| Step::Skipped { reason: reason.to_owned() };
    let gave_up = format!("{GAVE_UP}a.example: too many failures");
    let steps = [
        (fail(Some(500)), Some(Outcome::ServerError)),
        (fail(Some(500)), Some(Outcome::ServerError)),
        (fail(Some(500)), Some(Outcome::ServerError)),
        (fail(Some(404)), Some(Outcome::Answered)),
        (fail(None), Some(Outcome::Timeout)),
        (skip(FORBIDDEN), None),
        (skip(JOB_ENDED), None),
        (skip(&gave_up), None),
        (done(), Some(Outcome::Success)),
        (done(), Some(Outcome::Success)),
    ];
    for (nth, (step, outcome)) in steps.into_iter().enumerate() {
        settle(one, job, tenure, &lane.tasks[nth].id, step, outcome, 10 + nth as i64).await;
    }
    one.step(job, JobStep::Finish, at(30)).await;
    job
}

async fn settle(
    one: &Process,
    job: JobId,
    tenure: Tenure,
    task: &comity_core::task::TaskId,
    step: Step,
    outcome: Option<Outcome>,
    secs: i64,
) {
    let status = match &step {
        Step::Failed { status, .. } => *status,
        _ => None,
    };
    let attempt = |outcome| Attempt { started_at: at(secs), took: ms(5), outcome, status };
    let attempts = outcome.map(attempt).into_iter().collect();
    let (url_key, facts) = (None, Arc::default());
    let settle = Settle { task: *task, url_key, job, tenure, attempts, robots: None, facts, step };
    one.store.settle(one.holder, [settle].into(), at(secs)).await.unwrap();
}

pub(crate) async fn failures_are_grouped_by_reason(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = job_with_failures(&one).await;
    let groups = one.store.failure_groups(job, 2).await.unwrap();
    let count = |reason: FailureReason| {
        let group = groups.iter().find(|group| group.reason == reason).unwrap();
        assert!(group.samples.len() <= 2);
        (
            group.count.number,
            group.count.or_more,
            group.samples.iter().map(|task| &task.url[18..]).collect::<Vec<_>>(),
        )
    };
    assert_eq!(groups.len(), 6);
    assert_eq!(
        (&groups[0].reason, groups[0].count.number),
        (&FailureReason::Status(500), 3),
        "the most frequent first"
    );
    assert_eq!(count(FailureReason::Status(500)), (3, false, vec!["2", "1"]), "the newest first");
    assert_eq!(count(FailureReason::Status(404)), (1, false, vec!["3"]));
    assert_eq!(count(FailureReason::Outcome(Outcome::Timeout)), (1, false, vec!["4"]));
    assert_eq!(count(FailureReason::Robots), (1, false, vec!["5"]));
    assert_eq!(count(FailureReason::JobEnded), (1, false, vec!["6"]));
    assert_eq!(count(FailureReason::GaveUp), (1, false, vec!["7"]));
    let none = one.job_of("other", &["https://b.example/"], at(0)).await;
    assert_eq!(one.store.failure_groups(none, 2).await.unwrap(), []);
}

/// As many tasks wait again as was said before.
pub(crate) async fn retries_are_counted_before_they_are_made(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = job_with_failures(&one).await;
    let of = |failures: &[FailureKind], matching: Option<&str>| RetryFilter {
        failures: failures.to_vec(),
        matching: matching.map(str::to_owned),
        done_before: None,
    };
    let count = async |filter, most| one.store.count_retry(job, filter, most).await.unwrap();
    let exactly = |number| Counted { number, or_more: false };
    for (filter, expected) in [
        (of(&[], None), 6),
        (of(&[FailureKind::Any], None), 8),
        (of(&[FailureKind::Status(500)], None), 3),
        (of(&[FailureKind::Status(500)], Some("*/1")), 1),
        (of(&[FailureKind::Class(4)], None), 1),
        (of(&[FailureKind::Outcome(Outcome::Timeout)], None), 1),
        (of(&[FailureKind::Skipped], None), 2),
        (of(&[FailureKind::Robots], None), 1),
        (of(&[], Some("*/3")), 1),
        (of(&[FailureKind::Status(503)], None), 0),
    ] {
        assert_eq!(count(filter.clone(), 99).await, exactly(expected), "{filter:?}");
        assert_eq!(one.store.can_retry(job, filter).await.unwrap(), expected > 0);
    }
    assert_eq!(count(of(&[FailureKind::Status(500)], None), 2).await, Counted { number: 2, or_more: true });
    assert!(count(of(&[], None), 2).await.or_more);

    let reason = FailureReason::Status(500);
    let filter = of(&[reason.kind().unwrap()], None);
    one.store.reopen_job(job, filter).await.unwrap();
    one.sweep(job, at(40)).await;
    assert_eq!(one.counts(job).await.waiting(), 3);
}

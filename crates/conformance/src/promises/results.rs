//! Results of tasks, who works on jobs, retries, and removing jobs.

use std::sync::Arc;

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobState, JobStep};
use comity_store::domains::ReleaseMode;
use comity_store::jobs::{Counts, FailureKind, Removed, RetryFilter, RowMark, Stepped};
use comity_store::tasks::{
    Attempt, Claimed, FORBIDDEN, PageFacts, RobotsAttempts, Settle, Settled, Step, TaskFilter,
};

use crate::backend::Backend;
use crate::process::{Process, at, done, failed, ms, retry, skipped, tenure_of, urls_of};

/// Validators come back byte for byte, whatever their bytes.
pub(crate) async fn task_results_come_back_unchanged(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 3).await;
    let attempt = |secs, outcome, status| Attempt { started_at: at(secs), took: ms(20), outcome, status };
    let facts = PageFacts {
        final_url: Some("https://a.example/there".to_owned()),
        fetched_at: Some(at(4)),
        sha256: Some([7; 32]),
        file: Some("a.example/0.html".to_owned()),
        etag: Some(b"W/\"\xff\x00\"".to_vec()),
        last_modified: Some(b"yesterday".to_vec()),
    };
    let settle = async |nth: usize, attempts, facts: &PageFacts, step| {
        let (tenure, facts) = (tenure_of(&lane), Arc::new(facts.clone()));
        let settle = Settle {
            task: lane.tasks[nth].id,
            job,
            tenure,
            attempts,
            url_key: None,
            robots: None,
            facts,
            step,
        };
        one.store.settle(one.holder, [settle].into(), at(5)).await.unwrap();
    };
    let limited = attempt(1, Outcome::RateLimited, Some(429));
    settle(0, vec![limited], &PageFacts::default(), retry(at(2))).await;
    let content_type = Some("text/html".to_owned());
    let step = Step::Done { status: 200, bytes: 9, file: None, content_type: content_type.clone() };
    settle(0, vec![attempt(3, Outcome::Success, Some(200))], &facts, step).await;
    settle(1, vec![attempt(3, Outcome::Timeout, None)], &facts, failed()).await;

    let page =
        async |which: TaskFilter, after, limit| one.store.page_tasks(job, which, after, limit).await.unwrap();
    let all = page(TaskFilter::default(), None, 10).await;
    let seen = &all[0];
    assert_eq!((seen.attempts, seen.started_at, seen.took), (2, Some(at(3)), Some(ms(20))));
    assert_eq!(
        (seen.outcome, seen.bytes, &seen.content_type),
        (Some(Outcome::Success), Some(9), &content_type)
    );
    assert_eq!(*seen.facts, facts);
    assert_eq!((all[1].attempts, all[1].outcome, all[1].bytes), (1, Some(Outcome::Timeout), None));
    assert_eq!(all[1].facts.file, None, "nothing was fetched");
    assert_eq!(all[1].facts.final_url, facts.final_url);
    assert_eq!((all[2].state.as_str(), all[2].attempts, all[2].outcome), ("waiting", 0, None));

    let first = page(TaskFilter::default(), None, 1).await;
    assert_eq!(first, all[..1]);
    assert_eq!(page(TaskFilter::default(), Some(first[0].id), 9).await, all[1..]);
    let only = |state: &str| TaskFilter { state: Some(state.to_owned()), settled_since: None };
    assert_eq!(page(only("failed"), None, 9).await, all[1..2]);
    let since = |secs| TaskFilter { state: None, settled_since: Some(at(secs)) };
    assert_eq!((page(since(5), None, 9).await.len(), page(since(6), None, 9).await.len()), (2, 0));
}

pub(crate) async fn jobs_are_listed_in_pages(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    for name in ["a", "b", "c"] {
        one.open_job(name).await;
    }
    let page = async |older_than, limit| {
        let jobs = one.store.page_jobs(older_than, limit).await.unwrap();
        (jobs.iter().map(|job| job.name.clone()).collect::<String>(), jobs.last().map(|job| job.id))
    };
    let (names, last) = page(None, 2).await;
    assert_eq!(names, "cb");
    assert_eq!(page(last, 2).await.0, "a");
}

/// B49
pub(crate) async fn a_new_task_reopens_a_job_that_is_done(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 1).await;
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, failed(), at(1)).await;
    assert!(matches!(one.step(job, JobStep::Finish, at(2)).await, Stepped::Yes(_)));
    assert_eq!(one.enqueue(job, &["https://a.example/0"], at(3)).await.known, 1);
    assert_eq!(one.job(job).await.state, JobState::Done, "nothing is new");
    assert_eq!(one.enqueue(job, &["https://a.example/new"], at(3)).await.new, 1);
    let open = one.job(job).await;
    assert_eq!((open.state, open.ended_at, open.counts.failed), (JobState::Running, None, 1));
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(3)).await;
    assert_eq!(urls_of(&one.claim(job, at(3)).await), "a.example/new", "failed tasks stay failed");
}

/// A job that nobody works on is stopped, and the next worker learns which rows a dead one did not write.
pub(crate) async fn workers_of_a_job_are_known(backend: &dyn Backend) {
    let (one, job, _) = claimed(backend, 1).await;
    assert_eq!(one.job(job).await.state_word(), "stopped");
    let other = Process::start(backend, "other", at(0)).await;
    let work = async |process: &Process, written_until, now| {
        let written = mark(written_until, Some(100 * written_until as u64));
        one.store.work_on(job, process.holder, written, at(now)).await.unwrap()
    };
    assert_eq!(work(&one, 1, 1).await, None);
    assert_eq!(work(&other, 2, 2).await, None);
    assert_eq!(one.job(job).await.state_word(), "running");
    one.store.leave_job(job, one.holder).await.unwrap();
    assert_eq!(one.job(job).await.state_word(), "running");
    backend.kill(other, at(3)).await;
    let left = one.job(job).await;
    assert_eq!((left.state_word(), left.abandoned), ("stopped", true));
    assert_eq!(work(&one, 5, 5).await, Some(mark(2, Some(200))), "rows may be missing from then on");
    assert_eq!(work(&one, 6, 6).await, None, "once");
    one.store.leave_job(job, one.holder).await.unwrap();
    let left = one.job(job).await;
    assert_eq!((left.worked_on, left.abandoned), (false, false));
}

/// Whoever dies before it has written what is missing leaves that to the next one. Of several dead workers, the earliest
/// mark counts.
pub(crate) async fn missing_rows_are_known_from_the_earliest_mark(backend: &dyn Backend) {
    let (one, job, _) = claimed(backend, 1).await;
    let start = async |name| Process::start(backend, name, at(0)).await;
    let (two, three, four) = (start("two").await, start("three").await, start("four").await);
    let work = async |process: &Process, written, now| {
        one.store.work_on(job, process.holder, written, at(now)).await.unwrap()
    };
    work(&two, mark(5, Some(10)), 5).await;
    work(&three, mark(4, Some(20)), 5).await;
    backend.kill(two, at(6)).await;
    backend.kill(three, at(6)).await;
    assert_eq!(work(&four, mark(7, Some(30)), 7).await, Some(mark(4, Some(10))));
    backend.kill(four, at(8)).await;
    let five = start("five").await;
    assert_eq!(work(&five, mark(9, None), 9).await, Some(mark(4, Some(10))), "it may not have written them");
    work(&five, mark(10, None), 10).await;
    backend.kill(five, at(11)).await;
    assert_eq!(work(&one, mark(12, Some(40)), 12).await, Some(mark(10, None)));
}

/// An open job can say why it does not finish. What a job ended with stays.
pub(crate) async fn an_open_job_says_why_it_cannot_finish(backend: &dyn Backend) {
    let (one, job, _) = claimed(backend, 1).await;
    let say = async |message: Option<&str>| {
        one.store.set_message(job, message.map(str::to_owned)).await.unwrap();
        one.job(job).await.message
    };
    assert_eq!(say(Some("no sitemap")).await.as_deref(), Some("no sitemap"));
    assert_eq!(say(None).await, None);
    say(Some("no sitemap")).await;
    one.step(job, JobStep::Cancel, at(1)).await;
    assert_eq!(one.job(job).await.message, None);
    assert_eq!(say(Some("too late")).await, None);
}

/// B49: by default, tasks that got a 404 or 410 are not retried, and neither are those that robots.txt forbade.
pub(crate) async fn a_retry_selects_tasks_by_failure_and_url(backend: &dyn Backend) {
    for (failures, matching, expected) in [
        (vec![], None, "1 2 5 6"),
        (vec![FailureKind::Class(5)], None, "1"),
        (vec![FailureKind::Status(404), FailureKind::Outcome(Outcome::Timeout)], None, "2 3"),
        (vec![FailureKind::Any], None, "1 2 3 4 5 6"),
        (vec![FailureKind::Skipped], None, "5 6"),
        (vec![FailureKind::Robots], None, "4"),
        (vec![], Some("*/[1-4]"), "1 2 3"),
        (vec![FailureKind::Class(5)], Some("*/2"), ""),
    ] {
        let (one, job, lane) = claimed(backend, 7).await;
        let fail = |status: Option<u16>| Step::Failed { error: "it failed".to_owned(), status };
        let timeout = Attempt { started_at: at(1), took: ms(1), outcome: Outcome::Timeout, status: None };
        let steps = [
            (done(), vec![]),
            (fail(Some(500)), vec![]),
            (fail(None), vec![timeout]),
            (fail(Some(404)), vec![]),
            (Step::Skipped { reason: FORBIDDEN.to_owned() }, vec![]),
        ];
        for (task, (step, attempts)) in std::iter::zip(&lane.tasks, steps) {
            let facts = Arc::default();
            let settle = Settle {
                task: task.id,
                job,
                tenure: tenure_of(&lane),
                attempts,
                url_key: None,
                robots: None,
                facts,
                step,
            };
            one.store.settle(one.holder, [settle].into(), at(1)).await.unwrap();
        }
        one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
        one.step(job, JobStep::Fail, at(2)).await;
        one.sweep(job, at(2)).await;
        let matching = matching.map(str::to_owned);
        let filter = RetryFilter { failures, matching, done_before: None };
        assert_eq!(one.store.can_retry(job, filter.clone()).await.unwrap(), !expected.is_empty());
        let stepped = one.store.reopen_job(job, filter).await.unwrap();
        assert_eq!(matches!(stepped, Stepped::Yes(_)), !expected.is_empty(), "{expected}");
        if expected.is_empty() {
            assert_eq!(one.job(job).await.state, JobState::Failed, "it is unchanged");
        }
        one.sweep(job, at(3)).await;
        let waiting = TaskFilter { state: Some("waiting".to_owned()), settled_since: None };
        let waiting = one.store.page_tasks(job, waiting, None, 9).await.unwrap();
        let waiting: Vec<&str> = waiting.iter().filter_map(|task| task.url.rsplit('/').next()).collect();
        assert_eq!(waiting.join(" "), expected);
        one.store.remove_job(job, 100, at(4)).await.unwrap();
    }
}

/// B49: a job with nothing to retry is not reopened; one whose tasks its end has not skipped yet is.
pub(crate) async fn a_job_with_nothing_to_retry_is_not_reopened(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 2).await;
    let gone = Step::Failed { error: "it is gone".to_owned(), status: Some(404) };
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, gone, at(1)).await;
    one.settle(job, tenure_of(&lane), lane.tasks[1].id, done(), at(1)).await;
    one.step(job, JobStep::Finish, at(2)).await;
    let stepped = one.store.reopen_job(job, RetryFilter::default()).await.unwrap();
    assert!(matches!(stepped, Stepped::No(_)), "{stepped:?}");
    assert_eq!(one.job(job).await.state, JobState::Done);
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(3)).await;
    one.store.remove_job(job, 100, at(3)).await.unwrap();
    let (one, job, lane) = claimed(backend, 2).await;
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(3)).await;
    one.step(job, JobStep::Cancel, at(3)).await;
    let stepped = one.store.reopen_job(job, RetryFilter::default()).await.unwrap();
    assert!(matches!(stepped, Stepped::Yes(_)), "{stepped:?}");
    one.sweep(job, at(4)).await;
    assert_eq!(one.counts(job).await, Counts { tasks: 2, ..Counts::default() });
}

/// B49: the failures of a job wait again once nobody works on it, whether it has ended or not.
pub(crate) async fn a_stopped_job_is_retried_and_one_that_is_worked_on_is_not(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 3).await;
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, failed(), at(1)).await;
    one.settle(job, tenure_of(&lane), lane.tasks[1].id, done(), at(1)).await;
    one.store.work_on(job, one.holder, mark(1, None), at(1)).await.unwrap();
    let stepped = one.store.reopen_job(job, RetryFilter::default()).await.unwrap();
    assert!(matches!(stepped, Stepped::No(_)), "{stepped:?}");
    one.store.leave_job(job, one.holder).await.unwrap();
    let stepped = one.store.reopen_job(job, RetryFilter::default()).await.unwrap();
    assert!(matches!(stepped, Stepped::Yes(_)), "{stepped:?}");
    one.sweep(job, at(2)).await;
    assert_eq!(one.counts(job).await, Counts { tasks: 3, done: 1, ..Counts::default() });
    let stepped = one.store.reopen_job(job, RetryFilter::default()).await.unwrap();
    assert!(matches!(stepped, Stepped::No(_)), "nothing failed any more: {stepped:?}");
}

/// The earlier fetch is available for a conditional request, and no task is fetched twice.
pub(crate) async fn tasks_that_are_done_can_be_fetched_again_once(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 5).await;
    let facts =
        PageFacts { etag: Some(b"\"1\"".to_vec()), file: Some("a".to_owned()), ..PageFacts::default() };
    for task in &lane.tasks[..4] {
        let facts = Arc::new(facts.clone());
        let settle = Settle {
            task: task.id,
            job,
            tenure: tenure_of(&lane),
            attempts: vec![],
            url_key: None,
            robots: None,
            facts,
            step: done(),
        };
        one.store.settle(one.holder, [settle].into(), at(1)).await.unwrap();
    }
    one.settle(job, tenure_of(&lane), lane.tasks[4].id, failed(), at(1)).await;
    one.step(job, JobStep::Finish, at(2)).await;
    let filter = RetryFilter { done_before: Some(at(3)), ..RetryFilter::default() };
    assert!(matches!(one.store.reopen_job(job, filter.clone()).await.unwrap(), Stepped::Yes(_)));
    assert!(one.store.sweep(job, 2, at(3)).await.unwrap());
    assert_eq!(one.counts(job).await, Counts { tasks: 5, done: 2, failed: 1, ..Counts::default() });
    // Meanwhile one of them is fetched again: it does not wait a second time.
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(3)).await;
    let again = one.claim_one(job, at(3)).await;
    let before = again.tasks[0].previous.as_ref().unwrap();
    assert_eq!((before.bytes, &before.facts.etag, &before.facts.file), (10, &facts.etag, &facts.file));
    one.settle(job, tenure_of(&again), again.tasks[0].id, done(), at(4)).await;
    one.sweep(job, at(4)).await;
    assert_eq!(one.counts(job).await, Counts { tasks: 5, done: 1, failed: 1, ..Counts::default() });
}

/// A page that could not be fetched again is still known as it was, and is fetched again with the next refresh.
pub(crate) async fn a_page_whose_refresh_failed_is_kept_and_refreshed_again(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 2).await;
    let facts = Arc::new(PageFacts {
        file: Some("a".to_owned()),
        sha256: Some([7; 32]),
        final_url: Some("https://a.example/there".to_owned()),
        ..PageFacts::default()
    });
    let settle = Settle {
        task: lane.tasks[0].id,
        job,
        tenure: tenure_of(&lane),
        attempts: vec![],
        url_key: None,
        robots: None,
        facts: facts.clone(),
        step: done(),
    };
    one.store.settle(one.holder, [settle].into(), at(1)).await.unwrap();
    one.settle(job, tenure_of(&lane), lane.tasks[1].id, failed(), at(1)).await;
    one.step(job, JobStep::Finish, at(2)).await;
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(2)).await;
    for (round, step) in [(1, failed()), (2, skipped()), (3, failed())] {
        let now = at(10 * round);
        let filter = RetryFilter { done_before: Some(now), ..RetryFilter::default() };
        assert!(matches!(one.store.reopen_job(job, filter).await.unwrap(), Stepped::Yes(_)));
        one.sweep(job, now).await;
        assert_eq!(one.counts(job).await, Counts { tasks: 2, failed: 1, ..Counts::default() }, "{round}");
        let again = one.claim_one(job, now).await;
        assert_eq!(again.tasks.len(), 1, "what was never fetched is left to a retry");
        assert_eq!(again.tasks[0].previous.as_ref().unwrap().facts.sha256, facts.sha256);
        one.settle(job, tenure_of(&again), again.tasks[0].id, step, now).await;
        let tasks = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap();
        let (kept, never) = (&tasks[0], &tasks[1]);
        assert_eq!((kept.state.as_str() == "done", kept.bytes, kept.changed), (false, Some(10), None));
        assert_eq!((&kept.facts.file, &kept.facts.sha256), (&facts.file, &facts.sha256));
        assert_eq!((kept.facts.final_url.as_ref(), never.bytes), (None, None));
        one.step(job, JobStep::Finish, now).await;
        one.release(tenure_of(&again), b"pace", ReleaseMode::Stop, now).await;
    }
}

/// What a refresh has not requested yet when its job is cancelled is done, as before. If it was in flight, its result
/// counts once.
pub(crate) async fn a_cancelled_refresh_leaves_its_pages_done(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 6).await;
    for nth in 0..4 {
        one.settle(job, tenure_of(&lane), lane.tasks[nth].id, done(), at(1)).await;
    }
    one.settle(job, tenure_of(&lane), lane.tasks[4].id, failed(), at(1)).await;
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(2)).await;
    let filter = RetryFilter { done_before: Some(at(3)), ..RetryFilter::default() };
    assert!(matches!(one.store.reopen_job(job, filter.clone()).await.unwrap(), Stepped::Yes(_)));
    one.sweep(job, at(3)).await;
    let again = one.claim_one(job, at(3)).await;
    one.settle(job, tenure_of(&again), lane.tasks[0].id, retry(at(9)), at(4)).await;
    one.step(job, JobStep::Cancel, at(5)).await;
    one.sweep(job, at(5)).await;
    // One was asked for and not answered, and one never fetched.
    let counts = Counts { tasks: 6, done: 3, failed: 1, skipped: 2, retries: 1, ..Counts::default() };
    assert_eq!(one.counts(job).await, counts);
    let tasks = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap();
    let kept = &tasks[1];
    assert_eq!((kept.state.as_str(), &kept.error, kept.bytes), ("done", &None, Some(10)));
    assert_eq!(kept.settled_at, Some(at(1)));
    let settle = |nth: usize, step| one.settle(job, tenure_of(&again), lane.tasks[nth].id, step, at(6));
    assert_eq!(settle(1, done()).await, Settled::Yes, "it was in flight");
    assert_eq!(settle(1, done()).await, Settled::Fenced, "once");
    assert_eq!(settle(2, retry(at(9))).await, Settled::Fenced, "its job has ended");
    assert_eq!(one.counts(job).await, counts);
    one.release(tenure_of(&again), b"pace", ReleaseMode::Stop, at(7)).await;
    let filter = RetryFilter { done_before: Some(at(8)), ..filter };
    assert!(matches!(one.store.reopen_job(job, filter).await.unwrap(), Stepped::Yes(_)));
    one.sweep(job, at(8)).await;
    assert_eq!(one.claim_one(job, at(9)).await.tasks.len(), 4, "the next refresh asks for all of them");
}

/// A page is new, has another body than before, or is the same, whether its site says so (304) or not.
pub(crate) async fn a_page_that_was_fetched_again_is_changed_or_the_same(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 4).await;
    let settle = async |lane: &Claimed, nth: usize, status, hash: u8, secs| {
        let facts = Arc::new(PageFacts { sha256: Some([hash; 32]), ..PageFacts::default() });
        let step = Step::Done { status, bytes: 1, file: None, content_type: None };
        let (task, tenure) = (lane.tasks[nth].id, tenure_of(lane));
        let settle = Settle { task, job, tenure, attempts: vec![], url_key: None, robots: None, facts, step };
        one.store.settle(one.holder, [settle].into(), at(secs)).await.unwrap();
    };
    let changed = async || -> Vec<Option<bool>> {
        let tasks = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap();
        tasks.iter().map(|task| task.changed).collect()
    };
    assert_eq!(changed().await, [None; 4], "nothing was fetched");
    for nth in 0..4 {
        settle(&lane, nth, 200, 1, 1).await;
    }
    assert_eq!(changed().await, [Some(true); 4], "they are new");
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    let filter = RetryFilter { done_before: Some(at(2)), ..RetryFilter::default() };
    one.store.reopen_job(job, filter).await.unwrap();
    one.sweep(job, at(2)).await;
    let again = one.claim_one(job, at(2)).await;
    settle(&again, 0, 200, 1, 3).await;
    settle(&again, 1, 304, 1, 3).await;
    settle(&again, 2, 200, 2, 3).await;
    one.settle(job, tenure_of(&again), again.tasks[3].id, failed(), at(3)).await;
    assert_eq!(changed().await, [Some(false), Some(false), Some(true), None]);
}

/// They are shared by all tasks of a site, so they are no attempts of this task in the log.
pub(crate) async fn requests_for_robots_txt_count_for_a_task_that_fails_with_them(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 1).await;
    let last = Attempt { started_at: at(3), took: ms(20), outcome: Outcome::NetworkError, status: None };
    let settle = Settle {
        task: lane.tasks[0].id,
        url_key: None,
        job,
        tenure: tenure_of(&lane),
        attempts: vec![],
        robots: Some(RobotsAttempts { count: 4, last }),
        facts: Arc::default(),
        step: failed(),
    };
    one.store.settle(one.holder, [settle].into(), at(5)).await.unwrap();
    let seen = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap().remove(0);
    assert_eq!((seen.attempts, seen.outcome), (4, Some(Outcome::NetworkError)));
    assert_eq!((seen.started_at, seen.took), (Some(at(3)), Some(ms(20))));
    let filter =
        RetryFilter { failures: vec![FailureKind::Outcome(Outcome::NetworkError)], ..RetryFilter::default() };
    assert!(one.store.can_retry(job, filter).await.unwrap());
}

/// Otherwise the names of its earlier files would lead to the new folder.
pub(crate) async fn files_are_named_in_full_before_a_job_changes_its_folder(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 5).await;
    let untouched = one.job_of("other", &["https://b.example/0"], at(0)).await;
    let other = one.claim_one(untouched, at(0)).await;
    let settle = async |job, lane: &Claimed, nth: usize, file: &str| {
        let facts = Arc::new(PageFacts { file: Some(file.to_owned()), ..PageFacts::default() });
        let (task, tenure) = (lane.tasks[nth].id, tenure_of(lane));
        let settle =
            Settle { task, job, tenure, attempts: vec![], url_key: None, robots: None, facts, step: done() };
        one.store.settle(one.holder, [settle].into(), at(1)).await.unwrap();
    };
    let files = async |job| -> Vec<Option<String>> {
        let tasks = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap();
        tasks.iter().map(|task| task.facts.file.clone()).collect()
    };
    for (nth, file) in [(0, "a/0"), (1, "/old/a/1"), (3, "a/3")] {
        settle(job, &lane, nth, file).await;
    }
    settle(untouched, &other, 0, "b/0").await;
    let name = async |after| one.store.name_files_in_full(job, "/pages".to_owned(), after, 2).await.unwrap();
    let mut after = None;
    for _ in 0..2 {
        after = name(after).await;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(after, None, "there are three files");
    let expected = [Some("/pages/a/0"), Some("/old/a/1"), None, Some("/pages/a/3"), None];
    assert_eq!(files(job).await, expected.map(|file| file.map(str::to_owned)));
    assert_eq!(files(untouched).await, [Some("b/0".to_owned())]);
    assert!(name(None).await.is_some(), "again, which changes nothing");
    assert_eq!(files(job).await, expected.map(|file| file.map(str::to_owned)));
}

/// A removed job takes everything with it, one batch at a time, and its id is not reused.
pub(crate) async fn a_job_is_removed_in_batches(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 5).await;
    let other = Process::start(backend, "other", at(0)).await;
    let untouched = one.job_of("other", &["https://a.example/0"], at(0)).await;
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, skipped(), at(1)).await;
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    other.store.work_on(job, other.holder, mark(1, None), at(1)).await.unwrap();
    let remove = async |now| one.store.remove_job(job, 2, at(now)).await.unwrap();
    assert_eq!(remove(2).await, Removed::Busy);
    assert_eq!(one.job(job).await.counts.tasks, 5, "nothing was removed");
    backend.kill(other, at(3)).await;
    assert_eq!((remove(30).await, one.job(job).await.state), (Removed::More, JobState::Cancelled));
    assert_eq!(
        (remove(30).await, remove(30).await, remove(30).await),
        (Removed::More, Removed::Gone, Removed::Gone)
    );
    assert_eq!(one.store.find_job("job".to_owned()).await.unwrap(), None);
    assert_eq!(one.counts(untouched).await.tasks, 1);
    one.store.remove_job(untouched, 10, at(30)).await.unwrap();
    let next = one.job_of("next", &["https://a.example/0"], at(31)).await;
    assert!(next > untouched, "other processes may remember the id");
    assert_eq!(urls_of(&one.claim(next, at(31)).await), "a.example/0");
}

/// A process with a job of this many URLs, and its only lane.
async fn claimed(backend: &dyn Backend, count: usize) -> (Process, JobId, Claimed) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls: Vec<String> = (0..count).map(|nth| format!("https://a.example/{nth}")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    (one, job, lane)
}

/// Rows are written up to this second, and the index had this many bytes.
fn mark(secs: i64, index_bytes: Option<u64>) -> RowMark {
    RowMark { settled_before: at(secs), index_bytes }
}

//! What became of tasks, who works on jobs, what waits again, and jobs that are removed.

use std::sync::Arc;

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobState, JobStep};
use comity_store::domains::Parting;
use comity_store::jobs::{Counts, Removed, Revival, Stepped, Trouble};
use comity_store::tasks::{Attempt, Claimed, PageFacts, Settle, Step, Which};

use crate::backend::Backend;
use crate::process::{Process, at, done, failed, hold_of, ms, retry, skipped, urls_of};

/// Validators come back byte for byte, whatever bytes they are.
pub(crate) async fn what_became_of_a_task_comes_back(backend: &dyn Backend) {
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
        let (hold, facts) = (hold_of(&lane), Arc::new(facts.clone()));
        let settle = Settle { task: lane.tasks[nth].id, job, hold, attempts, facts, step };
        one.store.settle(one.holder, vec![settle], at(5)).await.unwrap();
    };
    let limited = attempt(1, Outcome::RateLimited, Some(429));
    settle(0, vec![limited], &PageFacts::default(), retry(at(2))).await;
    let content_type = Some("text/html".to_owned());
    let step = Step::Done { status: 200, bytes: 9, file: None, content_type: content_type.clone() };
    settle(0, vec![attempt(3, Outcome::Success, Some(200))], &facts, step).await;
    settle(1, vec![attempt(3, Outcome::Timeout, None)], &facts, failed()).await;

    let page =
        async |which: Which, after, limit| one.store.page_tasks(job, which, after, limit).await.unwrap();
    let all = page(Which::default(), None, 10).await;
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

    let first = page(Which::default(), None, 1).await;
    assert_eq!(first, all[..1]);
    assert_eq!(page(Which::default(), Some(first[0].id), 9).await, all[1..]);
    let only = |state: &str| Which { state: Some(state.to_owned()), settled_since: None };
    assert_eq!(page(only("failed"), None, 9).await, all[1..2]);
    let since = |secs| Which { state: None, settled_since: Some(at(secs)) };
    assert_eq!((page(since(5), None, 9).await.len(), page(since(6), None, 9).await.len()), (2, 0));
}

pub(crate) async fn jobs_come_a_page_at_a_time(backend: &dyn Backend) {
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
pub(crate) async fn a_job_that_is_done_is_reopened_by_what_is_new(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 1).await;
    one.settle(job, hold_of(&lane), lane.tasks[0].id, failed(), at(1)).await;
    assert!(matches!(one.step(job, JobStep::Finish, at(2)).await, Stepped::Yes(_)));
    assert_eq!(one.enqueue(job, &["https://a.example/0"], at(3)).await.known, 1);
    assert_eq!(one.job(job).await.state, JobState::Done, "nothing is new");
    assert_eq!(one.enqueue(job, &["https://a.example/new"], at(3)).await.new, 1);
    let open = one.job(job).await;
    assert_eq!((open.state, open.ended_at, open.counts.failed), (JobState::Running, None, 1));
    one.release(hold_of(&lane), b"pace", Parting::Stop, at(3)).await;
    assert_eq!(urls_of(&one.claim(job, at(3)).await), "a.example/new", "what failed stays so");
}

/// A job that nobody works on is stopped, and what whoever died did not tell is known to the next.
pub(crate) async fn who_works_on_a_job_is_known(backend: &dyn Backend) {
    let (one, job, _) = claimed(backend, 1).await;
    assert_eq!(one.job(job).await.state_word(), "stopped");
    let other = Process::start(backend, "other", at(0)).await;
    let work = async |process: &Process, told, now| {
        one.store.work_on(job, process.holder, at(told), at(now)).await.unwrap()
    };
    assert_eq!(work(&one, 1, 1).await, None);
    assert_eq!(work(&other, 2, 2).await, None);
    assert_eq!(one.job(job).await.state_word(), "running");
    one.store.leave_job(job, one.holder).await.unwrap();
    assert_eq!(one.job(job).await.state_word(), "running");
    backend.kill(other, at(3)).await;
    let left = one.job(job).await;
    assert_eq!((left.state_word(), left.deserted), ("stopped", true));
    assert_eq!(work(&one, 5, 5).await, Some(at(2)), "from then on something may be missing");
    assert_eq!(work(&one, 6, 6).await, None, "once");
    one.store.leave_job(job, one.holder).await.unwrap();
    let left = one.job(job).await;
    assert_eq!((left.worked_on, left.deserted), (false, false));
}

/// B49: by default not what was answered 404 or 410.
pub(crate) async fn a_retry_brings_back_what_was_asked_for(backend: &dyn Backend) {
    for (troubles, matching, expected) in [
        (vec![], None, "1 2 4 5"),
        (vec![Trouble::Class(5)], None, "1"),
        (vec![Trouble::Status(404), Trouble::Outcome(Outcome::Timeout)], None, "2 3"),
        (vec![Trouble::Any], None, "1 2 3 4 5"),
        (vec![Trouble::Skipped], None, "4 5"),
        (vec![], Some("*/[1-3]"), "1 2 3"),
        (vec![Trouble::Class(5)], Some("*/2"), ""),
    ] {
        let (one, job, lane) = claimed(backend, 6).await;
        let fail = |status: Option<u16>| Step::Failed { error: "it failed".to_owned(), status };
        let timeout = Attempt { started_at: at(1), took: ms(1), outcome: Outcome::Timeout, status: None };
        let steps = [
            (done(), vec![]),
            (fail(Some(500)), vec![]),
            (fail(None), vec![timeout]),
            (fail(Some(404)), vec![]),
        ];
        for (task, (step, attempts)) in std::iter::zip(&lane.tasks, steps) {
            let facts = Arc::default();
            let settle = Settle { task: task.id, job, hold: hold_of(&lane), attempts, facts, step };
            one.store.settle(one.holder, vec![settle], at(1)).await.unwrap();
        }
        one.release(hold_of(&lane), b"pace", Parting::Stop, at(1)).await;
        one.step(job, JobStep::Fail, at(2)).await;
        one.sweep(job, at(2)).await;
        let matching = matching.map(str::to_owned);
        let stepped =
            one.store.reopen_job(job, Revival { troubles, matching, done_before: None }).await.unwrap();
        assert_eq!(matches!(stepped, Stepped::Yes(_)), !expected.is_empty(), "{expected}");
        if expected.is_empty() {
            assert_eq!(one.job(job).await.state, JobState::Failed, "it is left as it is");
        }
        one.sweep(job, at(3)).await;
        let waiting = Which { state: Some("waiting".to_owned()), settled_since: None };
        let waiting = one.store.page_tasks(job, waiting, None, 9).await.unwrap();
        let waiting: Vec<&str> = waiting.iter().filter_map(|task| task.url.rsplit('/').next()).collect();
        assert_eq!(waiting.join(" "), expected);
        one.store.remove_job(job, 100, at(4)).await.unwrap();
    }
}

/// What was fetched before is known to whoever asks whether it changed; nothing is asked twice.
pub(crate) async fn what_is_done_is_fetched_again_once(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 5).await;
    let facts =
        PageFacts { etag: Some(b"\"1\"".to_vec()), file: Some("a".to_owned()), ..PageFacts::default() };
    for task in &lane.tasks[..4] {
        let facts = Arc::new(facts.clone());
        let settle =
            Settle { task: task.id, job, hold: hold_of(&lane), attempts: vec![], facts, step: done() };
        one.store.settle(one.holder, vec![settle], at(1)).await.unwrap();
    }
    one.settle(job, hold_of(&lane), lane.tasks[4].id, failed(), at(1)).await;
    one.step(job, JobStep::Finish, at(2)).await;
    let revival = Revival { done_before: Some(at(3)), ..Revival::default() };
    assert!(matches!(one.store.reopen_job(job, revival.clone()).await.unwrap(), Stepped::Yes(_)));
    assert!(one.store.sweep(job, 2, at(3)).await.unwrap());
    assert_eq!(one.counts(job).await, Counts { tasks: 5, done: 2, failed: 1, ..Counts::default() });
    // Meanwhile one of them is fetched again: it is not brought back a second time.
    one.release(hold_of(&lane), b"pace", Parting::Stop, at(3)).await;
    let again = one.claim_one(job, at(3)).await;
    let before = again.tasks[0].before.as_ref().unwrap();
    assert_eq!((before.bytes, &before.facts.etag, &before.facts.file), (10, &facts.etag, &facts.file));
    one.settle(job, hold_of(&again), again.tasks[0].id, done(), at(4)).await;
    one.sweep(job, at(4)).await;
    assert_eq!(one.counts(job).await, Counts { tasks: 5, done: 1, failed: 1, ..Counts::default() });
}

/// What is removed takes everything with it, a part at a time, and its number is not given out again.
pub(crate) async fn a_job_is_removed_a_part_at_a_time(backend: &dyn Backend) {
    let (one, job, lane) = claimed(backend, 5).await;
    let other = Process::start(backend, "other", at(0)).await;
    let untouched = one.job_of("other", &["https://a.example/0"], at(0)).await;
    one.settle(job, hold_of(&lane), lane.tasks[0].id, skipped(), at(1)).await;
    one.release(hold_of(&lane), b"pace", Parting::Stop, at(1)).await;
    other.store.work_on(job, other.holder, at(1), at(1)).await.unwrap();
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
    assert!(next > untouched, "others may remember the number");
    assert_eq!(urls_of(&one.claim(next, at(31)).await), "a.example/0");
}

/// A process with a job of so many URLs, and its only lane.
async fn claimed(backend: &dyn Backend, count: usize) -> (Process, JobId, Claimed) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls: Vec<String> = (0..count).map(|nth| format!("https://a.example/{nth}")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    (one, job, lane)
}

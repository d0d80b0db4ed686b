//! Old rows are deleted, except what is needed to resume.

use comity_core::interval::SourceInterval;
use comity_core::task::{JobId, JobStep};
use comity_core::time::Timestamp;
use comity_store::Store;
use comity_store::domains::{DomainKey, ReleaseMode};
use comity_store::jobs::{Counts, Removed};
use comity_store::retention::{PruneFrom, Pruned};
use comity_store::tasks::{Attempt, TaskFilter};

use super::fetches::{added, end, failed as failed_fetch, ok, runs};
use crate::backend::Backend;
use crate::follower::{Follower, ended, every};
use crate::process::{Process, at, done, ms, tenure_of};

/// A complete run of pruning, a few rows at a time.
async fn sweep(store: &dyn Store, before: Timestamp, limit: u32) -> Pruned {
    let (mut pruned, mut from) = (Pruned::default(), Some(PruneFrom::default()));
    while let Some(next) = from {
        let some;
        (some, from) = store.prune(next, before, limit).await.unwrap();
        assert!(some.tasks <= u64::from(limit) && some.scrapes <= u64::from(limit), "{some:?}");
        pruned += some;
    }
    pruned
}

/// A job of three URLs on two domains, all fetched with one attempt, that ended at that second.
async fn job_that_ended(one: &Process, name: &str, secs: i64) -> JobId {
    let urls = [1, 2, 3].map(|nth| format!("https://{}.{name}.example/{nth}", nth % 2));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let job = one.job_of(name, &urls, at(0)).await;
    for claimed in one.claim(job, at(1)).await {
        let tenure = tenure_of(&claimed);
        for task in &claimed.tasks {
            let outcome = comity_core::outcome::Outcome::Success;
            let attempt = Attempt { started_at: at(1), took: ms(5), outcome, status: Some(200) };
            let settle = comity_store::tasks::Settle {
                task: task.id,
                job,
                tenure,
                attempts: vec![attempt],
                url_key: None,
                robots: None,
                facts: std::sync::Arc::default(),
                step: done(),
            };
            one.store.settle(one.holder, [settle].into(), at(1)).await.unwrap();
        }
        one.store.park(one.holder, vec![(claimed.lane, at(1))]).await.unwrap();
        one.release(tenure, b"pace", ReleaseMode::Stop, at(1)).await;
    }
    one.step(job, JobStep::Finish, at(secs)).await;
    one.sweep(job, at(secs)).await;
    job
}

async fn fetched(store: &dyn Store, job: JobId) -> usize {
    store.list_tasks(job, "done".to_owned(), 99).await.unwrap().len()
}

/// Its own row stays, with its counts.
pub(crate) async fn a_job_that_ended_long_ago_loses_its_tasks(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let (old, young) = (job_that_ended(&one, "old", 10).await, job_that_ended(&one, "young", 20).await);
    let expected = Pruned { jobs: 1, tasks: 3, attempts: 3, ..Pruned::default() };
    assert_eq!(
        one.store.count_prunable(at(20)).await.unwrap(),
        expected,
        "a job that ended at that very time is not older"
    );
    assert_eq!(sweep(&*one.store, at(20), 2).await, expected);
    assert_eq!((fetched(&*one.store, old).await, fetched(&*one.store, young).await), (0, 3));
    let counts = one.counts(old).await;
    assert_eq!((counts.tasks, counts.done, counts.waiting()), (3, 3, 0));
    assert_eq!(sweep(&*one.store, at(20), 2).await, Pruned::default(), "once");
}

/// Nothing stays of the only job, not even its newest task and domain, and later ones get other ids.
pub(crate) async fn the_newest_tasks_are_deleted_and_their_ids_are_not_reused(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let (mut tasks, mut domains) = (Vec::new(), Vec::new());
    for (process, name) in [(&one, "first"), (&other, "second"), (&one, "third")] {
        let job = job_that_ended(process, name, 10).await;
        let all = TaskFilter { state: None, settled_since: None };
        for task in one.store.page_tasks(job, all, None, 99).await.unwrap() {
            assert!(!tasks.contains(&task.id), "{:?} again", task.id);
            tasks.push(task.id);
        }
        assert_eq!(one.store.count_prunable(at(100)).await.unwrap().tasks, 3);
        assert_eq!(sweep(&*other.store, at(100), 2).await.tasks, 3);
        assert_eq!(fetched(&*one.store, job).await, 0);
        let idle = one.store.idle_domains(DomainKey(0), at(100), 99).await.unwrap().domains;
        assert_eq!(idle.len(), 2, "no lane is left: {idle:?}");
        for idle in &idle {
            assert!(!domains.contains(&idle.tenure.key), "{:?} again", idle.tenure);
            domains.push(idle.tenure.key);
        }
        let holds = idle.iter().map(|idle| idle.tenure).collect();
        assert_eq!(one.store.forget_domains(holds, at(100)).await.unwrap(), 2);
    }
    let removed = one.job_of("removed", &["https://a.example/1"], at(20)).await;
    let last = one.store.page_tasks(removed, TaskFilter { state: None, settled_since: None }, None, 9).await;
    assert_eq!(one.store.remove_job(removed, 99, at(20)).await.unwrap(), Removed::Gone);
    let job = other.job_of("later", &["https://a.example/1"], at(21)).await;
    assert!(other.claim_one(job, at(21)).await.tasks[0].id > last.unwrap()[0].id);
}

/// B74
pub(crate) async fn a_running_or_stopped_job_keeps_everything(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("news", &["https://a.example/1", "https://a.example/2"], at(0)).await;
    let claimed = one.claim_one(job, at(1)).await;
    one.settle(job, tenure_of(&claimed), claimed.tasks[0].id, done(), at(1)).await;
    job_that_ended(&one, "other", 2).await;
    let pruned = sweep(&*one.store, at(1_000_000), 100).await;
    assert_eq!((pruned.jobs, fetched(&*one.store, job).await), (1, 1));
    one.settle(job, tenure_of(&claimed), claimed.tasks[1].id, done(), at(1)).await;
    assert_eq!(one.counts(job).await.done, 2);
    // A cancelled job that still has tasks to skip is not over either.
    let cancelled = one.job_of("cancelled", &["https://b.example/1"], at(0)).await;
    one.step(cancelled, JobStep::Cancel, at(3)).await;
    assert_eq!(one.store.count_prunable(at(1_000_000)).await.unwrap(), Pruned::default());
    one.sweep(cancelled, at(3)).await;
    assert_eq!(one.store.count_prunable(at(1_000_000)).await.unwrap().jobs, 1);
}

pub(crate) async fn a_job_that_was_reopened_is_pruned_again_after_its_next_end(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = job_that_ended(&one, "news", 10).await;
    job_that_ended(&one, "later", 5_000).await;
    assert_eq!(sweep(&*one.store, at(100), 100).await.tasks, 3);
    one.step(job, JobStep::Reopen, at(101)).await;
    one.sweep(job, at(101)).await;
    assert_eq!(
        one.enqueue(job, &["https://0.news.example/2"], at(102)).await.new,
        1,
        "pruned tasks are new again"
    );
    let claimed = one.claim_one(job, at(103)).await;
    one.settle(job, tenure_of(&claimed), claimed.tasks[0].id, done(), at(103)).await;
    one.step(job, JobStep::Finish, at(104)).await;
    job_that_ended(&one, "last", 5_000).await;
    assert_eq!(one.store.count_prunable(at(104)).await.unwrap().jobs, 0);
    assert_eq!(sweep(&*one.store, at(105), 100).await.tasks, 1);
}

/// They used to be added to the counts of those that were deleted. Until then, the counts stay.
pub(crate) async fn urls_added_again_to_a_pruned_job_count_once(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = job_that_ended(&one, "news", 10).await;
    let urls = ["https://1.news.example/1", "https://0.news.example/2", "https://1.news.example/3"];
    assert_eq!(one.enqueue(job, &urls, at(11)).await.known, 3);
    assert!(!one.job(job).await.pruned, "nothing was deleted yet");
    // Half of it is deleted when somebody adds URLs.
    one.store.prune(PruneFrom::default(), at(100), 2).await.unwrap();
    let half = one.job(job).await;
    assert_eq!((half.pruned, half.counts.tasks, half.counts.done), (true, 3, 3));
    assert_eq!(one.enqueue(job, &urls, at(101)).await.new, 2);
    let counts = Counts { tasks: 3, done: 1, ..Counts::default() };
    assert_eq!((one.job(job).await.pruned, one.counts(job).await), (false, counts));
    one.step(job, JobStep::Cancel, at(102)).await;
    one.sweep(job, at(102)).await;
    assert_eq!(sweep(&*one.store, at(200), 2).await.tasks, 3);
    let gone = one.job(job).await;
    assert_eq!((gone.pruned, gone.counts.tasks, gone.counts.skipped), (true, 3, 2));
}

/// Another process that had cached the lanes of a job creates them again.
pub(crate) async fn domains_of_pruned_jobs_can_be_deleted(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let job = job_that_ended(&one, "news", 10).await;
    job_that_ended(&one, "later", 1_000_000).await;
    let idle = async || {
        let found = one.store.idle_domains(DomainKey(0), at(900_000), 100).await.unwrap();
        let mut names: Vec<_> = found.domains.into_iter().map(|idle| idle.domain.to_string()).collect();
        names.sort();
        names
    };
    assert!(idle().await.is_empty(), "their job has tasks there");
    // Now the other process has cached them.
    one.step(job, JobStep::Reopen, at(11)).await;
    one.sweep(job, at(11)).await;
    other.enqueue(job, &["https://0.news.example/2"], at(12)).await;
    one.step(job, JobStep::Finish, at(13)).await;
    sweep(&*one.store, at(100), 1).await;
    assert_eq!(idle().await, ["0.news.example", "1.news.example"]);
    one.step(job, JobStep::Reopen, at(101)).await;
    one.sweep(job, at(101)).await;
    assert_eq!(other.enqueue(job, &["https://1.news.example/9"], at(102)).await.new, 1);
    assert_eq!(one.claim_one(job, at(103)).await.tasks.len(), 1);
}

/// B51: the minimum interval counts from it.
pub(crate) async fn the_last_scrape_of_a_source_stays(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 3).await;
    one.scrape(0, at(10)).await;
    one.scrape(1, at(100)).await;
    assert_eq!(one.store().count_prunable(at(1_000)).await.unwrap().scrapes, 1);
    assert_eq!(sweep(one.store(), at(100), 1).await.scrapes, 1);
    assert_eq!(
        (one.logs(0).await, one.logs(1).await),
        (String::new(), "100 ok at 100 200 10 bytes".to_owned())
    );
    sweep(one.store(), at(1_000), 1).await;
    assert_eq!(one.enqueue(&[2], at(130)).await, "wait 30 until 160");
    assert_eq!((one.state(0).await, one.item(0).await.status), ("done".to_owned(), Some(200)), "items stay");
}

/// A running scrape is not over, however long ago it started.
pub(crate) async fn a_running_scrape_stays(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 2).await;
    one.enqueue(&[0], at(0)).await;
    let task = one.task(0, at(0)).await;
    one.begun(task, at(0)).await;
    one.scrape(1, at(10)).await;
    assert_eq!(sweep(one.store(), at(1_000), 10).await.scrapes, 0);
    one.settle(task, done(), at(20)).await;
    assert_eq!(sweep(one.store(), at(1_000), 10).await.scrapes, 1);
}

pub(crate) async fn the_last_fetch_of_a_source_stays(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    for secs in [10, 20, 30] {
        ended(&*store, end(source.id, secs, ok())).await;
    }
    ended(&*store, end(source.id, 40, failed_fetch(50))).await;
    let cursor = store.find_source(source.id).await.unwrap().unwrap().cursor_json;
    // They started a thousand seconds after their windows ended.
    assert_eq!(store.count_prunable(at(1_020)).await.unwrap().fetches, 1);
    assert_eq!(sweep(&*store, at(5_000), 2).await.fetches, 3);
    let left = runs(&*store, source.id).await;
    assert_eq!((left.len(), left[0].status.as_str()), (1, "error"));
    assert_eq!(store.find_source(source.id).await.unwrap().unwrap().cursor_json, cursor);
}

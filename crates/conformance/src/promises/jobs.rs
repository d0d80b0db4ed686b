//! The life cycle of jobs, and what its end means for their tasks.

use comity_core::task::{JobId, JobState, JobStep};
use comity_store::domains::ReleaseMode;
use comity_store::jobs::{Counts, FillStep, Stepped};
use comity_store::tasks::{JOB_ENDED, Settled};
use serde_json::json;

use crate::backend::Backend;
use crate::process::{Process, at, done, failed, listed, moved, retry, skipped, tenure_of, urls_of};

pub(crate) async fn a_job_is_opened_once_with_its_first_options(backend: &dyn Backend) {
    let (one, other) = (backend.store().await, backend.store().await);
    let options = json!({ "robots": "obey", "delay": 1.5, "name": "schön" });
    let (first, made) = one.open_job("job".to_owned(), options.clone(), at(0)).await.unwrap();
    assert!(made);
    assert_eq!((first.state, first.created_at, first.ended_at), (JobState::Running, at(0), None));
    assert_eq!((&first.options, first.message.as_deref(), first.counts), (&options, None, Counts::default()));

    let (second, made) = other.open_job("job".to_owned(), json!({}), at(9)).await.unwrap();
    assert_eq!((&second, made), (&first, false));
    other.set_options(first.id, json!([1])).await.unwrap();
    assert_eq!(one.find_job("job".to_owned()).await.unwrap().unwrap().options, json!([1]));
    assert_eq!(one.find_job("another".to_owned()).await.unwrap(), None);
}

/// Otherwise somebody could find the job empty before its tasks were added, and finish it.
pub(crate) async fn a_job_is_created_with_its_tasks_or_not_at_all(backend: &dyn Backend) {
    let (one, other) = (backend.store().await, backend.store().await);
    let urls = ["https://a.example/1", "https://b.example/2"].map(listed).to_vec();
    let made = one.make_job("job".to_owned(), json!({}), urls.clone(), at(0)).await.unwrap().unwrap();
    assert_eq!((made.state, made.counts.tasks, made.counts.waiting()), (JobState::Running, 2, 2));
    assert_eq!(other.find_job("job".to_owned()).await.unwrap().as_ref(), Some(&made));
    let more = ["https://c.example/3"].map(listed).to_vec();
    assert_eq!(other.make_job("job".to_owned(), json!({}), more, at(1)).await.unwrap(), None);
    assert_eq!(one.find_job("job".to_owned()).await.unwrap(), Some(made), "it is unchanged");
}

pub(crate) async fn jobs_are_listed_newest_first(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    for name in ["b", "a", "c"] {
        one.open_job(name).await;
    }
    let names: Vec<String> = one.store.list_jobs().await.unwrap().into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["c", "a", "b"]);
}

pub(crate) async fn a_job_finishes_when_no_task_is_waiting(backend: &dyn Backend) {
    let (one, job) = job_of(backend, &["https://a.example/1"]).await;
    let lane = one.claim_one(job, at(0)).await;
    assert!(matches!(one.step(job, JobStep::Finish, at(1)).await, Stepped::No(_)), "a task is in flight");
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, failed(), at(1)).await;
    let Stepped::Yes(ended) = one.step(job, JobStep::Finish, at(2)).await else { panic!("nothing waits") };
    assert_eq!((ended.state, ended.ended_at), (JobState::Done, Some(at(2))));
    assert_eq!(one.step(JobId(99), JobStep::Finish, at(2)).await, Stepped::Missing);
}

/// B74: a job does not finish while a live process reads a list into it, nor before a list was read to its end.
pub(crate) async fn a_job_does_not_finish_before_its_list_was_read(backend: &dyn Backend) {
    let (one, job) = job_of(backend, &[]).await;
    let finish = async || matches!(one.step(job, JobStep::Finish, at(1)).await, Stepped::Yes(_));
    let first = Process::start(backend, "first", at(0)).await;
    let second = Process::start(backend, "second", at(0)).await;
    let fill = async |process: &Process, step| {
        one.store.note_fill(job, process.holder, step, at(1)).await.unwrap();
    };
    fill(&first, FillStep::Started).await;
    fill(&second, FillStep::Started).await;
    fill(&second, FillStep::Finished).await;
    assert!(!finish().await, "the first one is still reading");
    let Stepped::No(open) = one.step(job, JobStep::Finish, at(1)).await else { panic!("it is being filled") };
    assert!(open.unread && open.being_filled);
    backend.kill(first, at(2)).await;
    let Stepped::No(open) = one.step(job, JobStep::Finish, at(2)).await else {
        panic!("only half a list was read")
    };
    assert!(open.unread && !open.being_filled, "it died before the end of its list");
    fill(&second, FillStep::Started).await;
    fill(&second, FillStep::Interrupted).await;
    assert!(!finish().await, "only half of it was read again");
    fill(&second, FillStep::Started).await;
    fill(&second, FillStep::Finished).await;
    assert!(finish().await);
}

/// B47: a second step changes neither state nor message nor end time.
pub(crate) async fn a_job_that_ended_does_not_change(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    for first in [JobStep::Finish, JobStep::Fail, JobStep::Cancel] {
        let job = one.open_job(first.as_str()).await;
        let message = Some("20 in a row".to_owned());
        let Stepped::Yes(ended) = one.store.step_job(job, first, message, at(1)).await.unwrap() else {
            panic!("{first} is allowed")
        };
        assert_eq!((ended.message.as_deref(), ended.ended_at), (Some("20 in a row"), Some(at(1))));
        for step in [JobStep::Finish, JobStep::Fail, JobStep::Cancel] {
            let second = one.store.step_job(job, step, Some("late".to_owned()), at(2)).await.unwrap();
            assert_eq!(second, Stepped::No(ended.clone()), "{first} then {step}");
        }
        let Stepped::Yes(reopened) = one.step(job, JobStep::Reopen, at(3)).await else { panic!("B49") };
        assert_eq!((reopened.state, reopened.ended_at), (JobState::Running, None));
        assert_eq!(one.step(job, JobStep::Reopen, at(3)).await, Stepped::No(reopened));
    }
}

/// B49
pub(crate) async fn a_cancelled_job_skips_waiting_tasks_in_batches(backend: &dyn Backend) {
    let urls: Vec<String> = (0..10).map(|nth| format!("https://{}.example/{nth}", nth % 3)).collect();
    let (one, job) = job_of(backend, &urls.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let untouched = one.job_of("another", &["https://0.example/"], at(0)).await;
    assert!(!one.store.sweep(job, 4, at(0)).await.unwrap(), "nothing to sweep while it runs");
    one.step(job, JobStep::Cancel, at(1)).await;

    let mut skipped = Vec::new();
    while one.store.sweep(job, 4, at(2)).await.unwrap() {
        skipped.push(one.counts(job).await.skipped);
    }
    assert_eq!(skipped, [4, 8]);
    assert_eq!(one.counts(job).await, Counts { tasks: 10, skipped: 10, ..Counts::default() });
    let task = one.store.list_tasks(job, "skipped".to_owned(), 1).await.unwrap().remove(0);
    assert_eq!((task.error.as_deref(), task.settled_at), (Some(JOB_ENDED), Some(at(2))));
    assert_eq!(one.next_due(job).await, None);
    assert_eq!(one.claim(job, at(3)).await, []);
    assert_eq!(one.counts(untouched).await.skipped, 0);
}

/// B49, B74: it is in flight until its process has noticed, and then it is neither lost nor fetched again by a retry.
pub(crate) async fn a_task_in_flight_when_its_job_ends_is_saved_and_counted_once(backend: &dyn Backend) {
    let urls: Vec<String> = (1..=5).map(|nth| format!("https://a.example/{nth}")).collect();
    let (one, job) = job_of(backend, &urls.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let lane = one.claim_one(job, at(0)).await;
    one.step(job, JobStep::Cancel, at(1)).await;
    let settle = |nth: usize, step| one.settle(job, tenure_of(&lane), lane.tasks[nth].id, step, at(1));
    assert_eq!(settle(0, done()).await, Settled::Yes, "it was fetched before the sweep reached it");
    one.sweep(job, at(2)).await;
    assert_eq!(settle(1, done()).await, Settled::Yes);
    assert_eq!(settle(2, failed()).await, Settled::Yes);
    assert_eq!(settle(1, done()).await, Settled::Fenced, "once");
    for step in [retry(at(9)), moved("b.example"), skipped()] {
        assert_eq!(settle(3, step).await, Settled::Fenced, "its job has ended");
    }
    assert_eq!(one.next_due(job).await, None);
    let counts = Counts { tasks: 5, done: 2, failed: 1, skipped: 2, ..Counts::default() };
    assert_eq!(one.counts(job).await, counts);
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(3)).await;
    assert_eq!(settle(3, done()).await, Settled::Fenced, "not its tenure any more");
    one.step(job, JobStep::Reopen, at(4)).await;
    one.sweep(job, at(4)).await;
    assert_eq!(urls_of(&one.claim(job, at(4)).await), "a.example/3 a.example/4 a.example/5");
}

/// B49
pub(crate) async fn a_reopened_job_retries_tasks_that_failed_or_were_skipped_at_its_end(
    backend: &dyn Backend,
) {
    let urls: Vec<String> = (0..12).map(|nth| format!("https://a.example/{nth}")).collect();
    let (one, job) = job_of(backend, &urls.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let lane = one.claim_one(job, at(0)).await;
    for (task, step) in std::iter::zip(&lane.tasks, [done(), failed(), failed(), failed(), skipped()]) {
        one.settle(job, tenure_of(&lane), task.id, step, at(1)).await;
    }
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    one.step(job, JobStep::Fail, at(2)).await;
    one.sweep(job, at(2)).await;
    assert_eq!(
        one.counts(job).await,
        Counts { tasks: 12, done: 1, failed: 3, skipped: 8, ..Counts::default() }
    );

    one.step(job, JobStep::Reopen, at(3)).await;
    let mut waiting = Vec::new();
    while one.store.sweep(job, 4, at(3)).await.unwrap() {
        waiting.push(one.counts(job).await.waiting());
    }
    assert_eq!(waiting, [4, 8]);
    let counts = one.counts(job).await;
    assert_eq!(
        counts,
        Counts { tasks: 12, done: 1, skipped: 1, ..Counts::default() },
        "robots.txt still forbids it"
    );
    assert_eq!(one.next_due(job).await, Some(at(3)));
    let again = one.claim_one(job, at(3)).await;
    assert!(again.tasks.iter().all(|task| task.retries == 0 && task.ready_at == at(3)), "{again:?}");
    assert_eq!(one.row("a.example").await.waiting, 10);
}

/// B49: a worker that finds nothing waiting must not end a job that an operator just reopened.
pub(crate) async fn a_reopened_job_does_not_finish_before_it_is_swept(backend: &dyn Backend) {
    let (one, job) = job_of(backend, &["https://a.example/1"]).await;
    let lane = one.claim_one(job, at(0)).await;
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, failed(), at(1)).await;
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    one.step(job, JobStep::Finish, at(1)).await;
    one.step(job, JobStep::Reopen, at(2)).await;
    assert!(
        matches!(one.step(job, JobStep::Finish, at(2)).await, Stepped::No(_)),
        "it still has to be swept"
    );
    one.sweep(job, at(3)).await;
    assert_eq!(urls_of(&one.claim(job, at(3)).await), "a.example/1");
}

/// B44: a task that starts over does so at its own URL and at that URL's pace; otherwise it continues where it was.
pub(crate) async fn a_retried_task_is_on_the_domain_of_its_url(backend: &dyn Backend) {
    let (one, job) = job_of(backend, &["https://a.example/1"]).await;
    let lane = one.claim_one(job, at(0)).await;
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, moved("b.example"), at(1)).await;
    let there = one.claim_one(job, at(1)).await;
    one.settle(job, tenure_of(&there), there.tasks[0].id, failed(), at(2)).await;
    one.store.park(one.holder, vec![(lane.lane, at(2)), (there.lane, at(2))]).await.unwrap();
    one.step(job, JobStep::Finish, at(2)).await;
    one.step(job, JobStep::Reopen, at(3)).await;
    one.sweep(job, at(3)).await;

    let revived = one.claim_one(job, at(3)).await;
    let task = &revived.tasks[0];
    let place = (revived.domain.as_str(), task.at_url.as_deref(), task.hops);
    let allowed = [("a.example", None, 0), ("b.example", Some("https://b.example/"), 1)];
    assert!(allowed.contains(&place), "{place:?}");
}

/// A process with a job of these URLs.
async fn job_of(backend: &dyn Backend, urls: &[&str]) -> (Process, JobId) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", urls, at(0)).await;
    (one, job)
}

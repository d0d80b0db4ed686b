//! What ends a job before its list does.

use comity::archive::Archive;
use comity::jobs::Ended;
use comity_core::task::{JobState, JobStep};

use crate::client::QUICK;
use crate::jobs::{Worker, fill};
use crate::support::{Asked, Site, eventually, reply, soon};

/// Each page answers with the status that its path begins with.
async fn site() -> Site {
    Site::start(|asked: &Asked| reply(asked.path[1..4].parse().unwrap())).await
}

fn list(site: &Site, statuses: &[u16]) -> Vec<String> {
    statuses.iter().enumerate().map(|(nth, status)| site.url(&format!("/{status}/{nth}"))).collect()
}

/// B47
#[tokio::test]
async fn failures_in_a_row_fail_the_job_and_answers_neither_count_nor_reset() {
    let site = site().await;
    let worker = Worker::start(&format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = 3\n")).await;
    let mut statuses = vec![500, 404, 404, 404, 404, 500, 410, 503];
    statuses.extend([200; 30]);
    let (ended, job) = worker.fetch(&list(&site, &statuses)).await;
    assert_eq!(ended, Ended::Job(JobState::Failed));
    let message = job.message.unwrap();
    assert!(message.contains("3 tasks in a row failed") && message.contains("503"), "{message}");
    assert!(site.asked().len() <= 10, "little is sent after that: {}", site.asked().len());
}

/// B47
#[tokio::test]
async fn a_success_resets_and_zero_is_off() {
    for (threshold, statuses) in [(3, [500, 500, 200, 500, 500, 200]), (0, [500; 6])] {
        let site = site().await;
        let toml = format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = {threshold}\n");
        let (ended, job) = Worker::start(&toml).await.fetch(&list(&site, &statuses)).await;
        assert_eq!((ended, job.message), (Ended::Job(JobState::Done), None));
        assert_eq!(job.counts.done + job.counts.failed, 6);
    }
}

/// B48
#[tokio::test]
async fn a_job_that_is_refused_at_the_slowest_pace_is_cancelled() {
    let site = site().await;
    let worker = Worker::start(&format!("{QUICK}[job]\ncancel_streak = 2\ncancel_delay = \"0s\"\n")).await;
    let (ended, job) = worker.fetch(&list(&site, &[429; 20])).await;
    assert_eq!(ended, Ended::Job(JobState::Cancelled));
    assert!(job.message.unwrap().contains("rate limited 2 times in a row"));
    assert!(site.asked().len() <= 3, "{}", site.asked().len());
}

/// B48
#[tokio::test]
async fn refusals_at_a_quick_pace_or_between_successes_cancel_nothing() {
    for (delay, statuses) in [("60s", [429, 429, 429, 429]), ("0s", [429, 200, 429, 200])] {
        let site = site().await;
        let toml = format!("{QUICK}[job]\nmax_retries = 0\ncancel_streak = 2\ncancel_delay = \"{delay}\"\n");
        let (ended, _) = Worker::start(&toml).await.fetch(&list(&site, &statuses)).await;
        assert_eq!(ended, Ended::Job(JobState::Done), "{delay}");
    }
}

/// B49
#[tokio::test]
async fn a_job_that_ended_takes_no_tasks_and_skips_those_it_has() {
    let site = site().await;
    let worker = Worker::start(&format!("{QUICK}[job]\ncancel_streak = 1\ncancel_delay = \"0s\"\n")).await;
    let (ended, job) = worker.fetch(&list(&site, &[429, 200, 200, 200, 200])).await;
    assert_eq!(ended, Ended::Job(JobState::Cancelled));
    let now = worker.gate.clock().now();
    while worker.store.sweep(job.id, 100, now).await.unwrap() {}
    let counts = worker.job().await.counts;
    assert_eq!((counts.waiting(), counts.tasks), (0, 5));
    assert!(counts.skipped >= 3, "{counts:?}");
    let pool = worker.pool(Archive::Nothing).await;
    let filled = fill(&pool, &[site.url("/200/new")]).await;
    assert_eq!((filled.new, filled.refused), (0, 1));
    let asked = site.asked().len();
    assert_eq!(soon("the job", pool.run()).await.unwrap(), Ended::Job(JobState::Cancelled));
    assert_eq!(site.asked().len(), asked);
}

/// B49: somebody else ends it while it runs.
#[tokio::test]
async fn a_job_that_is_ended_elsewhere_stops() {
    let site = site().await;
    let worker = Worker::start(&QUICK.replace("10ms", "100ms")).await;
    let pool = worker.pool(Archive::Nothing).await;
    fill(&pool, &list(&site, &[200; 500])).await;
    let running = tokio::spawn(async move { pool.run().await.unwrap() });
    eventually("some work", || site.asked().len() >= 2).await;
    let (id, now) = (worker.job().await.id, worker.gate.clock().now());
    worker.store.step_job(id, JobStep::Cancel, Some("by hand".to_owned()), now).await.unwrap();
    assert_eq!(soon("the job", running).await.unwrap(), Ended::Job(JobState::Cancelled));
    assert!(site.asked().len() < 50);
}

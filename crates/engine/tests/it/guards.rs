//! Guards that end a job early: failures in a row, rate limits, and ending it from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comity::archive::Archive;
use comity::jobs::{Flow, StopReason};
use comity::store::jobs::Job;
use comity_core::task::{JobState, JobStep};

use crate::client::{LOOPBACK, QUICK};
use crate::jobs::{Worker, fill};
use crate::support::{Asked, ClosedPort, Site, eventually, reply, soon};

/// A site that answers with the status at the start of the path.
async fn site() -> Site {
    Site::start(|asked: &Asked| reply(asked.path[1..4].parse().unwrap())).await
}

fn list(site: &Site, statuses: &[u16]) -> Vec<String> {
    statuses.iter().enumerate().map(|(nth, status)| site.url(&format!("/{status}/{nth}"))).collect()
}

/// B47
#[tokio::test]
async fn failures_in_a_row_fail_the_job_and_404s_neither_count_nor_reset() {
    let site = site().await;
    let worker = Worker::start(&format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = 3\n")).await;
    let mut statuses = vec![500, 404, 404, 404, 404, 500, 410, 503];
    statuses.extend([200; 30]);
    let (ended, job) = worker.fetch(&list(&site, &statuses)).await;
    assert_eq!(ended, StopReason::Job(JobState::Failed));
    let message = job.message.unwrap();
    assert!(message.contains("3 URLs in a row failed") && message.contains("503"), "{message}");
    assert!(site.asked().len() <= 10, "few requests after that: {}", site.asked().len());
}

/// B47: the pages of a host that is down are given up, and those of the others are fetched.
#[tokio::test]
async fn one_dead_host_does_not_end_a_job_of_many() {
    let site = Site::start(|_: &Asked| reply(200).after(5)).await;
    let closed = ClosedPort::new();
    let dead = closed.port();
    let mut urls: Vec<String> = (0..40).map(|nth| format!("http://127.0.0.1:{dead}/{nth}")).collect();
    urls.extend((0..100).map(|nth| site.url_on(2 + nth % 4, &format!("/200/{nth}"))));
    let worker = Worker::start(&format!("{QUICK}[job]\nmax_retries = 0\n{LOOPBACK}")).await;
    let (ended, job) = worker.fetch(&urls).await;
    // Failed if the dead host was the last one with tasks left, done otherwise.
    assert!(matches!(ended, StopReason::Job(JobState::Done | JobState::Failed)), "{ended:?}");
    let now = worker.gate.clock().now();
    while worker.store.sweep(job.id, 100, now).await.unwrap() {}
    let job = worker.job().await;
    assert_eq!((job.counts.done, site.asked().len()), (100, 100), "every good page is fetched once");
    let counts = job.counts;
    assert_eq!((counts.waiting(), counts.failed + counts.skipped), (0, 40), "{counts:?}");
    assert!((20..40).contains(&counts.failed), "the rest was skipped: {counts:?}");
    let failed = worker.store.list_tasks(job.id, "failed".to_owned(), 1).await.unwrap();
    assert!(failed[0].url.contains(&dead.to_string()), "{failed:?}");
}

/// B47: while a list is being read, more tasks may come, so what remains afterwards decides.
#[tokio::test]
async fn a_domain_given_up_while_a_list_is_read_does_not_end_the_job() {
    for (rest, expected) in [(3, JobState::Done), (0, JobState::Failed)] {
        let site = site().await;
        let closed = ClosedPort::new();
        let dead = closed.port();
        let worker = Worker::start(&format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = 5\n")).await;
        let pool = worker.pool(Archive::Nothing).await;
        let (more, lines) = std::sync::mpsc::channel::<String>();
        more.send((0..30).map(|nth| format!("http://127.0.0.1:{dead}/{nth}\n")).collect()).unwrap();
        let filling = tokio::spawn({
            let pool = pool.clone();
            async move {
                pool.fill(Box::new(Typed(lines, Vec::new())), Box::new(|_| Flow::Continue)).await.unwrap()
            }
        });
        let running = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run().await.unwrap() }
        });
        while worker.job().await.counts.skipped == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        more.send((0..rest).map(|nth| format!("{}\n", site.url(&format!("/200/{nth}")))).collect()).unwrap();
        drop(more);
        assert_eq!(soon("the list", filling).await.unwrap().new, 30 + rest);
        assert_eq!(soon("the job", running).await.unwrap(), StopReason::Job(expected));
        let job = worker.job().await;
        assert_eq!((job.counts.done, job.counts.waiting()), (rest, 0));
        assert_eq!(job.message.is_some(), rest == 0, "{:?}", job.message);
        explains(&worker, &job, dead).await;
    }
}

/// A list that arrives in parts.
struct Typed(std::sync::mpsc::Receiver<String>, Vec<u8>);

impl std::io::Read for Typed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.1.is_empty() {
            self.1 = self.0.recv().unwrap_or_default().into_bytes();
        }
        let read = self.1.len().min(buffer.len());
        buffer[..read].copy_from_slice(&self.1[..read]);
        self.1.drain(..read);
        Ok(read)
    }
}

/// Checks that skipped tasks say why.
async fn explains(worker: &Worker, job: &Job, dead: u16) {
    let skipped = worker.store.list_tasks(job.id, "skipped".to_owned(), 1).await.unwrap().remove(0);
    let reason = skipped.error.unwrap();
    let expected = format!("gave up on 127.0.0.1:{dead}: 5 URLs in a row failed; the last error: ");
    assert!(reason.starts_with(&expected), "{reason}");
}

/// B47: when no other domain has tasks left, giving up ends the job.
#[tokio::test]
async fn a_job_fails_when_its_last_domains_are_given_up() {
    let site = site().await;
    let closed = [ClosedPort::new(), ClosedPort::new()];
    let [dead, down] = closed.each_ref().map(ClosedPort::port);
    let mut urls: Vec<String> = (0..10).map(|nth| format!("http://127.0.0.1:{dead}/{nth}")).collect();
    urls.extend((0..10).map(|nth| format!("http://127.0.0.1:{down}/{nth}")));
    urls.push(site.url("/200/first"));
    let worker = Worker::start(&format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = 5\n")).await;
    let (ended, job) = worker.fetch(&urls).await;
    assert_eq!(ended, StopReason::Job(JobState::Failed));
    let message = job.message.unwrap();
    assert!(
        message.contains("gave up on 127.0.0.1:") && message.contains("5 URLs in a row failed"),
        "{message}"
    );
    let now = worker.gate.clock().now();
    while worker.store.sweep(job.id, 100, now).await.unwrap() {}
    let counts = worker.job().await.counts;
    assert_eq!((counts.done, counts.waiting()), (1, 0), "{counts:?}");
    assert!(counts.failed >= 10, "{counts:?}");
}

/// B47, B49: retrying the job also retries what was given up.
#[tokio::test]
async fn retrying_a_job_retries_domains_that_were_given_up() {
    let up = Arc::new(AtomicBool::new(false));
    let site = Site::start({
        let up = up.clone();
        move |_: &Asked| reply(if up.load(Ordering::Relaxed) { 200 } else { 500 })
    });
    let site = site.await;
    let worker = Worker::start(&format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = 3\n")).await;
    let (ended, job) = worker.fetch(&list(&site, &[500; 30])).await;
    assert_eq!(ended, StopReason::Job(JobState::Failed));
    let now = worker.gate.clock().now();
    while worker.store.sweep(job.id, 100, now).await.unwrap() {}
    up.store(true, Ordering::Relaxed);
    worker.store.step_job(job.id, JobStep::Reopen, None, now).await.unwrap();
    while worker.store.sweep(job.id, 100, now).await.unwrap() {}
    let (ended, job) = worker.fetch(&[]).await;
    assert_eq!((ended, job.counts.done), (StopReason::Job(JobState::Done), 30));
}

/// B47
#[tokio::test]
async fn a_success_resets_the_failure_count_and_zero_turns_it_off() {
    for (threshold, statuses) in [(3, [500, 500, 200, 500, 500, 200]), (0, [500; 6])] {
        let site = site().await;
        let toml = format!("{QUICK}[job]\nmax_retries = 0\nfailure_threshold = {threshold}\n");
        let (ended, job) = Worker::start(&toml).await.fetch(&list(&site, &statuses)).await;
        assert_eq!((ended, job.message), (StopReason::Job(JobState::Done), None));
        assert_eq!(job.counts.done + job.counts.failed, 6);
    }
}

/// B48
#[tokio::test]
async fn a_job_that_is_rate_limited_at_the_slowest_pace_is_cancelled() {
    let site = site().await;
    let worker = Worker::start(&format!("{QUICK}[job]\ncancel_streak = 2\ncancel_delay = \"0s\"\n")).await;
    let (ended, job) = worker.fetch(&list(&site, &[429; 20])).await;
    assert_eq!(ended, StopReason::Job(JobState::Cancelled));
    assert!(job.message.unwrap().contains("rate limited (429) 2 times in a row"));
    assert!(site.asked().len() <= 3, "{}", site.asked().len());
}

/// B48
#[tokio::test]
async fn rate_limits_at_a_faster_pace_or_between_successes_cancel_nothing() {
    for (delay, statuses) in [("60s", [429, 429, 429, 429]), ("0s", [429, 200, 429, 200])] {
        let site = site().await;
        let toml = format!("{QUICK}[job]\nmax_retries = 0\ncancel_streak = 2\ncancel_delay = \"{delay}\"\n");
        let (ended, _) = Worker::start(&toml).await.fetch(&list(&site, &statuses)).await;
        assert_eq!(ended, StopReason::Job(JobState::Done), "{delay}");
    }
}

/// B49
#[tokio::test]
async fn an_ended_job_takes_no_tasks_and_skips_the_remaining_ones() {
    let site = site().await;
    let worker = Worker::start(&format!("{QUICK}[job]\ncancel_streak = 1\ncancel_delay = \"0s\"\n")).await;
    let (ended, job) = worker.fetch(&list(&site, &[429, 200, 200, 200, 200])).await;
    assert_eq!(ended, StopReason::Job(JobState::Cancelled));
    let now = worker.gate.clock().now();
    while worker.store.sweep(job.id, 100, now).await.unwrap() {}
    let counts = worker.job().await.counts;
    assert_eq!((counts.waiting(), counts.tasks), (0, 5));
    assert!(counts.skipped >= 3, "{counts:?}");
    let pool = worker.pool(Archive::Nothing).await;
    let filled = fill(&pool, &[site.url("/200/new")]).await;
    assert_eq!((filled.new, filled.refused), (0, 1));
    let asked = site.asked().len();
    assert_eq!(soon("the job", pool.run()).await.unwrap(), StopReason::Job(JobState::Cancelled));
    assert_eq!(site.asked().len(), asked);
}

/// B49: another process ends the job while it runs.
#[tokio::test]
async fn a_pool_stops_when_its_job_is_ended_elsewhere() {
    let site = site().await;
    let worker = Worker::start(&QUICK.replace("10ms", "100ms")).await;
    let pool = worker.pool(Archive::Nothing).await;
    fill(&pool, &list(&site, &[200; 500])).await;
    let running = tokio::spawn(async move { pool.run().await.unwrap() });
    eventually("some work", || site.asked().len() >= 2).await;
    let (id, now) = (worker.job().await.id, worker.gate.clock().now());
    worker.store.step_job(id, JobStep::Cancel, Some("by hand".to_owned()), now).await.unwrap();
    assert_eq!(soon("the job", running).await.unwrap(), StopReason::Job(JobState::Cancelled));
    assert!(site.asked().len() < 50);
}

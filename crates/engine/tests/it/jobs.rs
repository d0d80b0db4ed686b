//! Jobs from their URL list to their end, against sites on loopback.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use comity::archive::Archive;
use comity::client;
use comity::clock::Clock;
use comity::config::Config;
use comity::event::Events;
use comity::gate::{CloseMode, Gate};
use comity::jobs::{Filled, Flow, Parts, Pool, Rows, StopReason, Until};
use comity::store::Store;
use comity::store::jobs::Job;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::pace::Pinned;
use comity_core::task::JobState;
use comity_core::time::Span;

use crate::client::{LOOPBACK, QUICK};
use crate::support::{Asked, Heartbeats, Site, at, config, eventually, ms, reply, soon};

/// A process that works on jobs.
pub(crate) struct Worker {
    pub(crate) gate: Gate,
    pub(crate) store: Arc<dyn Store>,
    config: Config,
}

impl Worker {
    pub(crate) async fn start(toml: &str) -> Self {
        Self::with(toml, comity::store::open("memory:").unwrap(), Clock::new()).await
    }

    pub(crate) async fn with(toml: &str, store: Arc<dyn Store>, clock: Clock) -> Self {
        let config = config(toml);
        let rules = config.rules().clone();
        let gate = Gate::with_store(rules, clock, Events::new(), store.clone(), "a worker").await.unwrap();
        Self { gate, store, config }
    }

    pub(crate) async fn pool(&self, archive: Archive) -> Pool {
        self.pool_of("job", archive).await
    }

    pub(crate) async fn pool_of(&self, job: &str, archive: Archive) -> Pool {
        let opened = self.store.open_job(job.to_owned(), serde_json::Value::Null, self.gate.clock().now());
        let (job, _) = opened.await.unwrap();
        let transport = client::transport(&self.config).unwrap();
        let (gate, store, config) = (self.gate.clone(), self.store.clone(), self.config.clone());
        Pool::new(Parts {
            gate,
            store,
            transport,
            archive,
            config,
            job,
            until: Until::DONE,
            rows: Rows::default(),
        })
    }

    /// Fetches `urls` until the job ends.
    pub(crate) async fn fetch(&self, urls: &[String]) -> (StopReason, Job) {
        let pool = self.pool(Archive::Nothing).await;
        fill(&pool, urls).await;
        let ended = soon("the job", pool.run()).await.unwrap();
        (ended, self.job().await)
    }

    pub(crate) async fn job(&self) -> Job {
        self.store.find_job("job".to_owned()).await.unwrap().unwrap()
    }
}

pub(crate) async fn fill(pool: &Pool, urls: &[String]) -> Filled {
    let text = std::io::Cursor::new(urls.join("\n").into_bytes());
    pool.fill(Box::new(text), Box::new(|_| Flow::Continue)).await.unwrap()
}

/// A fast configuration with `toml`, for loopback.
fn quick(toml: &str) -> String {
    format!("{QUICK}{toml}{LOOPBACK}")
}

fn urls(site: &Site, hosts: u8, each: usize) -> Vec<String> {
    (0..each)
        .flat_map(|page| (1..=hosts).map(move |host| (host, page)))
        .map(|(host, page)| site.url_on(host, &format!("/{page}")))
        .collect()
}

/// B74: every page once, and never more at once than allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_pages_of_fifty_sites_are_fetched_once_each() {
    let site = Site::start(|_| reply(200).after(5)).await;
    let worker = Worker::start(&quick("[job]\nconcurrency = 16\n")).await;
    let (ended, job) = worker.fetch(&urls(&site, 50, 10)).await;
    assert_eq!(ended, StopReason::Job(JobState::Done));
    assert_eq!((job.counts.tasks, job.counts.done), (500, 500));
    let mut times: HashMap<(String, String), usize> = HashMap::new();
    site.asked().into_iter().for_each(|asked| *times.entry((asked.host, asked.path)).or_default() += 1);
    assert_eq!((times.len(), times.values().max()), (500, Some(&1)));
    assert!(site.most_at_once() <= 16, "{}", site.most_at_once());
    assert!((1..=50).all(|host| site.most_in_flight(host) <= 1), "one at a time per site");
}

/// B10
#[tokio::test]
async fn a_site_on_a_long_hold_delays_no_other() {
    let site = Site::start(|asked: &Asked| match asked.host.as_str() {
        "127.0.0.9" => reply(429).header("retry-after", "3600"),
        _ => reply(200),
    })
    .await;
    let worker = Worker::start(&quick("[job]\nconcurrency = 2\n")).await;
    let pool = worker.pool(Archive::Nothing).await;
    let mut list: Vec<String> = (0..20).map(|page| site.url_on(9, &format!("/{page}"))).collect();
    list.extend(urls(&site, 5, 4));
    fill(&pool, &list).await;
    let running = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run().await.unwrap() }
    });
    let counters = worker.gate.events().counters();
    eventually("the others", || counters.done.load(Relaxed) == 20).await;
    let refused = site.asked().into_iter().filter(|asked| asked.host == "127.0.0.9").count();
    assert_eq!(refused, 1, "no requests during the tenure");
    pool.stop();
    assert_eq!(soon("the stop", running).await.unwrap(), StopReason::Requested);
    assert_eq!(worker.job().await.counts.waiting(), 20);
}

/// B41, B42
#[tokio::test]
async fn a_retry_goes_behind_waiting_tasks() {
    let site = Site::start(|asked: &Asked| match (asked.path.as_str(), asked.before) {
        ("/1" | "/3", 0) => reply(429),
        _ => reply(200),
    })
    .await;
    let worker = Worker::start(&quick("")).await;
    let list: Vec<String> = (1..=20).map(|page| site.url(&format!("/{page}"))).collect();
    let (ended, job) = worker.fetch(&list).await;
    assert_eq!(ended, StopReason::Job(JobState::Done));
    let expected: Vec<String> = (1..=20).chain([1, 3]).map(|page| format!("/{page}")).collect();
    assert_eq!(site.paths(), expected);
    assert_eq!((job.counts.done, job.counts.retries, job.counts.rate_limited), (20, 2, 2));
}

/// B41, B43, B45
#[tokio::test]
async fn tasks_are_retried_up_to_max_retries() {
    for (retries, attempts) in [(3, 4), (0, 1)] {
        for status in [429, 503, 500] {
            let site = Site::start(move |_| reply(status)).await;
            let worker = Worker::start(&quick(&format!("[job]\nmax_retries = {retries}\n"))).await;
            let (ended, job) = worker.fetch(&[site.url("/")]).await;
            assert_eq!(ended, StopReason::Job(JobState::Done), "a job with failed tasks is still done");
            assert_eq!((job.counts.failed, site.asked().len()), (1, attempts), "{status}");
        }
    }
}

/// B23, B79: with many requests in flight, failures that came late used to be forgiven forever: one URL of a hanging
/// host took 46 attempts.
#[tokio::test]
async fn requests_that_fail_together_are_not_retried_forever() {
    for (status, most) in [(500, 3), (429, 5)] {
        let site = Site::start(move |_| reply(status).after(200)).await;
        let toml = quick("in_flight = \"unlimited\"\n[job]\nmax_retries = 2\nfailure_threshold = 0\n");
        let worker = Worker::start(&toml).await;
        let (ended, job) = worker.fetch(&urls(&site, 1, 12)).await;
        assert_eq!((ended, job.counts.failed), (StopReason::Job(JobState::Done), 12));
        let paths: std::collections::BTreeSet<String> = site.paths().into_iter().collect();
        for path in paths {
            let attempts = site.asked_for(&path).len();
            assert!((3..=most).contains(&attempts), "{status}: {path} was tried {attempts} times");
        }
    }
}

/// B40: with a concurrency of 4 and a learned delay of 11 s, two at once; other sites as before.
#[tokio::test]
async fn concurrency_is_reduced_on_a_site_that_became_slow() {
    let site =
        Site::start(|asked: &Asked| reply(200).after(if asked.host == "127.0.0.1" { 900 } else { 0 })).await;
    let toml =
        quick("in_flight = \"unlimited\"\n[job]\nconcurrency = 4\n").replace("learning = \"off\"\n", "");
    let (clock, control) = Clock::manual(at(0));
    let worker = Worker::with(&toml, comity::store::open("memory:").unwrap(), clock).await;
    let host = site.domain(1);
    let slow = worker.gate.with_pace(&host, |pace, terms, now| {
        pace.set_learned(terms, Span::from_secs(11), Span::ZERO, now);
        pace.pin(Pinned::Yes);
    });
    slow.await.unwrap();
    let pool = worker.pool(Archive::Nothing).await;
    fill(&pool, &urls(&site, 1, 6)).await;
    let running = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run().await.unwrap() }
    });
    let heartbeats = Heartbeats::of(&worker.gate);
    for _ in 0..200 {
        if running.is_finished() {
            break;
        }
        // A slot every 160 ms of real time.
        heartbeats.advance(&control, ms(2_500)).await;
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(soon("the job", running).await.unwrap(), StopReason::Job(JobState::Done));
    assert_eq!((site.asked().len(), site.most_in_flight(1)), (6, 2));
}

/// B44, B76: a redirect to another domain waits for that domain.
#[tokio::test]
async fn a_task_redirected_to_another_domain_continues_there() {
    let site = Site::start(|asked: &Asked| {
        let port =
            asked.head.lines().find_map(|line| line.strip_prefix("host: ")?.split(':').nth(1)).unwrap();
        match asked.path.as_str() {
            "/a" => reply(301).header("location", &format!("http://127.0.0.2:{port}/b")),
            "/b" => reply(302).header("location", "/c"),
            _ => reply(200),
        }
    })
    .await;
    let worker = Worker::start(&quick("")).await;
    let (ended, job) = worker.fetch(&[site.url("/a")]).await;
    assert_eq!((ended, job.counts.done), (StopReason::Job(JobState::Done), 1));
    assert_eq!(site.paths(), ["/a", "/b", "/c"]);
    let guarded = Worker::start(QUICK).await;
    let (_, job) = guarded.fetch(&[site.url("/a")]).await;
    assert_eq!(
        (job.counts.failed, site.asked().len()),
        (1, 4),
        "without allow_private it fails at the redirect"
    );
}

/// B44
#[tokio::test]
async fn pages_forbidden_by_robots_txt_are_skipped() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private"),
        _ => reply(200),
    })
    .await;
    let worker = Worker::start(&quick("").replace("\"ignore\"", "\"obey\"")).await;
    let list = ["/private/1", "/2", "/private/3", "/4"].map(|path| site.url(path));
    let (ended, job) = worker.fetch(&list).await;
    assert_eq!(ended, StopReason::Job(JobState::Done));
    assert_eq!((job.counts.done, job.counts.skipped), (2, 2));
    assert_eq!(site.paths(), ["/robots.txt", "/2", "/4"]);
}

/// B42, B47: a refused robots.txt used to use up all retries of its pages within a second, and so failed the job.
#[tokio::test]
async fn a_refused_robots_txt_is_retried_every_five_minutes_together_with_its_pages() {
    let site = Site::start(|asked: &Asked| match (asked.path.as_str(), asked.before) {
        // Refused as often as a task would be tried, twice; then it is served.
        ("/robots.txt", ..8) => reply(503),
        _ => reply(200),
    })
    .await;
    let toml = quick("").replace("\"ignore\"", "\"obey\"").replace("10ms", "0s");
    let (clock, control) = Clock::manual(at(0));
    let worker = Worker::with(&toml, comity::store::open("memory:").unwrap(), clock).await;
    let pool = worker.pool(Archive::Nothing).await;
    fill(&pool, &urls(&site, 1, 25)).await;
    let running = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run().await.unwrap() }
    });
    // As fast as its heartbeats allow.
    let heartbeats = Heartbeats::of(&worker.gate);
    let mut tried_again = Vec::new();
    for _ in 0..1_000 {
        if running.is_finished() {
            break;
        }
        heartbeats.advance(&control, Span::from_secs(3)).await;
        tokio::time::sleep(Duration::from_millis(15)).await;
        let (now, retries) = (worker.gate.clock().now(), worker.job().await.counts.retries);
        if tried_again.last().is_none_or(|(_, before)| *before != retries) {
            tried_again.push((now, retries));
        }
    }
    assert_eq!(soon("the job", running).await.unwrap(), StopReason::Job(JobState::Done));
    let counts = worker.job().await.counts;
    assert_eq!((counts.done, counts.failed, counts.retries), (25, 0, 50), "each was retried twice");
    assert_eq!((site.asked_for("/robots.txt").len(), site.asked().len()), (9, 9 + 25));
    let at = |least: u64| tried_again.iter().find(|(_, retries)| *retries > least).unwrap().0;
    assert!(at(25).since(at(0)) >= Span::from_secs(299), "{tried_again:?}");
    assert!(worker.gate.clock().now().since(at(25)) >= Span::from_secs(299), "{tried_again:?}");
}

/// A redirected page used to be reported as failed "after 1 attempts".
#[tokio::test]
async fn redirects_do_not_count_as_attempts() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/0" => reply(302).header("location", "/gone"),
        "/1" if asked.before == 0 => reply(503),
        _ => reply(404),
    })
    .await;
    let worker = Worker::start(&quick("")).await;
    let (_, job) = worker.fetch(&urls(&site, 1, 2)).await;
    let mut failed = worker.store.list_tasks(job.id, "failed".to_owned(), 10).await.unwrap();
    failed.sort_by(|a, b| a.url.cmp(&b.url));
    let errors: Vec<_> = failed.into_iter().map(|task| task.error.unwrap_or_default()).collect();
    assert_eq!(errors, ["status 404", "status 404 after 2 attempts"]);
}

/// B74: a stopped job resumes where it was and fetches nothing twice.
#[tokio::test]
async fn a_stopped_job_resumes() {
    let site = Site::start(|_| reply(200)).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("comity.db").display());
    let list = urls(&site, 3, 20);
    let first = Worker::with(&quick(""), comity::store::open(&url).unwrap(), Clock::new()).await;
    let pool = first.pool(Archive::Nothing).await;
    fill(&pool, &list).await;
    let running = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run().await.unwrap() }
    });
    eventually("some work", || site.asked().len() >= 10).await;
    pool.stop();
    assert_eq!(soon("the stop", running).await.unwrap(), StopReason::Requested);
    first.gate.close(CloseMode::Stop).await.unwrap();
    let before = site.asked().len() as u64;
    assert_eq!(first.job().await.counts.done, before, "everything fetched is settled");
    assert!(before < 60);
    let second = Worker::with(&quick(""), comity::store::open(&url).unwrap(), Clock::new()).await;
    let (ended, job) = second.fetch(&[]).await;
    assert_eq!((ended, job.counts.done), (StopReason::Job(JobState::Done), 60));
    assert_eq!(site.asked().len(), 60);
}

/// B74: the same in one process, whose gate keeps holding its domains.
#[tokio::test]
async fn a_stopped_job_resumes_in_the_same_process() {
    let site = Site::start(|_| reply(200)).await;
    let worker = Worker::start(&quick("")).await;
    let pool = worker.pool(Archive::Nothing).await;
    fill(&pool, &urls(&site, 2, 20)).await;
    let running = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run().await.unwrap() }
    });
    eventually("some work", || site.asked().len() >= 6).await;
    pool.stop();
    assert_eq!(soon("the stop", running).await.unwrap(), StopReason::Requested);
    let (ended, job) = worker.fetch(&[]).await;
    assert_eq!((ended, job.counts.done), (StopReason::Job(JobState::Done), 40));
    assert_eq!(site.asked().len(), 40);
}

/// B9: two jobs of one process, and another process that wants a domain of the first.
#[tokio::test]
async fn each_job_of_a_process_gets_its_domains_back() {
    let site = Site::start(|_| reply(200)).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("comity.db").display());
    let worker =
        Worker::with(&quick("").replace("10ms", "40ms"), comity::store::open(&url).unwrap(), Clock::new())
            .await;
    let mut running = Vec::new();
    for (host, job) in [(1, "one"), (2, "two")] {
        let pool = worker.pool_of(job, Archive::Nothing).await;
        let list: Vec<String> = (0..40).map(|page| site.url_on(host, &format!("/{page}"))).collect();
        fill(&pool, &list).await;
        running.push(tokio::spawn(async move { pool.run().await.unwrap() }));
        eventually("some work", || site.gaps(host).len() >= 3).await;
    }
    let other = Worker::with(&quick(""), comity::store::open(&url).unwrap(), Clock::new()).await;
    let permit = soon("the domain", other.gate.acquire(&site.domain(1), Intent::Fetch)).await.unwrap();
    permit.record(&Outcome::Success.into());
    for job in running {
        assert_eq!(soon("the job", job).await.unwrap(), StopReason::Job(JobState::Done));
    }
    assert_eq!(site.asked().len(), 80);
}

/// B72, B73
#[tokio::test]
async fn counters_match_what_happened() {
    let site = Site::start(|asked: &Asked| match (asked.path.as_str(), asked.before) {
        ("/0", 0) => reply(429),
        ("/1", 0) => reply(503),
        ("/2", _) => reply(404),
        _ => reply(200),
    })
    .await;
    let worker = Worker::start(&quick("")).await;
    let (_, job) = worker.fetch(&urls(&site, 1, 6)).await;
    let counters = worker.gate.events().counters();
    let count = |outcome| counters.outcome(outcome);
    assert_eq!(counters.granted.load(Relaxed), site.asked().len() as u64);
    assert_eq!((counters.done.load(Relaxed), counters.failed.load(Relaxed)), (5, 1));
    assert_eq!((counters.retries(Outcome::RateLimited), counters.retries(Outcome::Unavailable)), (1, 1));
    assert_eq!(counters.bytes.load(Relaxed), 30);
    assert_eq!((count(Outcome::Success), count(Outcome::Answered)), (5, 1));
    assert_eq!((count(Outcome::RateLimited), count(Outcome::Unavailable)), (1, 1));
    assert_eq!((job.counts.done, job.counts.failed, job.counts.retries), (5, 1, 2));
}

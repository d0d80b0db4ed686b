//! Futures that are dropped at any point leave nothing stranded.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use comity::archive::Archive;
use comity::clock::Clock;
use comity::gate::CloseMode;
use comity::jobs::{Flow, StopReason};
use comity::store::sources::SourceClaim;
use comity_core::intent::Intent;
use comity_core::task::JobState;

use crate::jobs::{Worker, fill};
use crate::station::{self, DiskStore, Silent, rss};
use crate::support::{Site, eventually, reply, soon};

/// B11, B74, B83: a pool dropped during a claim used to keep lanes and domains that nobody worked on any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_pool_at_any_point_strands_nothing() {
    let site = Site::start(|_| reply(200).after(3)).await;
    let disk = DiskStore::new();
    let worker = Worker::with(&station::quick(""), disk.open(), Clock::new()).await;
    let (rounds, mut cut) = (30_u64, 0);
    for round in 0..rounds {
        let job = format!("job {round}");
        let pool = worker.pool_of(&job, Archive::Nothing).await;
        let list: Vec<String> =
            (0..12).map(|page| site.url_on(1 + page % 4, &format!("/{round}/{page}"))).collect();
        fill(&pool, &list).await;
        // From before the first claim to in the middle of the requests.
        let run = tokio::time::timeout(Duration::from_micros(300 * round), pool.run()).await;
        if run.is_err() {
            cut += 1;
            // The next pool of the process finishes the job.
            let pool = worker.pool_of(&job, Archive::Nothing).await;
            assert_eq!(soon("the job", pool.run()).await.unwrap(), StopReason::Job(JobState::Done));
        }
        let counts = worker.store.find_job(job).await.unwrap().unwrap().counts;
        assert_eq!((counts.tasks, counts.done), (12, 12), "round {round}");
    }
    assert!(cut > 0);
    // Nothing was fetched twice, although pools were dropped with requests in flight.
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    site.asked().into_iter().for_each(|asked| *times.entry(asked.path).or_default() += 1);
    assert_eq!((times.len(), times.values().max()), (rounds as usize * 12, Some(&1)));
    // Another process can take each domain.
    let other = Worker::with(&station::quick(""), disk.open(), Clock::new()).await;
    for nth in 1..=4 {
        drop(soon("a domain", other.gate.acquire(&site.domain(nth), Intent::Fetch)).await.unwrap());
    }
}

/// A list that arrives as slowly as somebody types.
struct Typed(mpsc::Receiver<String>);

impl Read for Typed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Ok(line) = self.0.recv() else { return Ok(0) };
        into[..line.len()].copy_from_slice(line.as_bytes());
        Ok(line.len())
    }
}

/// B11: a job whose list reading was dropped used to count as being filled forever, and never ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_fill_lets_the_job_end() {
    let site = Site::start(|_| reply(200)).await;
    let worker = Worker::start(&station::quick("")).await;
    let pool = worker.pool(Archive::Nothing).await;
    let (typing, typed) = mpsc::channel();
    let filling = tokio::spawn({
        let pool = pool.clone();
        async move { pool.fill(Box::new(Typed(typed)), Box::new(|_| Flow::Continue)).await }
    });
    let running = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run().await }
    });
    typing.send(format!("{}\n", site.url("/1"))).unwrap();
    eventually("the first page", || site.asked().len() == 1).await;
    filling.abort();
    assert!(filling.await.is_err());
    // All known tasks are settled, but the list was not read to its end.
    typing.send(format!("{}\n", site.url("/2"))).unwrap();
    drop(typing);
    assert_eq!(soon("the job", running).await.unwrap().unwrap(), StopReason::Unread);
    assert!(worker.job().await.unread);
}

/// B11, B60: a source whose run was dropped while being fetched used to stay claimed for the lifetime of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_run_leaves_its_sources_to_others() {
    let site = Site::start(|asked| {
        let links = [format!("http://{}{}/a", asked.host, asked.path)];
        reply(200).body(rss("", &links.each_ref().map(String::as_str))).after(30)
    })
    .await;
    let disk = DiskStore::new();
    let station = disk.process(&station::quick("")).await;
    let mut sources = Vec::new();
    for nth in 1..=8 {
        sources.push(station.follow(&site.url_on(1 + nth % 4, &format!("/{nth}"))).await);
    }
    let options = station.run_options();
    let cut = tokio::time::timeout(Duration::from_millis(20), station.pipeline.run(&options, &Silent)).await;
    assert!(cut.is_err());
    // Fetches that had started are finished and released; the others were never started.
    let other = disk.process(&station::quick("")).await;
    let holder = other.store.register("another".to_owned(), other.now()).await.unwrap();
    for id in sources {
        let claimed = async {
            loop {
                match other.store.claim_source(id, holder, other.now()).await.unwrap() {
                    SourceClaim::Ours(_, asking) => return asking,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let asking = soon("the source", claimed).await;
        other.store.leave_source(asking).await.unwrap();
        let fetches = station.fetches(id).await;
        assert_eq!(fetches.len(), site.asked_for(&format!("/{}", id.0)).len(), "{fetches:?}");
    }
}

/// B11, B37: a dropped close used to remove the domains from memory without giving them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_close_still_gives_the_domains_back() {
    let site = Site::start(|_| reply(200)).await;
    let disk = DiskStore::new();
    let worker = Worker::with(&station::quick(""), disk.open(), Clock::new()).await;
    drop(worker.gate.acquire(&site.domain(1), Intent::Fetch).await.unwrap());
    let mut closing = Box::pin(worker.gate.close(CloseMode::HandOver));
    // Dropped after one poll, while the store still works on it.
    let is_pending = std::future::poll_fn(|context| Poll::Ready(closing.as_mut().poll(context).is_pending()));
    assert!(is_pending.await);
    drop(closing);
    let other = Worker::with(&station::quick(""), disk.open(), Clock::new()).await;
    drop(soon("the domain", other.gate.acquire(&site.domain(1), Intent::Fetch)).await.unwrap());
}

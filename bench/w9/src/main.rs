//! W9: the cost of a claim as the queue grows from 10 k to 10 M tasks over 100 k domains.
//!
//! For each size: fill a new SQLite store as `comity fetch` does (in batches of 20,000), then work on it in rounds of
//! claim, settle and park, and take the median. Each lane is claimed with one task, so that every size does the same
//! work; in a small queue, a lane has no more than that. URLs are in random order of domains. Memory is the peak of the
//! whole process so far. Times are those of this process; what counts is the ratio to the smallest size.
//!
//! Usage: `bench-w9 [SIZES [POSTGRES_URL DATA_FOLDER]]`. `SIZE` in the URL stands for the number of tasks: each size has a store of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{HolderId, Take};
use comity_store::jobs::Job;
use comity_store::tasks::{Attempt, Claim, NewTask, Settle, Step};
use comity_store::{Store, StoreError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes: Vec<u64> = match std::env::args().nth(1) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![10_000, 100_000, 1_000_000, 10_000_000],
    };
    let server = std::env::args().nth(2).zip(std::env::args_os().nth(3).map(PathBuf::from));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    println!(
        "| tasks | filling, URLs/s | claim of {LANES} lanes, ms | ÷ smallest | settle of {LANES}, ms | peak memory, MB | database, MB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut smallest = None;
    for size in sizes {
        let measured = runtime.block_on(measure(size, server.as_ref()))?;
        let claim = measured.claim.as_secs_f64() * 1e3;
        let base = *smallest.get_or_insert(claim);
        println!(
            "| {size} | {:.0} | {claim:.2} | {:.2} | {:.2} | {} | {} |",
            measured.fill_rate,
            claim / base,
            measured.settle.as_secs_f64() * 1e3,
            peak_kib() / 1024,
            measured.bytes >> 20,
        );
    }
    Ok(())
}

struct Measured {
    fill_rate: f64,
    claim: Duration,
    settle: Duration,
    bytes: u64,
}

async fn measure(
    size: u64,
    server: Option<&(String, PathBuf)>,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("w9.db");
    let url = match server {
        Some((url, _)) => url.replace("SIZE", &size.to_string()),
        None => format!("sqlite:{}", path.display()),
    };
    let store: Arc<dyn Store> = tokio::task::spawn_blocking(move || comity_store::open(&url)).await??;
    let mut now = Timestamp::from_secs(1_800_000_000);
    let holder = store.register("w9".to_owned(), now).await?;
    let (job, _) = store.open_job("w9".to_owned(), Default::default(), now).await?;
    let fill_rate = fill(&*store, &job, size, now).await?;
    let (mut claims, mut settles) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        now = now + Span::from_millis(100);
        if round % 20 == 0 {
            store.beat(holder, now).await?;
        }
        let (claim, settle) = work(&*store, holder, &job, now).await?;
        claims.push(claim);
        settles.push(settle);
    }
    let bytes = match server {
        Some((_, data)) => size_of_folder(data)?,
        None => std::fs::metadata(&path)?.len(),
    };
    Ok(Measured { fill_rate, claim: median(claims), settle: median(settles), bytes })
}

/// Adds `size` tasks, for domains in random order.
async fn fill(store: &dyn Store, job: &Job, size: u64, now: Timestamp) -> Result<f64, StoreError> {
    let mut random = fastrand::Rng::with_seed(9);
    let began = clock();
    let mut added = 0;
    while added < size {
        let batch = (added..size.min(added + BATCH))
            .map(|nth| {
                let host = format!("d{}.invalid", random.u64(0..DOMAINS));
                let url = format!("http://{host}/{nth}");
                let domain = Domain::of_url(&url).unwrap_or_else(|_| unreachable!("a valid URL"));
                NewTask::listed(url, domain)
            })
            .collect();
        added += store.enqueue(job.id, batch, now).await?.new;
    }
    Ok(size as f64 / began.elapsed().as_secs_f64())
}

/// One round: claims lanes with their first tasks, settles one task of each, and gives the lanes back.
async fn work(
    store: &dyn Store,
    holder: HolderId,
    job: &Job,
    now: Timestamp,
) -> Result<(Duration, Duration), StoreError> {
    let began = clock();
    let claimed = store.claim(holder, Claim { job: job.id, lanes: LANES, tasks: 1 }, now).await?;
    let claim = began.elapsed();
    assert_eq!(claimed.len(), LANES as usize, "a queue that is large enough");
    let mut settles = Vec::new();
    let mut lanes = Vec::new();
    for claimed in claimed {
        lanes.push((claimed.lane, now + Span::from_secs(600)));
        let (Take::Taken(taken), Some(task)) = (claimed.take, claimed.tasks.first()) else { continue };
        let attempt = Attempt {
            started_at: now,
            took: Span::from_millis(5),
            outcome: Outcome::Success,
            status: Some(200),
        };
        let step = Step::Done { status: 200, bytes: 1_000, file: None, content_type: None };
        settles.push(Settle {
            task: task.id,
            url_key: None,
            job: job.id,
            tenure: taken.tenure,
            robots: None,
            attempts: vec![attempt],
            facts: Arc::default(),
            step,
        });
    }
    let began = clock();
    store.settle(holder, settles.into(), now).await?;
    let settle = began.elapsed();
    store.park(holder, lanes).await?;
    Ok((claim, settle))
}

/// The size of all files in a folder; some may vanish meanwhile.
fn size_of_folder(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)?.flatten() {
        let Ok(found) = entry.metadata() else { continue };
        bytes += if found.is_dir() { size_of_folder(&entry.path()).unwrap_or(0) } else { found.len() };
    }
    Ok(bytes)
}

/// The benchmark's clock.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> Instant {
    Instant::now()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The peak memory of this process, as counted by the kernel.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

const DOMAINS: u64 = 100_000;
const BATCH: u64 = 20_000;
const LANES: u32 = 256;
/// At the smallest size there are fewer than ten thousand lanes, and each is claimed once.
const ROUNDS: u32 = 30;

//! Many callers at once, which keep calling while others do: nobody is refused because of it, and nothing is lost.
//! Overlap at the worst moment is not left to chance but forced: see `overlap_domains`, `overlap_sources` and
//! `overlap_tasks`.

use std::sync::Arc;

use comity_store::domains::Take;
use comity_store::tasks::{Claim, Settled};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::backend::Backend;
use crate::process::{Process, at, done, listed, tenure_of};

/// B9: however many claim at once, all lanes are claimed in the end.
pub(crate) async fn many_concurrent_claims_return_every_lane(backend: &dyn Backend) {
    const LANES: usize = 200;
    let one = Process::start(backend, "one", at(0)).await;
    let urls: Vec<String> = (0..LANES).map(|nth| format!("https://{nth}.example/")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;

    let both_inside = Arc::new(Barrier::new(2));
    let mut claimers = Vec::new();
    for name in ["first", "second"] {
        let process = Process::start(backend, name, at(0)).await;
        let both_inside = both_inside.clone();
        claimers.push(async move {
            let claim = || process.store.claim(process.holder, Claim { job, lanes: 2, tasks: 1 }, at(1));
            let mut lanes = Vec::new();
            // Each process has three claims in flight at a time, more often than needed.
            for round in 0..LANES / 3 {
                let (a, b, c) = tokio::join!(claim(), claim(), claim());
                let brought = [a.unwrap(), b.unwrap(), c.unwrap()].concat();
                lanes.extend(brought.into_iter().map(|claimed| claimed.lane));
                if round == 0 {
                    both_inside.wait().await;
                }
            }
            // Processes that claimed lanes stay alive until all have finished.
            (lanes, process)
        });
    }
    let claimed = together(claimers).await;
    let mut lanes: Vec<_> = claimed.iter().flat_map(|(lanes, _)| lanes).collect();
    assert_eq!(lanes.len(), LANES);
    lanes.sort_unstable();
    lanes.dedup();
    assert_eq!(lanes.len(), LANES, "a lane was claimed twice");
}

/// B54: in whatever order they are added, so that callers block each other.
pub(crate) async fn many_callers_adding_the_same_urls_add_each_once(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    let mut fillers = Vec::new();
    for nth in 0..4 {
        let store = backend.store().await;
        fillers.push(async move {
            let (mut new, mut known) = (0, 0);
            // Each starts elsewhere, so that each is first somewhere.
            for piece in (0..40).map(|piece| (piece + nth * 10) % 40) {
                let tasks = (0..10).map(|url| listed(&format!("https://{}.example/{piece}/{url}", url % 7)));
                let tasks = if nth % 2 == 0 { tasks.collect() } else { tasks.rev().collect() };
                let enqueued = store.enqueue(job, tasks, at(1)).await.unwrap();
                new += enqueued.new;
                known += enqueued.known;
            }
            (new, known)
        });
    }
    let enqueued = together(fillers).await;
    let sums = enqueued.into_iter().fold((0, 0), |sum, (new, known)| (sum.0 + new, sum.1 + known));
    assert_eq!(sums, (400, 1200));
    assert_eq!(one.counts(job).await.tasks, 400);
}

/// B9
pub(crate) async fn fifty_callers_share_one_store(backend: &dyn Backend) {
    let one = Arc::new(Process::start(backend, "one", at(0)).await);
    let job = one.open_job("job").await;
    let tenure = one.taken("shared.example", at(0)).await.tenure;
    let callers = (0..50).map(|nth| {
        let one = one.clone();
        async move {
            let (mine, shared) = (format!("https://{nth}.example/"), "https://shared.example/");
            one.enqueue(job, &[&mine, shared], at(1)).await;
            let mut settled = 0;
            for lane in one.claim(job, at(1)).await {
                let tenure = if lane.take == Take::Ours { tenure } else { tenure_of(&lane) };
                for task in &lane.tasks {
                    let yes = one.settle(job, tenure, task.id, done(), at(2)).await;
                    settled += u64::from(yes == Settled::Yes);
                }
            }
            settled
        }
    });
    let settled: u64 = together(callers.collect()).await.into_iter().sum();
    let counts = one.counts(job).await;
    assert_eq!((counts.tasks, counts.done, settled), (51, 51, 51));
}

/// Runs callers that are all ready before the first one starts.
async fn together<T: Send + 'static>(callers: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let barrier = Arc::new(Barrier::new(callers.len()));
    let mut running = JoinSet::new();
    for caller in callers {
        let barrier = barrier.clone();
        running.spawn(async move {
            barrier.wait().await;
            caller.await
        });
    }
    running.join_all().await
}

//! Callers that overlap: all are ready before the first begins, and each goes on asking while others do.

use std::sync::Arc;

use comity_core::enqueue::{Asker, Enqueued};
use comity_core::interval::SourceInterval;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{Hold, Take};
use comity_store::items::{ItemId, ScrapeTerms, Start, StartStep, Started};
use comity_store::sources::NewSource;
use comity_store::tasks::{Claim, Settle, Settled};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::backend::Backend;
use crate::following::{Follower, every, feed, keep, wish};
use crate::process::{Process, at, done, hold_of, listed, taken};

/// B9
pub(crate) async fn claims_at_once_bring_each_lane_once(backend: &dyn Backend) {
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
            // Three at a time are on their way from here, and as many from the other, more often than needed.
            for round in 0..LANES / 3 {
                let (a, b, c) = tokio::join!(claim(), claim(), claim());
                let brought = [a.unwrap(), b.unwrap(), c.unwrap()].concat();
                lanes.extend(brought.into_iter().map(|claimed| claimed.lane));
                if round == 0 {
                    both_inside.wait().await;
                }
            }
            // Whoever claimed something lives until all have tried.
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

/// B9
pub(crate) async fn of_takes_at_once_one_succeeds(backend: &dyn Backend) {
    let mut takers = Vec::new();
    for name in ["first", "second", "third", "fourth"] {
        let process = Process::start(backend, name, at(0)).await;
        takers.push(async move {
            let mut won = Vec::new();
            for round in 0..50 {
                let take = process.take(&format!("{round}.example"), at(1)).await;
                won.extend(matches!(take, Take::Taken(_)).then_some(round));
            }
            (won, process)
        });
    }
    let taken = together(takers).await;
    let mut won: Vec<i32> = taken.iter().flat_map(|(won, _)| won.clone()).collect();
    won.sort_unstable();
    assert_eq!(won, (0..50).collect::<Vec<_>>());
}

/// B54
pub(crate) async fn the_same_urls_from_many_are_each_added_once(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    let mut fillers = Vec::new();
    for nth in 0..4 {
        let store = backend.store().await;
        fillers.push(async move {
            let (mut new, mut known) = (0, 0);
            // Each begins elsewhere, so that each is first somewhere.
            for piece in (0..40).map(|piece| (piece + nth * 10) % 40) {
                let tasks = (0..10).map(|url| listed(&format!("https://{}.example/{piece}/{url}", url % 7)));
                let enqueued = store.enqueue(job, tasks.collect(), at(1)).await.unwrap();
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

/// B74
pub(crate) async fn of_settles_at_once_one_succeeds(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls: Vec<String> = (0..10).map(|nth| format!("https://a.example/{nth}")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let (holder, hold) = (one.holder, hold_of(&lane));
    let mut settlers = Vec::new();
    for _ in 0..4 {
        let (store, tasks) = (backend.store().await, lane.tasks.clone());
        settlers.push(async move {
            let mut settled = Vec::new();
            for task in tasks {
                let settle = Settle { task: task.id, job, hold, attempts: Vec::new(), step: done() };
                settled.extend(store.settle(holder, vec![settle], at(1)).await.unwrap());
            }
            settled
        });
    }
    let settled = together(settlers).await.concat();
    let yes = settled.into_iter().filter(|settled| *settled == Settled::Yes).count();
    assert_eq!((yes, one.counts(job).await.done), (10, 10));
}

/// B9
pub(crate) async fn fifty_callers_share_one_store(backend: &dyn Backend) {
    let one = Arc::new(Process::start(backend, "one", at(0)).await);
    let job = one.open_job("job").await;
    let hold = one.taken("shared.example", at(0)).await.hold;
    let callers = (0..50).map(|nth| {
        let one = one.clone();
        async move {
            let (mine, shared) = (format!("https://{nth}.example/"), "https://shared.example/");
            one.enqueue(job, &[&mine, shared], at(1)).await;
            let mut settled = 0;
            for lane in one.claim(job, at(1)).await {
                let hold = if lane.take == Take::Ours { hold } else { hold_of(&lane) };
                for task in &lane.tasks {
                    let yes = one.settle(job, hold, task.id, done(), at(2)).await;
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

/// B51: of two tasks of a source, worked on by two processes on two domains, one begins.
pub(crate) async fn of_two_scrapes_of_a_source_at_once_one_begins(backend: &dyn Backend) {
    const SOURCES: usize = 100;
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.store.scrape_job(at(0)).await.unwrap().id;
    for nth in 0..SOURCES {
        let new = NewSource { interval: every(60_000), ..feed(&format!("https://feeds.example/{nth}")) };
        let source = one.store.add_source(new, at(0)).await.unwrap().0.id;
        let urls = [format!("https://a.example/{nth}"), format!("https://b.example/{nth}")];
        let items = keep(&*one.store, source, &urls).await;
        let wishes = vec![wish(items[0], "a.example"), wish(items[1], "b.example")];
        let terms = ScrapeTerms::default();
        let enqueued = one.store.enqueue_items(job, wishes, Asker::Manual, terms, at(0)).await.unwrap();
        assert_eq!(enqueued, [Enqueued::Enqueued; 2], "nothing was scraped yet");
    }
    let mut starters = Vec::new();
    let round = Arc::new(Barrier::new(2));
    for name in ["first", "second"] {
        let process = Process::start(backend, name, at(0)).await;
        let (hold, tasks) = claim_one_lane(&process, job).await;
        assert_eq!(tasks.len(), SOURCES);
        let round = round.clone();
        starters.push(async move {
            let mut begun = Vec::new();
            for (nth, task) in tasks.into_iter().enumerate() {
                round.wait().await;
                let (interval, patience) = (None, Span::ZERO);
                let start = Start { task, hold, interval, patience, step: StartStep::Begin };
                match process.store.start_scrape(process.holder, start, at(1)).await.unwrap() {
                    Started::Begun(_) => begun.push(nth),
                    Started::Deferred(deferred) => assert_eq!(deferred.wake_at, at(61)),
                    other => panic!("{other:?}"),
                }
            }
            (begun, process)
        });
    }
    let started = together(starters).await;
    let mut begun: Vec<usize> = started.iter().flat_map(|(begun, _)| begun.clone()).collect();
    begun.sort_unstable();
    assert_eq!(begun, (0..SOURCES).collect::<Vec<_>>());
}

/// B54
pub(crate) async fn an_item_enqueued_by_many_at_once_has_one_task(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 30).await;
    let enqueued = enqueue_at_once(backend, &one, |items, nth| {
        // Each begins elsewhere, so that each is first somewhere.
        (0..items.len()).map(|place| items[(place + nth * 4) % items.len()]).collect()
    });
    let enqueued = enqueued.await;
    let new = enqueued.iter().filter(|enqueued| **enqueued == Enqueued::Enqueued).count();
    let already = enqueued.iter().filter(|enqueued| **enqueued == Enqueued::Already).count();
    assert_eq!((new, already), (30, 7 * 30));
    assert_eq!(one.one.counts(one.job).await.tasks, 30);
    assert_eq!(one.ready(at(20)).await.len(), 30);
}

/// B55: wakes that are reserved by many at once are as far apart as those reserved by one.
pub(crate) async fn wakes_reserved_at_once_are_spaced_by_the_interval(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 81).await;
    one.scrape(80, at(10)).await;
    let enqueued = enqueue_at_once(backend, &one, |items, nth| items[nth * 10..][..10].to_vec()).await;
    let wake = |enqueued: &Enqueued| match enqueued {
        Enqueued::Deferred(deferred) => deferred.wake_at,
        other => panic!("{other:?}"),
    };
    let mut wakes: Vec<Timestamp> = enqueued.iter().map(wake).collect();
    wakes.sort_unstable();
    assert_eq!(wakes, (0..80).map(|nth| at(70 + nth * 60)).collect::<Vec<_>>());
}

/// Eight callers enqueue items of one source at 20, one item a call.
async fn enqueue_at_once(
    backend: &dyn Backend,
    one: &Follower,
    choose: impl Fn(&[ItemId], usize) -> Vec<ItemId>,
) -> Vec<Enqueued> {
    let mut callers = Vec::new();
    for nth in 0..8 {
        let (store, job, items) = (backend.store().await, one.job, choose(&one.items, nth));
        callers.push(async move {
            let mut enqueued = Vec::new();
            for item in items {
                let (wishes, terms) = (vec![wish(item, "a.example")], ScrapeTerms::default());
                let told = store.enqueue_items(job, wishes, Asker::Manual, terms, at(20)).await;
                enqueued.extend(told.unwrap());
            }
            enqueued
        });
    }
    together(callers).await.concat()
}

/// Claims one lane, with its domain and all its tasks.
async fn claim_one_lane(process: &Process, job: JobId) -> (Hold, Vec<TaskId>) {
    let claim = Claim { job, lanes: 1, tasks: 1_000 };
    let lane = process.store.claim(process.holder, claim, at(0)).await.unwrap().remove(0);
    (taken(lane.take).hold, lane.tasks.iter().map(|task| task.id).collect())
}

/// Runs callers that are all ready before the first begins.
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

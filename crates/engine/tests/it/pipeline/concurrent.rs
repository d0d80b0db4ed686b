//! Concurrent runs on one store, and runs that are stopped.

use comity::gate::CloseMode;
use comity::pipeline::{Cadences, RunOptions, RunReport};
use comity::store::StoreError;
use comity::store::sources::{FetchRun, SourceClaim, SourceId};
use comity_core::cadence::last_fetch_at;
use comity_core::time::Timestamp;
use tokio::task::JoinHandle;

use super::{feeds, follow};
use crate::station::{DiskStore, Silent, Station, cadence, mins, quick};
use crate::support::{eventually, reply, soon, waiting};

/// Starts a run in the background.
fn running(station: &Station) -> JoinHandle<Result<RunReport, StoreError>> {
    let (pipeline, options) = (station.pipeline.clone(), station.run_options());
    tokio::spawn(async move { pipeline.run(&options, &Silent).await })
}

/// Whether another process could claim a source.
async fn is_free(station: &Station, source: SourceId) -> bool {
    let other = station.store.register("another".to_owned(), station.now()).await.unwrap();
    let claim = station.store.claim_source(source, other, station.now()).await.unwrap();
    matches!(claim, SourceClaim::Ours(..))
}

/// The last fetch after a row of the log.
fn moved_to(row: &FetchRun) -> Option<Timestamp> {
    last_fetch_at(&serde_json::from_str(&row.cursor_out).unwrap()).unwrap()
}

/// B9, B60. Regression: two processes that ran at the same time fetched every source twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_runs_fetch_each_source_once() {
    let site = feeds(|_| Some(reply(200).body(crate::station::rss("", &["/1"])).after(20))).await;
    let disk = DiskStore::new();
    let (a, b) = (disk.process(&quick("")).await, disk.process(&quick("")).await);
    let mut sources = Vec::new();
    for nth in 0..6 {
        sources.push(follow(&a, &site.url(&format!("/{nth}")), cadence(60)).await);
    }
    let (early, late) = (a.now() - mins(10), b.now());
    let (first, second) = tokio::join!(async { a.run_as(&a.run_options_until(early)).await }, async {
        b.run_as(&b.run_options_until(late)).await
    },);
    let mut asked = site.paths();
    asked.sort();
    assert_eq!(asked, ["/0", "/1", "/2", "/3", "/4", "/5"], "{first:?} {second:?}");
    assert_eq!((first.fetched + second.fetched, first.failed + second.failed), (6, 0));

    // If both fetch a source, the later window counts, no matter which run ends last.
    let forced =
        |station: &Station, end| RunOptions { cadences: Cadences::Ignored, ..station.run_options_until(end) };
    let (first, second) = tokio::join!(async { b.run_as(&forced(&b, b.now())).await }, async {
        a.run_as(&forced(&a, early)).await
    },);
    assert_eq!((first.failed, second.failed), (0, 0));
    for source in sources {
        let mut rows = a.fetches(source).await;
        rows.reverse();
        let reached: Vec<_> = rows.iter().map(moved_to).collect();
        assert!(reached.is_sorted(), "it never moves back: {rows:?}");
        let latest = rows.iter().filter(|row| row.status == "ok").map(|row| row.window_end).max();
        assert_eq!(super::last_fetch_at(&b, source).await, latest);
    }
}

/// When stopped, a run finishes the requests in flight, sends no more, and reports what it fetched.
#[tokio::test]
async fn a_stopped_run_reports_what_it_fetched() {
    let site = feeds(|_| Some(reply(200).body(crate::station::rss("", &["/1"])).after(200))).await;
    let station = Station::start(&quick("")).await;
    let mut sources = Vec::new();
    for (host, path) in [(1, "/a"), (1, "/b"), (2, "/c"), (2, "/d")] {
        sources.push(station.follow(&site.url_on(host, path)).await);
    }
    let run = running(&station);
    eventually("the first requests", || site.asked().len() == 2).await;
    station.pipeline.stop();
    let report = soon("the run", run).await.unwrap().unwrap();
    let counts = (report.due, report.fetched, report.partial, report.held, report.failed, report.new);
    assert_eq!(counts, (2, 2, 0, 0, 0, 2), "{:?}", report.sources);
    let noted: Vec<SourceId> = report.sources.iter().map(|note| note.source).collect();
    assert_eq!(noted, [sources[0], sources[2]]);
    for (source, fetches) in sources.into_iter().zip([1, 0, 1, 0]) {
        assert_eq!(station.fetches(source).await.len(), fetches);
        assert!(is_free(&station, source).await, "the source is released");
    }
    assert_eq!(site.asked().len(), 2);
}

/// A source that is waiting in line is released without being fetched.
#[tokio::test]
async fn a_stopped_run_does_not_wait_in_line() {
    let site = feeds(|_| None).await;
    let station = Station::start(&quick("").replace("10ms", "8s")).await;
    let first = station.follow(&site.url("/first")).await;
    let second = station.follow(&site.url("/second")).await;
    let run = running(&station);
    eventually("the line", || site.asked().len() == 1 && waiting(&station.gate, &site.domain(1)) == 1).await;
    assert!(!is_free(&station, second).await, "it is about to be fetched");
    station.pipeline.stop();
    let report = soon("the run", run).await.unwrap().unwrap();
    assert_eq!((report.due, report.fetched, report.held, report.failed), (1, 1, 0, 0));
    assert_eq!((station.fetches(first).await.len(), station.fetches(second).await.len()), (1, 0));
    assert!(is_free(&station, second).await);
    assert_eq!(site.paths(), ["/first"]);
}

/// B63: if our own gate or store fails, that is not a failure of the source that was waiting in line.
#[tokio::test]
async fn a_closed_store_is_not_a_failure_of_the_source() {
    let site = feeds(|_| None).await;
    let station = Station::start(&quick("").replace("10ms", "8s")).await;
    station.follow(&site.url("/first")).await;
    let second = station.follow(&site.url("/second")).await;
    let run = running(&station);
    eventually("the line", || site.asked().len() == 1 && waiting(&station.gate, &site.domain(1)) == 1).await;
    soon("the end", station.gate.close(CloseMode::Stop)).await.unwrap();
    let error = soon("the run", run).await.unwrap().unwrap_err();
    let after = station.source(second).await;
    assert_eq!((after.failures, after.retry_at, after.error), (0, None, None), "{error}");
    assert_eq!((station.fetches(second).await, site.paths()), (vec![], vec!["/first".to_owned()]));
}

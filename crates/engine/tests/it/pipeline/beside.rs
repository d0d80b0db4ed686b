//! Runs beside each other on one store, and runs that end in the middle.

use comity::gate::HandsOff;
use comity::pipeline::{Cadences, Orders, Report};
use comity::store::StoreError;
use comity::store::sources::{FetchRun, SourceClaim, SourceId};
use comity_core::cadence::last_fetch_at;
use comity_core::time::Timestamp;
use tokio::task::JoinHandle;

use super::{feeds, follow};
use crate::station::{Place, Silent, Station, cadence, mins, quick};
use crate::support::{eventually, reply, soon, waiting};

/// The run, while the test goes on.
fn running(station: &Station) -> JoinHandle<Result<Report, StoreError>> {
    let (pipeline, orders) = (station.pipeline.clone(), station.orders());
    tokio::spawn(async move { pipeline.run(&orders, &Silent).await })
}

/// Whether another process could ask a source.
async fn is_free(station: &Station, source: SourceId) -> bool {
    let other = station.store.register("another".to_owned(), station.now()).await.unwrap();
    let claim = station.store.claim_source(source, other, station.now()).await.unwrap();
    matches!(claim, SourceClaim::Ours(..))
}

/// The last fetch after a row of the log.
fn moved_to(row: &FetchRun) -> Option<Timestamp> {
    last_fetch_at(&serde_json::from_str(&row.cursor_out).unwrap()).unwrap()
}

/// B9, B60: two processes that ran at once asked every source twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runs_at_once_ask_each_source_once() {
    let site = feeds(|_| Some(reply(200).body(crate::station::rss("", &["/1"])).after(20))).await;
    let place = Place::new();
    let (a, b) = (place.process(&quick("")).await, place.process(&quick("")).await);
    let mut sources = Vec::new();
    for nth in 0..6 {
        sources.push(follow(&a, &site.url(&format!("/{nth}")), cadence(60)).await);
    }
    let (early, late) = (a.now() - mins(10), b.now());
    let (first, second) = tokio::join!(async { a.run_as(&a.orders_until(early)).await }, async {
        b.run_as(&b.orders_until(late)).await
    },);
    let mut asked = site.paths();
    asked.sort();
    assert_eq!(asked, ["/0", "/1", "/2", "/3", "/4", "/5"], "{first:?} {second:?}");
    assert_eq!((first.fetched + second.fetched, first.failed + second.failed), (6, 0));

    // Asked by both, whoever ends last: what the later window reached stays.
    let forced = |station: &Station, end| Orders { cadences: Cadences::Ignored, ..station.orders_until(end) };
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

/// A stop finishes what is on the wire, asks nothing more, and tells what was asked.
#[tokio::test]
async fn a_stop_ends_a_run_with_what_was_asked() {
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
    assert_eq!(counts, (2, 2, 0, 0, 0, 2), "{:?}", report.notes);
    let noted: Vec<SourceId> = report.notes.iter().map(|note| note.source).collect();
    assert_eq!(noted, [sources[0], sources[2]]);
    for (source, fetches) in sources.into_iter().zip([1, 0, 1, 0]) {
        assert_eq!(station.fetches(source).await.len(), fetches);
        assert!(is_free(&station, source).await, "nobody waits for who stopped");
    }
    assert_eq!(site.asked().len(), 2);
}

/// The same for a source that stands in line: it does not wait for its turn, and is left to others.
#[tokio::test]
async fn a_stop_ends_a_run_that_stands_in_line() {
    let site = feeds(|_| None).await;
    let station = Station::start(&quick("").replace("10ms", "8s")).await;
    let first = station.follow(&site.url("/first")).await;
    let second = station.follow(&site.url("/second")).await;
    let run = running(&station);
    eventually("the line", || site.asked().len() == 1 && waiting(&station.gate, &site.domain(1)) == 1).await;
    assert!(!is_free(&station, second).await, "it is about to be asked");
    station.pipeline.stop();
    let report = soon("the run", run).await.unwrap().unwrap();
    assert_eq!((report.due, report.fetched, report.held, report.failed), (1, 1, 0, 0));
    assert_eq!((station.fetches(first).await.len(), station.fetches(second).await.len()), (1, 0));
    assert!(is_free(&station, second).await);
    assert_eq!(site.paths(), ["/first"]);
}

/// B63: when our own gate or store goes away, that is no failure of the source that stood in line.
#[tokio::test]
async fn a_store_that_is_closed_is_no_failure_of_the_source() {
    let site = feeds(|_| None).await;
    let station = Station::start(&quick("").replace("10ms", "8s")).await;
    station.follow(&site.url("/first")).await;
    let second = station.follow(&site.url("/second")).await;
    let run = running(&station);
    eventually("the line", || site.asked().len() == 1 && waiting(&station.gate, &site.domain(1)) == 1).await;
    soon("the end", station.gate.close(HandsOff::Stop)).await.unwrap();
    let error = soon("the run", run).await.unwrap().unwrap_err();
    let after = station.source(second).await;
    assert_eq!((after.failures, after.retry_at, after.error), (0, None, None), "{error}");
    assert_eq!((station.fetches(second).await, site.paths()), (vec![], vec!["/first".to_owned()]));
}

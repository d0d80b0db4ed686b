//! Continuous runs: sleeping exactly until a source is due.

use std::sync::{Arc, Mutex};

use comity::clock::Clock;
use comity::pipeline::{Pipeline, RunListener, RunOptions, RunReport, Scraping};
use comity_core::time::{Span, Timestamp};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{feeds, follow, was_read};
use crate::station::{Station, cadence, quick};
use crate::support::{eventually, ms, soon};

/// Records the calls of a listener.
#[derive(Default)]
struct Recorder {
    ran: Mutex<Vec<RunReport>>,
    sleeps: Mutex<Vec<Option<Timestamp>>>,
}

impl RunListener for Recorder {
    fn run_done(&self, report: &RunReport) {
        self.ran.lock().unwrap().push(report.clone());
    }

    fn sleeping(&self, until: Option<Timestamp>) {
        self.sleeps.lock().unwrap().push(until);
    }
}

struct Watch {
    recorder: Arc<Recorder>,
    pipeline: Pipeline,
    watching: JoinHandle<()>,
}

impl Watch {
    fn start(station: &Station) -> Self {
        Self::of(station, station.run_options())
    }

    fn of(station: &Station, options: RunOptions) -> Self {
        let recorder = Arc::new(Recorder::default());
        let (pipeline, listener) = (station.pipeline.clone(), recorder.clone());
        let watching = tokio::spawn(async move { pipeline.watch(&options, listener).await.unwrap() });
        Self { recorder, pipeline: station.pipeline.clone(), watching }
    }

    fn runs(&self) -> usize {
        self.recorder.ran.lock().unwrap().len()
    }

    fn sleeps(&self) -> Vec<Option<Timestamp>> {
        self.recorder.sleeps.lock().unwrap().clone()
    }

    /// Stops it, which must not take long.
    async fn end(self) {
        self.pipeline.stop();
        soon("a watch that is stopped", self.watching).await.unwrap();
    }
}

/// B59, B66: nothing is fetched before it is due, and soon afterwards; jitter only adds.
#[tokio::test]
async fn a_watch_sleeps_until_a_source_is_due() {
    let site = feeds(|_| None).await;
    let station = Station::start(&quick("")).await;
    let config = json!({ "cadence": { "mode": "interval", "every_minutes": 0.1 } });
    let source = follow(&station, &site.url("/feed"), config).await;
    let far = follow(&station, &site.url("/far"), cadence(60)).await;
    let last = station.now() - ms(5_000);
    was_read(&station, source, last, json!({})).await;
    was_read(&station, far, last, json!({})).await;
    let due_at = last + Span::from_secs(6);
    let watch = Watch::start(&station);
    eventually("sleep", || !watch.sleeps().is_empty()).await;
    let Some(until) = watch.sleeps()[0] else { panic!("there is a due time") };
    assert!(until >= due_at && until <= due_at + ms(600), "{until} for {due_at}");
    eventually("the run", || watch.runs() == 1).await;
    let asked = site.asked();
    assert_eq!(asked.len(), 1, "the other one is not due");
    assert!(asked[0].at + ms(1) >= until, "not before");
    let report = watch.recorder.ran.lock().unwrap()[0].clone();
    assert_eq!((report.fetched, report.sources.len()), (1, 1));
    assert!(report.window_end >= until);
    watch.end().await;
}

/// A source that was never fetched is fetched at once, and then the watch sleeps, also without a cadence.
#[tokio::test]
async fn a_watch_fetches_new_sources_at_once_and_does_not_spin() {
    let site = feeds(|asked| (asked.path == "/fails").then(|| crate::support::reply(500))).await;
    let station = Station::start(&quick("")).await;
    let unpaced = station.follow(&site.url("/unpaced")).await;
    let fails = station.follow(&site.url_on(2, "/fails")).await;
    let watch = Watch::start(&station);
    eventually("sleep", || !watch.sleeps().is_empty()).await;
    assert_eq!((watch.runs(), site.asked().len()), (1, 2));
    let next = watch.sleeps()[0].unwrap();
    assert_eq!(Some(next).max(station.source(fails).await.retry_at), Some(next), "the time of the retry");
    assert!(next.since(station.now()) > Span::from_secs(290), "{next}");
    let _ = unpaced;
    watch.end().await;
    assert_eq!(site.asked().len(), 2);
}

/// A source added by another process is fetched soon, without any polling by requests.
#[tokio::test]
async fn a_watch_picks_up_sources_added_by_others() {
    let site = feeds(|_| None).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("comity.db").display());
    let open = || comity::store::open(&url).unwrap();
    let station = Station::with(&quick(""), open(), Clock::new()).await;
    let watch = Watch::start(&station);
    eventually("sleep", || watch.sleeps() == [None]).await;
    let other = Station::with(&quick(""), open(), Clock::new()).await;
    other.follow(&site.url("/feed")).await;
    let added_at = other.now();
    soon("the run", async {
        while watch.runs() == 0 {
            crate::support::a_moment().await
        }
    })
    .await;
    assert_eq!(site.paths(), ["/feed"]);
    assert!(site.asked()[0].at.since(added_at) < Span::from_secs(60));
    watch.end().await;
}

/// When stopped, a watch finishes the requests in flight and sends no more.
#[tokio::test]
async fn a_watch_can_be_stopped_during_a_run() {
    let site = feeds(|asked| (asked.path == "/slow").then(|| crate::support::reply(500).after(500))).await;
    let station = Station::start(&quick("")).await;
    let slow = station.follow(&site.url("/slow")).await;
    let other = station.follow(&site.url("/other")).await;
    let watch = Watch::start(&station);
    eventually("the request", || site.asked().len() == 1).await;
    watch.end().await;
    assert_eq!(station.source(slow).await.failures, 1, "its response was waited for");
    assert_eq!((site.paths(), station.fetches(other).await.len()), (vec!["/slow".to_owned()], 0));
}

/// B10
#[tokio::test]
async fn a_slow_host_does_not_delay_others() {
    let slow = feeds(|_| Some(crate::support::reply(200).after(5_000))).await;
    let site = feeds(|_| None).await;
    let station = Station::start(&quick("")).await;
    station.follow(&slow.url("/feed")).await;
    let watch = Watch::start(&station);
    eventually("the slow request", || slow.asked().len() == 1).await;
    let config = json!({ "cadence": { "mode": "interval", "every_minutes": 0.01 } });
    follow(&station, &site.url("/feed"), config).await;
    eventually("the others", || site.asked().len() >= 2).await;
    assert_eq!(slow.asked().len(), 1);
    station.pipeline.stop();
    drop(watch);
}

/// B61: a source on a held domain is not checked again and again.
#[tokio::test]
async fn a_watch_does_not_poll_a_held_domain() {
    let site = feeds(|asked| {
        (asked.path == "/full").then(|| crate::support::reply(429).header("retry-after", "100"))
    })
    .await;
    let station = Station::start(&quick("")).await;
    station.follow(&site.url("/full")).await;
    let other = station.follow(&site.url("/other")).await;
    let watch = Watch::start(&station);
    eventually("sleep", || !watch.sleeps().is_empty()).await;
    let next = watch.sleeps()[0].unwrap();
    let wait = next.since(station.now());
    assert!(wait > Span::from_secs(30) && wait <= Span::from_secs(60), "for a while: {wait}");
    assert_eq!((watch.runs(), station.fetches(other).await.len()), (1, 1));
    watch.end().await;
    assert_eq!(site.paths(), ["/full"]);
}

/// B57. Regression: items found before a watch started, or without room, waited until their source was due again.
#[tokio::test]
async fn a_watch_scrapes_items_found_before() {
    let site = feeds(|_| None).await;
    let toml = quick("[scrape]\nmin_interval = 0\nmax_in_flight_per_source = 1\n");
    let station = Station::start(&toml).await;
    let source = follow(&station, &site.url("/feed"), cadence(60)).await;
    was_read(&station, source, station.now(), json!({})).await;
    let urls: Vec<String> = (1..=4).map(|page| site.url(&format!("/{page}"))).collect();
    station.found(source, &urls).await;
    station.pipeline.pool().set_filling(true);
    let scraping = station.scraping();
    let watch = Watch::of(&station, RunOptions { scraping: Scraping::On, ..station.run_options() });
    soon("the scrapes", async {
        while station.states(source).await != "done done done done" {
            crate::support::a_moment().await
        }
    })
    .await;
    assert_eq!((site.paths(), watch.runs()), (["/1", "/2", "/3", "/4"].map(str::to_owned).to_vec(), 0));
    watch.end().await;
    station.pipeline.pool().stop();
    soon("the stop", scraping).await.unwrap();
}

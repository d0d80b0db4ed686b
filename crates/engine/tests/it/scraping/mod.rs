//! Scraping items: the row written before the request, and the interval between the scrapes of a source.
//!
//! - this file: one process
//! - `outcomes`: the outcomes of scrapes
//! - `pools`: several pools, one after the other and at the same time

mod outcomes;
mod pools;

use std::sync::{Arc, Mutex, OnceLock};

use comity::jobs::StopReason;
use comity::pipeline::LimitReached;
use comity::store::Store;
use comity::store::items::{ItemId, ItemState, ScrapeLog, ScrapeRequest, ScrapeTerms};
use comity::store::sources::{Kind, SourceChange};
use comity_core::enqueue::{Enqueued, Refusal, Trigger};
use comity_core::interval::SourceInterval;
use comity_core::task::JobState;
use comity_core::time::{Span, Timestamp};
use serde_json::json;

use crate::station::{Station, every, quick};
use crate::support::{Asked, Site, eventually, ms, reply, soon};

/// The URLs of this many pages of a site.
fn pages(site: &Site, count: usize) -> Vec<String> {
    (1..=count).map(|page| site.url(&format!("/{page}"))).collect()
}

/// Runs a query to the store while a site handles a request.
fn at_once<T: Send>(query: impl Future<Output = T> + Send) -> T {
    let run = || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(query);
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Adds tasks for items directly, without the checks of the pipeline, like older versions and other programs.
async fn put(station: &Station, items: &[ItemId]) {
    let mut requests = Vec::new();
    for item in items {
        let url = url::Url::parse(&station.item(*item).await.url).unwrap();
        requests.push(ScrapeRequest { item: *item, domain: comity_core::domain::Domain::of(&url).unwrap() });
    }
    let job = station.pipeline.job().id;
    let terms = ScrapeTerms::default();
    let put =
        station.store.enqueue_items(job, requests, Trigger::Manual, terms, station.now()).await.unwrap();
    assert!(put.iter().all(|result| *result == Enqueued::Enqueued), "{put:?}");
}

/// B51: the row is committed when the request arrives; a deferred task has none, and sends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_row_is_written_before_the_request_is_sent() {
    type Observations = Vec<(Vec<ScrapeLog>, Vec<ScrapeLog>, Option<ItemState>, Timestamp)>;
    let look: Arc<OnceLock<(Arc<dyn Store>, comity::clock::Clock)>> = Arc::default();
    let seen: Arc<Mutex<Observations>> = Arc::default();
    let (theirs, noted) = (look.clone(), seen.clone());
    let site = Site::start(move |asked: &Asked| {
        let (store, clock) = theirs.get().unwrap();
        let arrived_at = clock.now();
        let (this, other) = if asked.path == "/1" { (1, 2) } else { (2, 1) };
        let rows = |item| at_once(store.list_scrapes(ItemId(item), 10)).unwrap();
        let state = at_once(store.find_item(ItemId(this))).unwrap().map(|item| item.state);
        noted.lock().unwrap().push((rows(this), rows(other), state, arrived_at));
        reply(200)
    })
    .await;
    let station = Station::start(&every("0.4", "")).await;
    look.set((station.store.clone(), station.gate.clock().clone())).unwrap_or_else(|_| unreachable!());
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    assert_eq!(items, [ItemId(1), ItemId(2)]);
    station.enqueue(&items).await;
    assert_eq!(station.scrape().await, StopReason::Idle);
    let seen = seen.lock().unwrap();
    assert_eq!((site.paths(), seen.len()), (vec!["/1".to_owned(), "/2".to_owned()], 2));
    for (rows, _, state, arrived_at) in seen.iter() {
        let [row] = &rows[..] else { panic!("one row, not {rows:?}") };
        assert_eq!((row.ended_at, row.status.as_str()), (None, "running"));
        assert!(row.started_at <= *arrived_at, "{} is after {arrived_at}", row.started_at);
        assert_eq!(*state, Some(ItemState::Running));
    }
    assert_eq!(station.deferrals().len(), 1, "the second was deferred while the first was running");
    assert_eq!(seen[0].1, [], "and had no row");
    assert_eq!(seen[1].1.len(), 1);
}

/// B52, B53, B55, B73: four items that are ready at once are spaced by the workers.
#[tokio::test]
async fn items_of_one_source_are_scraped_an_interval_apart() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0.5", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 4)).await;
    assert_eq!(station.enqueue(&items).await, [Enqueued::Enqueued; 4], "there were no scrapes yet");
    let scraping = station.scraping();
    eventually("three deferrals", || station.deferrals().len() == 3).await;
    let now = station.now();
    let waiting: Vec<_> =
        station.items(source).await.into_iter().filter(|item| item.state == ItemState::Waiting).collect();
    assert_eq!(waiting.len(), 3);
    let mut wakes: Vec<_> = waiting.iter().map(|item| item.wake_at.unwrap()).collect();
    assert!(wakes.iter().all(|wake| *wake > now && wake.since(now) <= ms(3_000)), "{now}: {wakes:?}");
    wakes.sort();
    assert!(wakes.windows(2).all(|two| two[1].since(two[0]) >= ms(500)), "they wake apart: {wakes:?}");
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
    assert_eq!(station.states(source).await, "done done done done");
    let gaps = site.gaps(1);
    assert_eq!(gaps.len(), 3);
    assert!(gaps.iter().all(|gap| *gap >= ms(490)), "{gaps:?}");
    let deferred = station.gate.events().counters().deferred.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(deferred, station.deferrals().len() as u64);
    let started_at = station.scrapes(items[0]).await[0].started_at;
    for (nth, deferral) in station.deferrals().iter().take(3).enumerate() {
        assert_eq!((deferral.interval, deferral.last_scrape_at), (ms(500), Some(started_at)));
        let asked_at = deferral.wake_at - Span::from_secs(deferral.wait_seconds);
        assert_eq!(deferral.elapsed, asked_at.since(started_at));
        assert_eq!(deferral.wait_seconds, [1, 2, 3][nth]);
        let text = deferral.to_string();
        // Rounded down to hundredths of a second.
        let ago = match deferral.elapsed.as_micros() / 10_000 {
            0 => "0 s".to_owned(),
            hundredths => format!("{} ms", hundredths * 10),
        };
        let end = format!("the interval is 500 ms: deferred for {} s", deferral.wait_seconds);
        assert!(text.starts_with(&format!("scraped {ago} ago, ")) && text.ends_with(&end), "{text}");
    }
}

/// B53: however it was enqueued, a task that runs too soon is deferred and sends nothing.
#[tokio::test]
async fn a_task_that_runs_too_soon_is_deferred() {
    let site = Site::start(|_| reply(200)).await;
    let toml = every("0.8", "");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items[..1]).await;
    assert_eq!(station.scrape().await, StopReason::Idle);
    put(&station, &items[1..]).await;
    assert_eq!(station.item(items[1]).await.wake_at, None, "no wake time was reserved");
    let station = station.again(&toml).await;
    let scraping = station.scraping();
    eventually("the deferral", || station.deferrals().len() == 1).await;
    assert_eq!(site.asked().len(), 1, "nothing was sent");
    let item = station.item(items[1]).await;
    assert_eq!(item.state, ItemState::Waiting, "and it does not run");
    assert_eq!(item.wake_at, Some(station.deferrals()[0].wake_at));
    assert_eq!(station.scrapes(items[1]).await, []);
    assert_eq!(soon("the scrape", scraping).await.unwrap(), StopReason::Idle);
    assert!(site.gaps(1)[0] >= ms(790), "{:?}", site.gaps(1));
    assert_eq!(station.states(source).await, "done done");
    assert_eq!((station.job().await.counts.done, station.job().await.counts.retries), (2, 0));
}

/// B52, E10: items are deferred by whole seconds, measured from the last reserved wake time.
#[tokio::test]
async fn enqueuing_reserves_wake_times_and_reports_correct_numbers() {
    let site = Site::start(|_| reply(200)).await;
    let toml = every("2.5", "");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 4)).await;
    station.enqueue(&items[..1]).await;
    station.scrape().await;
    let last_scrape_at = station.scrapes(items[0]).await[0].started_at;
    let mut from = last_scrape_at;
    for (result, item) in station.enqueue(&items[1..]).await.iter().zip(&items[1..]) {
        let Enqueued::Deferred(deferred) = result else { panic!("{result}") };
        let now = deferred.wake_at - Span::from_secs(deferred.wait_seconds);
        assert_eq!((deferred.interval, deferred.last_scrape_at), (ms(2_500), Some(last_scrape_at)));
        assert_eq!(deferred.elapsed, now.since(last_scrape_at));
        assert_eq!(deferred.wait_seconds, (from + ms(2_500)).since(now).as_secs_up());
        assert_eq!(station.item(*item).await.wake_at, Some(deferred.wake_at));
        from = deferred.wake_at;
    }
    assert_eq!(site.asked().len(), 1);
}

/// B50
#[tokio::test]
async fn a_sources_own_interval_overrides_the_global_one() {
    let own = |span| SourceInterval::Every(span);
    for (global, interval, effective) in [
        ("30", SourceInterval::Off, None),
        ("0", SourceInterval::Default, None),
        ("0", own(ms(600)), Some(ms(600))),
        ("0.6", SourceInterval::Default, Some(ms(600))),
        ("30", own(ms(600)), Some(ms(600))),
        ("0.3", own(ms(700)), Some(ms(700))),
    ] {
        let site = Site::start(|_| reply(200)).await;
        let station = Station::start(&every(global, "")).await;
        let source = station.follow_as(&site.url("/feed"), Kind::Feed, interval, json!({})).await;
        let items = station.found(source, &pages(&site, 2)).await;
        station.enqueue(&items).await;
        assert_eq!(station.scrape().await, StopReason::Idle);
        let (gap, deferrals) = (site.gaps(1)[0], station.deferrals());
        match effective {
            Some(interval) => {
                assert!(gap + ms(10) >= interval, "{global} {interval}: {gap}");
                assert_eq!(
                    deferrals.iter().map(|deferred| deferred.interval).collect::<Vec<_>>(),
                    [interval]
                );
            }
            None => assert_eq!(deferrals, [], "{global}: {gap}"),
        }
    }
}

/// B50: without its own interval, a source uses the global one again.
#[tokio::test]
async fn an_interval_that_was_removed_no_longer_applies() {
    let site = Site::start(|_| reply(200)).await;
    let toml = every("0", "");
    let station = Station::start(&toml).await;
    let hour = SourceInterval::Every(Span::from_hours(1));
    let source = station.follow_as(&site.url("/feed"), Kind::Feed, hour, json!({})).await;
    let items = station.found(source, &pages(&site, 3)).await;
    station.enqueue(&items[..1]).await;
    assert_eq!(station.scrape().await, StopReason::Idle);
    let results = station.enqueue(&items[1..2]).await;
    assert!(
        matches!(results[..], [Enqueued::Deferred(deferred)] if deferred.wait_seconds == 3_600),
        "{results:?}"
    );
    let change = SourceChange { interval: Some(SourceInterval::Default), ..SourceChange::default() };
    station.change(source, change).await;
    assert_eq!(station.enqueue(&items[2..]).await, [Enqueued::Enqueued]);
}

/// B54
#[tokio::test]
async fn an_item_that_is_waiting_deferred_or_running_gets_no_second_task() {
    let site = Site::start(|_| reply(200).after(300)).await;
    let station = Station::start(&every("1", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    assert_eq!(station.enqueue(&items).await, [Enqueued::Enqueued; 2]);
    assert_eq!(station.enqueue(&items).await, [Enqueued::Already; 2], "waiting");
    let scraping = station.scraping();
    eventually("one running, one deferred", || site.asked().len() == 1 && station.deferrals().len() == 1)
        .await;
    assert_eq!(station.states(source).await, "running waiting");
    assert_eq!(station.enqueue(&items).await, [Enqueued::Already; 2], "running and deferred");
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
    assert_eq!((site.paths(), station.job().await.counts.tasks), (vec!["/1".to_owned(), "/2".to_owned()], 2));
}

/// B56, B57: enqueuing stops at the limit and reports it, and the rest is enqueued when there is room.
#[tokio::test]
async fn a_source_does_not_exceed_its_in_flight_limit() {
    let site = Site::start(|_| reply(200).after(20)).await;
    let toml = quick("in_flight = \"unlimited\"\n[scrape]\nmin_interval = 0\nmax_in_flight_per_source = 2\n");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 5)).await;
    let enqueued = station.pipeline.enqueue_unscraped(Some(source)).await.unwrap();
    let full = Enqueued::Refused(Refusal::InFlightMax { in_flight: 2, max: 2 });
    let results: Vec<_> = enqueued.results.iter().map(|(_, result)| *result).collect();
    assert_eq!(results, [Enqueued::Enqueued, Enqueued::Enqueued, full], "a full source is reported once");
    assert_eq!(enqueued.limit_reached, Some(LimitReached::InFlight));
    assert_eq!(full.to_string(), "2 items of the source are waiting or running, and at most 2 may");
    assert_eq!(station.states(source).await, "waiting waiting none none none");
    station.pipeline.pool().set_filling(true);
    let scraping = station.scraping();
    let rest = soon("the rest", station.pipeline.enqueue_all_pending(&station.run_options())).await.unwrap();
    assert_eq!((rest.enqueued, rest.deferred), (3, 0));
    station.pipeline.pool().set_filling(false);
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
    assert_eq!(station.states(source).await, "done done done done done");
    assert!(site.most_in_flight(1) <= 2, "{}", site.most_in_flight(1));
    assert_eq!(site.asked().len(), items.len());
}

/// B57: at most one batch at a time.
#[tokio::test]
async fn a_bulk_enqueue_is_limited_to_a_batch() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&quick("[scrape]\nmin_interval = 0\nmax_bulk_batch_size = 3\n")).await;
    let source = station.follow(&site.url("/feed")).await;
    station.found(source, &pages(&site, 5)).await;
    for (count, left) in [(3, Some(LimitReached::Batch)), (2, None), (0, None)] {
        let enqueued = station.pipeline.enqueue_unscraped(None).await.unwrap();
        assert_eq!((enqueued.results.len(), enqueued.limit_reached), (count, left));
        assert!(enqueued.results.iter().all(|(_, result)| *result == Enqueued::Enqueued));
    }
    assert_eq!(site.asked().len(), 0);
}

/// B58: items of sources that were disabled or removed after enqueuing are skipped, and the others continue.
#[tokio::test]
async fn items_of_sources_disabled_in_the_meantime_are_skipped() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0", "")).await;
    let mut sources = Vec::new();
    for name in ["disabled", "unscraped", "removed", "kept"] {
        let source = station.follow(&site.url(&format!("/{name}/feed"))).await;
        let urls = [1, 2].map(|page| site.url(&format!("/{name}/{page}")));
        let items = station.found(source, &urls).await;
        assert_eq!(station.enqueue(&items).await, [Enqueued::Enqueued; 2]);
        sources.push((source, items));
    }
    station.change(sources[0].0, SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    station.change(sources[1].0, SourceChange { scraping: Some(false), ..SourceChange::default() }).await;
    assert!(station.store.remove_source(sources[2].0).await.unwrap());
    assert_eq!(station.scrape().await, StopReason::Idle);
    assert_eq!(site.paths(), ["/kept/1", "/kept/2"]);
    assert_eq!(station.states(sources[0].0).await, "none none", "as if never enqueued");
    assert_eq!(station.states(sources[1].0).await, "none none");
    assert_eq!(station.items(sources[2].0).await, []);
    assert_eq!(station.states(sources[3].0).await, "done done");
    let job = station.job().await;
    assert_eq!((job.state, job.counts.skipped, job.counts.done), (JobState::Running, 6, 2));
    for (_, items) in &sources[..2] {
        assert_eq!(station.scrapes(items[0]).await, [], "no row, so no interval starts");
    }
    let change = SourceChange { enabled: Some(true), ..SourceChange::default() };
    station.change(sources[0].0, change).await;
    assert_eq!(station.enqueue(&sources[0].1).await, [Enqueued::Enqueued; 2], "it can be enqueued again");
}

/// B58: also if the source is disabled while a task is deferred.
#[tokio::test]
async fn a_deferred_task_is_skipped_if_its_source_is_disabled() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0.7", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items).await;
    let scraping = station.scraping();
    eventually("the deferral", || station.deferrals().len() == 1).await;
    station.change(source, SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
    assert_eq!(site.paths(), ["/1"]);
    assert_eq!(station.states(source).await, "done none");
    assert_eq!(station.item(items[1]).await.wake_at, None);
}

/// B58. Regression: robots.txt was fetched for items that are no longer to be scraped.
#[tokio::test]
async fn no_request_is_sent_for_a_disabled_source() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0", "").replace("\"ignore\"", "\"obey\"")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items).await;
    station.change(source, SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(station.scrape().await, StopReason::Idle);
    assert_eq!((site.paths(), station.states(source).await.as_str()), (vec![], "none none"));
}

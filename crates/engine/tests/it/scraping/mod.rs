//! Scrapes of items: the row that stands before the request leaves, and the interval between those of a source.
//!
//! - here: one process
//! - `ends`: how a scrape can end
//! - `pools`: several workers, one after the other and beside each other

mod ends;
mod pools;

use std::sync::{Arc, Mutex, OnceLock};

use comity::jobs::Ended;
use comity::pipeline::Left;
use comity::store::Store;
use comity::store::items::{ItemId, ItemState, ScrapeLog, ScrapeTerms, Wish};
use comity::store::sources::{Kind, SourceChange};
use comity_core::enqueue::{Asker, Enqueued, Refusal};
use comity_core::interval::SourceInterval;
use comity_core::task::JobState;
use comity_core::time::{Span, Timestamp};
use serde_json::json;

use crate::station::{Station, every, quick};
use crate::support::{Asked, Site, eventually, ms, reply, soon};

/// So many pages of a site.
fn pages(site: &Site, count: usize) -> Vec<String> {
    (1..=count).map(|page| site.url(&format!("/{page}"))).collect()
}

/// What a store says while a site answers.
fn at_once<T: Send>(asking: impl Future<Output = T> + Send) -> T {
    let run = || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(asking);
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Puts items into the job past the enqueuer, as older versions and other hands do.
async fn put(station: &Station, items: &[ItemId]) {
    let mut wishes = Vec::new();
    for item in items {
        let url = url::Url::parse(&station.item(*item).await.url).unwrap();
        wishes.push(Wish { item: *item, domain: comity_core::domain::Domain::of(&url).unwrap() });
    }
    let job = station.pipeline.job().id;
    let terms = ScrapeTerms::default();
    let put = station.store.enqueue_items(job, wishes, Asker::Manual, terms, station.now()).await.unwrap();
    assert!(put.iter().all(|result| *result == Enqueued::Enqueued), "{put:?}");
}

/// B51: the row is committed when the request arrives; a task that was put off has none, and sent nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_row_stands_before_the_request_leaves() {
    type Seen = Vec<(Vec<ScrapeLog>, Vec<ScrapeLog>, Option<ItemState>, Timestamp)>;
    let look: Arc<OnceLock<(Arc<dyn Store>, comity::clock::Clock)>> = Arc::default();
    let seen: Arc<Mutex<Seen>> = Arc::default();
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
    assert_eq!(station.scrape().await, Ended::Idle);
    let seen = seen.lock().unwrap();
    assert_eq!((site.paths(), seen.len()), (vec!["/1".to_owned(), "/2".to_owned()], 2));
    for (rows, _, state, arrived_at) in seen.iter() {
        let [row] = &rows[..] else { panic!("one row, not {rows:?}") };
        assert_eq!((row.ended_at, row.status.as_str()), (None, "running"));
        assert!(row.started_at <= *arrived_at, "{} is after {arrived_at}", row.started_at);
        assert_eq!(*state, Some(ItemState::Running));
    }
    assert_eq!(station.deferrals().len(), 1, "the second was put off while the first was under way");
    assert_eq!(seen[0].1, [], "and has no row for that");
    assert_eq!(seen[1].1.len(), 1);
}

/// B52, B53, B55, B73: four items that nobody spaced are spaced by the workers.
#[tokio::test]
async fn items_of_one_source_are_scraped_an_interval_apart() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0.5", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 4)).await;
    assert_eq!(station.enqueue(&items).await, [Enqueued::Enqueued; 4], "there was no scrape yet");
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
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), Ended::Idle);
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
        let told = format!("the interval is 0.5s: deferred for {}s", deferral.wait_seconds);
        assert!(text.starts_with("scraped 0") && text.ends_with(&told), "{text}");
    }
}

/// B53: however it was enqueued, a task that runs too soon puts itself off and asks nothing.
#[tokio::test]
async fn a_task_that_nobody_spaced_puts_itself_off() {
    let site = Site::start(|_| reply(200)).await;
    let toml = every("0.8", "");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items[..1]).await;
    assert_eq!(station.scrape().await, Ended::Idle);
    put(&station, &items[1..]).await;
    assert_eq!(station.item(items[1]).await.wake_at, None, "nobody reserved a wake");
    let station = station.again(&toml).await;
    let scraping = station.scraping();
    eventually("the deferral", || station.deferrals().len() == 1).await;
    assert_eq!(site.asked().len(), 1, "nothing was sent");
    let item = station.item(items[1]).await;
    assert_eq!(item.state, ItemState::Waiting, "and it does not run");
    assert_eq!(item.wake_at, Some(station.deferrals()[0].wake_at));
    assert_eq!(station.scrapes(items[1]).await, []);
    assert_eq!(soon("the scrape", scraping).await.unwrap(), Ended::Idle);
    assert!(site.gaps(1)[0] >= ms(790), "{:?}", site.gaps(1));
    assert_eq!(station.states(source).await, "done done");
    assert_eq!((station.job().await.counts.done, station.job().await.counts.retries), (2, 0));
}

/// B52, E10: the enqueuer puts off by whole seconds, measured from the last wake it reserved.
#[tokio::test]
async fn the_enqueuer_reserves_wakes_and_tells_true_numbers() {
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
async fn a_sources_own_interval_comes_before_the_global_one() {
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
        assert_eq!(station.scrape().await, Ended::Idle);
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

/// B50: back to the global one.
#[tokio::test]
async fn an_interval_that_is_taken_back_counts_no_more() {
    let site = Site::start(|_| reply(200)).await;
    let toml = every("0", "");
    let station = Station::start(&toml).await;
    let hour = SourceInterval::Every(Span::from_hours(1));
    let source = station.follow_as(&site.url("/feed"), Kind::Feed, hour, json!({})).await;
    let items = station.found(source, &pages(&site, 3)).await;
    station.enqueue(&items[..1]).await;
    assert_eq!(station.scrape().await, Ended::Idle);
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
async fn what_waits_is_deferred_or_runs_gets_no_second_task() {
    let site = Site::start(|_| reply(200).after(300)).await;
    let station = Station::start(&every("1", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    assert_eq!(station.enqueue(&items).await, [Enqueued::Enqueued; 2]);
    assert_eq!(station.enqueue(&items).await, [Enqueued::Already; 2], "waiting");
    let scraping = station.scraping();
    eventually("one under way, one put off", || site.asked().len() == 1 && station.deferrals().len() == 1)
        .await;
    assert_eq!(station.states(source).await, "running waiting");
    assert_eq!(station.enqueue(&items).await, [Enqueued::Already; 2], "running and deferred");
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), Ended::Idle);
    assert_eq!((site.paths(), station.job().await.counts.tasks), (vec!["/1".to_owned(), "/2".to_owned()], 2));
}

/// B56, B57: it stops at the cap with true numbers, and what is left comes as there is room.
#[tokio::test]
async fn a_source_has_no_more_in_flight_than_it_may() {
    let site = Site::start(|_| reply(200).after(20)).await;
    let toml = quick("in_flight = \"unlimited\"\n[scrape]\nmin_interval = 0\nmax_in_flight_per_source = 2\n");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 5)).await;
    let by_hand = station.pipeline.enqueue_unscraped(Some(source)).await.unwrap();
    let full = Enqueued::Refused(Refusal::InFlightMax { in_flight: 2, max: 2 });
    let results: Vec<_> = by_hand.results.iter().map(|(_, result)| *result).collect();
    assert_eq!(results, [Enqueued::Enqueued, Enqueued::Enqueued, full], "a source that is full says so once");
    assert_eq!(by_hand.left, Some(Left::Full));
    assert_eq!(full.to_string(), "2 items of the source wait or run, and at most 2 may");
    assert_eq!(station.states(source).await, "waiting waiting none none none");
    station.pipeline.pool().set_filling(true);
    let scraping = station.scraping();
    let rest = soon("the rest", station.pipeline.enqueue_rest(&station.orders())).await.unwrap();
    assert_eq!((rest.enqueued, rest.deferred), (3, 0));
    station.pipeline.pool().set_filling(false);
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), Ended::Idle);
    assert_eq!(station.states(source).await, "done done done done done");
    assert!(site.most_in_flight(1) <= 2, "{}", site.most_in_flight(1));
    assert_eq!(site.asked().len(), items.len());
}

/// B57: no more than a batch at a time.
#[tokio::test]
async fn a_bulk_enqueue_takes_a_batch() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&quick("[scrape]\nmin_interval = 0\nmax_bulk_batch_size = 3\n")).await;
    let source = station.follow(&site.url("/feed")).await;
    station.found(source, &pages(&site, 5)).await;
    for (count, left) in [(3, Some(Left::Batch)), (2, None), (0, None)] {
        let by_hand = station.pipeline.enqueue_unscraped(None).await.unwrap();
        assert_eq!((by_hand.results.len(), by_hand.left), (count, left));
        assert!(by_hand.results.iter().all(|(_, result)| *result == Enqueued::Enqueued));
    }
    assert_eq!(site.asked().len(), 0);
}

/// B58: what was disabled, or is gone, between enqueue and run is left alone, and the rest goes on.
#[tokio::test]
async fn sources_that_went_meanwhile_are_left_alone() {
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
    assert_eq!(station.scrape().await, Ended::Idle);
    assert_eq!(site.paths(), ["/kept/1", "/kept/2"]);
    assert_eq!(station.states(sources[0].0).await, "none none", "as if never enqueued");
    assert_eq!(station.states(sources[1].0).await, "none none");
    assert_eq!(station.items(sources[2].0).await, []);
    assert_eq!(station.states(sources[3].0).await, "done done");
    let job = station.job().await;
    assert_eq!((job.state, job.counts.skipped, job.counts.done), (JobState::Running, 6, 2));
    for (_, items) in &sources[..2] {
        assert_eq!(station.scrapes(items[0]).await, [], "no row, so no interval begins");
    }
    let change = SourceChange { enabled: Some(true), ..SourceChange::default() };
    station.change(sources[0].0, change).await;
    assert_eq!(station.enqueue(&sources[0].1).await, [Enqueued::Enqueued; 2], "it can be enqueued again");
}

/// B58: also when it goes while a task of it is put off.
#[tokio::test]
async fn a_source_that_is_disabled_while_a_task_is_put_off_is_left_alone() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0.7", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items).await;
    let scraping = station.scraping();
    eventually("the deferral", || station.deferrals().len() == 1).await;
    station.change(source, SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), Ended::Idle);
    assert_eq!(site.paths(), ["/1"]);
    assert_eq!(station.states(source).await, "done none");
    assert_eq!(station.item(items[1]).await.wake_at, None);
}

/// B58: robots.txt of a site was asked for on behalf of items that are not to be scraped any more.
#[tokio::test]
async fn nothing_is_asked_of_a_site_for_a_source_that_was_disabled() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0", "").replace("\"ignore\"", "\"obey\"")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items).await;
    station.change(source, SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(station.scrape().await, Ended::Idle);
    assert_eq!((site.paths(), station.states(source).await.as_str()), (vec![], "none none"));
}

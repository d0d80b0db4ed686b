//! Several pools on one store, one after the other and in several processes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comity::jobs::StopReason;
use comity::store::items::ItemId;
use comity_core::intent::Intent;
use comity_core::task::JobState;
use comity_core::time::Span;

use super::{pages, put};
use crate::station::{DiskStore, Station, every, quick};
use crate::support::{Site, eventually, ms, reply, soon, success};

/// B9, B51, B53: a scrape is deferred because of one that another process started.
#[tokio::test]
async fn the_scrape_of_one_process_defers_that_of_another() {
    let (disk, site) = (DiskStore::new(), Site::start(|_| reply(200).after(200)).await);
    let toml = every("0.6", "");
    let (a, b) = (disk.process(&toml).await, disk.process(&toml).await);
    let source = a.follow(&site.url("/feed")).await;
    let items = a.found(source, &[1, 2].map(|host| site.url_on(host, "/page"))).await;
    put(&a, &items[..1]).await;
    let first = a.scraping();
    eventually("the first request", || site.asked().len() == 1).await;
    put(&b, &items[1..]).await;
    let second = b.scraping();
    eventually("the deferral", || b.deferrals().len() == 1).await;
    assert_eq!((site.asked().len(), a.deferrals()), (1, vec![]));
    assert_eq!(soon("the first", first).await.unwrap(), StopReason::Idle);
    assert_eq!(soon("the second", second).await.unwrap(), StopReason::Idle);
    assert_eq!(a.states(source).await, "done done");
    apart(&a, &items, ms(600)).await;
    assert_eq!(b.deferrals()[0].last_scrape_at, Some(a.scrapes(items[0]).await[0].started_at));
}

/// B51: two processes start tasks of one source at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_concurrent_scrapes_of_a_source_one_is_deferred() {
    let site = Site::start(|_| reply(200)).await;
    for round in 0..3 {
        let disk = DiskStore::new();
        let toml = every("0.4", "");
        let (a, b) = (disk.process(&toml).await, disk.process(&toml).await);
        for (station, host) in [(&a, 1), (&b, 2)] {
            // Each process holds its host already, so that both can start.
            soon("a host", station.gate.acquire(&site.domain(host), Intent::Fetch))
                .await
                .unwrap()
                .record(&success());
        }
        let source = a.follow(&site.url("/feed")).await;
        let items = a.found(source, &[1, 2].map(|host| site.url_on(host, &format!("/{round}")))).await;
        a.enqueue(&items).await;
        for scraping in [a.scraping(), b.scraping()] {
            assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
        }
        assert_eq!(a.states(source).await, "done done");
        apart(&a, &items, ms(400)).await;
    }
}

/// Checks that each item has one row, and that they started at least `interval` apart.
async fn apart(station: &Station, items: &[ItemId], interval: Span) {
    let mut starts = Vec::new();
    for item in items {
        let rows = station.scrapes(*item).await;
        assert_eq!((rows.len(), rows[0].status.as_str()), (1, "ok"));
        starts.push(rows[0].started_at);
    }
    starts.sort();
    assert!(starts.windows(2).all(|two| two[1].since(two[0]) >= interval), "{starts:?}");
}

/// A pool that has nothing left to do leaves the job open for later items.
#[tokio::test]
async fn the_scrape_job_stays_open() {
    let site = Site::start(|_| reply(200)).await;
    let toml = every("0", "");
    let mut station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    for (nth, item) in station.found(source, &pages(&site, 3)).await.into_iter().enumerate() {
        station.enqueue(&[item]).await;
        assert_eq!(station.scrape().await, StopReason::Idle);
        let job = station.job().await;
        assert_eq!((job.state, job.counts.done), (JobState::Running, nth as u64 + 1));
        station = station.again(&toml).await;
    }
    assert_eq!(station.scrape().await, StopReason::Idle, "with nothing to do");
    assert_eq!(site.paths(), ["/1", "/2", "/3"]);
}

/// A pool works on new items while it waits for a deferred one.
#[tokio::test]
async fn a_waiting_pool_takes_new_items() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::start(&every("0.8", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let other = station.follow(&site.url_on(2, "/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items).await;
    let scraping = station.scraping();
    eventually("the deferral", || station.deferrals().len() == 1).await;
    let late = station.found(other, &[site.url_on(2, "/late")]).await;
    station.enqueue(&late).await;
    assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
    assert_eq!(site.paths(), ["/1", "/late", "/2"], "it did not wait for the deferred one");
}

/// B10: a task that waits for a held host does not delay tasks of the same source on other hosts.
#[tokio::test]
async fn a_held_host_does_not_delay_other_hosts_of_its_source() {
    let site = Site::start(|asked| match asked.path.as_str() {
        "/closed" => reply(429).header("retry-after", "3600"),
        _ => reply(200),
    })
    .await;
    let station = Station::start(&every("0.3", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let urls =
        [site.url_on(2, "/closed"), site.url_on(2, "/behind"), site.url_on(1, "/1"), site.url_on(1, "/2")];
    let items = station.found(source, &urls).await;
    station.enqueue(&items[..1]).await;
    let scraping = station.scraping();
    eventually("the refusal", || site.asked().len() == 1).await;
    put(&station, &items[1..]).await;
    station.pipeline.pool().poke();
    eventually("the others", || site.asked().len() == 3).await;
    station.pipeline.pool().stop();
    assert_eq!(soon("the stop", scraping).await.unwrap(), StopReason::Requested);
    assert_eq!(station.states(source).await, "waiting waiting done done");
    assert_eq!(site.asked_for("/behind").len(), 0, "no request is sent to a held host");
}

/// B10. Regression: a task that waited for a held host kept the source's turn for a minute.
#[tokio::test]
async fn pages_on_a_free_host_do_not_wait_for_a_held_one() {
    let site = Site::start(|asked| match (asked.host.as_str(), asked.before) {
        ("127.0.0.2", 0) => reply(429).header("retry-after", "60"),
        _ => reply(200),
    })
    .await;
    let station = Station::start(&every("0.2", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let closed = [1, 2].map(|page| site.url_on(2, &format!("/closed/{page}")));
    let urls: Vec<String> = closed.into_iter().chain(pages(&site, 5)).collect();
    let items = station.found(source, &urls).await;
    station.enqueue(&items).await;
    let began = station.now();
    let scraping = station.scraping();
    eventually("the pages of the free host", || site.asked().len() == 6).await;
    station.pipeline.pool().stop();
    assert_eq!(soon("the stop", scraping).await.unwrap(), StopReason::Requested);
    assert_eq!(station.states(source).await, "waiting waiting done done done done done");
    assert!(site.gaps(1).iter().all(|gap| *gap >= ms(150)), "{:?}", site.gaps(1));
    let last = site.asked()[5].at.since(began);
    assert!(last < Span::from_secs(60), "{last}");
}

/// B61. Regression: a run whose only tasks were on a host with a long hold waited for it.
#[tokio::test]
async fn a_run_does_not_wait_for_a_long_hold() {
    let site = Site::start(|_| reply(429).header("retry-after", "100")).await;
    let station = Station::start(&quick("[scrape]\nmin_interval = 0\nmax_wait = \"1s\"\n")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 2)).await;
    station.enqueue(&items).await;
    let began = station.now();
    let ended = station.scrape().await;
    let StopReason::NotDueUntil(until) = ended else { panic!("{ended:?}") };
    let held = until.since(began);
    assert!(held >= Span::from_secs(99) && held <= Span::from_secs(160), "{held}");
    assert_eq!((station.states(source).await.as_str(), site.asked().len()), ("waiting waiting", 1));
    assert_eq!(station.job().await.counts.waiting(), 2, "nothing is lost");
}

/// B47: a broken site stops the workers, and the remaining items are not lost.
#[tokio::test]
async fn too_many_failures_stop_the_pool_and_leave_the_rest_waiting() {
    let site = Site::start(|_| reply(500)).await;
    let toml = every("0", "[job]\nmax_retries = 0\nfailure_threshold = 3\n");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 10)).await;
    station.enqueue(&items).await;
    let ended = station.scrape().await;
    let StopReason::Halted(message) = ended else { panic!("{ended:?}") };
    assert!(message.contains('3') && message.contains("status 500"), "{message}");
    let (job, states) = (station.job().await, station.states(source).await);
    let (failed, waiting) = (states.matches("failed").count(), states.matches("waiting").count());
    assert_eq!((job.state, failed + waiting), (JobState::Running, 10), "{states}");
    assert!((3..=4).contains(&failed), "one more may have been running: {states}");
    assert_eq!((job.counts.failed as usize, site.asked().len()), (failed, failed));
    let again = station.again(&every("0", "[job]\nmax_retries = 0\nfailure_threshold = 0\n")).await;
    assert_eq!(again.scrape().await, StopReason::Idle);
    assert_eq!(site.asked().len(), 10, "the rest was tried, and nothing twice");
}

/// B47: items on a dead host are left for the next run, and those on other hosts are scraped.
#[tokio::test]
async fn a_dead_host_is_left_for_the_next_run() {
    let site = Site::start(|asked| reply(if asked.host == "127.0.0.2" { 500 } else { 200 })).await;
    let toml = every("0", "[job]\nmax_retries = 0\nfailure_threshold = 3\n");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let dead = (0..10).map(|nth| site.url_on(2, &format!("/dead/{nth}")));
    let links: Vec<String> = dead.chain((0..10).map(|nth| site.url_on(3, &format!("/{nth}")))).collect();
    let items = station.found(source, &links).await;
    station.enqueue(&items).await;
    let ended = station.scrape().await;
    let StopReason::Halted(message) = ended else { panic!("{ended:?}") };
    assert!(message.starts_with("gave up on 127.0.0.2:") && message.contains("status 500"), "{message}");
    let states = station.states(source).await;
    let count = |state: &str| states.matches(state).count();
    assert_eq!((count("done"), count("failed") + count("waiting")), (10, 10), "{states}");
    assert!((3..=4).contains(&count("failed")), "{states}");
    let again = station.again(&every("0", "[job]\nmax_retries = 0\nfailure_threshold = 0\n")).await;
    assert_eq!(again.scrape().await, StopReason::Idle, "the next run tries the rest");
    assert_eq!(site.asked().len(), 20);
}

/// B47: a domain given up while others are still being scraped does not prevent the run from ending.
#[tokio::test]
async fn a_run_ends_if_a_host_was_given_up_early() {
    let site = Site::start(|asked| match asked.host.as_str() {
        "127.0.0.2" => reply(500),
        _ => reply(200).after(50),
    })
    .await;
    let toml = every("0", "backoff = \"none\"\n[job]\nmax_retries = 0\nfailure_threshold = 3\n");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let dead = (0..10).map(|nth| site.url_on(2, &format!("/dead/{nth}")));
    let links: Vec<String> = dead.chain((0..20).map(|nth| site.url_on(3, &format!("/{nth}")))).collect();
    let items = station.found(source, &links).await;
    station.enqueue(&items).await;
    let ended = station.scrape().await;
    assert!(
        matches!(&ended, StopReason::Halted(message) if message.starts_with("gave up on 127.0.0.2:")),
        "{ended:?}"
    );
    assert_eq!(station.states(source).await.matches("done").count(), 20);
}

/// B74: after a stop, the next pool finishes the rest, and scrapes nothing twice.
#[tokio::test]
async fn stopped_scrapes_are_resumed() {
    let site = Site::start(|_| reply(200).after(5)).await;
    let toml = every("0", "");
    let station = Station::start(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 20)).await;
    station.enqueue(&items).await;
    let scraping = station.scraping();
    eventually("some work", || site.asked().len() >= 5).await;
    station.pipeline.pool().stop();
    assert_eq!(soon("the stop", scraping).await.unwrap(), StopReason::Requested);
    let states = station.states(source).await;
    let (done, waiting) = (states.matches("done").count(), states.matches("waiting").count());
    assert_eq!((done, done + waiting), (site.asked().len(), 20), "{states}");
    assert!(waiting > 0);
    assert_eq!(station.again(&toml).await.scrape().await, StopReason::Idle);
    assert_eq!(station.states(source).await, vec!["done"; 20].join(" "));
    once_each(&site, 20);
    for item in items {
        assert_eq!(station.scraped(item).await, "ok");
    }
}

/// B9, B74: two processes on one job scrape everything once.
#[tokio::test]
async fn two_processes_scrape_everything_once() {
    let (disk, site) = (DiskStore::new(), Site::start(|_| reply(200)).await);
    let toml = every("0", "");
    let (a, b) = (disk.process(&toml).await, disk.process(&toml).await);
    let source = a.follow(&site.url("/feed")).await;
    let urls: Vec<String> = (1..=4)
        .flat_map(|host| (1..=5).map(move |page| (host, page)))
        .map(|(host, page)| site.url_on(host, &format!("/{host}-{page}")))
        .collect();
    let items = a.found(source, &urls).await;
    a.enqueue(&items).await;
    let scraping = [a.scraping(), b.scraping()];
    for scraping in scraping {
        assert_eq!(soon("the scrapes", scraping).await.unwrap(), StopReason::Idle);
    }
    once_each(&site, 20);
    assert_eq!(a.states(source).await, vec!["done"; 20].join(" "));
    let counts = b.job().await.counts;
    assert_eq!((counts.tasks, counts.done), (20, 20));
}

fn once_each(site: &Site, count: usize) {
    let mut times: HashMap<String, usize> = HashMap::new();
    site.paths().into_iter().for_each(|path| *times.entry(path).or_default() += 1);
    assert_eq!((times.len(), times.values().max()), (count, Some(&1)));
}

/// B61: `max_wait` limits the whole run, even if the next scrape always seems near and is deferred each time. Here,
/// another program scrapes the source more often than its interval allows.
#[tokio::test]
async fn max_wait_bounds_a_run_across_deferrals() {
    let (disk, site) = (DiskStore::new(), Site::start(|_| reply(200)).await);
    let toml = quick("[scrape]\nmin_interval = 2\nmax_wait = \"5s\"\n");
    let station = disk.process(&toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &pages(&site, 1)).await;
    let (clock, sql) = (station.gate.clock().clone(), disk.sql());
    let over = Arc::new(AtomicBool::new(false));
    let insert =
        "INSERT INTO scrape_logs (source_id, item_id, task_id, started_us) VALUES (?1, 999, 999, ?2)";
    sql.execute(insert, [source.0, clock.now().as_micros()]).unwrap();
    let stop = over.clone();
    let program = tokio::task::spawn_blocking(move || {
        while !stop.load(Ordering::Relaxed) {
            sql.execute(insert, [source.0, clock.now().as_micros()]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    station.enqueue(&items).await;
    let began = station.now();
    let ended = soon("the run", station.scrape()).await;
    assert!(matches!(ended, StopReason::NotDueUntil(_)), "{ended:?}");
    assert!(station.now().since(began) >= Span::from_secs(5));
    assert_eq!((station.states(source).await.as_str(), site.asked().len()), ("waiting", 0));
    over.store(true, Ordering::Relaxed);
    program.await.unwrap();
}

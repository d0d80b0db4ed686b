//! The outcomes of scrapes, and the rows they leave.

use std::sync::atomic::Ordering::Relaxed;

use comity::clock::Clock;
use comity::jobs::StopReason;
use comity::pipeline::{RunOptions, Scraping};
use comity::store::items::{Item, ItemState};
use comity::store::sources::Kind;
use comity_core::interval::SourceInterval;
use comity_core::time::Span;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::QUICK;
use crate::station::{Station, every, memory, quick, rss};
use crate::support::{Asked, ClosedPort, Site, eventually, ms, reply, soon};

/// One item at `path`, after it was scraped.
async fn scraped(toml: &str, site: &Site, path: &str) -> (Station, Item) {
    let station = Station::start(toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &[site.url(path)]).await;
    station.enqueue(&items).await;
    assert_eq!(station.scrape().await, StopReason::Idle);
    let item = station.item(items[0]).await;
    (station, item)
}

/// B41, B51: each attempt has its own row.
#[tokio::test]
async fn a_page_that_was_rate_limited_once_has_two_rows() {
    let site = Site::start(|asked: &Asked| match asked.before {
        0 => reply(429).header("retry-after", "1"),
        _ => reply(200),
    })
    .await;
    let (station, item) = scraped(&every("0.3", ""), &site, "/page").await;
    assert_eq!((item.state, item.status, item.bytes), (ItemState::Done, Some(200), Some(6)));
    assert_eq!(item.error, None);
    let rows = station.scrapes(item.id).await;
    let [first, second] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((first.status.as_str(), first.http_status), ("retry", Some(429)));
    assert_eq!((second.status.as_str(), second.http_status, second.bytes), ("ok", Some(200), Some(6)));
    assert!(second.started_at.since(first.started_at) >= Span::from_secs(1), "{rows:?}");
    assert!(first.ended_at.unwrap() <= second.started_at);
    assert!(site.gaps(1)[0] >= ms(990), "{:?}", site.gaps(1));
    assert_eq!(item.scraped_at, second.ended_at);
}

/// B51: a retry is a scrape like any other, and waits for the interval.
#[tokio::test]
async fn a_retry_respects_the_interval_too() {
    let site = Site::start(|asked: &Asked| reply(if asked.before == 0 { 503 } else { 200 })).await;
    let (station, item) = scraped(&every("0.8", ""), &site, "/page").await;
    assert_eq!((item.state, station.scraped(item.id).await.as_str()), (ItemState::Done, "retry ok"));
    assert!(site.gaps(1)[0] >= ms(790), "the backoff alone would be 50 ms: {:?}", site.gaps(1));
    let counts = station.job().await.counts;
    assert_eq!((counts.retries, counts.done), (1, 1), "a deferral does not use up a retry");
}

/// B24, B45
#[tokio::test]
async fn a_page_that_does_not_exist_fails() {
    let site = Site::start(|_| reply(404)).await;
    let (station, item) = scraped(&every("0.3", ""), &site, "/page").await;
    assert_eq!((item.state, item.error.as_deref()), (ItemState::Failed, Some("status 404")));
    let rows = station.scrapes(item.id).await;
    assert_eq!((rows.len(), rows[0].status.as_str(), rows[0].http_status), (1, "failed", Some(404)));
    assert_eq!((rows[0].error.as_deref(), site.asked().len()), (Some("status 404"), 1));
    let enqueued = station.pipeline.enqueue_unscraped(None).await.unwrap();
    assert_eq!(enqueued.results.len(), 1, "it can be retried manually");
}

/// B44, B51: redirects are part of the scrape: there is one row, and no interval between the hops.
#[tokio::test]
async fn redirects_are_part_of_their_scrape() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/within" => reply(302).header("location", "/there"),
        "/across" => reply(301).header("location", &asked.url_on(2, "/within")),
        _ => reply(200),
    })
    .await;
    for (path, hops) in [("/within", 2), ("/across", 3)] {
        let before = site.asked().len();
        let (station, item) = scraped(&every("60", ""), &site, path).await;
        assert_eq!((item.state, station.scraped(item.id).await.as_str()), (ItemState::Done, "ok"), "{path}");
        let asked = site.asked()[before..].to_vec();
        assert_eq!(asked.len(), hops, "{path}");
        assert!(
            asked[hops - 1].at.since(asked[0].at) < ms(50_000),
            "{path}: there is no interval between them"
        );
        let rows = station.scrapes(item.id).await;
        assert!(rows[0].started_at <= asked[0].at, "{path}: it started with the first of them");
        assert_eq!(station.deferrals(), []);
    }
}

/// B25, B51: if a hop has to wait after all, the row of the request before it stays.
#[tokio::test]
async fn a_hop_that_has_to_wait_keeps_the_row_of_its_scrape() {
    // The listen queue holds one connection; the next one is established when the first is accepted, about a second
    // later.
    let door = tokio::net::TcpSocket::new_v4().unwrap();
    door.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let door = door.listen(0).unwrap();
    let address = door.local_addr().unwrap();
    let first = tokio::net::TcpStream::connect(address).await.unwrap();
    let site = Site::start(move |_| reply(302).header("location", &format!("http://{address}/there"))).await;
    let station = Station::start(&every("0.3", "")).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &[site.url("/page")]).await;
    station.enqueue(&items).await;
    let scraping = station.scraping();
    let granted = || station.gate.events().counters().granted.load(Relaxed);
    eventually("the second hop", || granted() == 2).await;
    let until = station.now() + ms(2_500);
    let host = comity_core::domain::Domain::parse(&address.to_string()).unwrap();
    station.gate.with_pace(&host, move |pace, _, _| pace.pause(Some(until))).await.unwrap();
    drop((first, door.accept().await.unwrap()));
    let (mut stream, _) = soon("the connection", door.accept()).await.unwrap();
    let mut head = [0; 1_024];
    assert!(soon("the request", stream.read(&mut head)).await.unwrap() > 0);
    stream.write_all(b"HTTP/1.1 200 fine\r\ncontent-length: 5\r\n\r\nthere").await.unwrap();
    assert_eq!(soon("the scrape", scraping).await.unwrap(), StopReason::Idle);
    assert_eq!(granted(), 3, "it was granted, had to wait, and was granted again");
    let (rows, asked_at) = (station.scrapes(items[0]).await, site.asked()[0].at);
    assert_eq!((rows.len(), rows[0].status.as_str()), (1, "ok"));
    assert!(
        rows[0].started_at <= asked_at,
        "it started with the first request: {} {asked_at}",
        rows[0].started_at
    );
}

/// B44
#[tokio::test]
async fn a_page_forbidden_by_robots_txt_fails_without_a_row() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private"),
        _ => reply(200),
    })
    .await;
    let toml = every("0.3", "").replace("\"ignore\"", "\"obey\"");
    let (station, item) = scraped(&toml, &site, "/private/page").await;
    assert_eq!((item.state, item.error.as_deref()), (ItemState::Failed, Some("forbidden by robots.txt")));
    assert_eq!((station.scrapes(item.id).await, site.paths()), (vec![], vec!["/robots.txt".to_owned()]));
    assert_eq!(station.job().await.counts.skipped, 1);
}

/// A response without a body is stored as partial.
#[tokio::test]
async fn an_empty_response_is_partial() {
    let site = Site::start(|_| reply(200).body("")).await;
    let (station, item) = scraped(&every("0.3", ""), &site, "/page").await;
    assert_eq!((item.state, item.status, item.bytes), (ItemState::Partial, Some(200), Some(0)));
    assert_eq!(station.scraped(item.id).await, "partial");
}

/// B43, B51: a failed connection counts as an attempt.
#[tokio::test]
async fn an_attempt_without_a_connection_has_a_row() {
    let closed = ClosedPort::new();
    let url = closed.url("/page");
    let station = Station::start(&every("0", "[job]\nmax_retries = 1\n")).await;
    let source = station.follow("http://127.0.0.1:9/feed").await;
    let items = station.found(source, &[url]).await;
    station.enqueue(&items).await;
    assert_eq!(station.scrape().await, StopReason::Idle);
    let item = station.item(items[0]).await;
    assert_eq!((item.state, station.scraped(item.id).await.as_str()), (ItemState::Failed, "retry failed"));
    assert!(item.error.unwrap().contains("after 2 attempts"));
}

/// A feed with two pages, one on the host of the feed and one on another.
async fn feed_of_two_hosts() -> Site {
    Site::start(|asked: &Asked| match asked.path.as_str() {
        "/feed" => reply(200).body(rss("", &["/here", &asked.url_on(2, "/elsewhere")])),
        _ => reply(200),
    })
    .await
}

/// Its items after a run that does not allow private addresses, scraped.
async fn guarded(site: &Site) -> (Station, Vec<Item>) {
    let station = Station::start(&format!("{QUICK}[scrape]\nmin_interval = 0\n")).await;
    let source = station.follow(&site.url("/feed")).await;
    let report = station.run_as(&RunOptions { scraping: Scraping::On, ..station.run_options() }).await;
    assert_eq!((report.fetched, report.new, report.items.enqueued), (1, 2, 2));
    assert_eq!(station.scrape().await, StopReason::Idle);
    let items = station.items(source).await;
    (station, items)
}

/// B76: the items of a feed are not trusted, although the feed itself was listed.
#[tokio::test]
async fn items_on_private_addresses_are_refused_and_nothing_is_sent() {
    let site = feed_of_two_hosts().await;
    let (station, items) = guarded(&site).await;
    assert_eq!(site.asked_for("/elsewhere").len(), 0, "{:?}", site.paths());
    assert_eq!(items[1].state, ItemState::Failed);
    assert!(items[1].error.as_ref().unwrap().contains("127.0.0.2"), "{:?}", items[1].error);
    assert_eq!(station.scrapes(items[1].id).await, [], "nothing was sent, so no interval starts");
    assert_eq!(station.run().await.fetched, 1, "the source stays reachable");
}

/// B76: the host that the operator listed is always allowed.
#[tokio::test]
async fn items_on_the_listed_host_are_scraped() {
    let site = feed_of_two_hosts().await;
    let (_, items) = guarded(&site).await;
    assert_eq!((items[0].state, items[0].error.as_deref()), (ItemState::Done, None));
}

/// B51: each source has its own interval.
#[tokio::test]
async fn sources_do_not_wait_for_each_other() {
    let site = Site::start(|_| reply(200)).await;
    let station = Station::with(&quick(""), memory(), Clock::new()).await;
    let mut sources = Vec::new();
    for name in ["a", "b", "c"] {
        let hour = SourceInterval::Every(Span::from_hours(1));
        let url = site.url(&format!("/{name}/feed"));
        let source = station.follow_as(&url, Kind::Feed, hour, json!({})).await;
        let items = station.found(source, &[site.url(&format!("/{name}"))]).await;
        station.enqueue(&items).await;
        sources.push(source);
    }
    assert_eq!(station.scrape().await, StopReason::Idle);
    for source in sources {
        assert_eq!(station.states(source).await, "done");
    }
    assert_eq!((site.asked().len(), station.deferrals()), (3, vec![]));
}

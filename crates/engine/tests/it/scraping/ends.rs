//! How a scrape can end, and what its rows say then.

use std::sync::atomic::Ordering::Relaxed;

use comity::clock::Clock;
use comity::jobs::Ended;
use comity::pipeline::{Orders, Scraping};
use comity::store::items::{Item, ItemState};
use comity::store::sources::Kind;
use comity_core::interval::SourceInterval;
use comity_core::time::Span;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::QUICK;
use crate::station::{Station, every, memory, quick, rss};
use crate::support::{Asked, ClosedPort, Site, eventually, ms, reply, soon};

/// One item at `path`, scraped to its end.
async fn scraped(toml: &str, site: &Site, path: &str) -> (Station, Item) {
    let station = Station::start(toml).await;
    let source = station.follow(&site.url("/feed")).await;
    let items = station.found(source, &[site.url(path)]).await;
    station.enqueue(&items).await;
    assert_eq!(station.scrape().await, Ended::Idle);
    let item = station.item(items[0]).await;
    (station, item)
}

/// B41, B51: each attempt has its row.
#[tokio::test]
async fn a_page_that_is_refused_once_has_two_rows() {
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
async fn a_retry_keeps_the_interval_too() {
    let site = Site::start(|asked: &Asked| reply(if asked.before == 0 { 503 } else { 200 })).await;
    let (station, item) = scraped(&every("0.8", ""), &site, "/page").await;
    assert_eq!((item.state, station.scraped(item.id).await.as_str()), (ItemState::Done, "retry ok"));
    assert!(site.gaps(1)[0] >= ms(790), "the ladder alone says 50 ms: {:?}", site.gaps(1));
    let counts = station.job().await.counts;
    assert_eq!((counts.retries, counts.done), (1, 1), "being put off spent no retry");
}

/// B24, B45
#[tokio::test]
async fn a_page_that_is_not_there_is_given_up() {
    let site = Site::start(|_| reply(404)).await;
    let (station, item) = scraped(&every("0.3", ""), &site, "/page").await;
    assert_eq!((item.state, item.error.as_deref()), (ItemState::Failed, Some("status 404")));
    let rows = station.scrapes(item.id).await;
    assert_eq!((rows.len(), rows[0].status.as_str(), rows[0].http_status), (1, "failed", Some(404)));
    assert_eq!((rows[0].error.as_deref(), site.asked().len()), (Some("status 404"), 1));
    let by_hand = station.pipeline.enqueue_unscraped(None).await.unwrap();
    assert_eq!(by_hand.results.len(), 1, "somebody who asks may have it tried again");
}

/// B44, B51: what redirects lead to is part of the scrape: one row, and no interval between the hops.
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
        assert!(asked[hops - 1].at.since(asked[0].at) < ms(50_000), "{path}: they wait for no interval");
        let rows = station.scrapes(item.id).await;
        assert!(rows[0].started_at <= asked[0].at, "{path}: it began with the first of them");
        assert_eq!(station.deferrals(), []);
    }
}

/// B25, B51: a hop that is not sent after all takes nothing back of the request that was sent before it.
#[tokio::test]
async fn a_hop_that_has_to_wait_keeps_the_row_of_its_scrape() {
    // Its queue holds one connection: whoever comes next gets through when it is accepted, a second or so later.
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
    let (mut there, _) = soon("the connection", door.accept()).await.unwrap();
    let mut head = [0; 1_024];
    assert!(soon("the request", there.read(&mut head)).await.unwrap() > 0);
    there.write_all(b"HTTP/1.1 200 fine\r\ncontent-length: 5\r\n\r\nthere").await.unwrap();
    assert_eq!(soon("the scrape", scraping).await.unwrap(), Ended::Idle);
    assert_eq!(granted(), 3, "it was let go, had to wait, and was let go again");
    let (rows, asked_at) = (station.scrapes(items[0]).await, site.asked()[0].at);
    assert_eq!((rows.len(), rows[0].status.as_str()), (1, "ok"));
    assert!(
        rows[0].started_at <= asked_at,
        "it began with what was sent first: {} {asked_at}",
        rows[0].started_at
    );
}

/// B44
#[tokio::test]
async fn what_robots_forbid_fails_without_a_row() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private"),
        _ => reply(200),
    })
    .await;
    let toml = every("0.3", "").replace("\"ignore\"", "\"obey\"");
    let (station, item) = scraped(&toml, &site, "/private/page").await;
    assert_eq!((item.state, item.error.as_deref()), (ItemState::Failed, Some("robots")));
    assert_eq!((station.scrapes(item.id).await, site.paths()), (vec![], vec!["/robots.txt".to_owned()]));
    assert_eq!(station.job().await.counts.skipped, 1);
}

/// An answer with nothing in it is kept as what it is.
#[tokio::test]
async fn an_empty_answer_is_partial() {
    let site = Site::start(|_| reply(200).body("")).await;
    let (station, item) = scraped(&every("0.3", ""), &site, "/page").await;
    assert_eq!((item.state, item.status, item.bytes), (ItemState::Partial, Some(200), Some(0)));
    assert_eq!(station.scraped(item.id).await, "partial");
}

/// B43, B51: a connection that cannot be made was an attempt all the same.
#[tokio::test]
async fn an_attempt_without_a_connection_has_a_row() {
    let closed = ClosedPort::new();
    let url = closed.url("/page");
    let station = Station::start(&every("0", "[job]\nmax_retries = 1\n")).await;
    let source = station.follow("http://127.0.0.1:9/feed").await;
    let items = station.found(source, &[url]).await;
    station.enqueue(&items).await;
    assert_eq!(station.scrape().await, Ended::Idle);
    let item = station.item(items[0]).await;
    assert_eq!((item.state, station.scraped(item.id).await.as_str()), (ItemState::Failed, "retry failed"));
    assert!(item.error.unwrap().contains("after 2 attempts"));
}

/// A feed with two pages, one on the very host that the feed is on and one on another.
async fn feed_of_two_hosts() -> Site {
    Site::start(|asked: &Asked| match asked.path.as_str() {
        "/feed" => reply(200).body(rss("", &["/here", &asked.url_on(2, "/elsewhere")])),
        _ => reply(200),
    })
    .await
}

/// What a run without leave for private addresses finds in it, scraped.
async fn guarded(site: &Site) -> (Station, Vec<Item>) {
    let station = Station::start(&format!("{QUICK}[scrape]\nmin_interval = 0\n")).await;
    let source = station.follow(&site.url("/feed")).await;
    let report = station.run_as(&Orders { scraping: Scraping::On, ..station.orders() }).await;
    assert_eq!((report.fetched, report.new, report.items.enqueued), (1, 2, 2));
    assert_eq!(station.scrape().await, Ended::Idle);
    let items = station.items(source).await;
    (station, items)
}

/// B76: what a feed names is not trusted; the feed itself was listed.
#[tokio::test]
async fn items_on_private_addresses_are_refused_and_nothing_is_sent() {
    let site = feed_of_two_hosts().await;
    let (station, items) = guarded(&site).await;
    assert_eq!(site.asked_for("/elsewhere").len(), 0, "{:?}", site.paths());
    assert_eq!(items[1].state, ItemState::Failed);
    assert!(items[1].error.as_ref().unwrap().contains("127.0.0.2"), "{:?}", items[1].error);
    assert_eq!(station.scrapes(items[1].id).await, [], "nothing was asked, so no interval begins");
    assert_eq!(station.run().await.fetched, 1, "the source stays reachable");
}

/// B76: the very host that the operator listed needs no leave.
#[tokio::test]
async fn items_on_the_very_host_that_was_listed_are_scraped() {
    let site = feed_of_two_hosts().await;
    let (_, items) = guarded(&site).await;
    assert_eq!((items[0].state, items[0].error.as_deref()), (ItemState::Done, None));
}

/// B51: intervals of sources are their own.
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
    assert_eq!(station.scrape().await, Ended::Idle);
    for source in sources {
        assert_eq!(station.states(source).await, "done");
    }
    assert_eq!((site.asked().len(), station.deferrals()), (3, vec![]));
}

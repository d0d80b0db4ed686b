//! An item that is in two feeds is fetched once.

use serde_json::Value;

use crate::comity::World;
use crate::follow::{add, items, run, world};
use crate::log::{counts, to_text, wait_until};
use crate::site::{Answer, Held, Site};

/// Two feeds with the same pages, one of them with a tracking parameter.
fn site(pages: usize, held: Option<Held>) -> Site {
    Site::start(move |asked| {
        let feed = |more: &str| {
            let item = |nth| format!("<item><guid>{more}{nth}</guid><link>/p{nth}{more}</link></item>");
            let items: String = (0..pages).map(item).collect();
            Answer {
                status: 200,
                body: format!("<rss><channel>{items}</channel></rss>"),
                ..Answer::default()
            }
        };
        match (asked.path, &held) {
            ("/one", _) => feed(""),
            ("/two", _) => feed("?utm_source=two"),
            (path, Some(held)) => Answer::page(path).held(held),
            (path, None) => Answer::page(path),
        }
    })
}

#[track_caller]
fn assert_each_page_once(site: &Site, pages: usize) {
    let log = site.log();
    let counts = counts(&log);
    for nth in 0..pages {
        let of = |path: String| counts.get(path.as_str()).copied().unwrap_or(0);
        let times = of(format!("/p{nth}")) + of(format!("/p{nth}?utm_source=two"));
        assert_eq!(times, 1, "/p{nth}:\n{}", to_text(&log));
    }
}

#[track_caller]
fn assert_both_have_it(world: &World, pages: usize) {
    let items = items(world);
    assert_eq!(items.len(), 2 * pages);
    let key = |item: &Value| item["url"].as_str().unwrap().split('?').next().unwrap().to_owned();
    for item in &items {
        assert_eq!((item["state"].as_str(), &item["status"]), (Some("done"), &200.into()), "{item}");
        let other = items.iter().find(|other| key(other) == key(item) && other["id"] != item["id"]).unwrap();
        assert_eq!(item["file"], other["file"]);
        assert!(item["file"].is_string());
        assert_ne!(item["scraped_as"].is_null(), other["scraped_as"].is_null());
    }
}

#[test]
fn a_page_in_two_feeds_is_fetched_once() {
    let (world, site) = (world(&[]), site(5, None));
    add(&world, &(site.url() + "/one"), &[]);
    add(&world, &(site.url() + "/two"), &[]);
    run(&world, &[], 0);
    assert_each_page_once(&site, 5);
    assert_both_have_it(&world, 5);
}

/// B9: also if two processes fetch one feed each. Feeds and pages are on different hosts, so that no request has to
/// wait.
#[test]
fn two_processes_fetch_it_once() {
    let held = Held::default();
    let pages = {
        let held = held.clone();
        Site::on("127.0.0.4", move |asked| Answer::page(asked.path).held(&held))
    };
    let feeds = ["127.0.0.2", "127.0.0.3"].map(|host| {
        let url = pages.url();
        Site::on(host, move |_| {
            let item = |nth| format!("<item><guid>{nth}</guid><link>{url}/p{nth}</link></item>");
            let items: String = (0..5).map(item).collect();
            Answer {
                status: 200,
                body: format!("<rss><channel>{items}</channel></rss>"),
                ..Answer::default()
            }
        })
    });
    let world = world(&[]);
    let ids = feeds.each_ref().map(|feed| add(&world, &(feed.url() + "/feed"), &[]));
    let running = ids.map(|id| world.start(&["--json", "run", "--source", &id.to_string()]));
    // Both feeds are read, and all their items enqueued, while the first page is in flight.
    wait_until("both feeds were read", || {
        let items = items(&world);
        items.len() == 10 && items.iter().all(|item| item["state"] != "none")
    });
    held.release();
    running.into_iter().for_each(|run| drop(run.wait().expect(0)));
    assert_each_page_once(&pages, 5);
    assert_both_have_it(&world, 5);
}

/// A feed that is fetched later shares the page; `comity scrape` fetches it anyway.
#[test]
fn a_later_feed_shares_the_page() {
    let (world, site) = (world(&[]), site(3, None));
    add(&world, &(site.url() + "/one"), &[]);
    run(&world, &[], 0);
    add(&world, &(site.url() + "/two"), &[]);
    run(&world, &[], 0);
    assert_each_page_once(&site, 3);
    assert_both_have_it(&world, 3);
    let last = items(&world).last().unwrap()["id"].to_string();
    let shown = world.run(&["items", "show", &last]).expect(0);
    shown.shows("which has the same URL");
    world.run(&["scrape", &last]).expect(0);
    assert_eq!(counts(&site.log())["/p2?utm_source=two"], 1);
}

/// B58, B74: killed while the page is in flight, and then its source is removed.
#[test]
fn after_a_kill_and_a_removed_source_the_other_one_gets_the_page() {
    let held = Held::default();
    let (world, site) = (world(&[]), site(1, Some(held.clone())));
    let one = add(&world, &(site.url() + "/one"), &[]).to_string();
    let two = add(&world, &(site.url() + "/two"), &[]);
    run(&world, &["--no-scrape"], 0);
    let running = world.start(&["run"]);
    // Two feeds, fetched twice, and the page.
    site.wait_for(5);
    running.kill().expect("the page is held");
    held.release();
    world.run(&["sources", "set", &one, "--enabled", "off"]).expect(0);
    run(&world, &[], 0);
    let item = items(&world).into_iter().find(|item| item["source"] == two).unwrap();
    assert_eq!(item["state"], "done", "{}", to_text(&site.log()));
}

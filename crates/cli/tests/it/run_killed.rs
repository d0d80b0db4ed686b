//! Kill -9 in the middle of a run.

use std::time::Duration;

use crate::comity::World;
use crate::follow::{FEEDS, add, count, numbered, run, world};
use crate::log::{Hit, assert_spaced, counts, to_text, wait_until};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// B60, B74, B77: nothing is lost, scraped twice or sent early, and a source counts as fetched only with all its items.
#[test]
fn kills_lose_no_item_and_scrape_none_twice() {
    let world = world(&[("default.min_delay", "\"60ms\"")]);
    let sites: Vec<Site> = (0..SITES).map(|_| site()).collect();
    for site in &sites {
        add(&world, &(site.url() + "/feed"), &["--cadence", "8h"]);
    }
    let asked = || sites.iter().map(|site| site.log().len()).sum::<usize>();
    let all = (SITES * PAGES) as i64;
    let fetched = "SELECT count(*) FROM sources WHERE cursor_json LIKE '%last_fetch_at%'";
    let done = "SELECT count(*) FROM items WHERE state = 'done'";
    let (mut while_asking, mut while_scraping) = (0, 0);
    let mut there = Vec::new();
    for (requests, millis) in MOMENTS {
        let before = asked();
        let mut running = world.start(&["run", "--out", "kept"]);
        wait_until("it sends requests", || asked() >= before + requests || running.is_over());
        std::thread::sleep(Duration::from_millis(millis));
        assert!(running.kill().is_some(), "it ended before all kills were made");
        there.push(scraped(&world, &sites));
        assert_fetched_with_all_items(&world);
        while_asking += usize::from(count(&world, fetched) < SITES as i64);
        while_scraping += usize::from((1..all).contains(&count(&world, done)));
    }
    assert!(while_asking > 2 && while_scraping > 2, "{while_asking} {while_scraping}");
    run(&world, &["--out", "kept"], 0);
    assert_eq!(count(&world, "SELECT count(*) FROM items"), all);
    assert_eq!(count(&world, done), all);
    let done_once = "SELECT count(*) FROM (SELECT item_id FROM scrape_logs WHERE status = 'ok'
        GROUP BY item_id HAVING count(*) = 1)";
    assert_eq!(count(&world, done_once), all);
    assert_eq!(count(&world, "SELECT count(*) FROM scrape_logs WHERE ended_us IS NULL"), 0);
    for site in &sites {
        let log = site.log();
        assert_spaced(&log, 60);
        for (url, times) in there.iter().flatten() {
            let Some(path) = url.strip_prefix(&site.url()) else { continue };
            let asked = counts(&log)[path];
            assert_eq!(asked, *times, "{path} was fetched again although it was done:\n{}", to_text(&log));
        }
    }
    // There is nothing left to do.
    let before = asked();
    let ran = run(&world, &["--out", "kept"], 0);
    assert_eq!((&ran["sources"]["not_due"], asked()), (&serde_json::json!(SITES), before), "{ran}");
}

/// Items are stored in batches; if the run is killed between two of them, the source doesn't count as fetched.
#[test]
fn a_large_feed_counts_as_fetched_only_when_complete() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("p", MANY));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &["--cadence", "8h"]);
    let stored = || count(&world, "SELECT count(*) FROM items");
    let mut halves = 0;
    for _ in 0..4 {
        let before = stored();
        let mut running = world.start(&["run", "--no-scrape"]);
        wait_until("a batch is stored", || stored() > before || running.is_over());
        running.kill();
        let fetched = count(&world, "SELECT count(*) FROM sources WHERE cursor_json LIKE '%last_fetch_at%'");
        match stored() {
            kept if kept == MANY as i64 => break,
            _ => halves += 1,
        }
        assert_eq!((fetched, count(&world, "SELECT count(*) FROM fetch_runs")), (0, 0));
    }
    assert!(halves > 0, "it was never killed between two batches");
    run(&world, &["--no-scrape"], 0);
    assert_eq!(stored(), MANY as i64);
    assert_eq!(count(&world, "SELECT count(*) FROM sources WHERE cursor_json LIKE '%last_fetch_at%'"), 1);
}

fn site() -> Site {
    let feed = numbered("p", PAGES);
    Site::start(move |asked| match asked.path {
        "/feed" => {
            Answer { status: 200, body: feed.clone(), ..Answer::default() }.after(Duration::from_millis(50))
        }
        path => Answer::page(path).after(Duration::from_millis(15)),
    })
}

fn assert_fetched_with_all_items(world: &World) {
    let wrong = format!(
        "SELECT count(*) FROM sources WHERE json_extract(cursor_json, '$.last_fetch_at') IS NOT NULL
         AND (SELECT count(*) FROM items WHERE source_id = sources.id) <> {PAGES}"
    );
    assert_eq!(count(world, &wrong), 0, "a source counts as fetched without all its items");
}

/// The pages that count as scraped, and how often each was requested until now.
fn scraped(world: &World, sites: &[Site]) -> Vec<(String, usize)> {
    let logs: Vec<(String, Vec<Hit>)> = sites.iter().map(|site| (site.url(), site.log())).collect();
    let times = |url: &str| {
        logs.iter().find_map(|(site, log)| {
            let path = url.strip_prefix(site.as_str())?;
            Some(log.iter().filter(|hit| hit.path == path).count())
        })
    };
    let sql = world.sql();
    let mut done = sql.prepare("SELECT url FROM items WHERE state = 'done'").unwrap();
    let urls = done.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap);
    urls.map(|url| (url.clone(), times(&url).unwrap())).collect()
}

const SITES: usize = 3;
const PAGES: usize = 12;
const MANY: usize = 30_000;
/// When to kill: after this many requests, plus milliseconds. While sources are fetched, items are stored, and pages
/// are scraped.
const MOMENTS: [(usize, u64); 14] = [
    (1, 0),
    (2, 20),
    (3, 30),
    (3, 48),
    (3, 52),
    (3, 56),
    (3, 70),
    (2, 0),
    (3, 10),
    (4, 20),
    (3, 40),
    (5, 5),
    (4, 15),
    (2, 30),
];

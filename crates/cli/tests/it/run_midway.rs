//! What happens while a run is under way: Ctrl-C, other runs, sources that go, pages that fail.

use std::time::Duration;

use serde_json::{Value, json};

use crate::follow::{FEEDS, add, assert_counts, count, items, numbered, rss, run, states, world};
use crate::log::{assert_each_once, assert_spaced, counts, now_us, told};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// A site whose `/feed` is `feed`, and whose pages are pages.
fn feed_site(feed: String) -> Site {
    Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path => Answer::page(path),
    })
}

/// B11, B74: what is in flight is finished and kept, what is left is the next run's, and nothing is done twice.
#[test]
fn ctrl_c_leaves_the_rest_for_the_next_run() {
    let (world, feed) = (world(&[]), numbered("p", 5));
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path if asked.before == 2 => Answer::page(path).after(Duration::from_secs(1)),
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), &["--cadence", "8h"]);
    let running = world.start(&["--json", "run", "--out", "kept"]);
    site.wait_for(3);
    running.signal("INT");
    let done = running.wait().expect(130);
    done.says("Stopping… (1 scrape in flight, and requests for sources; press Ctrl-C again to quit now)");
    done.says("interrupted: comity run continues with what is left");
    assert_eq!(done.json()["tasks"]["fetched"], 2, "{}", done.stdout);
    assert_eq!((site.log().len(), world.index("kept").len()), (3, 2));
    let rest = run(&world, &["--out", "kept"], 0);
    assert_eq!((&rest["sources"]["not_due"], &rest["tasks"]["fetched"]), (&json!(1), &json!(3)), "{rest}");
    assert_each_once(&site.log(), "p", 5);
    assert_eq!((site.log().len(), world.index("kept").len()), (6, 5));
    assert_eq!(states(&world), vec!["done"; 5]);
}

/// The same while sources are asked: those that were not read are asked by the next run.
#[test]
fn ctrl_c_while_sources_are_asked() {
    let world = world(&[]);
    let site = Site::start(|asked| match asked.path {
        path if path.starts_with("/feed") => {
            let body = numbered(&path[5..], 2);
            Answer { status: 200, body, ..Answer::default() }.after(Duration::from_millis(400))
        }
        path => Answer::page(path),
    });
    for name in ["a", "b", "c"] {
        add(&world, &format!("{}/feed{name}", site.url()), &["--cadence", "8h"]);
    }
    let running = world.start(&["--json", "run"]);
    site.wait_for(2);
    running.signal("INT");
    running.wait().expect(130);
    let read = count(&world, "SELECT count(*) FROM sources WHERE cursor_json LIKE '%last_fetch_at%'");
    let rest = run(&world, &[], 0);
    assert_eq!(rest["sources"]["fetched"], 3 - read, "{rest}");
    assert_eq!(states(&world), vec!["done"; 6]);
    for name in ["a", "b", "c"] {
        assert_each_once(&site.log(), name, 2);
    }
}

/// B9, B54: two runs over one store share the pace and the work.
#[test]
fn two_runs_at_once_do_nothing_twice_and_nothing_early() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    for name in ["a", "b", "c"] {
        nginx.put(&format!("feeds/{name}.rss"), numbered(name, 5));
        add(&world, &format!("{}/feeds/{name}.rss", nginx.url()), &[]);
    }
    let args = ["--json", "run", "--delay", "100ms"];
    let (one, two) = (world.start(&args), world.start(&args));
    let (one, two) = (one.wait().expect(0), two.wait().expect(0));
    let fetched = |done: &Value| done["tasks"]["fetched"].as_u64().unwrap();
    let new = |done: &Value| done["items"]["new"].as_u64().unwrap();
    let (one, two) = (one.json(), two.json());
    assert_eq!((fetched(&one) + fetched(&two), new(&one) + new(&two)), (15, 15), "{one}\n{two}");
    let log = nginx.log();
    assert_spaced(&log, 100);
    for name in ["a", "b", "c"] {
        assert_each_once(&log, name, 5);
    }
    assert_eq!(states(&world), vec!["done"; 15]);
    assert_eq!(count(&world, "SELECT count(*) FROM scrape_logs"), 15);
}

/// B56: a cap on what waits and runs does not lose anything.
#[test]
fn a_cap_in_flight_lets_everything_through_in_the_end() {
    let site = feed_site(numbered("p", 7));
    let world = world(&[("scrape.max_in_flight_per_source", "2")]);
    add(&world, &(site.url() + "/feed"), &[]);
    let ran = run(&world, &[], 0);
    assert_eq!((&ran["items"]["enqueued"], &ran["tasks"]["fetched"]), (&json!(7), &json!(7)), "{ran}");
    assert_each_once(&site.log(), "p", 7);
}

/// B63: pages that fail are told; the run goes on and says so in its code.
#[test]
fn a_page_that_fails_stops_nobody() {
    let world = world(&[("job.max_retries", "0")]);
    let feed = numbered("p", 4);
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        "/p1" => Answer::status(500),
        "/p2" => Answer::status(404),
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), &[]);
    let ran = run(&world, &[], 1);
    assert_counts(&ran["tasks"], json!({ "fetched": 2, "failed": 2, "skipped": 0 }));
    assert_eq!(states(&world), ["done", "failed", "failed", "done"]);
    let failed = &items(&world)[2];
    assert!(failed["error"].as_str().unwrap().contains("404"), "{failed}");
    // A run does not try them again by itself.
    assert_eq!(run(&world, &[], 0)["items"]["enqueued"], 0);
    assert_eq!(counts(&site.log())["/p2"], 1);
}

/// B10: pages that nobody answers for do not hold up the others of their source.
#[test]
fn hosts_that_are_not_there_hold_nobody_up() {
    let world = world(&[("job.max_retries", "0")]);
    let site = Site::start(|asked| Answer::page(asked.path));
    let mut links: Vec<String> = (10..20).map(|port| format!("http://127.0.0.1:{port}/")).collect();
    links.push(site.url() + "/p0");
    let named: Vec<(&str, &str)> = links.iter().map(|link| (&**link, &**link)).collect();
    let feed = feed_site(rss(&named));
    add(&world, &(feed.url() + "/feed"), &[]);
    let ran = run(&world, &[], 1);
    assert_counts(&ran["tasks"], json!({ "fetched": 1, "failed": 10, "skipped": 0 }));
    assert!(ran["elapsed_ms"].as_u64().unwrap() < 30_000, "{ran}");
}

/// B47: a site whose pages all fail is not asked for all of them; what is left is the next run's.
#[test]
fn too_many_failures_in_a_row_stop_the_scraping() {
    let world = world(&[("job.max_retries", "0"), ("job.failure_threshold", "4")]);
    let feed = numbered("p", 10);
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path if asked.before < 6 => Answer { body: path.to_owned(), ..Answer::status(500) },
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), &["--cadence", "8h"]);
    let done = world.run(&["--json", "run"]).expect(1);
    done.says("scraping stopped: ");
    done.says("what is left waits for the next run");
    assert_eq!(done.json()["tasks"]["failed"], 4, "{}", done.stdout);
    assert_eq!(site.log().len(), 5, "{}", told(&site.log()));
    let rest = run(&world, &[], 1);
    assert_counts(&rest["tasks"], json!({ "fetched": 5, "failed": 1, "skipped": 0 }));
    assert_each_once(&site.log(), "p", 10);
}

/// B58: a source that is removed while its items are scraped is over, and the run ends as if nothing was left.
#[test]
fn a_source_that_is_removed_meanwhile_is_scraped_no_more() {
    let site = feed_site(numbered("p", 10));
    let world = world(&[("default.min_delay", "\"400ms\"")]);
    add(&world, &(site.url() + "/feed"), &[]);
    let running = world.start(&["--json", "run"]);
    site.wait_for(2);
    world.run(&["sources", "remove", "1"]).expect(0);
    let removed = now_us();
    let done = running.wait().expect(0).json();
    let late = site.log().iter().filter(|hit| hit.start > removed).count();
    assert_eq!(late, 0, "{}", told(&site.log()));
    assert_eq!(done["tasks"]["failed"], 0, "{done}");
    for table in ["items", "scrape_logs", "fetch_runs"] {
        assert_eq!(count(&world, &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(run(&world, &[], 0)["sources"]["due"], 0);
}

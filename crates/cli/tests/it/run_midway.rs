//! What can happen during a run: Ctrl-C, other runs, removed sources, failing pages.

use std::time::Duration;

use serde_json::{Value, json};

use crate::follow::{FEEDS, add, assert_counts, count, items, numbered, rss, run, states, world};
use crate::log::{assert_each_once, assert_spaced, counts, now_us, to_text};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// A site with `feed` at `/feed`, and pages at all other paths.
fn feed_site(feed: String) -> Site {
    Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path => Answer::page(path),
    })
}

/// B11, B74: what is in flight is finished and saved, the next run does the rest, and nothing is done twice.
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
    done.says("Stopping… (1 scrape in flight, plus requests to sources");
    done.says("; press Ctrl-C again to quit now)");
    done.says("Interrupted; comity run resumes with the rest");
    assert_eq!(done.json()["tasks"]["fetched"], 2, "{}", done.stdout);
    assert_eq!((site.log().len(), world.index("kept").len()), (3, 2));
    let rest = run(&world, &["--out", "kept"], 0);
    assert_eq!((&rest["sources"]["not_due"], &rest["tasks"]["fetched"]), (&json!(1), &json!(3)), "{rest}");
    assert_each_once(&site.log(), "p", 5);
    assert_eq!((site.log().len(), world.index("kept").len()), (6, 5));
    assert_eq!(states(&world), vec!["done"; 5]);
}

/// Sources that were not fetched are fetched by the next run.
#[test]
fn ctrl_c_while_sources_are_fetched() {
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

/// B9, B54: two runs on one store share the pace and the work.
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

/// B56: a limit on waiting and running scrapes loses nothing.
#[test]
fn max_in_flight_per_source_loses_nothing() {
    let site = feed_site(numbered("p", 7));
    let world = world(&[("scrape.max_in_flight_per_source", "2")]);
    add(&world, &(site.url() + "/feed"), &[]);
    let ran = run(&world, &[], 0);
    assert_eq!((&ran["items"]["enqueued"], &ran["tasks"]["fetched"]), (&json!(7), &json!(7)), "{ran}");
    assert_each_once(&site.log(), "p", 7);
}

/// B63: failed pages are reported, the run continues, and the exit code is 1.
#[test]
fn a_failing_page_does_not_stop_the_run() {
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
    // A run doesn't retry them automatically.
    assert_eq!(run(&world, &[], 0)["items"]["enqueued"], 0);
    assert_eq!(counts(&site.log())["/p2"], 1);
}

/// B10: pages on hosts that can't be reached don't delay the other pages of their source.
#[test]
fn unreachable_hosts_do_not_delay_others() {
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

/// B47: a site whose pages all fail is given up after a while; the rest waits for the next run.
#[test]
fn too_many_consecutive_failures_stop_scraping() {
    let world = world(&[("job.max_retries", "0"), ("job.failure_threshold", "4")]);
    let feed = numbered("p", 10);
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path if asked.before < 6 => Answer { body: path.to_owned(), ..Answer::status(500) },
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), &["--cadence", "8h"]);
    let done = world.run(&["--json", "run"]).expect(1);
    done.says("Scraping stopped: ");
    done.says("the rest waits for the next run");
    assert_eq!(done.json()["tasks"]["failed"], 4, "{}", done.stdout);
    assert_eq!(site.log().len(), 5, "{}", to_text(&site.log()));
    let rest = run(&world, &[], 1);
    assert_counts(&rest["tasks"], json!({ "fetched": 5, "failed": 1, "skipped": 0 }));
    assert_each_once(&site.log(), "p", 10);
}

/// B58: if a source is removed while its items are scraped, the run ends normally.
#[test]
fn a_source_removed_during_the_run_is_no_longer_scraped() {
    let site = feed_site(numbered("p", 10));
    let world = world(&[("default.min_delay", "\"400ms\"")]);
    add(&world, &(site.url() + "/feed"), &[]);
    let running = world.start(&["--json", "run"]);
    site.wait_for(2);
    world.run(&["sources", "remove", "1"]).expect(0);
    let removed = now_us();
    let done = running.wait().expect(0).json();
    let late = site.log().iter().filter(|hit| hit.start > removed).count();
    assert_eq!(late, 0, "{}", to_text(&site.log()));
    assert_eq!(done["tasks"]["failed"], 0, "{done}");
    for table in ["items", "scrape_logs", "fetch_runs"] {
        assert_eq!(count(&world, &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(run(&world, &[], 0)["sources"]["due"], 0);
}

//! `comity run --watch`: fetches sources when they are due, and survives reloads and a busy store.

use std::time::Duration;

use serde_json::json;

use crate::comity::World;
use crate::follow::{FEEDS, add, configure, count, numbered, run, world};
use crate::log::{Hit, TOLERANCE, assert_each_once, to_text, wait_until};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// A world with a source that is due every three seconds.
fn followed(changes: &[(&str, &str)]) -> (World, Nginx) {
    let (world, nginx) = (world(changes), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 2));
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    world.run(&["sources", "cadence", "set", "3s", &id.to_string()]).expect(0);
    (world, nginx)
}

fn asked(nginx: &Nginx, path: &str) -> Vec<Hit> {
    nginx.log().into_iter().filter(|hit| hit.path == path).collect()
}

fn wait_for(nginx: &Nginx, path: &str, times: usize) {
    wait_until(&format!("{path} was requested {times} times"), || asked(nginx, path).len() >= times);
}

/// Asserts that no request for the feed of [`followed`] was sent before its source was due.
///
/// A source is due three seconds after the end of the window before (B59). A request may be sent later than that, because
/// the machine is busy or the site's pace delays it, so two of them may be less than three seconds apart on the server.
fn assert_fetched_when_due(world: &World, nginx: &Nginx) {
    let sql = world.sql();
    let mut ends =
        sql.prepare("SELECT window_end_us FROM fetch_runs WHERE source_id = 1 ORDER BY id").unwrap();
    let ends: Vec<i64> = ends.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    // nginx logs a response after it has sent it.
    wait_for(nginx, "/feeds/a.rss", ends.len());
    let hits = asked(nginx, "/feeds/a.rss");
    assert_eq!(ends.len(), hits.len(), "{ends:?}\n{}", to_text(&hits));
    assert!(ends.windows(2).all(|pair| pair[1] - pair[0] >= 3_000_000), "{ends:?}");
    for (end, hit) in ends.iter().zip(&hits) {
        assert!(hit.start >= end - TOLERANCE, "due at {end}, requested at {}", hit.start);
    }
}

/// B59: a source is fetched when it is due and not earlier; sources that are added in the meantime are noticed.
#[test]
fn a_source_is_fetched_whenever_it_is_due() {
    let (world, nginx) = followed(&[]);
    nginx.put("feeds/b.rss", numbered("b", 2));
    let running = world.start(&["run", "--watch"]);
    wait_for(&nginx, "/feeds/a.rss", 1);
    wait_for(&nginx, "/a1", 1);
    add(&world, &(nginx.url() + "/feeds/b.rss"), &[]);
    wait_for(&nginx, "/b1", 1);
    wait_for(&nginx, "/feeds/a.rss", 3);
    running.signal("TERM");
    running.wait().expect(130);
    assert_fetched_when_due(&world, &nginx);
    let log = nginx.log();
    assert_eq!(asked(&nginx, "/feeds/b.rss").len(), 1, "{}", to_text(&log));
    // It may have been fetched once more before the signal arrived.
    assert_eq!(log.len(), asked(&nginx, "/feeds/a.rss").len() + 1 + 4, "{}", to_text(&log));
}

/// A valid configuration takes effect at once, an invalid one is rejected.
#[test]
fn sighup_reloads_the_configuration() {
    let (world, nginx) = followed(&[("http.user_agent", "\"First/1\"")]);
    let agents = || -> Vec<String> {
        let asked = nginx.asked();
        asked.iter().map(|asked| asked["user_agent"].as_str().unwrap().to_owned()).collect()
    };
    let running = world.start(&["run", "--watch"]);
    wait_for(&nginx, "/feeds/a.rss", 1);
    wait_for(&nginx, "/a1", 1);
    configure(&world, &[("http.user_agent", "\"Second/2\""), ("http.contact", "\"second@example.org\"")]);
    running.signal("HUP");
    wait_until("it was reloaded", || running.said().contains("Configuration reloaded"));
    // One request may have been in flight, and is logged when it is answered.
    let before = agents().len() + 1;
    let fetched = asked(&nginx, "/feeds/a.rss").len();
    wait_for(&nginx, "/feeds/a.rss", fetched + 1);
    configure(&world, &[("http.user_agent", "\"Third/3\""), ("default.min_delay", "\"fast\"")]);
    running.signal("HUP");
    wait_until("it was rejected", || running.said().contains("Configuration not reloaded"));
    assert!(running.said().contains("default.min_delay = \"fast\""), "{}", running.said());
    world.write("comity.toml", "[http\n");
    running.signal("HUP");
    wait_until("it was rejected", || running.said().matches("Configuration not reloaded").count() == 2);
    wait_for(&nginx, "/feeds/a.rss", fetched + 2);
    running.signal("TERM");
    running.wait().expect(130);
    let agents = agents();
    assert!(agents[0].starts_with("First/1") && agents[0].contains("ops@example.org"), "{agents:?}");
    let is_second = |agent: &String| agent.starts_with("Second/2") && agent.contains("second@example.org");
    assert!(agents.len() > before && agents[before..].iter().all(is_second), "{before} {agents:?}");
    assert_fetched_when_due(&world, &nginx);
}

/// If another process locks the store for a few seconds, it waits and continues.
#[test]
fn it_waits_for_a_busy_store() {
    let (world, nginx) = followed(&[]);
    let mut running = world.start(&["run", "--watch"]);
    wait_for(&nginx, "/a1", 1);
    let sql = world.sql();
    sql.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::sleep(Duration::from_secs(4));
    sql.execute_batch("ROLLBACK").unwrap();
    assert!(!running.is_over(), "{}", running.said());
    let before = asked(&nginx, "/feeds/a.rss").len();
    wait_for(&nginx, "/feeds/a.rss", before + 1);
    nginx.put("feeds/a.rss", numbered("a", 3));
    wait_for(&nginx, "/a2", 1);
    running.signal("TERM");
    running.wait().expect(130);
    assert_fetched_when_due(&world, &nginx);
}

/// What is in flight during a reload or a stop is finished once and saved.
#[test]
fn what_is_in_flight_is_finished_first() {
    let (world, feed) = (world(&[]), numbered("p", 4));
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path @ ("/p0" | "/p2") => Answer::page(path).after(Duration::from_secs(1)),
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), &["--cadence", "8h"]);
    let running = world.start(&["run", "--watch", "--out", "kept"]);
    let is_asked = |path: &str| site.log().iter().any(|hit| hit.path == path);
    wait_until("a page is requested", || is_asked("/p0"));
    running.signal("HUP");
    wait_until("another page is requested", || is_asked("/p2"));
    running.signal("TERM");
    running.wait().expect(130);
    let done = count(&world, "SELECT count(*) FROM items WHERE state = 'done'");
    assert_eq!(done as usize, site.log().len() - 1, "{}", to_text(&site.log()));
    assert_eq!(count(&world, "SELECT count(*) FROM items WHERE state = 'running'"), 0);
    run(&world, &["--out", "kept"], 0);
    assert_each_once(&site.log(), "p", 4);
    assert_eq!(world.index("kept").len(), 4);
}

/// With `--json`, each run prints the same object as a single run.
#[test]
fn each_run_prints_a_json_object() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    let running = world.start(&["--json", "run", "--watch"]);
    wait_until("a run is printed", || running.shown().ends_with('\n'));
    running.signal("TERM");
    let object = running.wait().expect(130).json();
    assert_eq!((&object["sources"]["fetched"], &object["items"]["new"]), (&json!(1), &json!(1)), "{object}");
    for key in ["window_end", "sources", "items", "tasks"] {
        assert!(!object[key].is_null(), "{key}: {object}");
    }
}

/// Without sources it sleeps until one is added.
#[test]
fn without_sources_it_sleeps_until_one_is_added() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let running = world.start(&["run", "--watch"]);
    wait_until("it sleeps", || running.said().contains("no sources yet"));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    wait_for(&nginx, "/a0", 1);
    running.signal("INT");
    // The source is due in a quarter of an hour, too long for a test.
    running.wait().expect(130);
    world.run(&["run", "--watch", "--source", "9"]).expect(2).says("--source = 9");
    world.run(&["run", "--watch", "--window-end", "2026-01-01T00:00:00Z"]).expect(2);
    world.run(&["run", "--watch", "--force"]).expect(2);
}

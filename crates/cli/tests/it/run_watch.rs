//! `comity run --watch`: asks when something is due, and outlives what happens meanwhile.

use std::time::Duration;

use serde_json::json;

use crate::comity::World;
use crate::follow::{FEEDS, add, configure, count, numbered, run, world};
use crate::log::{Hit, assert_each_once, assert_spaced, told, wait_until};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// A source that is worth asking every three seconds, and what is watched.
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
    wait_until(&format!("{path} is asked for {times} times"), || asked(nginx, path).len() >= times);
}

/// B59: not sooner than it is due, and not never; what others add meanwhile is seen.
#[test]
fn a_source_is_asked_whenever_it_is_due() {
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
    let log = nginx.log();
    assert_spaced(&asked(&nginx, "/feeds/a.rss"), 3_000);
    assert_eq!(asked(&nginx, "/feeds/b.rss").len(), 1, "{}", told(&log));
    // It may have been asked once more before it was told to end.
    assert_eq!(log.len(), asked(&nginx, "/feeds/a.rss").len() + 1 + 4, "{}", told(&log));
    let gaps = count(
        &world,
        "SELECT min(gap) FROM (SELECT window_end_us - lag(window_end_us) OVER (ORDER BY id)
        AS gap FROM fetch_runs WHERE source_id = 1)",
    );
    assert!(gaps >= 3_000_000, "{gaps}");
}

/// A configuration that is right goes at once, one that is wrong not at all.
#[test]
fn the_configuration_is_read_again_when_asked_to() {
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
    wait_until("it was read", || running.said().contains("the configuration was read again"));
    wait_for(&nginx, "/feeds/a.rss", 2);
    configure(&world, &[("http.user_agent", "\"Third/3\""), ("default.min_delay", "\"fast\"")]);
    running.signal("HUP");
    wait_until("it was refused", || running.said().contains("the configuration stays as it was"));
    assert!(running.said().contains("default.min_delay = \"fast\""), "{}", running.said());
    world.write("comity.toml", "[http\n");
    running.signal("HUP");
    wait_until("it was refused", || running.said().matches("the configuration stays as it was").count() == 2);
    wait_for(&nginx, "/feeds/a.rss", 3);
    running.signal("TERM");
    running.wait().expect(130);
    let agents = agents();
    assert!(agents[0].starts_with("First/1") && agents[0].contains("ops@example.org"), "{agents:?}");
    let second = agents.iter().position(|agent| agent.starts_with("Second/2")).unwrap();
    assert_eq!(second, 3, "{agents:?}");
    assert!(agents[second..].iter().all(|agent| agent.contains("second@example.org")), "{agents:?}");
    assert_spaced(&asked(&nginx, "/feeds/a.rss"), 3_000);
}

/// Somebody else keeps the store for a few seconds: it waits, and goes on.
#[test]
fn a_store_that_is_busy_is_waited_for() {
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
    // A run that had to wait for the store is late; what is due is told by the ends of its windows (B59).
    let close = "SELECT count(*) FROM (SELECT window_end_us - lag(window_end_us) OVER (ORDER BY id) AS apart
        FROM fetch_runs) WHERE apart < 3000000";
    assert_eq!(count(&world, close), 0);
}

/// What is in flight when the configuration changes, or when it is to end, is finished once and kept.
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
    wait_until("a page is asked for", || is_asked("/p0"));
    running.signal("HUP");
    wait_until("another page is asked for", || is_asked("/p2"));
    running.signal("TERM");
    running.wait().expect(130);
    let done = count(&world, "SELECT count(*) FROM items WHERE state = 'done'");
    assert_eq!(done as usize, site.log().len() - 1, "{}", told(&site.log()));
    assert_eq!(count(&world, "SELECT count(*) FROM items WHERE state = 'running'"), 0);
    run(&world, &["--out", "kept"], 0);
    assert_each_once(&site.log(), "p", 4);
    assert_eq!(world.index("kept").len(), 4);
}

/// Each run of many is told as one is alone.
#[test]
fn each_run_is_told_to_machines() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    let running = world.start(&["--json", "run", "--watch"]);
    wait_until("a run is told", || running.shown().ends_with('\n'));
    running.signal("TERM");
    let told = running.wait().expect(130).json();
    assert_eq!((&told["sources"]["fetched"], &told["items"]["new"]), (&json!(1), &json!(1)), "{told}");
    for key in ["window_end", "sources", "items", "tasks"] {
        assert!(!told[key].is_null(), "{key}: {told}");
    }
}

/// Nobody waits for somebody who watches nothing.
#[test]
fn watching_nothing_ends_when_asked_to_and_sees_the_first_source() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let running = world.start(&["run", "--watch"]);
    wait_until("it sleeps", || running.said().contains("no source is followed"));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    wait_for(&nginx, "/a0", 1);
    running.signal("INT");
    // The source is due in a quarter of an hour: nobody here waits for that.
    running.wait().expect(130);
    world.run(&["run", "--watch", "--source", "9"]).expect(2).says("--source 9");
    world.run(&["run", "--watch", "--window-end", "2026-01-01T00:00:00Z"]).expect(2);
    world.run(&["run", "--watch", "--force"]).expect(2);
}

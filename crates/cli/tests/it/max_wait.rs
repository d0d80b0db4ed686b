//! `fetch --max-wait` and `domains reset --deadline`: a site that asks to come back tomorrow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::comity::World;
use crate::site::{Answer, Site};

/// A site that asks for more than a day until it is told otherwise.
fn closed_site() -> (Site, Arc<AtomicBool>) {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = open.clone();
    let site = Site::start(move |asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        _ if !is_open.load(Ordering::Relaxed) => Answer::status(429).header("Retry-After", "80000"),
        path => Answer::page(path),
    });
    (site, open)
}

/// B22, B37, B39: the deadline survives everything except the operator's express command.
#[test]
fn a_site_that_asks_for_a_day_is_left_waiting_until_its_deadline_is_dropped() {
    let world = World::new();
    let ((closed, open), other) = (
        closed_site(),
        Site::start(|asked| match asked.path {
            "/robots.txt" => Answer::status(404),
            path => Answer::page(path),
        }),
    );
    let (url, domain) = (closed.url() + "/a", closed.authority());
    let pages: Vec<String> = (0..3).map(|page| format!("{}/{page}", other.url())).collect();
    let mut fetch = vec!["--json", "fetch", "--job", "x", "--delay", "10ms", "--max-wait", "2s", &url];
    fetch.extend(pages.iter().map(String::as_str));
    let done = world.run(&fetch).expect(1);
    let object = done.json();
    assert_eq!((&object["state"], &object["fetched"]), (&"stopped".into(), &3.into()), "{object}");
    let message = object["message"].as_str().unwrap();
    assert!(message.contains("1 URL left waiting; the first can be fetched at 20"), "{message}");
    assert_waits_for(&object, &domain);
    done.says("(--max-wait)");
    done.says("To resume: comity fetch --job x");
    // With --quiet, it is all that a mail from cron contains.
    let quiet = world.run(&["fetch", "--job", "x", "--quiet", "--max-wait", "1s"]).expect(1);
    assert!(quiet.stderr.starts_with("1 URL left waiting"), "{}", quiet.stderr);
    assert!(quiet.stderr.contains(&format!("; {domain}: the server asked to wait\n")), "{}", quiet.stderr);
    // This run never got to the site: its retry is due tomorrow.
    let again = world.run(&["--json", "fetch", "--job", "x", "--max-wait", "1s"]).expect(1);
    assert_waits_for(&again.json(), &domain);
    world.run(&["fetch", "--job", "x", "--max-wait", "soon"]).expect(2).says("--max-wait");

    open.store(true, Ordering::Relaxed);
    world.run(&["domains", "reset", &domain]).expect(0).shows("the server asked to wait until");
    world.run(&["fetch", "--job", "x", "--quiet", "--max-wait", "1s"]).expect(1);
    let dropped = world.run(&["domains", "reset", &domain, "--deadline"]).expect(0);
    dropped.says(&format!("{domain}: dropped the server's deadline of 20"));
    assert!(!dropped.stdout.contains("asked to wait"), "{}", dropped.stdout);
    world
        .run(&["domains", "reset", &domain, "--deadline"])
        .expect(0)
        .says("the server has stated no deadline");
    let done = world.run(&["--json", "fetch", "--job", "x"]).expect(0);
    assert_eq!(done.json()["fetched"], 4);
    assert_eq!(closed.log().iter().filter(|hit| hit.path == "/a").count(), 2, "it was asked once in between");
}

/// The wait is the same if it was robots.txt that asked for it.
#[test]
fn max_wait_also_ends_a_wait_for_robots_txt() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/robots.txt" => Answer::status(429).header("Retry-After", "80000"),
        path => Answer::page(path),
    });
    let url = site.url() + "/a";
    let done = world.run(&["--json", "fetch", "--job", "x", "--max-wait", "2s", &url]).expect(1);
    let object = done.json();
    assert_eq!((&object["state"], &object["waiting"]), (&"stopped".into(), &1.into()), "{object}");
    assert_eq!(site.log().len(), 1, "only robots.txt was requested");
}

/// The summary names the site that is waited for longest, and why.
fn assert_waits_for(summary: &Value, domain: &str) {
    let held = &summary["held_back"][0];
    assert_eq!((&held["domain"], &held["origin"]), (&domain.into(), &"server".into()), "{summary}");
    assert_eq!(held["why"], "the server asked to wait", "{summary}");
    assert!(held["until"].as_str().unwrap().starts_with("20"), "{summary}");
    assert!(summary["next_at"].as_str().unwrap().starts_with("20"), "{summary}");
}

/// The delay between two pages is not a reason to stop.
#[test]
fn max_wait_does_not_stop_a_run_that_only_keeps_its_pace() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        path => Answer::page(path),
    });
    let pages: Vec<String> = (0..4).map(|page| format!("{}/{page}", site.url())).collect();
    let mut fetch = vec!["fetch", "--delay", "1s", "--max-wait", "3s"];
    fetch.extend(pages.iter().map(String::as_str));
    world.run(&fetch).expect(0);
}

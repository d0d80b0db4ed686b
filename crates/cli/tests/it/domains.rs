//! `domains`: what is learned about them, and changes by hand.

use crate::comity::{World, list};
use crate::log::{assert_spaced, to_text, wait_until};
use crate::site::{Answer, Site};

/// B39
#[test]
fn a_learned_delay_can_be_set_pinned_and_reset() {
    let world = World::new();
    world.run(&["domains", "show", "example.org"]).expect(2).says("example.org");
    world.run(&["domains", "set", "example.org"]).expect(2);
    let set = world
        .run(&["--json", "domains", "set", "example.org", "--delay", "5s", "--floor", "2s"])
        .expect(0)
        .json();
    assert_eq!(
        (set["adaptive_delay_seconds"].as_f64(), set["adaptive_delay_floor_seconds"].as_f64()),
        (Some(5.0), Some(2.0))
    );
    let pinned = world.run(&["--json", "domains", "set", "example.org", "--pin"]).expect(0).json();
    assert_eq!(pinned["pinned"], true, "{pinned}");
    world.run(&["check", "example.org"]).expect(0);
    world.run(&["record", "example.org", "429", "--retry-after", "1"]).expect(0);
    let shown = world.run(&["--json", "domains", "show", "example.org"]).expect(0).json();
    assert_eq!(shown["adaptive_delay_seconds"], 5.0, "it was pinned: {shown}");
    world.run(&["domains", "set", "example.org", "--unpin"]).expect(0);
    world.run(&["domains", "list"]).expect(0).shows("example.org");
    world.run(&["domains", "list", "nothing-like-it"]).expect(0).shows("No matching sites");
    let reset = world.run(&["--json", "domains", "reset", "example.org"]).expect(0).json();
    assert_eq!(reset["adaptive_delay_seconds"], 0.0, "{reset}");
}

/// A deadline that has passed is history, and `domains list` is about what is in force.
#[test]
fn expired_deadlines_are_not_listed() {
    let world = World::new();
    for (domain, wait) in [("over.example", "1"), ("closed.example", "3600")] {
        world.run(&["record", domain, "429", "--retry-after", wait]).expect(0);
    }
    let until = |domain: &str| {
        let shown = world.run(&["--json", "domains", "list", domain]).expect(0).json();
        shown["domains"][0]["server_until"].clone()
    };
    wait_until("the first one has passed", || until("over.example").is_null());
    assert!(until("closed.example").is_string());
    let stored = "SELECT count(*) FROM domains WHERE server_until_us IS NOT NULL";
    assert_eq!(world.sql().query_row(stored, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
    let listed = world.run(&["domains", "list"]).expect(0).stdout;
    let line = |domain: &str| listed.lines().find(|line| line.starts_with(domain)).unwrap().to_owned();
    assert!(line("closed.example").contains("the server asked to wait until 20"), "{listed}");
    assert!(!line("over.example").contains("until"), "{listed}");
    let shown = world.run(&["domains", "show", "over.example"]).expect(0).stdout;
    assert!(!shown.contains("until"), "{shown}");
}

#[test]
fn a_site_without_its_port_is_reported_with_the_ports_that_are_known() {
    let world = World::new();
    world.run(&["record", "127.0.0.1:8801", "success"]).expect(0);
    let shown = world.run(&["domains", "show", "127.0.0.1"]).expect(2);
    shown.says("nothing is known about 127.0.0.1 yet; did you mean 127.0.0.1:8801?");
    let set = ["domains", "set", "127.0.0.1:8801", "--delay", "3s", "--floor", "5s"];
    world.run(&set).expect(2).says("--floor = \"5s\": expected at most --delay (3s)");
}

/// B39
#[test]
fn a_paused_domain_is_not_fetched() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    world.run(&["domains", "set", &site.url(), "--pause", "forever"]).expect(0).shows("paused until resumed");
    world.run(&["check", &site.url()]).expect(1).shows("pause");
    let url = format!("{}/a", site.url());
    let fetch = world.start(&["fetch", &url, "--robots", "ignore", "--delay", "20ms", "--format", "none"]);
    wait_until("it reports what holds it back", || {
        world.run(&["--json", "top"]).expect(0).stdout.contains("paused by an operator")
    });
    assert_eq!(site.log().len(), 0);
    world.run(&["domains", "set", &site.url(), "--resume"]).expect(0);
    fetch.wait().expect(0);
    assert_eq!(site.log().len(), 1);
    let paused = world.run(&["--json", "domains", "set", "example.org", "--pause", "1h"]).expect(0).json();
    assert_eq!(paused["paused"], true, "{paused}");
    assert!(paused["paused_until"].is_string(), "{paused}");
}

/// B29, B35, B36
#[test]
fn a_learned_delay_is_stored_and_used() {
    let world = World::new();
    world.write(
        "comity.toml",
        "[default]\nmin_delay = \"100ms\"\nlearning = \"linear\"\nwait_on_429 = \"learned\"\n\
         learn = { base = \"100ms\", step = \"300ms\", probe_after = 100 }\n",
    );
    let site = Site::start(|asked| match asked.before {
        2 => Answer::status(429),
        _ => Answer::page(asked.path),
    });
    let learned = || {
        let sql = "SELECT adaptive_delay_seconds FROM domains";
        world.sql().query_row(sql, [], |row| row.get::<_, f64>(0)).unwrap_or(0.0)
    };
    let fetch = |job: &str, count: usize| {
        let input = world.write(job, &list(&site.url(), job, count));
        let input = input.to_str().unwrap().to_owned();
        world.start(&["fetch", "--input", &input, "--job", job, "--robots", "ignore", "--format", "none"])
    };
    let mut running = fetch("a", 100);
    site.wait_for(3);
    wait_until("the learned delay is stored", || learned() > 0.0);
    assert!(!running.is_over(), "it is stored while it runs, and not only at its end");
    assert!((learned() - 0.4).abs() < 1e-6, "{}", learned());
    running.signal("INT");
    running.wait().expect(130);
    assert!((learned() - 0.4).abs() < 1e-6, "{}", learned());
    let log = site.log();
    assert_spaced(&log[2..], 400);

    let before = log.len();
    fetch("b", 5).wait().expect(0);
    let log = site.log();
    assert_eq!(log.len(), before + 5, "{}", to_text(&log));
    assert_spaced(&log[2..], 400);
}

//! The wall clock is set while a command runs, and between commands on one store.

use std::path::PathBuf;
use std::process::Command;

use crate::comity::{Running, World, list};
use crate::follow;
use crate::log::{Hit, assert_each_once, assert_spaced, now_us, to_text, wait_until};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// B7
#[test]
fn steps_of_the_wall_clock_are_ignored_while_running() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let fetch = |job: &str, count: usize| {
        let input = world.write(job, &list(&nginx.url(), job, count));
        let input = input.to_str().unwrap().to_owned();
        let args = [
            "fetch", "--input", &input, "--job", job, "--delay", "150ms", "--robots", "ignore", "--format",
            "none",
        ];
        world.begin(under_fake_time(world.command(&args), &world.path("clock")))
    };
    set(&world, "+0");
    let running = fetch("a", 40);
    nginx.wait_for(8);
    set(&world, "-3600");
    assert!(world_clock(&world) < now_us() / 1_000_000 - 3_000, "the clock was not set");
    nginx.wait_for(16);
    set(&world, "+3600");
    running.wait().expect(0);
    let log = nginx.log();
    assert_each_once(&log, "a", 40);
    assert_spaced(&log, 150);
    let gap = log.windows(2).map(|pair| pair[1].start - pair[0].start).max().unwrap();
    assert!(gap < 60_000_000, "a clock step caused a wait:\n{}", to_text(&log));

    // A process that starts with a clock that is behind waits no longer than the spacing, and not for an hour.
    set(&world, "-3600");
    fetch("b", 5).wait().expect(0);
    assert_spaced(&nginx.log(), 150);
}

/// A site that answers 429 to the second request only, with a Retry-After of `seconds`.
fn closes(seconds: u64) -> Site {
    Site::start(move |asked| match asked.before {
        1 => Answer::status(429).header("Retry-After", &seconds.to_string()),
        _ => Answer::page(asked.path),
    })
}

fn fetch(world: &World, args: &[&str]) -> Running {
    let args = [&["fetch", "--delay", "100ms", "--robots", "ignore", "--format", "none"], args].concat();
    world.begin(under_fake_time(world.command(&args), &world.path("clock")))
}

/// Asserts that no request came before the site's deadline, and none an hour late.
fn assert_deadline(log: &[Hit], seconds: i64) {
    let refused = log.iter().find(|hit| hit.status == 429).unwrap();
    let next = log.iter().find(|hit| hit.start > refused.start).unwrap();
    let waited = next.start - refused.answered;
    assert!(waited >= seconds * 1_000_000 - 20_000, "early:\n{}", to_text(log));
    assert!(waited < 120_000_000, "late:\n{}", to_text(log));
}

/// B7, B37. A clock step while one process ran and another joined used to lose the deadline that the first had
/// received.
#[test]
fn a_process_that_joins_after_a_step_keeps_the_deadline() {
    for step in ["+3600", "-3600", "+60", "-60"] {
        let (world, site) = (World::new(), closes(3));
        set(&world, "+0");
        let input = world.write("urls", &list(&site.url(), "a", 6));
        let first = fetch(&world, &["--input", input.to_str().unwrap(), "--job", "a"]);
        site.wait_for(2);
        set(&world, step);
        let second = fetch(&world, &["--job", "a"]);
        for running in [first, second] {
            running.wait().expect(0);
        }
        assert_deadline(&site.log(), 3);
        assert_spaced(&site.log(), 100);
    }
}

/// B7, B37. A step back between runs used to stop requests for an hour, and a step ahead made them early.
#[test]
fn a_step_between_runs_keeps_deadlines_and_adds_no_wait() {
    for (step, ends) in [("-3600", "INT"), ("+3600", "INT"), ("-3600", "KILL"), ("+3600", "KILL")] {
        let (world, site) = (World::new(), closes(4));
        set(&world, "+0");
        let input = world.write("urls", &list(&site.url(), "a", 6));
        let first = fetch(&world, &["--input", input.to_str().unwrap(), "--job", "a"]);
        site.wait_for(2);
        // A deadline that the server stated is saved before the next grant.
        let saved = "SELECT count(*) FROM domains WHERE server_until_us IS NOT NULL";
        wait_until("the deadline is saved", || {
            world.sql().query_row(saved, [], |row| row.get::<_, i64>(0)).unwrap() == 1
        });
        first.signal(ends);
        let _ = first.wait();
        set(&world, step);
        fetch(&world, &["--job", "a"]).wait().expect(0);
        assert_deadline(&site.log(), 4);
    }
}

/// B7. `faketime -f -1h comity check` used to save a deadline in its own time, so that other processes' next request
/// was early.
#[test]
fn a_command_with_a_slow_clock_moves_no_deadline() {
    let (world, site) = (World::new(), closes(5));
    set(&world, "+0");
    let input = world.write("urls", &list(&site.url(), "a", 4));
    let running = fetch(&world, &["--input", input.to_str().unwrap(), "--job", "a"]);
    site.wait_for(2);
    for step in ["-3600", "+3600"] {
        set(&world, step);
        let check = world.command(&["check", &site.url()]);
        world.begin(under_fake_time(check, &world.path("clock"))).wait().expect(1);
    }
    running.wait().expect(0);
    assert_deadline(&site.log(), 5);
}

/// B7, B52. A scrape that started while the clock was an hour ahead used to defer its source forever.
#[test]
fn a_scrape_in_the_future_does_not_defer_its_source() {
    let world = follow::world(&[("scrape.min_interval", "1"), ("scrape.max_wait", "\"5s\"")]);
    let feed = follow::numbered("p", 3);
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path => Answer::page(path),
    });
    follow::add(&world, &(site.url() + "/feed"), &[]);
    follow::run(&world, &["--no-scrape"], 0);
    let scrape = |item: &str| {
        let scrape = world.command(&["scrape", item]);
        world.begin(under_fake_time(scrape, &world.path("clock"))).wait().expect(0);
    };
    set(&world, "+3600");
    scrape("1");
    set(&world, "+0");
    scrape("2");
    // An earlier version may have left such a row behind.
    world.sql().execute("UPDATE scrape_logs SET started_us = started_us + 3600000000", []).unwrap();
    follow::run(&world, &[], 0);
    assert_eq!(follow::states(&world), ["done"; 3]);
}

fn set(world: &World, offset: &str) {
    // Atomically: half a file is not a valid time.
    world.write("clock.new", &format!("{offset}\n"));
    std::fs::rename(world.path("clock.new"), world.path("clock")).unwrap();
}

/// The time on the fake clock.
fn world_clock(world: &World) -> i64 {
    let mut date = Command::new("date");
    date.arg("+%s").env_clear().env("PATH", "/usr/bin:/bin");
    let read = under_fake_time(date, &world.path("clock")).output().unwrap();
    String::from_utf8_lossy(&read.stdout).trim().parse().unwrap()
}

fn under_fake_time(mut command: Command, clock: &std::path::Path) -> Command {
    command
        .env("LD_PRELOAD", library())
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("FAKETIME_NO_CACHE", "1");
    command
}

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("libfaketime is missing: install Debian's package faketime (apt-get install -y faketime)")
}

//! Ctrl-C, SIGTERM and SIGHUP.

use crate::comity::{Running, World, list};
use crate::log::{assert_each_once, counts, to_text, wait_until};
use crate::site::{Answer, Held, Site};
use crate::terminal::Terminal;

/// A site that holds the first page.
fn slow(held: &Held) -> Site {
    let held = held.clone();
    Site::start(move |asked| match asked.before {
        0 => Answer::page(asked.path).held(&held),
        _ => Answer::page(asked.path),
    })
}

fn fetch(world: &World, site: &Site) -> Running {
    let input = world.write("list", &list(&site.url(), "p", 5));
    world.start(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "one",
        "--delay",
        "20ms",
        "--robots",
        "ignore",
        "--out",
        "pages",
    ])
}

/// B11, B74: what is in flight is finished and saved, and the job can be resumed.
#[test]
fn the_first_signal_finishes_what_is_in_flight() {
    for name in ["INT", "TERM", "HUP"] {
        let held = Held::default();
        let (world, site) = (World::new(), slow(&held));
        let running = fetch(&world, &site);
        site.wait_for(1);
        running.signal(name);
        wait_until("it finishes what is in flight", || running.said().contains("(1 request in flight"));
        held.release();
        let done = running.wait().expect(130);
        done.says("--job one");
        let log = site.log();
        assert_eq!(log.len(), 1, "{}", to_text(&log));
        assert_eq!(world.index("pages").len(), 1);
        world.run(&["fetch", "--job", "one"]).expect(0);
        assert_each_once(&site.log(), "p", 5);
        assert_eq!(world.index("pages").len(), 5);
    }
}

/// It used to say "stopped, 1 of 1 fetched" and how to resume, and to exit with 130.
#[test]
fn a_signal_during_the_last_page_leaves_nothing_to_resume() {
    for (status, code) in [(200, 0), (404, 1)] {
        let held = Held::default();
        let (world, hold) = (World::new(), held.clone());
        let site = Site::start(move |_| Answer::status(status).held(&hold));
        let args = ["--job", "one", "--robots", "ignore", "--format", "none"];
        let running = world.start(&[&["fetch", &format!("{}/last", site.url())][..], &args].concat());
        site.wait_for(1);
        running.signal("INT");
        wait_until("it finishes what is in flight", || running.said().contains("(1 request in flight"));
        held.release();
        let done = running.wait().expect(code);
        done.shows("job one: done, ");
        assert!(!done.stderr.contains("To resume"), "{}", done.stderr);
        assert_eq!(world.run(&["--json", "jobs", "show", "one"]).expect(0).json()["state"], "done");
    }
}

/// A second signal doesn't wait.
#[test]
fn the_second_signal_quits_immediately() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    let running = fetch(&world, &site);
    site.wait_for(1);
    running.signal("INT");
    wait_until("it is stopping", || running.said().contains("Stopping"));
    running.signal("INT");
    // The page never arrives, so waiting for it would not end.
    let done = running.wait().expect(130);
    held.release();
    done.says("--job one");
    assert_eq!(site.log().len(), 1);
    world.run(&["fetch", "--job", "one"]).expect(0);
    let log = site.log();
    assert_eq!(counts(&log).len(), 5);
    assert_eq!(log.len(), 6, "{}", to_text(&log));
}

/// A job that is waiting for a site ends at once.
#[test]
fn a_signal_ends_a_wait() {
    let world = World::new();
    let site = Site::start(|_| Answer::status(429).header("Retry-After", "600"));
    let running = fetch(&world, &site);
    wait_until("it is answered", || site.log().first().is_some_and(|hit| hit.done < i64::MAX));
    running.signal("INT");
    // It doesn't wait for ten minutes.
    running.wait().expect(130);
    assert_eq!(site.log().len(), 1);
}

/// Both the shell and the kernel send SIGHUP when a terminal closes; that must not count as pressing Ctrl-C twice.
#[test]
fn two_sighups_still_finish_what_is_in_flight() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    let running = fetch(&world, &site);
    site.wait_for(1);
    for _ in 0..3 {
        running.signal("HUP");
        wait_until("it is stopping", || running.said().contains("Stopping"));
    }
    held.release();
    running.wait().expect(130);
    assert_eq!(world.index("pages").len(), 1);
}

/// With nohup, a fetch outlives its terminal.
#[test]
fn under_nohup_sighup_is_ignored() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    let input = world.write("list", &list(&site.url(), "p", 3));
    let plain = world.command(&["fetch", "--input", input.to_str().unwrap(), "--robots", "ignore"]);
    let mut command = std::process::Command::new("/usr/bin/nohup");
    command.arg(plain.get_program()).args(plain.get_args()).args(["--delay", "20ms", "--out", "pages"]);
    command.current_dir(world.path("")).env_clear().stdin(std::process::Stdio::null());
    let running = world.begin(command);
    site.wait_for(1);
    running.signal("HUP");
    held.release();
    running.wait().expect(0);
    assert_eq!(world.index("pages").len(), 3);
}

/// B11, B74: the same when its terminal is closed. Nobody hears when the signal arrives, so a few more pages may be fetched
/// before it does: however many they are, each is saved and none is fetched again.
#[test]
fn closing_the_terminal_ends_a_fetch_like_ctrl_c() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    world.write("list", &list(&site.url(), "p", 400));
    let line = "comity fetch --input list --job one --delay 20ms --robots ignore --out pages --store sqlite:comity.db";
    let terminal = Terminal::open(&world, 100, 30, &[], line);
    site.wait_for(1);
    terminal.close();
    held.release();
    let state = || world.run(&["--json", "jobs", "show", "one"]).expect(0).json()["state"].clone();
    wait_until("it has ended", || state() != "running");
    assert_eq!(state(), "stopped");
    assert_eq!(world.index("pages").len(), site.log().len(), "what was in flight is saved");
    world.run(&["fetch", "--job", "one", "--delay", "0"]).expect(0);
    assert_each_once(&site.log(), "p", 400);
    assert_eq!(world.index("pages").len(), 400);
}

/// It used to show how long the whole job would take.
#[test]
fn after_a_signal_a_site_that_hangs_is_named_with_how_long_it_may_take() {
    let (world, held) = (World::new(), Held::default());
    world.write("comity.toml", "[http]\nfirst_byte_timeout = \"10m\"\n");
    let site = slow(&held);
    let running = fetch(&world, &site);
    wait_until("there is progress to report", || running.said().contains("/5 pages"));
    running.signal("INT");
    let host = site.url().replace("http://", "");
    let end = format!(" for {host}; press Ctrl-C again to quit now)");
    wait_until("it says what it waits for", || {
        running.said().lines().any(|line| line.contains("in flight, waiting up to ") && line.ends_with(&end))
    });
    running.signal("INT");
    running.wait().expect(130);
}

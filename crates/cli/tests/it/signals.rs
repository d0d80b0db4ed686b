//! Ctrl-C and its relatives.

use crate::comity::{Running, World, list};
use crate::log::{assert_each_once, counts, told, wait_until};
use crate::site::{Answer, Held, Site};
use crate::terminal::Terminal;

/// The first page is held.
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

/// B11, B74: what is in flight is finished and kept, and the job goes on later.
#[test]
fn the_first_signal_finishes_what_is_in_flight() {
    for name in ["INT", "TERM", "HUP"] {
        let held = Held::default();
        let (world, site) = (World::new(), slow(&held));
        let running = fetch(&world, &site);
        site.wait_for(1);
        running.signal(name);
        wait_until("it finishes first", || running.said().contains("1 request in flight"));
        held.release();
        let done = running.wait().expect(130);
        done.says("--job one");
        let log = site.log();
        assert_eq!(log.len(), 1, "{}", told(&log));
        assert_eq!(world.index("pages").len(), 1);
        world.run(&["fetch", "--job", "one"]).expect(0);
        assert_each_once(&site.log(), "p", 5);
        assert_eq!(world.index("pages").len(), 5);
    }
}

/// A second signal does not wait.
#[test]
fn the_second_signal_stops_at_once() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    let running = fetch(&world, &site);
    site.wait_for(1);
    running.signal("INT");
    wait_until("it says that it stops", || running.said().contains("Stopping"));
    running.signal("INT");
    // The page does not come: whoever waited for it would not end.
    let done = running.wait().expect(130);
    held.release();
    done.says("--job one");
    assert_eq!(site.log().len(), 1);
    world.run(&["fetch", "--job", "one"]).expect(0);
    let log = site.log();
    assert_eq!(counts(&log).len(), 5);
    assert_eq!(log.len(), 6, "{}", told(&log));
}

/// A job that waits for a long time ends at once.
#[test]
fn a_signal_ends_a_wait() {
    let world = World::new();
    let site = Site::start(|_| Answer::status(429).header("Retry-After", "600"));
    let running = fetch(&world, &site);
    wait_until("it is answered", || site.log().first().is_some_and(|hit| hit.done < i64::MAX));
    running.signal("INT");
    // Nobody here waits for ten minutes.
    running.wait().expect(130);
    assert_eq!(site.log().len(), 1);
}

/// Shell and system both report that a terminal closed: that is not somebody who presses Ctrl-C twice.
#[test]
fn hanging_up_twice_still_finishes_what_is_in_flight() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    let running = fetch(&world, &site);
    site.wait_for(1);
    for _ in 0..3 {
        running.signal("HUP");
        wait_until("it says that it stops", || running.said().contains("Stopping"));
    }
    held.release();
    running.wait().expect(130);
    assert_eq!(world.index("pages").len(), 1);
}

/// Whoever starts it with nohup wants it to outlive the terminal.
#[test]
fn under_nohup_a_hang_up_changes_nothing() {
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

/// B11, B74: the terminal that it runs in is closed.
#[test]
fn a_terminal_that_closes_ends_a_fetch_as_ctrl_c_does() {
    let held = Held::default();
    let (world, site) = (World::new(), slow(&held));
    world.write("list", &list(&site.url(), "p", 5));
    let line = "comity fetch --input list --job one --delay 20ms --robots ignore --out pages --store sqlite:comity.db";
    let terminal = Terminal::open(&world, 100, 30, &[], line);
    site.wait_for(1);
    terminal.close();
    held.release();
    // Nobody is told how it ends; what was in flight is kept, and not asked for again.
    wait_until("the page in flight is kept", || world.index("pages").len() == 1);
    world.run(&["fetch", "--job", "one"]).expect(0);
    assert_each_once(&site.log(), "p", 5);
    assert_eq!(world.index("pages").len(), 5);
}

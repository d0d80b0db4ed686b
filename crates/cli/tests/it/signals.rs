//! Ctrl-C and its relatives.

use std::time::Duration;

use crate::comity::{Running, World, list};
use crate::log::{assert_each_once, counts, now_us, told, wait_until};
use crate::site::{Answer, Site};

/// Each page takes a second.
fn slow() -> Site {
    Site::start(|asked| match asked.before {
        0 => Answer::page(asked.path).after(Duration::from_secs(1)),
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
    for name in ["INT", "TERM"] {
        let (world, site) = (World::new(), slow());
        let running = fetch(&world, &site);
        site.wait_for(1);
        running.signal(name);
        let done = running.wait().expect(130);
        done.says("--job one");
        done.says("1 request is finished first");
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
    let world = World::new();
    let site = Site::start(|asked| match asked.before {
        0 => Answer::page(asked.path).after(Duration::from_secs(8)),
        _ => Answer::page(asked.path),
    });
    let running = fetch(&world, &site);
    site.wait_for(1);
    running.signal("INT");
    wait_until("it says that it stops", || running.said().contains("stopping"));
    let second = now_us();
    running.signal("INT");
    let done = running.wait().expect(130);
    assert!(now_us() - second < 3_000_000, "{} µs", now_us() - second);
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
    site.wait_for(1);
    std::thread::sleep(Duration::from_millis(300));
    let asked = now_us();
    running.signal("INT");
    running.wait().expect(130);
    assert!(now_us() - asked < 5_000_000, "{} µs", now_us() - asked);
    assert_eq!(site.log().len(), 1);
}

//! A process that is stopped with SIGSTOP for longer than its lease, and then continues.

use std::time::Duration;

use crate::comity::{Running, World, list};
use crate::log::{assert_spaced, counts, to_text, wait_until};
use crate::nginx::Nginx;

/// B9, B74, B77
#[test]
fn a_holder_that_was_stopped_does_not_send_for_domains_it_lost() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 60));
    let input = input.to_str().unwrap();
    let first = world.start(&[
        "fetch", "--input", input, "--job", "one", "--delay", "200ms", "--robots", "ignore", "--out", "pages",
    ]);
    nginx.wait_for(5);
    let second = world.start(&["fetch", "--job", "one"]);
    stop_between_writes(&world, &first);
    let before = nginx.log().len();
    std::thread::sleep(Duration::from_secs(14));
    let taken_over = nginx.log().len();
    first.signal("CONT");
    let (first, second) = (first.wait().expect(0), second.wait().expect(0));
    let log = nginx.log();
    assert!(taken_over > before + 3, "nobody took over:\n{}\n{}", to_text(&log), second.stderr);
    assert_spaced(&log, 200);
    let counts = counts(&log);
    assert_eq!(counts.len(), 60, "{}", to_text(&log));
    let again = counts.values().filter(|count| **count > 1).count();
    assert!(again <= 1 && log.len() <= 61, "{}\n{}\n{}", to_text(&log), first.stderr, second.stderr);
}

/// Stops a process, but not while it writes to the store, which would block others.
fn stop_between_writes(world: &World, process: &Running) {
    let store = world.sql();
    store.busy_timeout(Duration::ZERO).unwrap();
    wait_until("it is stopped between two writes", || {
        process.signal("STOP");
        wait_until("it is stopped", || process.is_stopped());
        // The other process writes too, briefly.
        let free = (0..100).any(|_| {
            let begun = store.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
            if !begun {
                std::thread::sleep(Duration::from_millis(10));
            }
            begun
        });
        if !free {
            process.signal("CONT");
        }
        free
    });
}

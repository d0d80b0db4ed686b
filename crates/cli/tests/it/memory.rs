//! Memory doesn't grow with the length of a list, and a limited address space is enough.

use std::fs::File;

use crate::comity::World;
use crate::follow::{add, world};
use crate::log::{assert_each_once, to_text};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

#[test]
fn a_list_of_two_hundred_thousand_lines_uses_little_memory() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let url = nginx.url();
    let text: String = (0..200_000).map(|nth| format!("{url}/p{}\n", nth % 1_000)).collect();
    world.write("stdin", &text);
    let args = [
        "--json",
        "fetch",
        "--input",
        "-",
        "--delay",
        "0s",
        "--learning",
        "off",
        "--robots",
        "ignore",
        "--format",
        "none",
    ];
    let mut command = world.command(&args);
    command.stdin(File::open(world.path("stdin")).unwrap());
    let mut running = world.begin(command);
    let most_kb = running.peak_kb();
    let done = running.wait().expect(0);
    assert_eq!(done.json()["fetched"], 1_000);
    let log = nginx.log();
    assert_eq!(log.len(), 1_000, "{}", to_text(&log[..20]));
    assert_each_once(&log, "p", 1_000);
    assert!((1..150 * 1_024).contains(&most_kb), "{most_kb} kB");
}

/// The C library reserves address space for each thread, and with a limit on it, a feed of 5 MB aborted the process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_limited_address_space_is_enough_for_a_large_feed() {
    let world = world(&[]);
    let text = "x".repeat(1_000);
    let item = |nth| {
        format!(
            "<item><guid>g{nth}</guid><link>/{nth}</link><title>T</title><description>{text}</description></item>"
        )
    };
    let items: String = (0..5_000).map(item).collect();
    let feed = format!("<rss version=\"2.0\"><channel><title>T</title>{items}</channel></rss>");
    let site = Site::start(move |asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        _ => Answer { status: 200, body: feed.clone(), ..Answer::default() },
    });
    add(&world, &(site.url() + "/feed"), &[]);
    let run = world.limited("-v 200000", &["--json", "run", "--no-scrape"]);
    let done = world.begin(run).wait().expect(0);
    assert!(done.stdout.contains("5000"), "{}", done.stdout);
}

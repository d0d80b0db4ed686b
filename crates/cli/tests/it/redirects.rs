//! Where redirects lead.

use crate::comity::{World, list};
use crate::log::{assert_spaced, told};
use crate::site::{Answer, Site};

const QUICK: [&str; 6] = ["--robots", "ignore", "--learning", "off", "--out", "pages"];

fn moved(to: &str) -> Answer {
    Answer::status(302).header("Location", to)
}

/// B44: a hop to the same host waits its turn.
#[test]
fn every_hop_on_a_host_is_paced() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path.strip_prefix("/old") {
        Some(rest) => moved(&format!("/new{rest}")),
        None => Answer::page(asked.path),
    });
    let input = world.write("list", &list(&site.url(), "old", 5));
    let args =
        [&["--json", "fetch", "--input", input.to_str().unwrap(), "--delay", "150ms"][..], &QUICK].concat();
    let done = world.run(&args).expect(0);
    assert_eq!(done.json()["fetched"], 5);
    let log = site.log();
    assert_eq!(log.len(), 10, "{}", told(&log));
    assert_spaced(&log, 150);
    for line in world.index("pages") {
        let (url, last) = (line["url"].as_str().unwrap(), line["final_url"].as_str().unwrap());
        assert_eq!(url.replace("/old", "/new"), last);
    }
}

/// B44, B76: a hop to another host waits for that one, if it may be gone to at all.
#[test]
fn a_hop_to_another_host_is_paced_there_if_it_is_allowed() {
    let world = World::new();
    let other = Site::on("127.0.0.2", |asked| Answer::page(asked.path));
    let there = other.url();
    let site = Site::start(move |asked| moved(&format!("{there}{}", asked.path)));
    let fetch = |job: &str| {
        let input = world.write(job, &list(&site.url(), job, 5));
        let args = [
            &["--json", "fetch", "--input", input.to_str().unwrap(), "--job", job, "--delay", "150ms"][..],
            &QUICK,
        ];
        world.run(&args.concat())
    };
    let refused = fetch("a").expect(1);
    assert_eq!(refused.json()["failed"], 5, "{}", refused.stdout);
    assert_eq!(other.log().len(), 0, "{}", told(&other.log()));
    world.run(&["jobs", "show", "a"]).expect(0).shows("127.0.0.2");

    world.write("comity.toml", "[http]\nallow_private = [\"127.0.0.2\"]\n");
    let allowed = fetch("b").expect(0);
    assert_eq!(allowed.json()["fetched"], 5, "{}", allowed.stdout);
    assert_eq!(other.log().len(), 5, "{}", told(&other.log()));
    assert_spaced(&other.log(), 150);
    assert_spaced(&site.log(), 150);
}

#[test]
fn redirects_without_end_fail() {
    let world = World::new();
    let site = Site::start(|asked| {
        let nth: u32 = asked.path.trim_start_matches("/loop").parse().unwrap();
        moved(&format!("/loop{}", nth + 1))
    });
    let url = format!("{}/loop0", site.url());
    let args = [&["--json", "fetch", &url, "--job", "one", "--delay", "20ms"][..], &QUICK].concat();
    assert_eq!(world.run(&args).expect(1).json()["failed"], 1);
    let log = site.log();
    assert_eq!(log.len(), 11, "{}", told(&log));
    assert_spaced(&log, 20);
    world.run(&["jobs", "show", "one"]).expect(0).shows("10 redirects");
}

/// B76
#[test]
fn only_http_is_gone_to() {
    for place in ["file:///etc/passwd", "ftp://127.0.0.1/", "javascript:alert(1)"] {
        let world = World::new();
        let site = Site::start(move |_| moved(place));
        let url = format!("{}/a", site.url());
        let args = [&["--json", "fetch", &url, "--job", "one", "--delay", "20ms"][..], &QUICK].concat();
        assert_eq!(world.run(&args).expect(1).json()["failed"], 1);
        assert_eq!(site.log().len(), 1);
        world.run(&["jobs", "show", "one"]).expect(0).shows("isn't a valid http or https URL");
        assert_eq!(world.index("pages").len(), 0);
    }
}

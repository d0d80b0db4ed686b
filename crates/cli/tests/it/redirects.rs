//! Redirects: pacing, private addresses, loops, other schemes.

use crate::comity::{World, list};
use crate::log::{assert_spaced, to_text};
use crate::site::{Answer, Site};

const QUICK: [&str; 6] = ["--robots", "ignore", "--learning", "off", "--out", "pages"];

fn moved(to: &str) -> Answer {
    Answer::status(302).header("Location", to)
}

/// B44: a hop to the same host waits its turn.
#[test]
fn every_redirect_on_a_host_is_paced() {
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
    assert_eq!(log.len(), 10, "{}", to_text(&log));
    assert_spaced(&log, 150);
    for line in world.index("pages") {
        let (url, last) = (line["url"].as_str().unwrap(), line["final_url"].as_str().unwrap());
        assert_eq!(url.replace("/old", "/new"), last);
    }
}

/// B44, B76: a redirect to another host waits for that host's pace, if it is allowed at all.
#[test]
fn a_redirect_to_another_host_is_paced_there_if_allowed() {
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
    assert_eq!(other.log().len(), 0, "{}", to_text(&other.log()));
    world.run(&["jobs", "show", "a"]).expect(0).shows("127.0.0.2");

    world.write("comity.toml", "[http]\nallow_private = [\"127.0.0.2\"]\n");
    let allowed = fetch("b").expect(0);
    assert_eq!(allowed.json()["fetched"], 5, "{}", allowed.stdout);
    assert_eq!(other.log().len(), 5, "{}", to_text(&other.log()));
    assert_spaced(&other.log(), 150);
    assert_spaced(&site.log(), 150);
}

#[test]
fn endless_redirects_fail() {
    let world = World::new();
    let site = Site::start(|asked| {
        let nth: u32 = asked.path.trim_start_matches("/loop").parse().unwrap();
        moved(&format!("/loop{}", nth + 1))
    });
    let url = format!("{}/loop0", site.url());
    let args = [&["--json", "fetch", &url, "--job", "one", "--delay", "20ms"][..], &QUICK].concat();
    assert_eq!(world.run(&args).expect(1).json()["failed"], 1);
    let log = site.log();
    assert_eq!(log.len(), 11, "{}", to_text(&log));
    assert_spaced(&log, 20);
    world.run(&["jobs", "show", "one"]).expect(0).shows("10 redirects");
}

/// B76
#[test]
fn only_http_redirects_are_followed() {
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

/// Whoever searches the log for a URL of the list finds it, wherever its redirect led.
#[test]
fn the_log_names_the_listed_url_and_where_it_led() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/listed" => moved("/gone"),
        _ => Answer::status(404),
    });
    let url = site.url() + "/listed";
    let done = world.run(&[&["fetch", &url, "--delay", "1ms"][..], &QUICK].concat()).expect(1);
    let line = done.stderr.lines().find(|line| line.contains(" failed ")).unwrap_or_default();
    assert!(line.contains(&format!("url=\"{url}\"")), "{}", done.stderr);
    assert!(line.contains(&format!("final_url=\"{}/gone\"", site.url())), "{}", done.stderr);
}

//! robots.txt.

use crate::comity::{World, list};
use crate::log::{assert_spaced, counts, to_text};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// B44: fetched once per run, not again within a day, and disallowed URLs are skipped.
#[test]
fn disallowed_urls_are_skipped() {
    let world = World::new();
    let nginx = Nginx::start(r"location = /robots.txt { return 200 'User-agent: *\nDisallow: /private\n'; }");
    let fetch = |job: &str, prefix: &str| {
        let text = list(&nginx.url(), prefix, 3) + &list(&nginx.url(), "private/", 2);
        let input = world.write(job, &text);
        let input = input.to_str().unwrap();
        world
            .run(&["--json", "fetch", "--input", input, "--job", job, "--delay", "50ms", "--format", "none"])
            .expect(0)
    };
    let done = fetch("first", "a");
    assert_eq!((done.json()["fetched"].as_u64(), done.json()["skipped"].as_u64()), (Some(3), Some(2)));
    world.run(&["jobs", "show", "first"]).expect(0).shows("(forbidden by robots.txt)");
    fetch("second", "b");
    let log = nginx.log();
    assert_eq!(counts(&log)["/robots.txt"], 1, "{}", to_text(&log));
    assert!(log.iter().all(|hit| !hit.path.starts_with("/private")), "{}", to_text(&log));
    assert_spaced(&log, 50);
    let args = ["fetch", &format!("{}/private/0", nginx.url()), "--robots", "ignore", "--format", "none"];
    world.run(&args).expect(0);
    assert_eq!(counts(&nginx.log())["/private/0"], 1);
}

/// B4, B34: the crawl-delay counts, also in a run that did not fetch robots.txt.
#[test]
fn the_crawl_delay_is_respected() {
    let world = World::new();
    let nginx = Nginx::start(r"location = /robots.txt { return 200 'User-agent: *\nCrawl-delay: 0.4\n'; }");
    for job in ["a", "b"] {
        let input = world.write(job, &list(&nginx.url(), job, 4));
        let input = input.to_str().unwrap();
        world.run(&["fetch", "--input", input, "--delay", "20ms", "--format", "none"]).expect(0);
    }
    let log = nginx.log();
    assert_eq!(log.len(), 9, "{}", to_text(&log));
    assert_spaced(&log[1..], 400);
    assert_spaced(&log, 20);
}

/// B44: a 429 on robots.txt is a penalty like any other.
#[test]
fn a_429_on_robots_txt_holds_the_site() {
    let world = World::new();
    let site = Site::start(|asked| match (asked.path, asked.before) {
        ("/robots.txt", 0) => Answer::status(429).header("Retry-After", "2"),
        ("/robots.txt", _) => Answer::status(404),
        _ => Answer::page(asked.path),
    });
    let url = format!("{}/a", site.url());
    world.run(&["fetch", &url, "--delay", "20ms", "--learning", "off", "--format", "none"]).expect(0);
    let log = site.log();
    let paths: Vec<&str> = log.iter().map(|hit| hit.path.as_str()).collect();
    assert_eq!(paths, ["/robots.txt", "/robots.txt", "/a"]);
    assert!(log[1].start - log[0].answered >= 1_990_000, "{}", to_text(&log));
}

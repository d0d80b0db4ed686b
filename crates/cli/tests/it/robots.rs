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

/// Its row used to say that nothing was attempted, and `jobs retry --status network_error` did not find it.
#[test]
fn requests_for_robots_txt_count_for_the_urls_that_fail_with_them() {
    let world = World::new();
    let urls = ["http://127.0.0.1:9/a", "http://127.0.0.1:9/b"];
    let fetch =
        ["fetch", urls[0], urls[1], "--job", "one", "--format", "none", "--max-retries", "1", "--jsonl"];
    let printed = world.run(&[&fetch[..], &["--delay", "1ms"]].concat()).expect(1).objects();
    let exported = world.run(&["jobs", "export", "one"]).expect(0).objects();
    for rows in [printed, exported] {
        for row in &rows {
            assert_eq!((&row["attempts"], &row["outcome"]), (&2.into(), &"network_error".into()), "{row}");
            assert!(row["error"].as_str().unwrap().contains("after 2 attempts"), "{row}");
            assert!(row["started_at"].is_string() && row["elapsed_ms"].is_u64(), "{row}");
        }
        assert_eq!(rows.len(), 2);
    }
    let retried =
        world.run(&["--json", "jobs", "retry", "one", "--status", "network_error"]).expect(0).json();
    assert_eq!(retried["waiting"], 2);
}

/// B76: a redirect to another host that the operator listed is followed, even to a private address. It used to be
/// blocked, and with it everything on the first host.
#[test]
fn a_robots_txt_that_redirects_to_another_listed_host_is_followed() {
    let world = World::new();
    let [second, third] = [(); 2].map(|()| {
        Site::start(|asked| match asked.path {
            "/robots.txt" => {
                let body = "User-agent: *\nDisallow: /forbidden\n".to_owned();
                Answer { status: 200, body, ..Answer::default() }
            }
            path => Answer::page(path),
        })
    });
    let redirecting = |site: &Site| {
        let to = site.url() + "/robots.txt";
        Site::start(move |asked| match asked.path {
            "/robots.txt" => Answer::status(301).header("Location", &to),
            path => Answer::page(path),
        })
    };
    let (first, other) = (redirecting(&second), redirecting(&third));
    let urls =
        [&first.url(), "/a\n", &first.url(), "/forbidden\n", &second.url(), "/b\n", &other.url(), "/c\n"];
    let input = world.write("list", &urls.concat());
    let args = ["--json", "fetch", "--input", input.to_str().unwrap(), "--job", "one", "--delay", "10ms"];
    let done = world.run(&[&args[..], &["--format", "none", "--max-retries", "0"]].concat()).expect(1).json();
    let counts = ["fetched", "skipped", "failed"].map(|state| done[state].as_u64().unwrap());
    assert_eq!(counts, [2, 1, 1], "{done}");
    assert_eq!(third.log().len(), 0, "a host that isn't listed is not trusted");
    world
        .run(&["jobs", "show", "one", "--failed"])
        .expect(0)
        .shows("blocked redirect or link to private address");
}

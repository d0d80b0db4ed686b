//! `fetch`: pages, files, the index, spacing, failures.

use std::path::Path;

use serde_json::Value;

use crate::comity::{World, list};
use crate::log::{assert_each_once, assert_spaced, counts, to_text};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// B4, B44
#[test]
fn pages_are_fetched_with_spacing_and_saved() {
    let (world, nginx) = (World::new(), Nginx::start(NO_ROBOTS));
    // Listed twice, fetched once.
    let text =
        list(&nginx.url(), "p", 20) + &list(&nginx.url(), "p", 20) + &format!("{}/p3#part\n", nginx.url());
    let input = world.write("list", &text);
    let done = world
        .run(&["--json", "fetch", "--input", input.to_str().unwrap(), "--delay", "100ms", "--out", "pages"])
        .expect(0);
    let object = done.json();
    let expected =
        [("tasks", 20), ("fetched", 20), ("failed", 0), ("skipped", 0), ("rate_limited", 0), ("retries", 0)];
    for (key, count) in expected {
        assert_eq!(object[key], count, "{key}: {object}");
    }
    assert_eq!(object["state"], "done");
    assert!(object["job"].is_string() && object["elapsed_ms"].as_u64().unwrap() >= 1_900, "{object}");
    let log = nginx.log();
    assert_spaced(&log, 100);
    assert_each_once(&log, "p", 20);
    assert_eq!(log.len(), 21, "20 pages and robots.txt");

    let index = world.index("pages");
    assert_eq!(index.len(), 20);
    for line in &index {
        for key in ["bytes", "fetched_at", "file", "final_url", "status", "url"] {
            assert!(!line[key].is_null(), "{key}: {line}");
        }
        let url = line["url"].as_str().unwrap();
        assert_eq!(line["final_url"], url);
        assert_eq!(line["status"], 200);
        assert!(line["fetched_at"].as_str().unwrap().starts_with("20"), "{line}");
        let body = std::fs::read_to_string(world.path("pages").join(line["file"].as_str().unwrap())).unwrap();
        assert_eq!(body, format!("page {}\n", &url[nginx.url().len()..]));
        assert_eq!(line["bytes"], body.len());
    }
}

/// B24, B41: other 4xx statuses are final.
#[test]
fn a_404_fails_without_a_retry() {
    let world = World::new();
    let nginx = Nginx::start("location /gone { return 404; }");
    let urls = [format!("{}/gone", nginx.url()), format!("{}/here", nginx.url())];
    let done = world
        .run(&[
            "--json", "fetch", &urls[0], &urls[1], "--delay", "50ms", "--robots", "ignore", "--job", "one",
        ])
        .expect(1);
    assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(counts(&nginx.log())["/gone"], 1);
    let shown = world.run(&["jobs", "show", "one"]).expect(0);
    shown.shows("status 404");
    shown.shows("/gone");
}

/// B41, B42: a 503 is retried.
#[test]
fn a_503_is_retried() {
    let world = World::new();
    let site = Site::start(|asked| match asked.before {
        0 | 1 => Answer::status(503).header("Retry-After", "1"),
        _ => Answer::page(asked.path),
    });
    let url = format!("{}/a", site.url());
    let done = world
        .run(&["--json", "fetch", &url, "--delay", "10ms", "--robots", "ignore", "--format", "none"])
        .expect(0);
    assert_eq!(done.json()["retries"], 2, "{}", done.stdout);
    let log = site.log();
    assert_eq!(log.len(), 3, "{}", to_text(&log));
    assert_spaced(&log, 1_000);
}

/// B45
#[test]
fn no_retries_means_one_attempt() {
    let world = World::new();
    let site = Site::start(|_| Answer::status(500));
    let url = format!("{}/a", site.url());
    let args = ["--json", "fetch", &url, "--max-retries", "0", "--robots", "ignore", "--format", "none"];
    assert_eq!(world.run(&args).expect(1).json()["failed"], 1);
    assert_eq!(site.log().len(), 1);
}

/// B46: a refused connection is a failure like any other.
#[test]
fn a_refused_connection_fails() {
    let world = World::new();
    let url = "http://127.0.0.1:9/";
    let args = ["--json", "fetch", url, "--max-retries", "0", "--robots", "ignore", "--format", "none"];
    let done = world.run(&args).expect(1);
    assert_eq!(done.json()["failed"], 1);
    assert_eq!(done.json()["state"], "done");
}

/// B43, B47, B79: a host that refuses connections is given up within seconds, even with a hundred pages. Judged by the
/// number of attempts and the waits between them, not by how long the machine took.
#[test]
fn a_host_that_refuses_connections_is_given_up_soon() {
    let world = World::new();
    let args = ["--json", "fetch", "--robots", "ignore", "--format", "none"];
    let one = world.run(&[&args[..], &["http://127.0.0.1:9/"]].concat()).expect(1);
    assert_eq!((&one.json()["failed"], &one.json()["retries"]), (&1.into(), &3.into()));
    assert_eq!(one.stderr.matches("INFO could not be reached; backing off").count(), 4, "{}", one.stderr);
    let warnings = one.stderr.lines().filter(|line| line.contains(" WARN ") && !line.contains("no contact"));
    assert_eq!(warnings.count(), 1, "one warning, when the URL has failed: {}", one.stderr);
    assert!(one.took_us >= 4_000_000, "1 s, and 1.5 s twice: {}", one.took_us);
    one.says("connection refused by 127.0.0.1:9 after 4 attempts");

    let world = World::new();
    let input = world.write("list", &list("http://127.0.0.1:9", "p", 100));
    let all = world.run(&[&args[..], &["--input", input.to_str().unwrap()]].concat()).expect(1);
    let object = all.json();
    assert_eq!(
        (&object["failed"], &object["skipped"], &object["state"]),
        (&20.into(), &80.into(), &"failed".into())
    );
    // Four refused connections are needed to know; after that every task fails at its first attempt.
    let attempts: i64 = world.sql().query_row("SELECT count(*) FROM attempts", [], |row| row.get(0)).unwrap();
    assert_eq!(attempts, 24, "{}", all.stderr);
    all.says("20 URLs in a row failed; the last error: connection refused by 127.0.0.1:9");
}

/// B72: people see a warning when a URL has failed for good, and each retry only with -v.
#[test]
fn an_unreachable_host_is_warned_of_once() {
    let world = World::new();
    for (args, attempts) in [
        (&["http://127.0.0.1:9/"][..], "after 4 attempts (while fetching robots.txt)"),
        (&["http://x.invalid/", "--robots", "ignore"], "after 4 attempts"),
    ] {
        let fetch = ["--log-level", "warn", "fetch", "--format", "none"];
        let done = world.run(&[&fetch[..], args].concat()).expect(1);
        let warnings =
            done.stderr.lines().filter(|line| line.contains(" WARN ") && !line.contains("no contact"));
        let warnings: Vec<&str> = warnings.collect();
        assert_eq!(warnings.len(), 1, "{}", done.stderr);
        assert!(warnings[0].contains("WARN failed") && warnings[0].contains(attempts), "{}", warnings[0]);
    }
}

/// A site that was down filled the screen.
#[test]
fn failures_of_one_site_for_one_reason_are_one_warning() {
    let world = World::new();
    let urls = ["a", "b", "c"].map(|path| format!("http://127.0.0.1:9/{path}"));
    let mut args =
        vec!["fetch", "--format", "none", "--robots", "ignore", "--max-retries", "0", "--delay", "1ms"];
    args.extend(urls.iter().map(String::as_str));
    let done = world.run(&args).expect(1);
    let lines = |level: &str, text: &str| {
        done.stderr.lines().filter(|line| line.contains(level) && line.contains(text)).count()
    };
    assert_eq!((lines(" WARN ", "WARN failed"), lines(" INFO ", "INFO failed")), (1, 2), "{}", done.stderr);
    done.says("more URLs failed site=\"127.0.0.1:9\" urls=2 error=");
}

/// B72, B75: a query may be a secret, so the log shows only that there is one.
#[test]
fn answers_in_the_log_name_their_url_without_its_query() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        "/moved?key=hidden" => Answer::status(302).header("Location", "/page"),
        path => Answer::page(path),
    });
    let base = site.url();
    let urls = [format!("{base}/a?key=hidden"), format!("{base}/moved?key=hidden")];
    let done =
        world.run(&["-vv", "fetch", &urls[0], &urls[1], "--delay", "5ms", "--format", "none"]).expect(0);
    let has = |parts: &[&str]| done.stderr.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    for path in ["/robots.txt", "/a?…", "/moved?…", "/page"] {
        let url = format!("url=\"{base}{path}\"");
        assert!(has(&["DEBUG answered", &url]), "{path}:\n{}", done.stderr);
    }
    let (url, final_url) = (format!("url=\"{base}/moved?…\""), format!("final_url=\"{base}/page\""));
    assert!(has(&["DEBUG fetched", &url, &final_url]), "{}", done.stderr);
    assert!(!done.stderr.contains("hidden"), "{}", done.stderr);
}

/// The error names the site that can't be reached, not its robots.txt.
#[test]
fn dns_and_connection_errors_are_named() {
    let world = World::new();
    let args =
        ["fetch", "http://127.0.0.1:9/", "http://x.invalid/", "--max-retries", "0", "--format", "none"];
    let done = world.run(&args).expect(1);
    done.says("connection refused by 127.0.0.1:9 (while fetching robots.txt)");
    done.says("DNS lookup failed for x.invalid (while fetching robots.txt)");
}

/// Cron mails what is printed: with `--quiet`, that is what failed, or nothing.
#[test]
fn quiet_prints_one_line_per_failed_url() {
    let world = World::new();
    let nginx = Nginx::start("location /gone { return 404; }");
    let quick = ["--quiet", "--delay", "5ms", "--robots", "ignore", "--format", "none"];
    let fetch = |input: &str, job: &str| {
        let file = world.write("list", input);
        world.run(&[&["fetch", "--input", file.to_str().unwrap(), "--job", job][..], &quick].concat())
    };
    let two = fetch(&format!("{0}/gone?a=1\n{0}/here\n", nginx.url()), "two").expect(1);
    assert_eq!(two.stdout, "");
    assert_eq!(two.stderr, format!("failed: {}/gone?a=1: status 404\n", nginx.url()));
    let many = fetch(&list(&nginx.url(), "gone", 50), "many").expect(1);
    assert_eq!(many.stderr.lines().filter(|line| line.starts_with("failed: ")).count(), 20);
    assert!(
        many.stderr.ends_with("and 30 more; list them with: comity jobs show many --failed\n"),
        "{}",
        many.stderr
    );
    let fine = fetch(&list(&nginx.url(), "here", 3), "fine").expect(0);
    assert_eq!((fine.stdout.as_str(), fine.stderr.as_str()), ("", ""));
}

/// B75: no URL leads to a file outside of the folder.
#[test]
fn no_url_is_saved_outside_of_the_folder() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let long = "x".repeat(3_000);
    let paths = [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/escape",
        "/..%2f..%2fescape",
        "/a/..%5c..%5cescape",
        "/%00",
        "/con.txt",
        "/.hidden",
        "/index.jsonl",
        "/%E2%80%AEgnp.exe",
        &format!("/{long}"),
        &format!("/q?{long}"),
    ];
    let text: String = paths.iter().map(|path| format!("{}{path}\n", site.url())).collect();
    let input = world.write("list", &text);
    let before = names(&world.path(""));
    let args = [
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--delay",
        "5ms",
        "--robots",
        "ignore",
        "--out",
        "pages",
    ];
    world.run(&args).expect(0);
    let index = world.index("pages");
    assert_eq!(index.len(), paths.len());
    let root = world.path("pages").canonicalize().unwrap();
    for line in &index {
        let file = line["file"].as_str().unwrap();
        let path = root.join(file).canonicalize().unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(path.starts_with(&root) && path.is_file(), "{file}");
        assert_ne!(path, root.join("index.jsonl"));
        assert!(file.len() < 255, "{file}");
    }
    let new: Vec<String> = names(&world.path("")).into_iter().filter(|name| !before.contains(name)).collect();
    let known = |name: &String| name == "pages" || name.starts_with("std") || name.starts_with("comity.db");
    assert!(new.iter().all(known), "{new:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

const NO_ROBOTS: &str = "location = /robots.txt { return 404; }";

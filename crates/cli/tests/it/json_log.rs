//! `--log-format json`: everything on stderr is a JSON line.

use serde_json::Value;

use crate::comity::{Done, World};
use crate::log::wait_until;
use crate::site::{Answer, Held, Site};

/// The lines of stderr, each of which must be a line of the log.
fn lines(done: &Done) -> Vec<Value> {
    let lines: Vec<Value> = done
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
        .collect();
    for line in &lines {
        assert!(["timestamp", "level", "message"].iter().all(|key| line[key].is_string()), "{line}");
    }
    lines
}

fn says(done: &Done, level: &str, part: &str) {
    let is_it = |line: &Value| line["level"] == level && line["message"].as_str().unwrap().contains(part);
    assert!(lines(done).iter().any(is_it), "{}", done.stderr);
}

/// B72
#[test]
fn progress_hints_and_failures_are_json_lines() {
    let held = Held::default();
    let until = held.clone();
    let site = Site::start(move |asked| match asked.path {
        "/robots.txt" | "/gone" => Answer::status(404),
        path => Answer::page(path).held(&until),
    });
    let world = World::new();
    let (page, gone) = (site.url() + "/a", site.url() + "/gone");
    let fetch = ["--log-format", "json", "fetch", &page, &gone, "--delay", "1ms", "--job", "x"];
    let running = world.start(&fetch);
    wait_until("progress is printed", || running.said().contains(" pages"));
    held.release();
    let done = running.wait().expect(1);
    says(&done, "INFO", " pages");
    says(&done, "INFO", "To see what failed: comity jobs show x");
    // What --quiet prints is not subject to the log level.
    let quiet = ["--log-format=json", "fetch", "--job", "y", "--quiet", "--delay", "1ms", &gone];
    let done = world.run(&quiet).expect(1);
    says(&done, "ERROR", "failed: ");
    assert_eq!(lines(&done).len(), 1, "{}", done.stderr);
}

/// Whoever filters the log by level must not miss what went wrong; what went well is no warning.
#[test]
fn lines_about_trouble_are_warnings_or_errors() {
    let site = Site::start(|asked| match asked.path {
        "/robots.txt" | "/sitemap.xml" => Answer::status(404),
        path if path.starts_with("/bad") => Answer::status(500),
        path => Answer::page(path),
    });
    let world = World::new();
    world.write("comity.toml", "[http]\ncontact = \"ops@example.org\"\n[job]\nfailure_threshold = 2\n[default]\nbackoff_base = \"10ms\"\n\
         backoff_max = \"20ms\"\n");
    let fetch = |args: &[&str], code: i32| {
        let quick =
            ["--delay", "1ms", "--learning", "off", "--max-retries", "0", "--format", "none", "--jsonl"];
        world.run(&[&["--log-format", "json", "fetch"], args, &quick].concat()).expect(code)
    };
    // A site that is given up, a line that isn't a URL, a sitemap that doesn't exist.
    world.write("list", &(crate::comity::list(&site.url(), "bad", 5) + "not a URL\n"));
    let done = fetch(&["--input", "list", "--job", "bad"], 1);
    for part in [
        "failed",
        "gave up on 127.0.0.1",
        "job ended",
        "Skipped 1 invalid line",
        "job bad: failed",
        "backing off",
    ] {
        says(&done, "WARN", part);
    }
    says(&fetch(&["--job", "bad"], 1), "WARN", "job bad is already failed");
    says(&fetch(&["--sitemap", &(site.url() + "/sitemap.xml"), "--job", "map"], 1), "WARN", "answered 404");
    let list = world.write("strict", "not a URL\n");
    let strict = fetch(&["--input", list.to_str().unwrap(), "--strict", "--job", "strict"], 2);
    says(&strict, "ERROR", "1 invalid line, so nothing was fetched (--strict)");
    // A source that fails: in the log, and with --quiet at the end.
    world.run(&["sources", "add", &(site.url() + "/bad"), "--kind", "feed"]).expect(0);
    says(&world.run(&["--log-format", "json", "run"]).expect(1), "WARN", "source failed");
    world.run(&["sources", "set", "1", "--enabled", "on"]).expect(0);
    says(&world.run(&["--log-format", "json", "--quiet", "run"]).expect(1), "ERROR", "answered 500");
    // Nothing is wrong here.
    let fine = fetch(&[&(site.url() + "/a"), "--job", "fine"], 0);
    assert!(lines(&fine).iter().all(|line| line["level"] == "INFO"), "{}", fine.stderr);
}

#[test]
fn errors_are_json_lines() {
    let world = World::new();
    let json = ["--log-format", "json"];
    let run = |args: &[&str]| world.run(&[&json[..], args].concat()).expect(2);
    says(&run(&["fetch", "--input", "nowhere.txt"]), "ERROR", "nowhere.txt");
    says(&run(&["fetch", "--nonsense"]), "ERROR", "--nonsense");
    says(&run(&["fetch", "http://a.invalid/", "--delay", "soon"]), "ERROR", "soon");
    world.write("comity.toml", "log_format = \"json\"\n");
    says(&world.run(&["fetch", "--input", "nowhere.txt"]).expect(2), "ERROR", "nowhere.txt");
}

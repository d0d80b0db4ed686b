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

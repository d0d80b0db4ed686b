//! Support for tests of sources: a configuration for quick runs, feeds, and lookups in the store.

use std::collections::BTreeMap;

use ::comity::core::time::Timestamp;
use serde_json::Value;

use crate::comity::{Done, World};

/// A folder configured for quick runs with feeds on this machine, with `changes` to that configuration.
pub(crate) fn world(changes: &[(&str, &str)]) -> World {
    let world = World::new();
    configure(&world, changes);
    world
}

/// Writes `comity.toml`: the settings of [`QUICK`] with `changes`.
pub(crate) fn configure(world: &World, changes: &[(&str, &str)]) {
    let settings: BTreeMap<&str, &str> = QUICK.iter().chain(changes).copied().collect();
    let lines: String = settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    world.write("comity.toml", &lines);
}

/// Adds a feed without fetching it, and returns its number.
pub(crate) fn add(world: &World, url: &str, more: &[&str]) -> i64 {
    let args = [&["--json", "sources", "add", url, "--kind", "feed"], more].concat();
    world.run(&args).expect(0).json()["source"]["id"].as_i64().unwrap()
}

/// Runs `comity run --json` to its end, expects `code`, and returns the object.
pub(crate) fn run(world: &World, args: &[&str], code: i32) -> Value {
    world.run(&[&["--json", "run"], args].concat()).expect(code).json()
}

/// RSS with these items, each with a title and a link.
pub(crate) fn rss(items: &[(&str, &str)]) -> String {
    let item = |(title, link): &(&str, &str)| {
        format!("<item><guid>{title}</guid><title>{title}</title><link>{link}</link></item>\n")
    };
    let items: String = items.iter().map(item).collect();
    format!("<rss version='2.0'><channel><title>T</title>\n{items}</channel></rss>\n")
}

/// RSS with items `/PREFIX0` …
pub(crate) fn numbered(prefix: &str, count: usize) -> String {
    let names: Vec<(String, String)> =
        (0..count).map(|nth| (format!("{prefix}{nth}"), format!("/{prefix}{nth}"))).collect();
    let items: Vec<(&str, &str)> = names.iter().map(|(title, link)| (&**title, &**link)).collect();
    rss(&items)
}

/// All items, oldest first.
pub(crate) fn items(world: &World) -> Vec<Value> {
    let listed = world.run(&["--json", "items", "list", "--after", "0", "--limit", "1000"]).expect(0).json();
    listed["items"].as_array().unwrap().clone()
}

pub(crate) fn states(world: &World) -> Vec<String> {
    items(world).iter().map(|item| item["state"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn source(world: &World, id: i64) -> Value {
    world.run(&["--json", "sources", "show", &id.to_string()]).expect(0).json()
}

/// The details that a run reported about a source.
#[track_caller]
pub(crate) fn detail(ran: &Value, id: i64) -> &Value {
    let details = ran["details"].as_array().unwrap();
    details.iter().find(|detail| detail["source"] == id).unwrap_or_else(|| panic!("nothing on {id}: {ran}"))
}

/// Asserts that these counts are as expected; there may be others.
#[track_caller]
pub(crate) fn assert_counts(counts: &Value, expected: Value) {
    for (key, count) in expected.as_object().unwrap() {
        assert_eq!(&counts[key], count, "{key}: {counts}");
    }
}

/// A number from the store.
pub(crate) fn count(world: &World, sql: &str) -> i64 {
    world.sql().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A time in JSON, in microseconds since 1970.
#[track_caller]
pub(crate) fn micros(time: &Value) -> i64 {
    let text = time.as_str().unwrap_or_else(|| panic!("no time: {time}"));
    Timestamp::parse(text).unwrap().as_micros()
}

/// A time in JSON as text output shows it, in whole seconds.
#[track_caller]
pub(crate) fn shown(time: &Value) -> String {
    Timestamp::from_secs(micros(time).div_euclid(1_000_000)).to_string()
}

/// A time as RFC 3339 text.
pub(crate) fn rfc3339(micros: i64) -> String {
    Timestamp::from_micros(micros).to_string()
}

/// Asserts that no source failed, was held or was read only in part.
#[track_caller]
pub(crate) fn assert_clean(done: &Done) {
    assert_eq!(done.json()["details"], serde_json::json!([]), "{}", done.stderr);
}

/// An nginx location that serves files with the content types of feeds.
pub(crate) const FEEDS: &str = r#"
    location /feeds/ {
        default_type application/octet-stream;
        types {
            application/rss+xml rss; application/atom+xml atom; application/rdf+xml rdf;
            application/feed+json json; text/xml xml; text/html html; "text/xml; charset=iso-8859-1" latin1;
        }
    }
"#;

const QUICK: [(&str, &str); 7] = [
    ("robots", "\"ignore\""),
    ("default.min_delay", "\"20ms\""),
    ("default.learning", "\"off\""),
    ("default.backoff", "\"none\""),
    ("http.contact", "\"ops@example.org\""),
    ("http.allow_private", "[\"127.0.0.0/8\"]"),
    ("scrape.min_interval", "0"),
];

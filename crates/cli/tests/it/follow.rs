//! Sources that tests follow: settings that make runs quick, feeds, and what the store says afterwards.

use std::collections::BTreeMap;

use ::comity::core::time::Timestamp;
use serde_json::Value;

use crate::comity::{Done, World};

/// A folder whose runs are quick and may follow feeds to this machine, but for `changes`.
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

/// Follows a feed without asking it; its number.
pub(crate) fn add(world: &World, url: &str, more: &[&str]) -> i64 {
    let args = [&["--json", "sources", "add", url, "--kind", "feed"], more].concat();
    world.run(&args).expect(0).json()["source"]["id"].as_i64().unwrap()
}

/// `comity run` to the end, with how it ended.
pub(crate) fn run(world: &World, args: &[&str], code: i32) -> Value {
    world.run(&[&["--json", "run"], args].concat()).expect(code).json()
}

/// RSS with an item for each title and link.
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

/// All items, in the order they were seen.
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

/// What became of a source that did not go as it should.
#[track_caller]
pub(crate) fn detail(ran: &Value, id: i64) -> &Value {
    let details = ran["details"].as_array().unwrap();
    details.iter().find(|detail| detail["source"] == id).unwrap_or_else(|| panic!("nothing on {id}: {ran}"))
}

/// These counts are as expected; others may stand beside them.
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

/// A time in JSON as people are shown it: in whole seconds.
#[track_caller]
pub(crate) fn shown(time: &Value) -> String {
    Timestamp::from_secs(micros(time).div_euclid(1_000_000)).to_string()
}

/// Moments as they are typed.
pub(crate) fn typed(micros: i64) -> String {
    Timestamp::from_micros(micros).to_string()
}

/// Whether nothing went wrong in a run, and nothing was held back.
#[track_caller]
pub(crate) fn assert_clean(done: &Done) {
    assert_eq!(done.json()["details"], serde_json::json!([]), "{}", done.stderr);
}

/// A location of nginx that serves files with the types that feeds have.
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

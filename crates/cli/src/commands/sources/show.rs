//! `comity sources list` and `comity sources show`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::interval::SourceInterval;
use comity::core::time::Timestamp;
use comity::redact::without_user;
use comity::store::Store;
use comity::store::items::ItemCounts;
use comity::store::sources::{FetchRun, Kind, Source};
use comity::store::tasks::Lead;
use serde_json::{Value, json};

use super::view::{self, Condition};
use super::{find, matches};
use crate::args::Global;
use crate::commands::{report, table};
use crate::{exit, output};

pub(super) async fn list(
    global: &Global,
    config: &Config,
    store: &dyn Store,
    like: &str,
    kind: Option<Kind>,
    failing: bool,
) -> anyhow::Result<u8> {
    let now = Clock::of(store).await?.now();
    let all = store.list_sources().await?;
    let is_wanted = |source: &&Source| {
        matches(source, like)
            && kind.is_none_or(|kind| kind == source.kind)
            && (!failing || Condition::of(source, now).is_trouble())
    };
    let sources: Vec<&Source> = all.iter().filter(is_wanted).collect();
    if global.json {
        let interval = config.scrape.min_interval;
        let sources: Vec<Value> = sources.iter().map(|source| view::object(source, interval, now)).collect();
        output::object(&json!({ "sources": sources }));
        return Ok(exit::DONE);
    }
    match (all.is_empty(), sources.is_empty()) {
        (true, _) => output::line("No sources yet; add one with comity sources add URL"),
        (_, true) => output::line("No matching sources"),
        _ => {
            let room = table::room(OTHERS);
            let rows: Vec<_> = sources.iter().map(|source| row(source, room, now)).collect();
            table::write(["id", "", "kind", "name", "cadence", "last fetch", "next due", "state"], &rows);
        }
    }
    Ok(exit::DONE)
}

fn row(source: &Source, room: usize, now: Timestamp) -> [String; 8] {
    [
        source.id.to_string(),
        (if source.enabled { "on" } else { "off" }).to_owned(),
        source.kind.to_string(),
        table::cut(&source.name, room),
        view::every(source),
        view::last_fetch(source).map_or("never".to_owned(), report::moment),
        next_due(source, now),
        table::cut(&Condition::of(source, now).sentence(), STATE_MAX),
    ]
}

fn next_due(source: &Source, now: Timestamp) -> String {
    match view::due_at(source, now) {
        None => "-".to_owned(),
        Some(at) if at <= now => "now".to_owned(),
        Some(at) => report::moment(at),
    }
}

pub(super) async fn show(global: &Global, config: &Config, store: &dyn Store, id: i64) -> anyhow::Result<u8> {
    let source = find(store, id).await?;
    let counts = store.count_items(source.id).await?;
    let fetches = store.list_fetches(source.id, FETCHES).await?;
    let now = Clock::of(store).await?.now();
    if global.json {
        let mut object = view::object(&source, config.scrape.min_interval, now);
        object["items"] = json!({
            "items": counts.items,
            "none": counts.none,
            "in_flight": counts.in_flight,
            "done": counts.done,
            "failed": counts.failed,
        });
        object["fetches"] = fetches.iter().map(fetch_object).collect();
        output::object(&object);
        return Ok(exit::DONE);
    }
    output::line(&format!("{} {}: {}", source.id, source.name, Condition::of(&source, now).sentence()));
    for (key, value) in facts(config, &source, &counts, now) {
        output::line(&format!("  {key:14} {value}"));
    }
    if fetches.is_empty() {
        output::line("  not fetched yet; comity run fetches it");
    }
    for fetch in &fetches {
        output::line(&format!("  {}", fetch_line(fetch)));
    }
    Ok(exit::DONE)
}

fn facts(
    config: &Config,
    source: &Source,
    counts: &ItemCounts,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let on = |on| (if on { "on" } else { "off" }).to_owned();
    let mut facts = vec![("kind", source.kind.to_string()), ("url", without_user(&source.url))];
    if source.listed_url != source.url {
        facts.push(("listed url", without_user(&source.listed_url)));
    }
    let cadence = comity::pipeline::cadence(source);
    let counted = |count: u64, what: &str| (count > 0).then(|| format!(", {count} {what}"));
    let items = [
        counted(counts.done, "scraped"),
        counted(counts.in_flight, "waiting or running"),
        counted(counts.none, "not scraped"),
        counted(counts.failed, "failed"),
    ];
    facts.extend([
        (
            "found via",
            match source.lead {
                Lead::Remote => "a remote page, feed or redirect (private addresses are blocked)".to_owned(),
                Lead::Listed => "you".to_owned(),
            },
        ),
        ("enabled", on(source.enabled)),
        ("scraping", on(source.scraping)),
        ("auto-scrape", on(source.auto_scrape)),
        ("min interval", interval(config, source)),
        (
            "cadence",
            match cadence {
                Ok(None) => "due in every run".to_owned(),
                Ok(Some(cadence)) => format!("every {}", view::span(cadence.every())),
                Err(error) => error,
            },
        ),
        ("added", report::moment(source.added_at)),
        ("last fetch", view::last_fetch(source).map_or("never".to_owned(), report::moment)),
        ("next due", next_due(source, now)),
        ("items", format!("{}{}", counts.items, items.into_iter().flatten().collect::<String>())),
        ("config", view::json_or_text(&source.config_json).to_string()),
        ("cursor", view::json_or_text(&source.cursor_json).to_string()),
    ]);
    facts
}

/// The effective minimum interval, and where it is set.
fn interval(config: &Config, source: &Source) -> String {
    match (source.interval, config.scrape.min_interval) {
        (SourceInterval::Default, Some(global)) => format!("{} (scrape.min_interval)", global.prose()),
        (SourceInterval::Default, None) => "none (scrape.min_interval)".to_owned(),
        (SourceInterval::Off, _) => "none (its own)".to_owned(),
        (SourceInterval::Every(own), _) => format!("{} (its own)", own.prose()),
    }
}

fn fetch_line(fetch: &FetchRun) -> String {
    let status = fetch.http_status.map(|status| format!(", status {status}")).unwrap_or_default();
    let counts = match fetch.status.as_str() {
        "ok" | "partial" => {
            let items = if fetch.found == 1 { "item" } else { "items" };
            format!(", {} {items}, {} new, {} changed", fetch.found, fetch.changes.new, fetch.changes.changed)
        }
        _ => String::new(),
    };
    let took = fetch.ended_at.since(fetch.started_at);
    let error = fetch.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!(
        "{} {:7} in {}{status}{counts}{error}",
        report::moment(fetch.started_at),
        fetch.status,
        took.prose()
    )
}

fn fetch_object(fetch: &FetchRun) -> Value {
    json!({
        "started_at": fetch.started_at.to_string(),
        "ended_at": fetch.ended_at.to_string(),
        "status": fetch.status,
        "window_end": fetch.window_end.to_string(),
        "http_status": fetch.http_status,
        "found": fetch.found,
        "new": fetch.changes.new,
        "known": fetch.changes.known,
        "changed": fetch.changes.changed,
        "error": fetch.error,
        "cursor_in": view::json_or_text(&fetch.cursor_in),
        "cursor_out": view::json_or_text(&fetch.cursor_out),
    })
}

/// How many fetches are shown.
const FETCHES: u32 = 10;
/// Columns that a row takes besides its name.
const OTHERS: usize = 90;
/// Maximum length of a state in the list; `show` prints it in full.
const STATE_MAX: usize = 120;

//! `comity sources set` and `comity sources remove`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::redact::without_user;
use comity::store::Store;
use comity::store::sources::{Changed, Source, SourceChange};
use serde_json::{Map, Value, json};

use super::view::Condition;
use super::{find, parse, unknown, view};
use crate::args::{Global, SourcesRemove, SourcesSet};
use crate::commands::jobs::is_match;
use crate::{exit, output, setup};

pub(super) async fn set(global: &Global, config: &Config, set: &SourcesSet) -> anyhow::Result<u8> {
    let parsed = ParsedArgs::read(set).map_err(exit::usage)?;
    let store = setup::open_existing_store(config)?;
    let before = find(&*store, set.id).await?;
    let wanted =
        match parsed.cadence {
            None => None,
            Some(cadence) => Some(with_cadence(&before, cadence).map_err(|error| {
                anyhow::anyhow!("source {}: {error}; remove it and add it again", before.id)
            })?),
        };
    let change = SourceChange {
        name: parsed.name,
        rename: None,
        url: parsed.url,
        kind: set.kind,
        enabled: set.enabled.map(parse::is_on),
        scraping: set.scrape.map(parse::is_on),
        auto_scrape: set.auto_scrape.map(parse::is_on),
        interval: parsed.interval,
        config: wanted,
    };
    let after = match store.change_source(before.id, change).await? {
        Changed::Yes(after) => after,
        Changed::Missing => return Err(unknown("source", set.id)),
        Changed::Taken(other) => {
            let url = set.url.as_deref().map(without_user).unwrap_or_default();
            return Err(exit::usage(format!("--url = {url:?}: source {other} already has that URL")));
        }
    };
    // A changed password is a change, although it isn't shown.
    let is_change = |(old, new): &(Field, Field)| old != new || old.0 == "url" && before.url != after.url;
    let changes: Vec<_> = fields(&before).into_iter().zip(fields(&after)).filter(is_change).collect();
    let is_cleared = before.error.is_some() && after.error.is_none();
    if global.json {
        let changed: Vec<Value> = changes
            .iter()
            .map(|((key, old), (_, new))| json!({ "key": key, "from": old, "to": new }))
            .collect();
        let source = view::object(&after, config.scrape.min_interval, Clock::of(&*store).await?.now());
        output::object(&json!({ "changed": changed, "cleared_failure": is_cleared, "source": source }));
        return Ok(exit::DONE);
    }
    if let Some(error) = before.error.as_ref().filter(|_| is_cleared) {
        output::line(&format!("{} {}: cleared its failure ({error})", after.id, after.name));
    } else if changes.is_empty() {
        output::line(&format!("{} {}: unchanged", after.id, after.name));
    }
    for ((key, old), (_, new)) in &changes {
        output::line(&format!("{} {}: {key}: {old} → {new}", after.id, after.name));
    }
    Ok(exit::DONE)
}

/// The parsed arguments.
struct ParsedArgs {
    name: Option<String>,
    url: Option<String>,
    interval: Option<SourceInterval>,
    /// `Some(None)` clears the cadence.
    cadence: Option<Option<Cadence>>,
}

impl ParsedArgs {
    fn read(set: &SourcesSet) -> Result<Self, String> {
        let cadence = match set.cadence.as_deref() {
            Some("none") => Some(None),
            text => text.map(|text| parse::cadence("--cadence", text)).transpose()?.map(Some),
        };
        let interval = set.min_interval.as_deref().map(|text| parse::interval("--min-interval", text));
        Ok(Self {
            name: set.name.as_deref().map(|text| parse::name("--name", text)).transpose()?,
            url: set.url.as_deref().map(|text| parse::url("--url", text).map(String::from)).transpose()?,
            interval: interval.transpose()?,
            cadence,
        })
    }
}

/// A field that can change: its name and its value as text.
type Field = (&'static str, String);

fn fields(source: &Source) -> [Field; 8] {
    let on = |on| (if on { "on" } else { "off" }).to_owned();
    [
        ("name", source.name.clone()),
        ("url", without_user(&source.url)),
        ("kind", source.kind.to_string()),
        ("enabled", on(source.enabled)),
        ("scrape", on(source.scraping)),
        ("auto-scrape", on(source.auto_scrape)),
        ("min-interval", view::interval(source.interval)),
        ("cadence", view::every(source)),
    ]
}

/// The configuration of a source with another cadence; everything else in it is kept.
pub(super) fn with_cadence(source: &Source, cadence: Option<Cadence>) -> Result<Map<String, Value>, String> {
    let mut config = match serde_json::from_str(&source.config_json) {
        Ok(Value::Object(config)) => config,
        Ok(_) => return Err("config_json is not a JSON object".to_owned()),
        Err(error) => return Err(format!("config_json is not valid JSON: {error}")),
    };
    match cadence {
        Some(cadence) => config.insert("cadence".to_owned(), cadence.to_json()),
        None => config.remove("cadence"),
    };
    Ok(config)
}

pub(super) async fn remove(global: &Global, store: &dyn Store, which: &SourcesRemove) -> anyhow::Result<u8> {
    let sources = to_remove(store, which).await?;
    let (mut removed, dry_run) = (Vec::new(), which.dry_run);
    for source in &sources {
        let items = store.count_items(source.id).await?.items;
        if !dry_run {
            // If it was removed in the meantime, that is fine.
            store.remove_source(source.id).await?;
        }
        if !global.json {
            let what = if items == 1 { "item" } else { "items" };
            let verb = if dry_run { "Would remove" } else { "Removed" };
            output::line(&format!("{verb} source {} {} with {items} {what}", source.id, source.name));
        }
        removed.push(json!({ "id": source.id.0, "name": source.name, "items": items }));
    }
    if global.json {
        output::object(&json!({ "removed": removed, "dry_run": dry_run }));
    } else if sources.is_empty() {
        output::line("No source matches; nothing was removed");
    } else if dry_run {
        output::line("Dry run: nothing was changed");
    }
    Ok(exit::DONE)
}

/// The sources to remove. An unknown number is an error, before anything is removed.
async fn to_remove(store: &dyn Store, which: &SourcesRemove) -> anyhow::Result<Vec<Source>> {
    if which.ids.is_empty() {
        let now = Clock::of(store).await?.now();
        let mut sources = store.list_sources().await?;
        sources.retain(|source| {
            let is_match = |pattern: &String| {
                is_match(pattern, &source.name) || is_match(pattern, &without_user(&source.url))
            };
            (!which.failing || Condition::of(source, now).is_trouble())
                && which.matching.as_ref().is_none_or(is_match)
        });
        return Ok(sources);
    }
    let mut ids = which.ids.clone();
    ids.sort_unstable();
    ids.dedup();
    let mut sources = Vec::new();
    for id in ids {
        sources.push(find(store, id).await?);
    }
    Ok(sources)
}

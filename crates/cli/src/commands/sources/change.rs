//! `comity sources set`, `comity sources remove`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::shown::without_user;
use comity::store::Store;
use comity::store::sources::{Changed, Source, SourceChange};
use serde_json::{Map, Value, json};

use super::{find, typed, unknown, view};
use crate::args::{Global, SourcesSet};
use crate::{exit, output, setup};

pub(super) async fn set(global: &Global, config: &Config, set: &SourcesSet) -> anyhow::Result<u8> {
    let wish = Wish::read(set).map_err(exit::usage)?;
    let store = setup::open_store(config)?;
    let before = find(&*store, set.id).await?;
    let wanted =
        match wish.cadence {
            None => None,
            Some(cadence) => Some(with_cadence(&before, cadence).map_err(|error| {
                anyhow::anyhow!("source {}: {error}; remove it and add it again", before.id)
            })?),
        };
    let change = SourceChange {
        name: wish.name,
        url: wish.url,
        kind: set.kind,
        enabled: set.enabled.map(typed::is_on),
        scraping: set.scrape.map(typed::is_on),
        auto_scrape: set.auto_scrape.map(typed::is_on),
        interval: wish.interval,
        config: wanted,
    };
    let after = match store.change_source(before.id, change).await? {
        Changed::Yes(after) => after,
        Changed::Missing => return Err(unknown("source =", set.id)),
        Changed::Taken(other) => {
            let url = set.url.as_deref().map(without_user).unwrap_or_default();
            return Err(exit::usage(format!("--url = {url:?}: source {other} has that URL already")));
        }
    };
    // A password that changed is not shown, but it did.
    let is_change = |(old, new): &(Field, Field)| old != new || old.0 == "url" && before.url != after.url;
    let changes: Vec<_> = fields(&before).into_iter().zip(fields(&after)).filter(is_change).collect();
    if global.json {
        let changed: Vec<Value> = changes
            .iter()
            .map(|((key, old), (_, new))| json!({ "key": key, "from": old, "to": new }))
            .collect();
        let source = view::object(&after, config.scrape.min_interval, Clock::of(&*store).await?.now());
        output::object(&json!({ "changed": changed, "source": source }));
        return Ok(exit::DONE);
    }
    if changes.is_empty() {
        output::line(&format!("{} {}: it is so already", after.id, after.name));
    }
    for ((key, old), (_, new)) in &changes {
        output::line(&format!("{} {}: {key}: {old} → {new}", after.id, after.name));
    }
    Ok(exit::DONE)
}

/// What was typed.
struct Wish {
    name: Option<String>,
    url: Option<String>,
    interval: Option<SourceInterval>,
    /// None within is no cadence.
    cadence: Option<Option<Cadence>>,
}

impl Wish {
    fn read(set: &SourcesSet) -> Result<Self, String> {
        let cadence = match set.cadence.as_deref() {
            Some("none") => Some(None),
            text => text.map(|text| typed::cadence("--cadence", text)).transpose()?.map(Some),
        };
        let interval = set.min_interval.as_deref().map(|text| typed::interval("--min-interval", text));
        Ok(Self {
            name: set.name.as_deref().map(|text| typed::name("--name", text)).transpose()?,
            url: set.url.as_deref().map(|text| typed::url("--url", text).map(String::from)).transpose()?,
            interval: interval.transpose()?,
            cadence,
        })
    }
}

/// Something that can change, in words.
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

/// The configuration of a source with another cadence; whatever else stands in it stays.
pub(super) fn with_cadence(source: &Source, cadence: Option<Cadence>) -> Result<Map<String, Value>, String> {
    let mut config = match serde_json::from_str(&source.config_json) {
        Ok(Value::Object(config)) => config,
        Ok(_) => return Err("config_json is no JSON object".to_owned()),
        Err(error) => return Err(format!("config_json is not valid JSON: {error}")),
    };
    match cadence {
        Some(cadence) => config.insert("cadence".to_owned(), cadence.to_json()),
        None => config.remove("cadence"),
    };
    Ok(config)
}

pub(super) async fn remove(global: &Global, store: &dyn Store, mut ids: Vec<i64>) -> anyhow::Result<u8> {
    ids.sort_unstable();
    ids.dedup();
    let mut sources = Vec::new();
    for id in ids {
        sources.push(find(store, id).await?);
    }
    let mut removed = Vec::new();
    for source in sources {
        let items = store.count_items(source.id).await?.items;
        // Whoever removed it meanwhile did what was asked for.
        store.remove_source(source.id).await?;
        if !global.json {
            let what = if items == 1 { "item" } else { "items" };
            output::line(&format!("removed {} {}, with {items} {what}", source.id, source.name));
        }
        removed.push(json!({ "id": source.id.0, "name": source.name, "items": items }));
    }
    if global.json {
        output::object(&json!({ "removed": removed }));
    }
    Ok(exit::DONE)
}

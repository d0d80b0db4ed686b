//! `comity sources cadence`: sets or clears the cadence of one source, or many at once.

use comity::config::Config;
use comity::core::cadence::Cadence;
use comity::pipeline;
use comity::store::Store;
use comity::store::sources::{Changed, Source, SourceChange};
use serde_json::{Value, json};

use super::change::with_cadence;
use super::{find, matches, parse, view};
use crate::args::{self, Global, Selection};
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: &Config, command: args::Cadence) -> anyhow::Result<u8> {
    let (cadence, selection) = match command {
        args::Cadence::Set { every, selection } => {
            (Some(parse::cadence("EVERY", &every).map_err(exit::usage)?), selection)
        }
        args::Cadence::Clear { selection } => (None, selection),
    };
    let store = setup::open_existing_store(config)?;
    let sources = selected(&*store, &selection).await?;
    if sources.is_empty() {
        anyhow::bail!("no source matches, nothing was changed; comity sources list shows all sources");
    }
    let mut objects = Vec::new();
    let (mut changed, mut failed) = (0_u64, 0_u64);
    for source in &sources {
        let step = step(&*store, source, cadence, selection.dry_run).await?;
        changed += u64::from(matches!(step, Step::Changed));
        failed += u64::from(matches!(step, Step::Failed(_)));
        match global.json {
            true => objects.push(object(source, cadence, &step)),
            false => print(source, cadence, &step),
        }
    }
    let unchanged = sources.len() as u64 - changed - failed;
    if global.json {
        output::object(&json!({
            "changed": changed,
            "unchanged": unchanged,
            "failed": failed,
            "dry_run": selection.dry_run,
            "sources": objects,
        }));
    } else if selection.dry_run {
        output::line("Dry run: nothing was changed");
    }
    Ok(if failed == 0 { exit::DONE } else { exit::FAILURES })
}

/// The selected sources. An unknown number is an error, before anything is changed.
async fn selected(store: &dyn Store, selection: &Selection) -> anyhow::Result<Vec<Source>> {
    if selection.ids.is_empty() {
        let mut sources = store.list_sources().await?;
        sources.retain(|source| {
            selection.kind.is_none_or(|kind| kind == source.kind)
                && selection.like.as_deref().is_none_or(|like| matches(source, like))
        });
        return Ok(sources);
    }
    let mut sources: Vec<Source> = Vec::new();
    for id in &selection.ids {
        if sources.iter().all(|source| source.id.0 != *id) {
            sources.push(find(store, *id).await?);
        }
    }
    Ok(sources)
}

/// The result for one source.
enum Step {
    Changed,
    Unchanged,
    Failed(String),
}

async fn step(
    store: &dyn Store,
    source: &Source,
    cadence: Option<Cadence>,
    dry_run: bool,
) -> anyhow::Result<Step> {
    let wanted = match with_cadence(source, cadence) {
        Ok(wanted) => wanted,
        Err(error) => return Ok(Step::Failed(error)),
    };
    if pipeline::cadence(source) == Ok(cadence) {
        return Ok(Step::Unchanged);
    }
    if dry_run {
        return Ok(Step::Changed);
    }
    let change = SourceChange { config: Some(wanted), ..SourceChange::default() };
    Ok(match store.change_source(source.id, change).await? {
        Changed::Yes(_) | Changed::Taken(_) => Step::Changed,
        Changed::Missing => Step::Failed("it was removed in the meantime".to_owned()),
    })
}

fn print(source: &Source, cadence: Option<Cadence>, step: &Step) {
    let (id, name) = (source.id, &source.name);
    match step {
        Step::Changed => output::line(&format!("{id} {name}: {} → {}", old(source), new(cadence))),
        Step::Unchanged => output::line(&format!("{id} {name}: {} (unchanged)", new(cadence))),
        Step::Failed(error) => output::failure(&format!("{id} {name}: {error}")),
    }
}

fn old(source: &Source) -> String {
    match pipeline::cadence(source) {
        Ok(cadence) => new(cadence),
        Err(error) => format!("invalid ({error})"),
    }
}

fn new(cadence: Option<Cadence>) -> String {
    cadence.map_or("always".to_owned(), |cadence| format!("every {}", view::span(cadence.every())))
}

fn object(source: &Source, cadence: Option<Cadence>, step: &Step) -> Value {
    let minutes =
        |cadence: Option<Cadence>| cadence.map(|cadence| cadence.to_json()["every_minutes"].clone());
    json!({
        "id": source.id.0,
        "name": source.name,
        "from_minutes": minutes(pipeline::cadence(source).ok().flatten()),
        "to_minutes": minutes(cadence),
        "error": match step {
            Step::Failed(error) => Some(error),
            Step::Changed | Step::Unchanged => None,
        },
    })
}

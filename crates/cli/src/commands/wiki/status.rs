//! `comity wiki status`: how much of a wiki is archived, and how recent it is.

use comity::config::Config;
use comity::wiki::Progress;
use serde_json::{Value, json};

use super::find;
use crate::args::Global;
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: &Config, api: &str) -> anyhow::Result<u8> {
    let store = setup::open_existing_store(config)?;
    let wiki = find(&*store, api).await?;
    let (namespaces, content) = store.tally_wiki(wiki.id).await?;
    let files = store.tally_files(wiki.id).await?;
    let progress = Progress::of(&wiki)?;
    let named = |number: i64| {
        let all = wiki.site["namespaces"].as_array().into_iter().flatten();
        let one = all.into_iter().find(|one| one["id"] == number);
        let name = one.and_then(|one| one["name"].as_str()).unwrap_or_default().to_owned();
        if name.is_empty() { "(main)".to_owned() } else { name }
    };
    let state = match (&progress.current_round, progress.complete.is_empty()) {
        (Some(round), _) => format!("under way: {}", round.step.doing()),
        (None, false) if files.kept < files.files => {
            format!("complete, but {} of {} file versions are missing", files.files - files.kept, files.files)
        }
        (None, false) => "complete".to_owned(),
        (None, true) => "not started".to_owned(),
    };
    if global.json {
        let each: Vec<Value> = namespaces
            .iter()
            .map(|one| {
                json!({
                    "namespace": one.namespace,
                    "name": named(one.namespace),
                    "pages": one.pages,
                    "redirects": one.redirects,
                    "deleted": one.deleted,
                    "revisions": one.revisions,
                    "lacking": one.lacking,
                    "whole": progress.complete.contains(&one.namespace),
                })
            })
            .collect();
        output::object(&json!({
            "api": wiki.api,
            "sitename": wiki.site["general"]["sitename"],
            "state": state,
            "ended_at": progress.ended_at,
            "current_to": progress.since,
            "namespaces": each,
            "files": { "listed": files.files, "kept": files.kept, "bytes": files.bytes },
            "contents": content.pieces,
            "bytes": content.bytes,
            "packed_bytes": content.packed,
        }));
        return Ok(exit::DONE);
    }
    let name = wiki.site["general"]["sitename"].as_str().unwrap_or(&wiki.api);
    output::line(&format!("{name}: {state}"));
    for one in &namespaces {
        let lacking = match one.lacking {
            0 => String::new(),
            lacking => format!(", {lacking} incomplete"),
        };
        output::line(&format!(
            "{:>10} pages ({} redirects), {} revisions, {} deleted{lacking}  {}",
            one.pages,
            one.redirects,
            one.revisions,
            one.deleted,
            named(one.namespace)
        ));
    }
    output::line(&format!(
        "{} distinct texts, {} bytes, {} compressed",
        content.pieces, content.bytes, content.packed
    ));
    if files.files > 0 {
        output::line(&format!("{} of {} file versions, {} bytes", files.kept, files.files, files.bytes));
    }
    if let (Some(ended_at), Some(since)) = (&progress.ended_at, &progress.since) {
        output::line(&format!("finished {ended_at}; up to date with the wiki as of {since} or later"));
    }
    Ok(exit::DONE)
}

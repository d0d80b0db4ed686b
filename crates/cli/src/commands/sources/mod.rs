//! `comity sources`.
//!
//! - `parse`: parses URLs, cadences and intervals
//! - `view`: a source as text and as JSON
//! - `add`, `show`, `change`, `cadence`, `exchange`: the commands

mod add;
mod cadence;
mod change;
mod exchange;
mod parse;
mod show;
mod view;

use comity::config::Config;
use comity::store::Store;
use comity::store::sources::{Source, SourceId};

use crate::args::{Global, Sources};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Sources) -> anyhow::Result<u8> {
    // Commands with arguments to check open the store themselves, after that.
    let store = || setup::open_existing_store(config);
    match command {
        Sources::Add(add) => add::run(global, config, &add).await,
        Sources::Import(import) => exchange::import(global, config, &import).await,
        Sources::Set(set) => change::set(global, config, &set).await,
        Sources::Cadence(command) => cadence::run(global, config, command).await,
        Sources::Show { id } => show::show(global, config, &*store()?, id).await,
        Sources::Remove(which) => change::remove(global, &*store()?, &which).await,
        Sources::Export { out } => exchange::export(global, &*store()?, out.as_deref()).await,
        Sources::List { like, kind, failing } => {
            show::list(global, config, &*store()?, &like, kind, failing).await
        }
    }
}

/// The source with that number.
pub(super) async fn find(store: &dyn Store, id: i64) -> anyhow::Result<Source> {
    find_by_flag(store, "source", id).await
}

/// The source with that number, for errors that name `flag`.
pub(super) async fn find_by_flag(store: &dyn Store, flag: &str, id: i64) -> anyhow::Result<Source> {
    store.find_source(SourceId(id)).await?.ok_or_else(|| unknown(flag, id))
}

fn unknown(flag: &str, id: i64) -> anyhow::Error {
    exit::usage(format!("{flag} = {id}: no such source; comity sources list shows all sources"))
}

/// The source that is fetched from `url`, or was when it was added.
fn known<'a>(sources: &'a [Source], url: &str) -> Option<&'a Source> {
    let current = sources.iter().find(|source| source.url == url);
    current.or_else(|| sources.iter().find(|source| source.listed_url == url))
}

/// Whether the name or URL contains `like`, ignoring case.
fn matches(source: &Source, like: &str) -> bool {
    let like = like.to_lowercase();
    let url = comity::redact::without_user(&source.url);
    source.name.to_lowercase().contains(&like) || url.to_lowercase().contains(&like)
}

/// Prints a remark, unless `--quiet` was given.
fn remark(global: &Global, text: &str) {
    if !global.quiet {
        output::remark(text);
    }
}

//! `comity sources`.
//!
//! - `typed`: what was typed, as values
//! - `view`: a source as people and machines see it
//! - `add`, `show`, `change`, `cadence`, `exchange`: the commands

mod add;
mod cadence;
mod change;
mod exchange;
mod show;
mod typed;
mod view;

use comity::config::Config;
use comity::store::Store;
use comity::store::sources::{Source, SourceId};

use crate::args::{Global, Sources};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Sources) -> anyhow::Result<u8> {
    // What was typed wrongly is told before anything is opened.
    let store = || setup::open_store(config);
    match command {
        Sources::Add(add) => add::run(global, config, &add).await,
        Sources::Import(import) => exchange::import(global, config, &import).await,
        Sources::Set(set) => change::set(global, config, &set).await,
        Sources::Cadence(command) => cadence::run(global, config, command).await,
        Sources::Show { id } => show::show(global, config, &*store()?, id).await,
        Sources::Remove { ids } => change::remove(global, &*store()?, ids).await,
        Sources::Export { out } => exchange::export(global, &*store()?, out.as_deref()).await,
        Sources::List { like, kind, failing } => {
            show::list(global, config, &*store()?, &like, kind, failing).await
        }
    }
}

/// The source with that number.
pub(super) async fn find(store: &dyn Store, id: i64) -> anyhow::Result<Source> {
    find_typed(store, "source =", id).await
}

/// The same for a number that was `typed` in another way.
pub(super) async fn find_typed(store: &dyn Store, typed: &str, id: i64) -> anyhow::Result<Source> {
    store.find_source(SourceId(id)).await?.ok_or_else(|| unknown(typed, id))
}

fn unknown(typed: &str, id: i64) -> anyhow::Error {
    exit::usage(format!("{typed} {id}: there is no such source; comity sources list shows them"))
}

/// The source that is asked at `url`, or was when it was added.
fn known<'a>(sources: &'a [Source], url: &str) -> Option<&'a Source> {
    let asked = sources.iter().find(|source| source.url == url);
    asked.or_else(|| sources.iter().find(|source| source.listed_url == url))
}

/// Whether a name or URL contains `like`, in whatever case.
fn matches(source: &Source, like: &str) -> bool {
    let like = like.to_lowercase();
    let url = comity::shown::without_user(&source.url);
    source.name.to_lowercase().contains(&like) || url.to_lowercase().contains(&like)
}

/// A remark, unless only errors are wanted.
fn remark(global: &Global, text: &str) {
    if !global.quiet {
        output::remark(text);
    }
}

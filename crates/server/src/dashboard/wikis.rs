//! Wiki archives: how much of each wiki is archived, and how recent that is.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::event::redacted_text;
use comity::store::wiki::ListedWiki;
use comity::wiki::Progress;

use super::chart;
use super::guard::Viewer;
use super::page::{Failure, Section, Shell, sentence, show, state};
use super::text::{self, count};
use crate::service::Service;
use crate::state::ServingState;

#[derive(Template)]
#[template(path = "wikis.html")]
struct WikisPage {
    shell: Shell,
    rows: Vec<Row>,
    more: usize,
}

struct Row {
    name: String,
    api: String,
    state: String,
    class: &'static str,
    meter: String,
    pages: String,
    incomplete: String,
    revisions: String,
    files: String,
    size: String,
    ended_at: String,
    current_to: String,
}

/// The page.
pub(super) async fn page(State(service): State<Service>, viewer: Viewer) -> Result<Response, Failure> {
    let server = state(&service)?;
    let wikis = server.store.list_wikis().await?;
    let more = wikis.len().saturating_sub(WIKIS_MAX);
    let mut rows = Vec::new();
    for wiki in wikis.into_iter().take(WIKIS_MAX) {
        rows.push(row(&server, wiki).await?);
    }
    // Counting a large wiki takes a while.
    let shell = Shell::new(&service, viewer, Section::Wikis, "Wiki archives").every(10_000);
    show(&WikisPage { shell, rows, more })
}

async fn row(state: &ServingState, listed: ListedWiki) -> Result<Row, Failure> {
    let ListedWiki { wiki, worked_on, .. } = listed;
    let (namespaces, content) = state.store.tally_wiki(wiki.id).await?;
    let files = state.store.tally_files(wiki.id).await?;
    let progress = Progress::of(&wiki).unwrap_or_default();
    let sum = |of: fn(&comity::store::wiki::NamespaceTally) -> u64| namespaces.iter().map(of).sum::<u64>();
    let (pages, lacking) = (sum(|one| one.pages), sum(|one| one.lacking));
    let (word, class) = match (&progress.current_round, progress.complete.is_empty()) {
        (Some(round), _) if worked_on => (format!("under way: {}", round.step.doing()), "go"),
        (Some(_), _) => ("interrupted; run comity wiki archive again to resume".to_owned(), "wait"),
        (None, false) if files.kept < files.files => ("complete, but files are missing".to_owned(), "wait"),
        (None, false) => ("complete".to_owned(), ""),
        (None, true) => ("not started".to_owned(), "soft"),
    };
    let moment = |at: Option<String>| {
        at.map_or_else(|| "–".to_owned(), |at| at.chars().take(19).collect::<String>().replace('T', " "))
    };
    Ok(Row {
        name: wiki.site["general"]["sitename"].as_str().unwrap_or(&wiki.api).to_owned(),
        api: redacted_text(&wiki.api).to_string(),
        state: sentence(&word).trim_end_matches('.').to_owned(),
        class,
        meter: chart::meter(&[(pages.saturating_sub(lacking), "f-go")], pages),
        pages: count(pages),
        incomplete: count(lacking),
        revisions: count(sum(|one| one.revisions)),
        files: format!("{} of {}", count(files.kept), count(files.files)),
        size: format!(
            "{} ({} compressed)",
            text::bytes(content.bytes + files.bytes),
            text::bytes(content.packed)
        ),
        ended_at: moment(progress.ended_at),
        current_to: moment(progress.since),
    })
}

const WIKIS_MAX: usize = 50;

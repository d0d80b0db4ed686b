//! What to type to resume a job that a run of `fetch` left unfinished.

use comity::redact::shell_word;
use comity::store::Store;

use crate::exit;

/// What has to be passed again to resume a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Nothing,
    List,
    /// The URLs on the command line.
    Arguments,
    /// Another sitemap: those it has can't be read, now or later.
    OtherSitemap,
}

/// The command that resumes a job, with or without rows on stdout; `None` if its store is deleted when this process ends.
pub(super) fn how_to_resume(store: &dyn Store, job: &str, repeat: Repeat, rows: bool) -> Option<String> {
    let store = match store.location().as_str() {
        place if exit::is_temporary(place.as_ref()) => return None,
        "comity.db" => String::new(),
        "memory" => return Some("The store was in memory, so there is nothing to resume".to_owned()),
        place if place.contains("://") => format!(" --store {}", shell_word(place)),
        place => format!(" --store {}", shell_word(&format!("sqlite:{place}"))),
    };
    let rows = if rows { " --jsonl" } else { "" };
    let job = shell_word(job);
    let command = format!("To resume: comity fetch{store} --job {job}{rows}");
    Some(match repeat {
        Repeat::OtherSitemap => format!(
            "To read another sitemap: comity fetch{store} --job {job}{rows} --sitemap URL; to give up: comity jobs cancel{store} {job}"
        ),
        Repeat::List => format!("The list was not read to the end; pass it again\n{command} --input FILE"),
        Repeat::Arguments => format!("Not all URLs were saved; pass them again\n{command} URL..."),
        Repeat::Nothing => command,
    })
}

/// Says that other processes still work on the job that this one leaves, and which.
pub(super) async fn still_running(store: &dyn Store, job: &str) -> anyhow::Result<String> {
    let ours = format!("fetch {job}, ");
    let processes = store.live_processes().await?;
    let others: Vec<&str> = processes.iter().filter_map(|process| process.name.strip_prefix(&ours)).collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join("; ")) };
    Ok(format!("This process left; job {job} is still running{others}"))
}

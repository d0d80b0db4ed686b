//! All jobs: searched and filtered by the store, a page at a time, newest first.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::core::time::Timestamp;
use comity::store::jobs::{Job, JobQuery, JobTally};

use super::chart;
use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, show, state};
use super::text::{self, count, encoded};
use crate::api::jobs::find;
use crate::service::Service;

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    shell: Shell,
    like: String,
    chosen: String,
    tabs: Vec<Tab>,
    rows: Vec<Row>,
    next: Option<String>,
    is_first: bool,
}

struct Tab {
    text: &'static str,
    count: String,
    path: String,
    is_current: bool,
}

struct Row {
    name: String,
    path: String,
    state: &'static str,
    class: &'static str,
    meter: String,
    finished: String,
    urls: String,
    failed: String,
    failed_class: &'static str,
    skipped: String,
    rate_limited: String,
    created_at: Timestamp,
    message: String,
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let server = state(&service)?;
    let like = values.get("like").to_owned();
    crate::api::validate_length("like", &like, NAME_MAX)?;
    let word = STATES.iter().find(|(word, _)| *word == values.get("state")).map_or("", |(word, _)| word);
    let older_than = match values.get("after") {
        "" => None,
        after => Some(find(&server, after).await?.id),
    };
    let chosen = Some(word.to_owned()).filter(|word| !word.is_empty());
    let query = JobQuery { like: like.clone(), state: chosen, older_than, limit: PAGE + 1 };
    let mut jobs = server.store.search_jobs(query).await?;
    let more = jobs.len() > PAGE as usize;
    jobs.truncate(PAGE as usize);
    let tally = server.store.tally_jobs().await?;
    let address = |word: &str| format!("/jobs?state={word}&like={}", encoded(&like));
    let tab = |(of, text): &(&'static str, &'static str)| Tab {
        text,
        count: count(number(&tally, of)),
        path: address(of),
        is_current: *of == word,
    };
    let next =
        jobs.last().filter(|_| more).map(|job| format!("{}&after={}", address(word), encoded(&job.name)));
    let page = JobsPage {
        shell: Shell::new(&service, viewer, Section::Jobs, "Jobs"),
        tabs: STATES.iter().map(tab).collect(),
        rows: jobs.iter().map(row).collect(),
        chosen: word.to_owned(),
        next,
        is_first: older_than.is_none(),
        like,
    };
    show(&page)
}

/// The page of a job.
pub(crate) fn path(name: &str) -> String {
    format!("/jobs/{}", encoded(name))
}

fn number(tally: &JobTally, word: &str) -> u64 {
    match word {
        "running" => tally.running,
        "stopped" => tally.stopped,
        "done" => tally.done,
        "failed" => tally.failed,
        "cancelled" => tally.cancelled,
        _ => tally.running + tally.stopped + tally.done + tally.failed + tally.cancelled,
    }
}

fn row(job: &Job) -> Row {
    let counts = &job.counts;
    Row {
        name: job.name.clone(),
        path: path(&job.name),
        state: job.state_word(),
        class: state_class(job.state_word()),
        meter: meter(job),
        finished: count(counts.done + counts.failed + counts.skipped),
        urls: count(counts.tasks),
        failed: count(counts.failed),
        failed_class: if counts.failed > 0 { "stop" } else { "" },
        skipped: count(counts.skipped),
        rate_limited: text::count(counts.rate_limited),
        created_at: job.created_at,
        message: job.message.clone().unwrap_or_default(),
    }
}

/// The progress of a job as a bar.
pub(super) fn meter(job: &Job) -> String {
    let counts = &job.counts;
    chart::meter(
        &[(counts.done, "f-go"), (counts.failed, "f-stop"), (counts.skipped, "f-mute")],
        counts.tasks,
    )
}

/// The color of a job's state.
pub(super) fn state_class(word: &str) -> &'static str {
    match word {
        "running" => "chip go",
        "stopped" => "chip wait",
        "failed" => "chip stop",
        _ => "chip",
    }
}

/// The states by which jobs can be chosen.
const STATES: [(&str, &str); 6] = [
    ("", "All"),
    ("running", "Running"),
    ("stopped", "Stopped"),
    ("done", "Done"),
    ("failed", "Failed"),
    ("cancelled", "Cancelled"),
];
const PAGE: u32 = 50;
const NAME_MAX: usize = 200;

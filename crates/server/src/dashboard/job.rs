//! One job: how far it is, what delays it, what failed and why. And its results, to download.

use askama::Template;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use comity::core::task::JobState;
use comity::core::time::{Span, Timestamp};
use comity::results::Row;
use comity::status::{HeldBack, Status, Work};
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{FailureGroup, FailureReason, Job};
use comity::store::tasks::{TaskFilter, TaskView};
use futures_util::stream::unfold;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};

use super::guard::{Values, Viewer};
use super::jobs::{meter, path, state_class};
use super::page::{Failure, Section, Shell, sentence, show, state};
use super::text::{count, encoded};
use crate::api::Path;
use crate::api::jobs::find;
use crate::service::Service;
use crate::state::ServingState;

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    shell: Shell,
    name: String,
    path: String,
    state: &'static str,
    class: &'static str,
    message: String,
    lead: String,
    command: String,
    meter: String,
    figures: Vec<(&'static str, String, String)>,
    held_back: Vec<HeldBack>,
    more: usize,
    groups: Vec<Group>,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
    may_cancel: bool,
    may_retry: bool,
}

/// URLs that failed for the same reason.
struct Group {
    title: String,
    number: String,
    samples: Vec<Sample>,
    /// Where to retry them, if they can be.
    retry: Option<String>,
}

struct Sample {
    url: String,
    error: String,
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, Failure> {
    let server = state(&service)?;
    let job = find(&server, &name).await?;
    let working = working(&server, &job).await?;
    let groups = server.store.failure_groups(job.id, SAMPLES).await?;
    let status = working.as_ref();
    let work = status.and_then(|status| status.work.as_ref());
    let may_retry = !(job.state == JobState::Running && job.worked_on);
    let shell = Shell::new(&service, viewer, Section::Jobs, job.name.clone()).every(1_000).noticing(&values);
    let page = JobPage {
        path: path(&job.name),
        state: job.state_word(),
        class: state_class(job.state_word()),
        message: job.message.as_deref().map(sentence).unwrap_or_default(),
        lead: lead(&job, work),
        command: command(&job),
        meter: meter(&job),
        figures: figures(&job, work),
        held_back: status.map(|status| status.held_back.clone()).unwrap_or_default(),
        more: status.map_or(0, |status| status.more),
        groups: groups.into_iter().map(|group| Group::of(group, &path(&job.name))).collect(),
        created_at: job.created_at,
        ended_at: job.ended_at,
        may_cancel: job.state == JobState::Running && job.options["kind"] != SCRAPE_JOB,
        may_retry,
        name: job.name,
        shell,
    };
    show(&page)
}

/// The status of the process that works on a job.
async fn working(state: &ServingState, job: &Job) -> Result<Option<Status>, Failure> {
    let processes = state.store.live_processes().await?;
    let statuses = processes
        .into_iter()
        .filter_map(|one| serde_json::from_value::<Status>(one.status?.0).ok())
        .filter(|status| status.work.as_ref().is_some_and(|work| work.name == job.name));
    Ok(statuses.max_by_key(|status| status.in_line))
}

/// How the job is doing, in a sentence.
fn lead(job: &Job, work: Option<&Work>) -> String {
    let waiting = job.counts.waiting();
    match (job.state, job.worked_on) {
        (JobState::Running, true) => {
            let left = work.and_then(|work| work.left_ms.map(|ms| (ms, work.left_is_most)));
            let left = left.map_or_else(String::new, |(ms, is_most)| {
                let about = if is_most { "at most" } else { "about" };
                format!(" At this pace, {about} {} are left.", Span::from_millis(ms).prose())
            });
            format!("{} of {} URLs wait to be fetched.{left}", count(waiting), count(job.counts.tasks))
        }
        (JobState::Running, false) => {
            format!("Nobody works on this job. {} of {} URLs wait.", count(waiting), count(job.counts.tasks))
        }
        (JobState::Done, _) => "The job is done.".to_owned(),
        (JobState::Failed, _) => "The job gave up.".to_owned(),
        (JobState::Cancelled, _) => "The job was cancelled.".to_owned(),
    }
}

/// The command that continues a job that nobody works on.
fn command(job: &Job) -> String {
    match (job.state, job.worked_on) {
        (JobState::Running, false) if job.options["kind"] == SCRAPE_JOB => "comity run".to_owned(),
        (JobState::Running, false) => format!("comity fetch --job {}", job.name),
        _ => String::new(),
    }
}

fn figures(job: &Job, work: Option<&Work>) -> Vec<(&'static str, String, String)> {
    let counts = &job.counts;
    let share = |part: u64| super::text::percent(part, counts.tasks);
    let rate = work.and_then(|work| work.rate).map_or_else(|| "–".to_owned(), super::text::rate);
    vec![
        ("Fetched", count(counts.done), share(counts.done)),
        ("Waiting", count(counts.waiting()), share(counts.waiting())),
        ("Failed", count(counts.failed), share(counts.failed)),
        ("Skipped", count(counts.skipped), share(counts.skipped)),
        ("Rate", rate, "URLs per second".to_owned()),
        ("Rate limited (429)", count(counts.rate_limited), format!("{} retries", count(counts.retries))),
    ]
}

impl Group {
    fn of(group: FailureGroup, path: &str) -> Self {
        let FailureGroup { reason, count: counted, samples } = group;
        let plus = if counted.or_more { "+" } else { "" };
        let sample = |task: TaskView| Sample {
            url: comity::event::redacted_text(&task.url).to_string(),
            error: task.error.unwrap_or_default(),
        };
        Self {
            title: reason_text(&reason),
            number: format!("{}{plus}", count(counted.number)),
            retry: reason.kind().map(|_| format!("{path}/retry?reason={}", encoded(&reason_word(&reason)))),
            samples: samples.into_iter().map(sample).collect(),
        }
    }
}

/// How much waits for a site.
fn backlog_text(held: &HeldBack) -> String {
    match held.backlog {
        Some(backlog) => super::text::counted(backlog, "URL waits", "URLs wait"),
        None => format!("{} in line", held.in_line),
    }
}

/// A reason in words.
pub(super) fn reason_text(reason: &FailureReason) -> String {
    match reason {
        FailureReason::Status(status) => match http::StatusCode::from_u16(*status) {
            Ok(known) => format!("HTTP {status} {}", known.canonical_reason().unwrap_or_default()),
            Err(_) => format!("HTTP {status}"),
        },
        FailureReason::Outcome(outcome) => {
            sentence(super::sites::outcome_text(outcome.as_str())).trim_end_matches('.').to_owned()
        }
        FailureReason::Unknown => "Failed before a request was sent".to_owned(),
        FailureReason::Robots => "Forbidden by robots.txt".to_owned(),
        FailureReason::JobEnded => "Skipped because the job ended".to_owned(),
        FailureReason::GaveUp => "Skipped because the job gave up on the site".to_owned(),
        FailureReason::OtherSkipped => "Skipped".to_owned(),
    }
}

/// A reason as part of an address.
pub(super) fn reason_word(reason: &FailureReason) -> String {
    match reason {
        FailureReason::Status(status) => status.to_string(),
        FailureReason::Outcome(outcome) => outcome.as_str().to_owned(),
        FailureReason::Unknown => "unknown".to_owned(),
        FailureReason::Robots => "robots".to_owned(),
        FailureReason::JobEnded => "job_ended".to_owned(),
        FailureReason::GaveUp => "gave_up".to_owned(),
        FailureReason::OtherSkipped => "skipped".to_owned(),
    }
}

/// The reason that a part of an address names.
pub(super) fn read_reason(word: &str) -> Option<FailureReason> {
    match word {
        "robots" => Some(FailureReason::Robots),
        "job_ended" => Some(FailureReason::JobEnded),
        "gave_up" => Some(FailureReason::GaveUp),
        word => {
            let outcome = || word.parse().ok().map(FailureReason::Outcome);
            word.parse().ok().map(FailureReason::Status).or_else(outcome)
        }
    }
}

/// The results of a job as a file: a row per URL, the same as `comity jobs export` writes.
pub(super) async fn export(
    State(service): State<Service>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, Failure> {
    let state = state(&service)?;
    let job = find(&state, &name).await?;
    let is_csv = values.get("format") == "csv";
    let (ending, kind) =
        if is_csv { ("csv", "text/csv; charset=utf-8") } else { ("jsonl", "application/jsonl") };
    let first = if is_csv { csv_lines([Row::COLUMNS.map(str::to_owned)]) } else { Ok(Bytes::new()) };
    let rows = unfold(Some((state, job.id, None, Some(first))), move |step| async move {
        let (state, id, after, first) = step?;
        if let Some(first) = first {
            return Some((first, Some((state, id, after, None))));
        }
        let page = match state.store.page_tasks(id, TaskFilter::default(), after, EXPORT_PAGE).await {
            Ok(page) => page,
            Err(error) => return Some((Err(std::io::Error::other(error)), None)),
        };
        let last = page.last().map(|task| task.id)?;
        let rows = page.iter().map(Row::of);
        let text = match is_csv {
            true => csv_lines(rows.map(|row| row.cells())),
            false => Ok(rows.map(|row| format!("{}\n", row.to_json())).collect::<String>().into()),
        };
        let is_last = page.len() < EXPORT_PAGE as usize;
        Some((text, (!is_last).then_some((state, id, Some(last), None))))
    });
    // Names of jobs have no characters that would need quoting.
    let file: String =
        job.name.chars().filter(|char| char.is_ascii_alphanumeric() || "._-".contains(*char)).collect();
    let disposition = format!("attachment; filename=\"{file}.{ending}\"");
    let headers = [(CONTENT_TYPE, kind.to_owned()), (CONTENT_DISPOSITION, disposition)];
    Ok((headers, Body::from_stream(rows)).into_response())
}

fn csv_lines<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> Result<Bytes, std::io::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row)?;
    }
    let written = writer.into_inner().map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(written.into())
}

/// How many URLs of each group are shown.
const SAMPLES: u32 = 5;
const EXPORT_PAGE: u32 = 1_000;

#[cfg(test)]
mod tests {
    use comity::core::outcome::Outcome;

    use super::*;

    #[test]
    fn reasons_survive_an_address() {
        for reason in [
            FailureReason::Status(503),
            FailureReason::Outcome(Outcome::Timeout),
            FailureReason::Robots,
            FailureReason::JobEnded,
            FailureReason::GaveUp,
        ] {
            assert_eq!(read_reason(&reason_word(&reason)), Some(reason));
        }
        assert_eq!(read_reason("unknown"), None);
        assert_eq!(reason_text(&FailureReason::Status(404)), "HTTP 404 Not Found");
        assert_eq!(reason_text(&FailureReason::Outcome(Outcome::Timeout)), "Timeout");
    }
}

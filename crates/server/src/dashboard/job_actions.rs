//! What an operator can do to a job: cancel it, or retry what failed. Each asks first.

use axum::extract::State;
use axum::response::Response;
use comity::core::task::JobState;
use comity::store::jobs::{Job, RetryFilter};

use super::confirm::{self, Field, FieldKind, Question};
use super::guard::{Action, Values, Viewer};
use super::job::{read_reason, reason_text};
use super::jobs::path;
use super::page::{Failure, Section, Shell, go, state};
use super::text::{count, counted};
use crate::api::Path;
use crate::api::jobs::{cancel_job, find, retry_job};
use crate::audit::Deed;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::ServingState;

fn unknown() -> Failure {
    Failure(Problem::new(Kind::NotFound, "there is no such page"))
}

/// What would be retried: everything that failed, or what failed for one reason.
fn filter(values: &Values) -> Result<(RetryFilter, String), Failure> {
    let word = values.get("reason");
    if word.is_empty() {
        return Ok((RetryFilter::default(), String::new()));
    }
    let reason = read_reason(word).ok_or_else(unknown)?;
    let kind = reason.kind().ok_or_else(unknown)?;
    Ok((RetryFilter { failures: vec![kind], ..RetryFilter::default() }, reason_text(&reason)))
}

async fn retry_impact(state: &ServingState, job: &Job, filter: RetryFilter) -> Result<String, Failure> {
    let counted_urls = state.store.count_retry(job.id, filter, COUNTED_MAX).await?;
    let plus = if counted_urls.or_more { "more than " } else { "" };
    Ok(format!("Makes {plus}{} wait again", counted(counted_urls.number, "URL", "URLs")))
}

fn cancel_impact(job: &Job) -> String {
    format!("Skips {}", counted(job.counts.waiting(), "waiting URL", "waiting URLs"))
}

/// Asks first.
pub(super) async fn ask(
    State(service): State<Service>,
    viewer: Viewer,
    Path((name, action)): Path<(String, String)>,
    values: Values,
) -> Result<Response, Failure> {
    let server = state(&service)?;
    let job = find(&server, &name).await?;
    let back = path(&job.name);
    let (title, impact, remarks, fields, button) = match action.as_str() {
        "cancel" => (
            format!("Cancel the job {}?", job.name),
            format!("{}. {} are fetched already.", cancel_impact(&job), count(job.counts.done)),
            vec!["URLs in flight are finished. What is skipped can be retried later."],
            Vec::new(),
            "Cancel the job",
        ),
        "retry" => {
            let (filter, only) = filter(&values)?;
            let impact = retry_impact(&server, &job, filter).await?;
            let what = if only.is_empty() { "what failed".to_owned() } else { format!("“{only}”") };
            let remark = match job.state {
                JobState::Running => "Start comity fetch --job to fetch them.",
                _ => "The job is opened again; start comity fetch --job to fetch them.",
            };
            let reason = Field {
                name: "reason",
                label: "",
                kind: FieldKind::Hidden,
                value: values.get("reason").to_owned(),
                hint: "",
            };
            (
                format!("Retry {what} in the job {}?", job.name),
                format!("{impact}."),
                vec![remark],
                vec![reason],
                "Retry",
            )
        }
        _ => return Err(unknown()),
    };
    let question = Question {
        shell: Shell::new(&service, viewer.clone(), Section::Jobs, title.clone()).every(0),
        title,
        impact,
        remarks,
        fields,
        button,
        is_grave: action == "cancel",
        path: format!("{back}/{action}"),
        back,
    };
    confirm::ask(&viewer, question)
}

/// Does it.
pub(super) async fn act(
    State(service): State<Service>,
    Path((name, action)): Path<(String, String)>,
    form: Action,
) -> Result<Response, Failure> {
    let server = state(&service)?;
    let job = find(&server, &name).await?;
    let (back, target) = (path(&job.name), format!("job {}", job.name));
    let caller = form.viewer.caller;
    match action.as_str() {
        "cancel" => {
            let deed = Deed::new("cancel", target, cancel_impact(&job));
            deed.carry_out(&service, caller, cancel_job(&service, &job)).await?;
            Ok(go(&back, "cancel"))
        }
        "retry" => {
            let (filter, only) = filter(&form.values)?;
            let mut impact = retry_impact(&server, &job, filter.clone()).await?;
            if !only.is_empty() {
                impact = format!("{impact}: {only}");
            }
            let deed = Deed::new("retry", target, impact);
            let retried = deed.carry_out(&service, caller, retry_job(&service, &job, filter)).await?;
            Ok(go(&back, if retried { "retry" } else { "nothing" }))
        }
        _ => Err(unknown()),
    }
}

/// URLs are counted up to this.
const COUNTED_MAX: u32 = 100_000;

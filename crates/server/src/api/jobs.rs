//! Jobs: lists of URLs that a worker (`comity fetch --job NAME`) fetches. The service only manages them; it fetches
//! nothing itself.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use comity::core::job_name::{self, NamedBy};
use comity::core::task::{JobState, JobStep};
use comity::event::redacted_url;
use comity::jobs::read_url;
use comity::redact;
use comity::request::header;
use comity::store::StoreError;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Job, RetryFilter, Stepped};
use comity::store::tasks::{Enqueued, NewTask, RequestParts, TaskView};
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use url::Url;

use super::domains::limit;
use super::{Path, Query, URL_MAX, validate_length};
use crate::audit::Deed;
use crate::auth::Caller;
use crate::body::Json;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::ServingState;
use crate::wire::{self, time_text};

/// Which jobs to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// The maximum number of jobs per page.
    #[param(required = false, nullable = false, value_type = u32, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// List only jobs older than the job with this name: the `next` of the previous page.
    #[param(required = false, nullable = false, value_type = String, min_length = 1, max_length = 200)]
    after: Option<String>,
}

/// List jobs, newest first.
#[utoipa::path(get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs", params(ListParams), responses((status = 200, description = "A page of jobs", body = wire::JobListResponse)))]
pub(crate) async fn list(
    State(service): State<Service>,
    Query(params): Query<ListParams>,
) -> Result<Json<wire::JobListResponse>, Problem> {
    let limit = limit(params.limit)?;
    let state = service.state()?;
    let older_than = match &params.after {
        Some(name) => Some(find(&state, name).await?.id),
        None => None,
    };
    // One more than asked for, to find out whether there is another page.
    let mut jobs = state.store.page_jobs(older_than, limit + 1).await?;
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next = jobs.last().filter(|_| more).map(|job| job.name.clone());
    Ok(Json(wire::JobListResponse { jobs: jobs.iter().map(|job| describe(job, &[])).collect(), more, next }))
}

/// Create a job, or add URLs to a job of that name that is done.
///
/// The service doesn't fetch: the job is `stopped` until `comity fetch --job NAME` works on it. Requires the role
/// `admin`.
#[utoipa::path(post, path = "/v1/jobs", operation_id = "create_job", tag = "jobs", request_body = wire::NewJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 201, description = "The job was created", body = wire::JobResponse, headers(("Location", description = "The path of the job"))), (status = 200, body = wire::JobResponse, description = "The job existed and was done; the URLs were added and it was reopened")))]
pub(crate) async fn create(
    State(service): State<Service>,
    caller: Caller,
    Json(new): Json<wire::NewJob>,
) -> Result<Response, Problem> {
    caller.require_admin()?;
    let state = service.state()?;
    let name = name(&new.name)?;
    let tasks = tasks(&state, &new.urls)?;
    let now = service.now();
    let made = state.store.make_job(name.to_owned(), serde_json::json!({}), tasks.clone(), now).await?;
    let Some(job) = made else {
        let job = find(&state, name).await?;
        if job.state != JobState::Done || tasks.is_empty() || job.options["kind"] == SCRAPE_JOB {
            return Err(Problem::new(Kind::Conflict, format!("a job named {name} already exists")));
        }
        state.store.enqueue(job.id, tasks, now).await?;
        return Ok(Json(describe(&find(&state, name).await?, &[])).into_response());
    };
    let mut response = (StatusCode::CREATED, Json(describe(&job, &[]))).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/jobs/{name}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Show a job, with its latest failed and skipped URLs.
#[utoipa::path(get, path = "/v1/jobs/{name}", operation_id = "show_job", tag = "jobs", params(("name" = String, Path, description = "The job's name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, description = "The job", body = wire::JobResponse)))]
pub(crate) async fn show(
    State(service): State<Service>,
    Path(name): Path<String>,
) -> Result<Json<wire::JobResponse>, Problem> {
    let state = service.state()?;
    let job = find(&state, &name).await?;
    let mut troubles = Vec::new();
    for task_state in ["failed", "skipped"] {
        troubles.extend(state.store.list_tasks(job.id, task_state.to_owned(), TROUBLES_MAX).await?);
    }
    Ok(Json(describe(&job, &troubles)))
}

/// Add URLs to a job.
///
/// URLs that the job already has are not added again. A job that is done is reopened. Requires the role `admin`.
#[utoipa::path(post, path = "/v1/jobs/{name}/tasks", operation_id = "add_tasks", tag = "jobs", request_body = wire::NewTasks,
    params(("name" = String, Path, description = "The job's name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "How many URLs were added", body = wire::AddTasksResponse)))]
pub(crate) async fn add(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
    Json(new): Json<wire::NewTasks>,
) -> Result<Json<wire::AddTasksResponse>, Problem> {
    caller.require_admin()?;
    let state = service.state()?;
    if new.urls.is_empty() {
        return Err(Problem::field("urls", "[]", "at least one URL"));
    }
    let tasks = tasks(&state, &new.urls)?;
    let job = find(&state, &name).await?;
    if job.options["kind"] == SCRAPE_JOB {
        return Err(Problem::new(
            Kind::Conflict,
            "only sources can add URLs to this job, which scrapes their items",
        ));
    }
    let Enqueued { new, known, refused } = state.store.enqueue(job.id, tasks, service.now()).await?;
    if refused > 0 {
        let job = find(&state, &name).await?;
        let detail = format!(
            "job {name} is {} and takes no more URLs; reopen it with /v1/jobs/{name}/retry",
            job.state
        );
        return Err(Problem::new(Kind::Conflict, detail));
    }
    Ok(Json(wire::AddTasksResponse { new, known }))
}

/// Cancel a job. URLs that are not finished are skipped.
///
/// Requires the role `admin`.
#[utoipa::path(post, path = "/v1/jobs/{name}/cancel", operation_id = "cancel_job", tag = "jobs", params(("name" = String, Path, description = "The job's name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "The job", body = wire::JobResponse)))]
pub(crate) async fn cancel(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::JobResponse>, Problem> {
    caller.require_admin()?;
    let job = find(&*service.state()?, &name).await?;
    let skips = format!("skips {} waiting URLs", job.counts.waiting());
    let deed = Deed::new("cancel", format!("job {name}"), skips);
    deed.carry_out(&service, caller, cancel_job(&service, &job)).await?;
    Ok(Json(describe(&find(&*service.state()?, &name).await?, &[])))
}

/// Cancels a job and skips what waits.
pub(crate) async fn cancel_job(service: &Service, job: &Job) -> Result<(), Problem> {
    let (state, name) = (service.state()?, &job.name);
    let message = Some("cancelled by hand".to_owned());
    if let Stepped::No(job) = state.store.step_job(job.id, JobStep::Cancel, message, service.now()).await? {
        return Err(Problem::new(Kind::Conflict, format!("job {name} is already {}", job.state)));
    }
    service.events().job_cancelled(name);
    sweep(service, &state, job).await
}

/// Retry what failed in a job that has ended or is stopped, like `comity jobs retry`.
///
/// URLs that failed (except with 404 and 410), or were skipped because the job ended or gave up on their site, wait to
/// be fetched again. If there are none, the job stays as it is. Requires the role `admin`.
#[utoipa::path(post, path = "/v1/jobs/{name}/retry", operation_id = "retry_job", tag = "jobs", params(("name" = String, Path, description = "The job's name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "The job", body = wire::JobResponse)))]
pub(crate) async fn retry(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::JobResponse>, Problem> {
    caller.require_admin()?;
    let job = find(&*service.state()?, &name).await?;
    let deed = Deed::new("retry", format!("job {name}"), String::new());
    deed.carry_out(&service, caller, retry_job(&service, &job, RetryFilter::default())).await?;
    Ok(Json(describe(&find(&*service.state()?, &name).await?, &[])))
}

/// Reopens a job, so that what the filter selects waits again. Returns whether there was anything.
pub(crate) async fn retry_job(service: &Service, job: &Job, filter: RetryFilter) -> Result<bool, Problem> {
    let (state, name) = (service.state()?, &job.name);
    if job.options["kind"] == SCRAPE_JOB && job.state == JobState::Running {
        let detail = format!("job {name} scrapes items and never ends; retry items with comity scrape");
        return Err(Problem::new(Kind::Conflict, detail));
    }
    match state.store.reopen_job(job.id, filter).await? {
        Stepped::Yes(_) => sweep(service, &state, job).await.map(|()| true),
        Stepped::No(job) if job.state == JobState::Running && job.worked_on => {
            let detail = format!(
                "job {name} is running, it has not ended: nothing was changed; retry its failures when it has ended or is stopped"
            );
            Err(Problem::new(Kind::Conflict, detail))
        }
        // There is nothing to retry.
        Stepped::No(_) => Ok(false),
        Stepped::Missing => Err(not_found()),
    }
}

/// Brings the tasks of a job in line with its new state.
async fn sweep(service: &Service, state: &ServingState, job: &Job) -> Result<(), Problem> {
    // A task of its own, so that it completes even if the caller hangs up. Nobody else would finish it.
    let (store, now, id) = (state.store.clone(), service.now(), job.id);
    let swept = tokio::spawn(async move {
        while store.sweep(id, SWEEP_BATCH, now).await? {}
        Ok::<(), StoreError>(())
    });
    Ok(swept.await.unwrap_or(Err(StoreError::Closed))?)
}

pub(crate) async fn find(state: &ServingState, name: &str) -> Result<Job, Problem> {
    state.store.find_job(name.to_owned()).await?.ok_or_else(not_found)
}

fn not_found() -> Problem {
    Problem::new(Kind::NotFound, "no job with this name exists")
}

/// Validates the name of a new job.
fn name(name: &str) -> Result<&str, Problem> {
    let checked = job_name::check(name, NamedBy::Service);
    checked.map(|()| name).map_err(|expected| Problem::field("name", &format!("{name:?}"), expected))
}

/// Validates URLs and turns them into tasks.
fn tasks(state: &ServingState, urls: &[wire::JobUrl]) -> Result<Vec<NewTask>, Problem> {
    if urls.len() > URLS_MAX {
        let allowed = format!("at most {URLS_MAX} URLs; for longer lists use comity fetch --input");
        return Err(Problem::field("urls", &format!("{} URLs", urls.len()), &allowed));
    }
    let rules = state.gate.rules();
    let parse = |(nth, url): (usize, &wire::JobUrl)| {
        let (text, field, task) = match url {
            wire::JobUrl::Url(text) => (text, format!("urls[{nth}]"), None),
            wire::JobUrl::Task(task) => (&task.url, format!("urls[{nth}].url"), Some(task)),
        };
        let allowed = "an http or https URL with a host";
        validate_length(&field, text, URL_MAX)?;
        let plain = read_url(text, rules).ok_or_else(|| Problem::field(&field, "\"…\"", allowed))?;
        let parts = task.map(|task| request_parts(&format!("urls[{nth}]"), task)).transpose()?.flatten();
        Ok(NewTask { sends: parts.map(Box::new), ..plain })
    };
    urls.iter().enumerate().map(parse).collect()
}

/// Validates method, body and headers of a task. `None` for a plain GET.
fn request_parts(field: &str, task: &wire::JobTask) -> Result<Option<RequestParts>, Problem> {
    let default_method = if task.body.is_some() { "POST" } else { "GET" };
    let method = task.method.as_deref().unwrap_or(default_method);
    if !METHODS.contains(&method) {
        let allowed = format!("one of {}", METHODS.join(", "));
        return Err(Problem::field(&format!("{field}.method"), &format!("{method:?}"), &allowed));
    }
    let mut headers = Vec::new();
    for (name, value) in &task.headers {
        // The error names the header but not its value, which may be a secret.
        let invalid =
            |allowed: String| Problem::field(&format!("{field}.headers"), &format!("{name:?}"), &allowed);
        let name = header::name(name).map_err(|why| invalid(format!("another header: {why}")))?;
        if !header::is_harmless(&name) {
            let allowed = "a header without secrets, such as Content-Type; credentials are not saved with a job, so pass \
                them to the worker: comity fetch --job NAME -H …, or [domains.\"HOST\".request] in its configuration";
            return Err(invalid(allowed.to_owned()));
        }
        header::value(value).map_err(|why| invalid(format!("a valid header value: {why}")))?;
        headers.push((name.to_string(), value.clone()));
    }
    let body = task.body.clone().unwrap_or_default().into_bytes();
    if method == "GET" && body.is_empty() && headers.is_empty() {
        return Ok(None);
    }
    Ok(Some(RequestParts { method: method.to_owned(), body, headers }))
}

fn describe(job: &Job, troubles: &[TaskView]) -> wire::JobResponse {
    let counts = &job.counts;
    let url = |text: &str| Url::parse(text).map_or_else(|_| String::new(), |url| redacted_url(&url));
    wire::JobResponse {
        job: job.name.clone(),
        state: job.state_word(),
        tasks: counts.tasks,
        fetched: counts.done,
        failed: counts.failed,
        skipped: counts.skipped,
        waiting: counts.waiting(),
        rate_limited: counts.rate_limited,
        retries: counts.retries,
        created_at: job.created_at.to_string(),
        ended_at: time_text(job.ended_at),
        message: job.message.clone(),
        worked_on_by: worked_on_by(job),
        troubles: troubles
            .iter()
            .map(|task| wire::UnfetchedUrl {
                url: url(&task.url),
                state: task.state.clone(),
                status: task.status,
                error: task.error.clone(),
            })
            .collect(),
    }
}

/// The command that works on a job. If none does, the one that would.
fn worked_on_by(job: &Job) -> String {
    let command = match job.options["kind"] == SCRAPE_JOB {
        true => "comity run".to_owned(),
        false => format!("comity fetch --job {}", redact::shell_word(&job.name)),
    };
    match (job.state, job.worked_on) {
        (JobState::Running, true) => command,
        (JobState::Running, false) => format!("nobody: start {command}"),
        (_, _) => "nobody: the job has ended".to_owned(),
    }
}

/// The methods that a task may use.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
const URLS_MAX: usize = 10_000;
/// How many failed URLs, and how many skipped ones, are shown with a job.
const TROUBLES_MAX: u32 = 20;
/// How many tasks of a cancelled or reopened job are updated per transaction.
const SWEEP_BATCH: u32 = 10_000;

//! Jobs: lists of URLs that a worker (`comity fetch --job NAME`) fetches to their end. The service keeps them; it
//! fetches nothing.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use comity::core::task::{JobState, JobStep};
use comity::event::shown;
use comity::jobs::read_url;
use comity::store::StoreError;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Job, Stepped};
use comity::store::tasks::{Enqueued, NewTask, TaskView};
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use url::Url;

use super::domains::limit;
use super::{Path, Query, URL_MAX, fits};
use crate::auth::Caller;
use crate::body::Json;
use crate::live::Live;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire::{self, moment};

/// Which jobs are listed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// At most so many.
    #[param(required = false, nullable = false, value_type = u32, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs", params(Listed), responses((status = 200, body = wire::Jobs)))]
pub(crate) async fn list(
    State(service): State<Service>,
    Query(listed): Query<Listed>,
) -> Result<Json<wire::Jobs>, Problem> {
    let limit = limit(listed.limit)? as usize;
    let jobs = service.live()?.store.list_jobs().await?;
    Ok(Json(wire::Jobs { jobs: jobs.iter().take(limit).map(|job| told(job, &[])).collect() }))
}

/// Makes a job.
#[utoipa::path(post, path = "/v1/jobs", operation_id = "create_job", tag = "jobs", request_body = wire::NewJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 201, body = wire::Job, headers(("Location", description = "Where it is")))))]
pub(crate) async fn create(
    State(service): State<Service>,
    caller: Caller,
    Json(new): Json<wire::NewJob>,
) -> Result<Response, Problem> {
    caller.must_steer()?;
    let live = service.live()?;
    let name = name(&new.name)?;
    let tasks = tasks(&live, &new.urls)?;
    let made = live.store.make_job(name.to_owned(), serde_json::json!({}), tasks, service.now()).await?;
    let Some(job) = made else {
        return Err(Problem::new(Kind::Conflict, format!("there is a job called {name} already")));
    };
    let mut response = (StatusCode::CREATED, Json(told(&job, &[]))).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/jobs/{name}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// One job, with its latest failed and skipped URLs.
#[utoipa::path(get, path = "/v1/jobs/{name}", operation_id = "show_job", tag = "jobs", params(("name" = String, Path, description = "Its name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = wire::Job)))]
pub(crate) async fn show(
    State(service): State<Service>,
    Path(name): Path<String>,
) -> Result<Json<wire::Job>, Problem> {
    let live = service.live()?;
    let job = find(&live, &name).await?;
    let mut troubles = Vec::new();
    for state in ["failed", "skipped"] {
        troubles.extend(live.store.list_tasks(job.id, state.to_owned(), TROUBLES).await?);
    }
    Ok(Json(told(&job, &troubles)))
}

/// Adds URLs to a job; those that it has are not added again.
#[utoipa::path(post, path = "/v1/jobs/{name}/tasks", operation_id = "add_tasks", tag = "jobs", request_body = wire::NewTasks,
    params(("name" = String, Path, description = "Its name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Added)))]
pub(crate) async fn add(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
    Json(new): Json<wire::NewTasks>,
) -> Result<Json<wire::Added>, Problem> {
    caller.must_steer()?;
    let live = service.live()?;
    if new.urls.is_empty() {
        return Err(Problem::field("urls", "[]", "1 URL or more"));
    }
    let tasks = tasks(&live, &new.urls)?;
    let job = find(&live, &name).await?;
    if job.options["kind"] == SCRAPE_JOB {
        return Err(Problem::new(Kind::Conflict, "items are scraped with this job; sources add to it"));
    }
    let Enqueued { new, known, refused } = live.store.enqueue(job.id, tasks, service.now()).await?;
    if refused > 0 {
        let job = find(&live, &name).await?;
        let what = format!("job {name} is {} and takes no more URLs; retry reopens it", job.state);
        return Err(Problem::new(Kind::Conflict, what));
    }
    Ok(Json(wire::Added { new, known }))
}

/// Ends a job; what waits is skipped.
#[utoipa::path(post, path = "/v1/jobs/{name}/cancel", operation_id = "cancel_job", tag = "jobs", params(("name" = String, Path, description = "Its name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Job)))]
pub(crate) async fn cancel(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::Job>, Problem> {
    step(&service, caller, &name, JobStep::Cancel).await
}

/// Reopens a job that ended: what failed, or was skipped with its end, waits again.
#[utoipa::path(post, path = "/v1/jobs/{name}/retry", operation_id = "retry_job", tag = "jobs", params(("name" = String, Path, description = "Its name", min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Job)))]
pub(crate) async fn retry(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::Job>, Problem> {
    step(&service, caller, &name, JobStep::Reopen).await
}

async fn step(
    service: &Service,
    caller: Caller,
    name: &str,
    step: JobStep,
) -> Result<Json<wire::Job>, Problem> {
    caller.must_steer()?;
    let live = service.live()?;
    let job = find(&live, name).await?;
    let message = (step == JobStep::Cancel).then(|| "cancelled by hand".to_owned());
    if let Stepped::No(job) = live.store.step_job(job.id, step, message, service.now()).await? {
        return Err(Problem::new(Kind::Conflict, format!("job {name} is {} already", job.state)));
    }
    if step == JobStep::Cancel {
        service.events().job_cancelled(name);
    }
    // To its end, also when whoever asked hangs up: nobody else goes on with it.
    let (store, now) = (live.store.clone(), service.now());
    let swept = tokio::spawn(async move {
        while store.sweep(job.id, SWEEP, now).await? {}
        Ok::<(), StoreError>(())
    });
    swept.await.unwrap_or(Err(StoreError::Closed))?;
    Ok(Json(told(&find(&live, name).await?, &[])))
}

async fn find(live: &Live, name: &str) -> Result<Job, Problem> {
    let found = live.store.find_job(name.to_owned()).await?;
    found.ok_or_else(|| Problem::new(Kind::NotFound, "there is no such job"))
}

fn name(name: &str) -> Result<&str, Problem> {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let rest = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    match first && rest && name.len() <= NAME_MAX {
        true => Ok(name),
        false => Err(Problem::field(
            "name",
            &format!("{name:?}"),
            "1 to 200 letters, digits, \".\", \"_\" or \"-\", the first a letter or digit",
        )),
    }
}

fn tasks(live: &Live, urls: &[wire::JobUrl]) -> Result<Vec<NewTask>, Problem> {
    if urls.len() > URLS_MAX {
        let allowed = format!("at most {URLS_MAX}; comity fetch --input takes longer lists");
        return Err(Problem::field("urls", &format!("{} of them", urls.len()), &allowed));
    }
    let rules = live.gate.rules();
    let read = |(nth, wire::JobUrl(text)): (usize, &wire::JobUrl)| {
        let allowed = "an http or https URL with a host";
        fits(&format!("urls[{nth}]"), text, URL_MAX)?;
        read_url(text, rules).ok_or_else(|| Problem::field(&format!("urls[{nth}]"), "\"…\"", allowed))
    };
    urls.iter().enumerate().map(read).collect()
}

fn told(job: &Job, troubles: &[TaskView]) -> wire::Job {
    let counts = &job.counts;
    let url = |text: &str| Url::parse(text).map_or_else(|_| String::new(), |url| shown(&url));
    wire::Job {
        job: job.name.clone(),
        state: job.state.as_str(),
        tasks: counts.tasks,
        fetched: counts.done,
        failed: counts.failed,
        skipped: counts.skipped,
        waiting: counts.waiting(),
        rate_limited: counts.rate_limited,
        retries: counts.retries,
        created_at: job.created_at.to_string(),
        ended_at: moment(job.ended_at),
        message: job.message.clone(),
        worked_on_by: match (job.options["kind"] == SCRAPE_JOB, job.state) {
            (true, _) => "comity run".to_owned(),
            (false, JobState::Running) => format!("comity fetch --job {}", job.name),
            (false, _) => "nobody: it ended".to_owned(),
        },
        troubles: troubles
            .iter()
            .map(|task| wire::Trouble {
                url: url(&task.url),
                state: task.state.clone(),
                status: task.status,
                error: task.error.clone(),
            })
            .collect(),
    }
}

const NAME_MAX: usize = 200;
const URLS_MAX: usize = 10_000;
const TROUBLES: u32 = 20;
/// Tasks brought in line with their job at once.
const SWEEP: u32 = 10_000;

//! Jobs: lists of URLs that a worker (`comity fetch --job NAME`) fetches to their end. The service keeps them; it
//! fetches nothing.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use comity::core::task::{JobState, JobStep};
use comity::event::shown;
use comity::jobs::read_url;
use comity::request::header;
use comity::store::StoreError;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Job, Stepped};
use comity::store::tasks::{Enqueued, NewTask, Sends, TaskView};
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
    /// Only jobs older than the one of this name.
    #[param(required = false, nullable = false, value_type = String, min_length = 1, max_length = 200)]
    after: Option<String>,
}

/// Jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs", params(Listed), responses((status = 200, body = wire::Jobs)))]
pub(crate) async fn list(
    State(service): State<Service>,
    Query(listed): Query<Listed>,
) -> Result<Json<wire::Jobs>, Problem> {
    let limit = limit(listed.limit)?;
    let live = service.live()?;
    let older_than = match &listed.after {
        Some(name) => Some(find(&live, name).await?.id),
        None => None,
    };
    // One more says whether there are more.
    let mut jobs = live.store.page_jobs(older_than, limit + 1).await?;
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next = jobs.last().filter(|_| more).map(|job| job.name.clone());
    Ok(Json(wire::Jobs { jobs: jobs.iter().map(|job| told(job, &[])).collect(), more, next }))
}

/// Makes a job. One of that name that is done takes the URLs and is reopened.
#[utoipa::path(post, path = "/v1/jobs", operation_id = "create_job", tag = "jobs", request_body = wire::NewJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 201, body = wire::Job, headers(("Location", description = "Where it is"))), (status = 200, body = wire::Job, description = "It was done, and is reopened")))]
pub(crate) async fn create(
    State(service): State<Service>,
    caller: Caller,
    Json(new): Json<wire::NewJob>,
) -> Result<Response, Problem> {
    caller.must_steer()?;
    let live = service.live()?;
    let name = name(&new.name)?;
    let tasks = tasks(&live, &new.urls)?;
    let now = service.now();
    let made = live.store.make_job(name.to_owned(), serde_json::json!({}), tasks.clone(), now).await?;
    let Some(job) = made else {
        let job = find(&live, name).await?;
        if job.state != JobState::Done || tasks.is_empty() || job.options["kind"] == SCRAPE_JOB {
            return Err(Problem::new(Kind::Conflict, format!("there is a job called {name} already")));
        }
        live.store.enqueue(job.id, tasks, now).await?;
        return Ok(Json(told(&find(&live, name).await?, &[])).into_response());
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

/// Adds URLs to a job; those that it has are not added again. A job that is done is reopened by them.
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
    let read = |(nth, asked): (usize, &wire::JobUrl)| {
        let (text, field, task) = match asked {
            wire::JobUrl::Url(text) => (text, format!("urls[{nth}]"), None),
            wire::JobUrl::Task(task) => (&task.url, format!("urls[{nth}].url"), Some(task)),
        };
        let allowed = "an http or https URL with a host";
        fits(&field, text, URL_MAX)?;
        let plain = read_url(text, rules).ok_or_else(|| Problem::field(&field, "\"…\"", allowed))?;
        let sends = task.map(|task| sends(&format!("urls[{nth}]"), task)).transpose()?.flatten();
        Ok(NewTask { sends: sends.map(Box::new), ..plain })
    };
    urls.iter().enumerate().map(read).collect()
}

/// What a task sends; nothing for a plain GET.
fn sends(field: &str, task: &wire::JobTask) -> Result<Option<Sends>, Problem> {
    let usual = if task.body.is_some() { "POST" } else { "GET" };
    let method = task.method.as_deref().unwrap_or(usual);
    if !METHODS.contains(&method) {
        let allowed = format!("one of {}", METHODS.join(", "));
        return Err(Problem::field(&format!("{field}.method"), &format!("{method:?}"), &allowed));
    }
    let mut headers = Vec::new();
    for (name, value) in &task.headers {
        // A value that is refused may be a secret.
        let wrong = |why: String| Problem::field(&format!("{field}.headers"), &format!("{name:?}"), &why);
        let name = header::name(name).map_err(|why| wrong(format!("another header: {why}")))?;
        if !header::is_harmless(&name) {
            let why = "a header that holds no secret, such as Content-Type; credentials are not stored, and come from \
                whoever fetches: comity fetch --job NAME -H …, or its [domains.\"HOST\".request]";
            return Err(wrong(why.to_owned()));
        }
        header::value(value).map_err(|why| wrong(format!("a value that can be sent: {why}")))?;
        headers.push((name.to_string(), value.clone()));
    }
    let body = task.body.clone().unwrap_or_default().into_bytes();
    if method == "GET" && body.is_empty() && headers.is_empty() {
        return Ok(None);
    }
    Ok(Some(Sends { method: method.to_owned(), body, headers }))
}

fn told(job: &Job, troubles: &[TaskView]) -> wire::Job {
    let counts = &job.counts;
    let url = |text: &str| Url::parse(text).map_or_else(|_| String::new(), |url| shown(&url));
    wire::Job {
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

/// What a task may be sent with.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
const NAME_MAX: usize = 200;
const URLS_MAX: usize = 10_000;
const TROUBLES: u32 = 20;
/// Tasks brought in line with their job at once.
const SWEEP: u32 = 10_000;

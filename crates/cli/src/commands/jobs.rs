//! `comity jobs`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::task::{JobState, JobStep};
use comity::shown::without_user;
use comity::store::Store;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Job, Stepped};
use serde_json::{Value, json};

use super::{report, table};
use crate::args::{Global, Jobs};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Jobs) -> anyhow::Result<u8> {
    let store = setup::open_store(config)?;
    match command {
        Jobs::List => list(global, &*store).await,
        Jobs::Show { name, limit } => show(global, &*store, &name, limit).await,
        Jobs::Cancel { name } => step(global, &*store, &name, JobStep::Cancel).await,
        Jobs::Retry { name } => step(global, &*store, &name, JobStep::Reopen).await,
    }
}

async fn list(global: &Global, store: &dyn Store) -> anyhow::Result<u8> {
    let jobs = store.list_jobs().await?;
    if global.json {
        let jobs: Vec<Value> = jobs.iter().map(|job| report::summary(job, elapsed_ms(job))).collect();
        output::object(&json!({ "jobs": jobs }));
    } else if jobs.is_empty() {
        output::line("no jobs yet; comity fetch --help tells how to begin one");
    } else {
        let rows: Vec<_> =
            jobs.iter().map(|job| [job.name.clone(), state(job).to_owned(), report::progress(job)]).collect();
        table::align(&rows);
    }
    Ok(exit::DONE)
}

async fn show(global: &Global, store: &dyn Store, name: &str, limit: u32) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let mut troubles = Vec::new();
    for state in ["failed", "skipped"] {
        troubles.extend(store.list_tasks(job.id, state.to_owned(), limit).await?);
    }
    if global.json {
        let tasks: Vec<Value> = troubles
            .iter()
            .map(|task| json!({ "url": without_user(&task.url), "state": task.state, "status": task.status, "error": task.error }))
            .collect();
        let mut object = report::summary(&job, elapsed_ms(&job));
        object["options"] = job.options.clone();
        object["troubles"] = Value::Array(tasks);
        output::object(&object);
        return Ok(exit::DONE);
    }
    output::line(&format!("{}: {}", job.name, state(&job)));
    output::line(&format!("  {}", report::progress(&job)));
    output::line(&format!("  begun {}", report::moment(job.created_at)));
    if let Some(ended_at) = job.ended_at {
        output::line(&format!("  ended {}", report::moment(ended_at)));
    }
    if let Some(message) = &job.message {
        output::line(&format!("  {message}"));
    }
    for (key, value) in job.options.as_object().into_iter().flatten() {
        output::line(&format!("  {key} = {value}"));
    }
    for task in &troubles {
        let why = task.error.as_deref().unwrap_or("no reason kept");
        output::line(&format!("  {} {} ({why})", task.state, without_user(&task.url)));
    }
    Ok(exit::DONE)
}

async fn step(global: &Global, store: &dyn Store, name: &str, step: JobStep) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let clock = Clock::of(store).await?;
    let message = (step == JobStep::Cancel).then(|| "cancelled by hand".to_owned());
    let stepped = store.step_job(job.id, step, message, clock.now()).await?;
    if let Stepped::No(job) = stepped {
        let what = match step {
            JobStep::Reopen => format!("job {} is {}; {}", job.name, state(&job), works_on(&job)),
            _ => format!("job {} is {} already", job.name, job.state),
        };
        return Err(exit::usage(what));
    }
    sweep(store, &job, &clock).await?;
    let job = find(store, name).await?;
    if global.json {
        output::object(&report::summary(&job, elapsed_ms(&job)));
    } else {
        output::line(&format!("{}: {}, {}", job.name, job.state, report::progress(&job)));
        if step == JobStep::Reopen {
            output::line(&works_on(&job));
        }
    }
    Ok(exit::DONE)
}

/// Brings the tasks of a job in line with its state; also what an earlier process did not get to.
pub(crate) async fn sweep(store: &dyn Store, job: &Job, clock: &Clock) -> anyhow::Result<()> {
    while store.sweep(job.id, 10_000, clock.now()).await? {}
    Ok(())
}

async fn find(store: &dyn Store, name: &str) -> anyhow::Result<Job> {
    let found = store.find_job(name.to_owned()).await?;
    found.ok_or_else(|| {
        exit::usage(format!("job = {name:?}: there is no such job; comity jobs list shows them"))
    })
}

/// Where it is in its life, in a word. The job of scrapes is never done: it is open to more.
fn state(job: &Job) -> &'static str {
    let idle = job.options["kind"] == SCRAPE_JOB && job.counts.waiting() == 0;
    if idle && job.state == JobState::Running { "open" } else { job.state.as_str() }
}

/// Which command goes on with it.
fn works_on(job: &Job) -> String {
    match job.options["kind"] == SCRAPE_JOB {
        true => "comity run works on it".to_owned(),
        false => format!("comity fetch --job {} works on it", job.name),
    }
}

/// How long a job took, if it ended.
fn elapsed_ms(job: &Job) -> u64 {
    job.ended_at.map_or(0, |ended_at| ended_at.since(job.created_at).as_millis_up())
}

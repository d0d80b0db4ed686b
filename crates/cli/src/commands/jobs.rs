//! `comity jobs`.

use comity::clock::Clock;
use comity::config::Config;
use comity::core::outcome::Outcome;
use comity::core::task::{JobState, JobStep, TaskId};
use comity::results::Row;
use comity::shown::without_user;
use comity::store::Store;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Job, Removed, Revival, Stepped, Trouble};
use comity::store::tasks::{TaskView, Which};
use serde_json::{Value, json};

use super::{report, table};
use crate::args::{Global, Jobs, RowFormat, TaskState};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Jobs) -> anyhow::Result<u8> {
    let store = setup::open_store(config)?;
    let store = &*store;
    match command {
        Jobs::List { limit, after } => list(global, store, limit, after).await,
        Jobs::Show { name, failed: true, limit } => failures(global, store, &name, limit).await,
        Jobs::Show { name, failed: false, limit } => show(global, store, &name, limit.unwrap_or(SHOWN)).await,
        Jobs::Export { name, format, state } => export(store, &name, format, state).await,
        Jobs::Cancel { name } => cancel(global, store, &name).await,
        Jobs::Retry { name, status, matching } => {
            let troubles = status.iter().map(|word| trouble(word)).collect::<anyhow::Result<_>>()?;
            retry(global, store, &name, Revival { troubles, matching, done_before: None }).await
        }
        Jobs::Remove { name } => remove(global, store, &name).await,
    }
}

async fn list(global: &Global, store: &dyn Store, limit: u32, after: Option<String>) -> anyhow::Result<u8> {
    let older_than = match &after {
        Some(name) => Some(find(store, name).await?.id),
        None => None,
    };
    // One more says whether there are more.
    let mut jobs = store.page_jobs(older_than, limit.saturating_add(1)).await?;
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next = jobs.last().filter(|_| more).map(|job| job.name.clone());
    if global.json {
        let jobs: Vec<Value> = jobs.iter().map(|job| report::summary(job, elapsed_ms(job))).collect();
        output::object(&json!({ "jobs": jobs, "more": more, "next": next }));
    } else if jobs.is_empty() && after.is_none() {
        output::line("no jobs yet; comity fetch --help shows how to start one");
    } else {
        let rows: Vec<_> =
            jobs.iter().map(|job| [job.name.clone(), state(job).to_owned(), report::progress(job)]).collect();
        table::align(&rows);
        if let Some(next) = next {
            output::remark(&format!("there are older jobs: comity jobs list --after {next}"));
        }
    }
    Ok(exit::DONE)
}

async fn show(global: &Global, store: &dyn Store, name: &str, limit: u32) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let mut troubles = Vec::new();
    for state in ["failed", "skipped"] {
        troubles.extend(store.list_tasks(job.id, state.to_owned(), limit).await?);
    }
    let more = (job.counts.failed + job.counts.skipped).saturating_sub(troubles.len() as u64);
    if global.json {
        let mut object = report::summary(&job, elapsed_ms(&job));
        object["options"] = options(&job);
        object["troubles"] = troubles.iter().map(trouble_object).collect();
        object["more_troubles"] = json!(more);
        output::object(&object);
        return Ok(exit::DONE);
    }
    output::line(&format!("{}: {}", job.name, state(&job)));
    output::line(&format!("  {}", report::progress(&job)));
    output::line(&format!("  started {}", report::moment(job.created_at)));
    if let Some(ended_at) = job.ended_at {
        output::line(&format!("  ended {}", report::moment(ended_at)));
    }
    if let Some(message) = &job.message {
        output::line(&format!("  {message}"));
    }
    for (key, value) in options(&job).as_object().into_iter().flatten() {
        output::line(&format!("  {key} = {value}"));
    }
    troubles.iter().for_each(print_trouble);
    if more > 0 {
        output::line(&format!(
            "  and {more} more; comity jobs export {name} --state failed (or skipped) writes all"
        ));
    }
    Ok(exit::DONE)
}

/// What failed, all of it unless there is a limit.
async fn failures(global: &Global, store: &dyn Store, name: &str, limit: Option<u32>) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    // An object is made in one piece: it does not grow without end.
    let limit = limit.map_or(if global.json { OBJECT_MAX } else { u64::MAX }, u64::from);
    let which = Which { state: Some("failed".to_owned()), settled_since: None };
    let (mut after, mut shown, mut objects) = (None, 0, Vec::new());
    while shown < limit && !output::is_lost() {
        let page = page_of(store, &job, &which, &mut after, limit - shown).await?;
        if page.is_empty() {
            break;
        }
        shown += page.len() as u64;
        match global.json {
            true => objects.extend(page.iter().map(trouble_object)),
            false => page.iter().for_each(print_trouble),
        }
    }
    let more = job.counts.failed.saturating_sub(shown);
    if global.json {
        let mut object = report::summary(&job, elapsed_ms(&job));
        object["troubles"] = Value::Array(objects);
        object["more_troubles"] = json!(more);
        output::object(&object);
    } else if more > 0 {
        output::line(&format!("  and {more} more"));
    } else if shown == 0 {
        output::line("nothing failed");
    }
    Ok(exit::DONE)
}

/// Rows of a job, however many: a page at a time.
async fn export(
    store: &dyn Store,
    name: &str,
    format: RowFormat,
    state: Option<TaskState>,
) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let which = Which { state: state.map(|state| state.as_str().to_owned()), settled_since: None };
    if format == RowFormat::Csv {
        output::csv_lines(std::iter::once(Row::COLUMNS.map(str::to_owned)));
    }
    let mut after = None;
    // Whoever read them may have seen enough.
    while !output::is_lost() {
        let page = page_of(store, &job, &which, &mut after, u64::MAX).await?;
        if page.is_empty() {
            break;
        }
        let rows = page.iter().map(Row::of);
        match format {
            RowFormat::Jsonl => output::json_lines(rows.map(|row| row.to_json())),
            RowFormat::Csv => output::csv_lines(rows.map(|row| row.cells())),
        }
    }
    Ok(exit::DONE)
}

/// The next tasks of a job, at most `limit`; none when there are no more.
async fn page_of(
    store: &dyn Store,
    job: &Job,
    which: &Which,
    after: &mut Option<TaskId>,
    limit: u64,
) -> anyhow::Result<Vec<TaskView>> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(PAGE);
    let page = store.page_tasks(job.id, which.clone(), *after, limit).await?;
    *after = page.last().map(|task| task.id).or(*after);
    Ok(page)
}

fn trouble_object(task: &TaskView) -> Value {
    json!({ "url": without_user(&task.url), "state": task.state, "status": task.status, "error": task.error })
}

fn print_trouble(task: &TaskView) {
    let why = task.error.as_deref().unwrap_or("no reason kept");
    output::line(&format!("  {} {} ({why})", task.state, without_user(&task.url)));
}

/// The options of a job as they may be shown.
fn options(job: &Job) -> Value {
    let mut options = job.options.clone();
    for sitemap in options.get_mut("sitemaps").and_then(Value::as_array_mut).into_iter().flatten() {
        *sitemap = json!(without_user(sitemap.as_str().unwrap_or_default()));
    }
    options
}

async fn cancel(global: &Global, store: &dyn Store, name: &str) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let clock = Clock::of(store).await?;
    let message = Some("cancelled by hand".to_owned());
    if let Stepped::No(job) = store.step_job(job.id, JobStep::Cancel, message, clock.now()).await? {
        return Err(exit::usage(format!("job {} is {} already", job.name, job.state)));
    }
    sweep(store, &job, &clock).await?;
    changed(global, &find(store, name).await?);
    Ok(exit::DONE)
}

async fn retry(global: &Global, store: &dyn Store, name: &str, revival: Revival) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let clock = Clock::of(store).await?;
    if let Stepped::No(job) = store.reopen_job(job.id, revival).await? {
        return Err(exit::usage(match job.state {
            JobState::Running => format!("job {} is {}; {}", job.name, state(&job), works_on(&job)),
            ended => format!("job {} is {ended}, and nothing of it matches: it stays so", job.name),
        }));
    }
    sweep(store, &job, &clock).await?;
    let job = find(store, name).await?;
    changed(global, &job);
    if !global.json {
        output::line(&works_on(&job));
    }
    Ok(exit::DONE)
}

async fn remove(global: &Global, store: &dyn Store, name: &str) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    if job.options["kind"] == SCRAPE_JOB {
        return Err(exit::usage(format!(
            "job {name} belongs to comity run: its sources and items are removed with comity sources remove"
        )));
    }
    let clock = Clock::of(store).await?;
    loop {
        match store.remove_job(job.id, REMOVED, clock.now()).await? {
            Removed::More => {}
            Removed::Gone => break,
            Removed::Busy => {
                return Err(exit::usage(format!(
                    "job {name} is being worked on; stop that first, or end the job with comity jobs cancel {name}"
                )));
            }
        }
    }
    if global.json {
        output::object(&json!({ "job": name, "removed": true, "tasks": job.counts.tasks }));
    } else {
        output::line(&format!(
            "removed job {name} with {} URLs; its pages stay where they are",
            job.counts.tasks
        ));
    }
    Ok(exit::DONE)
}

fn changed(global: &Global, job: &Job) {
    if global.json {
        output::object(&report::summary(job, elapsed_ms(job)));
    } else {
        output::line(&format!("{}: {}, {}", job.name, state(job), report::progress(job)));
    }
}

/// What a word of `--status` stands for.
fn trouble(word: &str) -> anyhow::Result<Trouble> {
    let class = word.strip_suffix("xx").and_then(|class| class.parse::<u8>().ok());
    Ok(match (word, class, word.parse::<u16>(), word.parse::<Outcome>()) {
        ("all", ..) => Trouble::Any,
        ("skipped", ..) => Trouble::Skipped,
        (_, Some(class @ 1..=5), ..) => Trouble::Class(class),
        (_, _, Ok(status @ 100..=599), _) => Trouble::Status(status),
        (_, _, _, Ok(outcome)) if outcome != Outcome::Success => Trouble::Outcome(outcome),
        _ => {
            return Err(exit::usage(format!(
                "--status {word:?}: expected a status (404), a class (5xx), timeout, network_error, rate_limited, blocked, \
                 unavailable, server_error, answered, skipped or all"
            )));
        }
    })
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
    if idle && job.state == JobState::Running { "open" } else { job.state_word() }
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

/// Failed and skipped URLs that are shown unless somebody says how many.
const SHOWN: u32 = 10;
/// URLs in one object.
const OBJECT_MAX: u64 = 10_000;
/// Tasks that are read at once.
const PAGE: u32 = 1_000;
/// Tasks that are removed in one transaction.
const REMOVED: u32 = 5_000;

//! `comity jobs`: lists, shows, exports, cancels and retries jobs; `remove` removes them.

mod remove;

pub(super) use remove::is_match;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::outcome::{Outcome, STATUSES};
use comity::core::task::{JobState, JobStep, TaskId};
use comity::redact::{shell_word, without_user};
use comity::results::Row;
use comity::store::Store;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{FailureKind, Job, RetryFilter, Stepped};
use comity::store::tasks::{TaskFilter, TaskView};
use serde_json::{Value, json};

use super::{hints, report, table};
use crate::args::{Global, Jobs, RowFormat, TaskState};
use crate::live::thousands;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Jobs) -> anyhow::Result<u8> {
    let store = setup::open_existing_store(config)?;
    let store = &*store;
    match command {
        Jobs::List { limit, after } => list(global, store, limit, after).await,
        Jobs::Show { name, failed: true, limit } => failures(global, store, &name, limit).await,
        Jobs::Show { name, failed: false, limit } => show(global, store, &name, limit.unwrap_or(SHOWN)).await,
        Jobs::Export { name, format, state } => export(store, &name, format, state).await,
        Jobs::Cancel { name } => cancel(global, store, &name).await,
        Jobs::Retry { name, status, matching } => {
            let failures = status.iter().map(|word| failure_kind(word)).collect::<anyhow::Result<_>>()?;
            retry(global, store, &name, RetryFilter { failures, matching, done_before: None }).await
        }
        Jobs::Remove(which) => remove::run(global, store, &which).await,
    }
}

async fn list(global: &Global, store: &dyn Store, limit: u32, after: Option<String>) -> anyhow::Result<u8> {
    let older_than = match &after {
        Some(name) => Some(find(store, name).await?.id),
        None => None,
    };
    // Read one more to know whether there are more.
    let mut jobs = store.page_jobs(older_than, limit.saturating_add(1)).await?;
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next = jobs.last().filter(|_| more).map(|job| job.name.clone());
    if global.json {
        let jobs: Vec<Value> = jobs.iter().map(|job| report::summary(job, elapsed_ms(job))).collect();
        output::object(&json!({ "jobs": jobs, "more": more, "next": next }));
    } else if jobs.is_empty() && after.is_none() {
        output::line("No jobs yet; comity fetch --help shows how to start one");
    } else {
        let rows: Vec<_> =
            jobs.iter().map(|job| [job.name.clone(), state(job).to_owned(), report::progress(job)]).collect();
        table::align(&rows);
        if let Some(next) = next {
            output::remark(&format!("There are older jobs: comity jobs list --after {}", shell_word(&next)));
        }
    }
    Ok(exit::DONE)
}

async fn show(global: &Global, store: &dyn Store, name: &str, limit: u32) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let (mut tasks, mut gone) = (Vec::new(), 0);
    for (state, count) in [("failed", job.counts.failed), ("skipped", job.counts.skipped)] {
        let found = store.list_tasks(job.id, state.to_owned(), limit).await?;
        // A list that is shorter than it could be is complete.
        if job.pruned && found.len() < limit as usize {
            gone += count.saturating_sub(found.len() as u64);
        }
        tasks.extend(found);
    }
    let more = (job.counts.failed + job.counts.skipped).saturating_sub(tasks.len() as u64 + gone);
    if global.json {
        let mut object = report::summary(&job, elapsed_ms(&job));
        object["options"] = options(&job);
        object["refreshing"] = json!(report::refreshing(&job));
        object["troubles"] = tasks.iter().map(task_object).collect();
        object["more_troubles"] = json!(more);
        object["pruned"] = json!(pruned_count(store, &job).await?);
        object["pruned_troubles"] = json!(gone);
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
    unread(&job).iter().for_each(|line| output::line(&format!("  {line}")));
    for (key, value) in options(&job).as_object().into_iter().flatten() {
        output::line(&format!("  {}", option(key, value)));
    }
    tasks.iter().for_each(print_task);
    if more > 0 {
        output::line(&format!(
            "  and {} more; to list all: comity jobs export {} --state failed (or skipped)",
            thousands(more),
            shell_word(name)
        ));
    }
    pruned_urls(store, &job).await?.iter().for_each(|pruned| output::line(&format!("  {pruned}")));
    Ok(exit::DONE)
}

/// `comity jobs show --failed`: every failed URL, or up to `limit` of them.
async fn failures(global: &Global, store: &dyn Store, name: &str, limit: Option<u32>) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    // A JSON object is built in memory, so its size needs a limit.
    let limit = limit.map_or(if global.json { OBJECT_MAX } else { u64::MAX }, u64::from);
    let which = TaskFilter { state: Some("failed".to_owned()), settled_since: None };
    let (mut after, mut shown, mut objects) = (None, 0, Vec::new());
    while shown < limit && !output::is_stdout_broken() {
        let page = page_of(store, &job, &which, &mut after, limit - shown).await?;
        if page.is_empty() {
            break;
        }
        shown += page.len() as u64;
        match global.json {
            true => objects.extend(page.iter().map(task_object)),
            false => page.iter().for_each(print_task),
        }
    }
    let missing = job.counts.failed.saturating_sub(shown);
    let (more, gone) = if job.pruned && shown < limit { (0, missing) } else { (missing, 0) };
    if global.json {
        let mut object = report::summary(&job, elapsed_ms(&job));
        object["troubles"] = Value::Array(objects);
        object["more_troubles"] = json!(more);
        object["pruned_troubles"] = json!(gone);
        output::object(&object);
    } else if gone > 0 {
        output::line(&format!("  {}", pruned(gone, "failed ")));
    } else if more > 0 {
        output::line(&format!("  and {} more", thousands(more)));
    } else if shown == 0 {
        output::line("Nothing failed");
    }
    Ok(exit::DONE)
}

/// Prints the rows of a job, reading a page at a time.
async fn export(
    store: &dyn Store,
    name: &str,
    format: RowFormat,
    state: Option<TaskState>,
) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let which = TaskFilter { state: state.map(|state| state.as_str().to_owned()), settled_since: None };
    if format == RowFormat::Csv {
        output::csv_lines(std::iter::once(Row::COLUMNS.map(str::to_owned)));
    }
    let (mut after, mut written) = (None, 0);
    // The reader may have closed the pipe.
    while !output::is_stdout_broken() {
        let page = page_of(store, &job, &which, &mut after, u64::MAX).await?;
        if page.is_empty() {
            break;
        }
        written += page.len() as u64;
        let rows = page.iter().map(Row::of);
        match format {
            RowFormat::Jsonl => output::json_lines(rows.map(|row| row.to_json())),
            RowFormat::Csv => output::csv_lines(rows.map(|row| row.cells())),
        }
    }
    let count = match state {
        None => job.counts.tasks,
        Some(TaskState::Done) => job.counts.done,
        Some(TaskState::Failed) => job.counts.failed,
        Some(TaskState::Skipped) => job.counts.skipped,
        Some(TaskState::Waiting) => job.counts.waiting(),
    };
    if output::is_stdout_broken() {
        return Ok(exit::DONE);
    }
    // Its rows are read a page at a time. URLs that were there when it began must not be missing without a word.
    let is_gone =
        store.find_job(name.to_owned()).await?.is_none_or(|now| now.id != job.id || now.pruned != job.pruned);
    if is_gone || state.is_none() && !job.pruned && written < count {
        output::failure(&format!(
            "job {name} was removed or pruned while it was exported: only {} of its URLs were written",
            thousands(written)
        ));
        return Ok(exit::FAILURES);
    }
    if job.pruned && written < count {
        output::warning(&format!("job {name}: {}", pruned(count - written, "")));
    }
    Ok(exit::DONE)
}

/// The next tasks of a job, at most `limit`; empty when there are no more.
async fn page_of(
    store: &dyn Store,
    job: &Job,
    which: &TaskFilter,
    after: &mut Option<TaskId>,
    limit: u64,
) -> anyhow::Result<Vec<TaskView>> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(PAGE);
    let page = store.page_tasks(job.id, which.clone(), *after, limit).await?;
    *after = page.last().map(|task| task.id).or(*after);
    Ok(page)
}

/// Why a stopped job can't finish with the URLs it has, and what to do about it.
fn unread(job: &Job) -> Vec<String> {
    let name = shell_word(&job.name);
    if !job.unread || job.state.is_terminal() || job.worked_on {
        return Vec::new();
    }
    match job.options["sitemaps"].as_array().is_some_and(|sitemaps| !sitemaps.is_empty()) {
        true => vec![
            format!("its sitemaps were not read completely; to read them again: comity fetch --job {name}"),
            format!(
                "to read another one instead: comity fetch --job {name} --sitemap URL; to give up: comity jobs cancel {name}"
            ),
        ],
        false => vec![format!(
            "its list was not read to the end; pass it again: comity fetch --job {name} --input FILE (or with its URLs as arguments)"
        )],
    }
}

fn task_object(task: &TaskView) -> Value {
    json!({ "url": without_user(&task.url), "state": task.state, "status": task.status, "error": task.error })
}

fn print_task(task: &TaskView) {
    let why = task.error.as_deref().unwrap_or("unknown error");
    output::line(&format!("  {} {} ({why})", task.state, without_user(&task.url)));
}

/// The options of a job, without passwords.
fn options(job: &Job) -> Value {
    let mut options = job.options.clone();
    // It is part of the progress.
    options.as_object_mut().and_then(|options| options.remove(report::REFRESHING));
    for sitemap in options.get_mut("sitemaps").and_then(Value::as_array_mut).into_iter().flatten() {
        *sitemap = json!(without_user(sitemap.as_str().unwrap_or_default()));
    }
    options
}

/// An option of a job as the flags that set it; what has no flag, such as its kind, as it is saved.
fn option(key: &str, value: &Value) -> String {
    let flag = |name: &str, value: &str| format!("--{name} {}", shell_word(value));
    match (key, value) {
        ("sitemaps", Value::Array(urls)) => urls
            .iter()
            .filter_map(Value::as_str)
            .map(|url| flag("sitemap", url))
            .collect::<Vec<_>>()
            .join(" "),
        ("kind" | "request", _) => format!("{key} = {value}"),
        (_, Value::String(text)) => flag(&key.replace('_', "-"), text),
        _ => format!("{key} = {value}"),
    }
}

async fn cancel(global: &Global, store: &dyn Store, name: &str) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let clock = Clock::of(store).await?;
    let message = Some("cancelled by hand".to_owned());
    if let Stepped::No(job) = store.step_job(job.id, JobStep::Cancel, message, clock.now()).await? {
        return Err(exit::usage(format!("job {} is already {}", job.name, job.state)));
    }
    sweep(store, &job, &clock).await?;
    print_changed(global, &find(store, name).await?);
    Ok(exit::DONE)
}

async fn retry(global: &Global, store: &dyn Store, name: &str, revival: RetryFilter) -> anyhow::Result<u8> {
    let job = find(store, name).await?;
    let clock = Clock::of(store).await?;
    let named = revival.matching.is_some() || !revival.failures.is_empty();
    let forbidden = revival.failures.contains(&FailureKind::Robots);
    // The job that scrapes items never ends.
    if job.state == JobState::Running && job.options["kind"] == SCRAPE_JOB {
        return Err(exit::usage(format!(
            "job {name} scrapes items and never ends; retry items with comity scrape"
        )));
    }
    if let Stepped::No(job) = store.reopen_job(job.id, revival).await? {
        if job.state == JobState::Running && job.worked_on {
            return Err(exit::usage(format!(
                "job {name} is running, it has not ended: nothing was changed; retry its failures when it has ended, or stop \
                 it first (Ctrl-C)"
            )));
        }
        let why = match named {
            true => format!(
                "job {}: nothing to retry: no failed or skipped URL matches; comity jobs show {} lists them",
                job.name,
                shell_word(&job.name)
            ),
            false => nothing_to_retry(store, &job).await?,
        };
        if global.json {
            let mut object = report::summary(&job, elapsed_ms(&job));
            object["message"] = json!(why);
            output::object(&object);
        } else {
            output::line(&why);
        }
        return Ok(exit::DONE);
    }
    let before = job.counts.waiting();
    sweep(store, &job, &clock).await?;
    let job = find(store, name).await?;
    let retried = job.counts.waiting().saturating_sub(before);
    if global.json {
        let mut object = report::summary(&job, elapsed_ms(&job));
        object["retried"] = json!(retried);
        output::object(&object);
    } else {
        print_changed(global, &job);
        let urls = if retried == 1 { "URL" } else { "URLs" };
        output::line(&format!("{} {urls} will be retried; run: {}", thousands(retried), run_command(&job)));
        if forbidden {
            output::line(
                "robots.txt files are kept for a day; to fetch what they forbid, add --robots ignore",
            );
        }
    }
    Ok(exit::DONE)
}

/// Why a retry without filters has nothing to retry.
async fn nothing_to_retry(store: &dyn Store, job: &Job) -> anyhow::Result<String> {
    let Job { name, counts, .. } = job;
    let quoted = shell_word(name);
    let gone = if job.pruned { counts.failed + counts.skipped } else { 0 };
    if gone > 0 && pruned_count(store, job).await? == counts.tasks {
        return Ok(format!("job {name}: nothing to retry: {}", pruned(gone, "failed or skipped ")));
    }
    let (failed, skipped) = (thousands(counts.failed), thousands(counts.skipped));
    let mut why = match (counts.failed, counts.skipped) {
        (0, 0) if job.state == JobState::Cancelled && counts.done > 0 => {
            format!(
                "job {name}: nothing to retry, nothing failed; to fetch what has changed: comity fetch --job {quoted} --refresh"
            )
        }
        (0, 0) if job.state == JobState::Cancelled => {
            format!(
                "job {name}: nothing to retry, nothing failed; to start over, comity jobs remove {quoted} first"
            )
        }
        (0, 0) => format!("job {name}: nothing to retry, nothing failed"),
        (0, _) => {
            format!("job {name}: nothing to retry: nothing failed, and skipped URLs ({skipped}) stay skipped")
        }
        (_, _) => format!(
            "job {name}: nothing to retry: every failure ({failed}) was answered 404 or 410; retry those with --status 404,410"
        ),
    };
    if hints::can_retry(store, job, vec![FailureKind::Robots]).await? {
        why += "; retry what robots.txt forbade with --status robots";
    }
    Ok(why)
}

/// Says how many URLs of a job are no longer in the store, if any.
pub(crate) async fn pruned_urls(store: &dyn Store, job: &Job) -> anyhow::Result<Option<String>> {
    let count = pruned_count(store, job).await?;
    Ok((count > 0).then(|| pruned(count, "")))
}

/// How many URLs of a job were pruned.
pub(crate) async fn pruned_count(store: &dyn Store, job: &Job) -> anyhow::Result<u64> {
    if !job.pruned {
        return Ok(0);
    }
    // Usually there are none left. URLs that are added later drop the pruned ones from the counts.
    let (mut stored, mut after) = (0, None);
    loop {
        match page_of(store, job, &TaskFilter::default(), &mut after, u64::MAX).await?.len() as u64 {
            0 => return Ok(job.counts.tasks.saturating_sub(stored)),
            count => stored += count,
        }
    }
}

/// Says that URLs of a job, of this kind if one is given, are no longer in the store.
fn pruned(count: u64, kind: &str) -> String {
    let urls = if count == 1 { "URL was" } else { "URLs were" };
    let count = thousands(count);
    format!("{count} {kind}{urls} pruned (comity prune, or upkeep.keep); only the counts are left")
}

fn print_changed(global: &Global, job: &Job) {
    if global.json {
        output::object(&report::summary(job, elapsed_ms(job)));
    } else {
        output::line(&format!("{}: {}, {}", job.name, state(job), report::progress(job)));
    }
}

/// Parses a word of `--status`.
fn failure_kind(word: &str) -> anyhow::Result<FailureKind> {
    let class = word.strip_suffix("xx").and_then(|class| class.parse::<u8>().ok());
    Ok(match (word, class, word.parse::<u16>(), word.parse::<Outcome>()) {
        ("all", ..) => FailureKind::Any,
        ("skipped", ..) => FailureKind::Skipped,
        ("robots", ..) => FailureKind::Robots,
        (_, Some(class @ 1..=9), ..) => FailureKind::Class(class),
        (_, _, Ok(status), _) if STATUSES.contains(&status) => FailureKind::Status(status),
        (_, _, _, Ok(outcome)) if outcome != Outcome::Success => FailureKind::Outcome(outcome),
        _ => {
            return Err(exit::usage(format!(
                "--status = {word:?}: expected a status (404), a class (5xx), timeout, network_error, rate_limited, blocked, \
                 unavailable, server_error, answered, skipped, robots or all"
            )));
        }
    })
}

/// Brings the tasks of a job in line with its state, in case an earlier process died before it did so.
pub(crate) async fn sweep(store: &dyn Store, job: &Job, clock: &Clock) -> anyhow::Result<()> {
    while store.sweep(job.id, 10_000, clock.now()).await? {}
    Ok(())
}

async fn find(store: &dyn Store, name: &str) -> anyhow::Result<Job> {
    let found = store.find_job(name.to_owned()).await?;
    found.ok_or_else(|| exit::usage(format!("job = {name:?}: no such job; comity jobs list shows all jobs")))
}

/// The job's state in a word. The job that scrapes items is never done, so it is shown as open when it is idle.
fn state(job: &Job) -> &'static str {
    let idle = job.options["kind"] == SCRAPE_JOB && job.counts.waiting() == 0;
    if idle && job.state == JobState::Running { "open" } else { job.state_word() }
}

/// The command that runs or resumes the job.
fn run_command(job: &Job) -> String {
    match job.options["kind"] == SCRAPE_JOB {
        true => "comity run".to_owned(),
        false => format!("comity fetch --job {}", shell_word(&job.name)),
    }
}

/// How long a job took, if it has ended.
fn elapsed_ms(job: &Job) -> u64 {
    job.ended_at.map_or(0, |ended_at| ended_at.since(job.created_at).as_millis_up())
}

/// How many failed and how many skipped URLs are shown by default.
const SHOWN: u32 = 10;
/// Maximum number of URLs in one JSON object.
const OBJECT_MAX: u64 = 10_000;
/// How many tasks are read at once.
const PAGE: u32 = 1_000;

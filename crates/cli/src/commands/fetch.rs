//! `comity fetch`: opens or creates the job, reads its URLs, runs the worker pool.
//!
//! What workers do with a URL is in the engine (`comity::jobs`); rows on stdout are in `stream`; where URLs come from is in
//! `input`; what is saved with a job is in `options`, and where its pages go in `place`; how a run ends is in `summary`,
//! and what it waits for then in `waits`; how to resume it in `resume`, and why URLs were skipped in `skips`.

mod input;
mod options;
mod place;
mod resume;
mod skips;
mod summary;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use comity::client;
use comity::clock::Clock;
use comity::config::Config;
use comity::core::job_name::{self, NamedBy};
use comity::core::problem::shortened;
use comity::core::task::{JobState, JobStep};
use comity::core::time::{Span, Timestamp};
use comity::gate::{CloseMode, Gate};
use comity::jobs::{Parts, Pool, RunCounts, StopReason, Until, UrlLists};
use comity::redact::shell_word;
use comity::request::JobRequest;
use comity::status::Status;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Counts, Job, RetryFilter};
use comity::store::tasks::TaskFilter;
use comity::store::{Store, StoreError};
use comity::transport::Transport;
use serde_json::{Value, json};
use url::Url;

use self::input::{Input, Listed, on_bad};
use self::options::{absolute, archive, close_open_warc, options, overrides, request};
use self::place::Change;
use self::resume::{Repeat, how_to_resume};
use self::summary::Ended;
use super::{hints, jobs, report, stream};
use crate::args::{Fetch, Format, Global, urls};
use crate::live::{self, JobView, Limits, SideWork, Watched};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, fetch: Fetch) -> anyhow::Result<u8> {
    urls::check(&fetch.urls)?;
    let new_name = check_name(fetch.job.as_deref());
    let config = setup::config(global, overrides(&fetch, None))?;
    output::log(&config.log, global);
    if stream::is_stdout(&fetch) && fetch.format.is_some_and(|format| format != Format::None) {
        return Err(exit::usage("--out - saves no pages, so it can't be combined with --format"));
    }
    let has_input = !fetch.urls.is_empty() || fetch.input.is_some() || !fetch.sitemap.is_empty();
    let listed = Listed::open(&fetch).await?;
    let store = match has_input && new_name.is_ok() {
        true => setup::open_store_for_work(&config).await?,
        // A job to resume is in a store that exists.
        false => setup::open_existing_store_for_work(&config).await?,
    };
    let known = match &fetch.job {
        Some(name) => store.find_job(name.clone()).await?,
        None if fetch.refresh => last_job_in(&*store, &fetch, has_input).await?,
        None => None,
    };
    if known.is_none() {
        new_name?;
    }
    let fetch = Fetch { job: fetch.job.or_else(|| known.as_ref().map(|job| job.name.clone())), ..fetch };
    match &known {
        Some(job) if job.options["kind"] == SCRAPE_JOB => {
            let what = format!("job = {:?}: this job scrapes items; resume it with comity run", job.name);
            return Err(exit::usage(what));
        }
        // A job that is done can take more URLs, and be refreshed.
        Some(job) if job.state == JobState::Done && (has_input || fetch.refresh) => {}
        // After a refresh that was cancelled, there may be nothing to retry.
        Some(job) if fetch.refresh && !has_input && is_cancelled_and_complete(&*store, job).await? => {}
        Some(job) if job.state.is_terminal() => {
            close_open_warc(job, &config);
            if job.abandoned {
                write_missing_rows(global, &fetch, &config, &store, job).await?;
            }
            return already_ended(global, &fetch, &*store, job, has_input || fetch.refresh).await;
        }
        None if !has_input => return Err(no_input(&fetch)),
        _ => {}
    }
    let input = listed.with_rest(&fetch, known.as_ref()).await?;
    let saved = known.as_ref().map(|job| &job.options);
    let config = match saved {
        Some(options) => setup::config_without_warning(global, overrides(&fetch, Some(options)))?,
        None => config,
    };
    let request = request(&fetch, saved)?;
    let run = Run::begin(global, &fetch, config, store, known.as_ref(), &request).await?;
    run.finish(input, &fetch).await
}

/// One run of `fetch`.
struct Run<'a> {
    global: &'a Global,
    store: Arc<dyn Store>,
    gate: Gate,
    pool: Pool,
    job: Job,
    before: Before,
    began: Timestamp,
    limits: Limits,
}

/// What a run found when it began.
#[derive(Debug, Clone, Copy)]
struct Before {
    /// The state of the job; `None` if the run created it.
    state: Option<JobState>,
    /// How many of its URLs were skipped.
    skipped: u64,
}

impl<'a> Run<'a> {
    async fn begin(
        global: &'a Global,
        fetch: &Fetch,
        config: Config,
        store: Arc<dyn Store>,
        known: Option<&Job>,
        request: &JobRequest,
    ) -> anyhow::Result<Self> {
        let name = fetch.job.clone().unwrap_or_else(|| new_name(Clock::new().now()));
        let patience = max_wait(fetch)?;
        let mut options = options(global, fetch, known.map(|job| &job.options), request);
        if known.is_some_and(|job| job.state == JobState::Done) {
            forget_refresh(&mut options);
        }
        let change = known.and_then(|job| Change::of(job, &options));
        change.as_ref().map_or(Ok(()), Change::check)?;
        // Credentials and other request options come first: without them the job must not start.
        let transport = client::transport_for(&config, request)?;
        check_sites(&*store, fetch, &transport).await?;
        let archive = archive(&options, &name, &config)?;
        let gate = setup::gate(&config, store.clone(), &format!("fetch {name}")).await?;
        let began = gate.clock().now();
        let (job, made) = store.open_job(name, options.clone(), began).await?;
        if let Some(change) = &change {
            change.keep_earlier_files(&*store).await?;
            change.in_words().iter().filter(|_| !global.quiet).for_each(|words| output::remark(words));
        }
        if !made && job.options != options {
            store.set_options(job.id, options.clone()).await?;
        }
        if fetch.refresh && !made {
            let revival = RetryFilter { done_before: Some(began), ..RetryFilter::default() };
            store.reopen_job(job.id, revival).await?;
        } else if job.state == JobState::Done {
            store.step_job(job.id, JobStep::Extend, None, began).await?;
        }
        // An earlier process may have died right after it reopened the job.
        jobs::sweep(&*store, &job, gate.clock()).await?;
        let state = (!made).then_some(job.state);
        let counts = store.find_job(job.name.clone()).await?.map_or(job.counts, |job| job.counts);
        if fetch.refresh && !made {
            // A refresh that resumes another one is about its pages, too.
            let pages = counts.waiting().saturating_sub(job.counts.waiting());
            let pages = pages.max(options[report::REFRESHING].as_u64().unwrap_or(0));
            options[report::REFRESHING] = json!(pages);
            store.set_options(job.id, options.clone()).await?;
        }
        let skipped = counts.skipped;
        let what = if made { "started" } else { "resumed" };
        tracing::info!(job = job.name, store = store.location(), profile = config.profile, "job {what}");
        setup::warn_without_contact(&config);
        setup::warn_of_risks(&config, request);
        let limits = Limits::of(&config, &transport);
        let parts = Parts {
            gate: gate.clone(),
            store: store.clone(),
            transport,
            archive,
            config,
            job: job.clone(),
            until: Until::Done { patience },
            rows: stream::rows(fetch),
        };
        let before = Before { state, skipped };
        Ok(Self { global, store, gate, pool: Pool::new(parts), job, before, began, limits })
    }

    async fn finish(self, input: Input, fetch: &Fetch) -> anyhow::Result<u8> {
        let mut signals = Signals::new()?;
        let on_bad = on_bad(fetch);
        let filling = !input.lists.is_empty() || !input.sitemaps.is_empty();
        self.pool.set_filling(filling);
        let pool = self.pool.clone();
        let working = tokio::spawn(async move { pool.run().await });
        let pool = self.pool.clone();
        let reading = tokio::spawn(async move {
            if !filling {
                return Ok(None);
            }
            let Input { lists, sitemaps } = input;
            let on_problem = Box::new(|problem: &str| output::warning(problem));
            pool.fill_from(UrlLists { lists, on_bad, sitemaps, on_problem }).await.map(Some)
        });
        let view = JobView::new(&self.gate, &self.store, &self.job, Counts::default(), self.limits.clone());
        let mut watched = Fetching { run: &self, rows: stream::is_wanted(fetch), view };
        let (ended, interrupted) = live::watch(self.global, &mut watched, working, &mut signals).await;
        let seen = watched.view.held_back();
        let ended = ended.context("the worker pool ended unexpectedly")?;
        // The job has ended, so a list that is still being read no longer matters.
        let reading = tokio::time::timeout(Duration::from_millis(500), reading);
        let filled = reading.await.ok().and_then(Result::ok);
        let closing = self.gate.close(CloseMode::Stop);
        let (ended, output_error) = match ended {
            Ok(ended) => {
                closing.await?;
                (ended, None)
            }
            Err(error) => {
                let _ = tokio::time::timeout(Duration::from_secs(2), closing).await;
                match error {
                    // The store works, so there is a job to report on and to resume.
                    StoreError::Output { .. } => (StopReason::Requested, Some(error.to_string())),
                    error => return Err(error.into()),
                }
            }
        };
        // An error ended the job, and with it the reading.
        let filled = if output_error.is_some() { None } else { filled.transpose()?.flatten() };
        let job = self.store.find_job(self.job.name.clone()).await?.unwrap_or(self.job.clone());
        if job.state.is_terminal() {
            jobs::sweep(&*self.store, &job, self.gate.clock()).await?;
        }
        let job = self.store.find_job(self.job.name.clone()).await?.unwrap_or(job);
        let mut options = job.options.clone();
        if job.state == JobState::Done && forget_refresh(&mut options) {
            self.store.set_options(job.id, options).await?;
        }
        let held_back = match ended {
            StopReason::NotDueUntil(_) => {
                waits::longest(&self.store, self.gate.rules(), self.gate.clock(), &job, seen).await?
            }
            _ => Vec::new(),
        };
        let pruned = if fetch.refresh { jobs::pruned_count(&*self.store, &job).await? } else { 0 };
        let ended = Ended {
            pruned,
            global: self.global,
            fetch,
            store: &*self.store,
            job: &job,
            reason: ended,
            filled,
            before: self.before,
            counts: self.pool.run_counts(),
            held_back,
            output_error,
            began: self.began,
            elapsed: self.gate.clock().now().since(self.began),
        };
        ended.print().await?;
        Ok(ended.exit_code(interrupted))
    }
}

/// Whether a cancelled job has nothing to retry.
async fn is_cancelled_and_complete(store: &dyn Store, job: &Job) -> anyhow::Result<bool> {
    Ok(job.state == JobState::Cancelled && !hints::can_retry(store, job, Vec::new()).await?)
}

/// Removes the note about a refresh that has ended. Returns whether there was one.
fn forget_refresh(options: &mut Value) -> bool {
    options.as_object_mut().is_some_and(|options| options.remove(report::REFRESHING).is_some())
}

/// The longest wait for sites that hold the run back, if it is limited.
fn max_wait(fetch: &Fetch) -> anyhow::Result<Option<Span>> {
    let wrong = |text: &str| {
        exit::usage(format!("--max-wait = {text:?}: expected a duration above zero such as 30s or 10m"))
    };
    let parse =
        |text: &String| Span::parse(text).ok().filter(|span| !span.is_zero()).ok_or_else(|| wrong(text));
    fetch.max_wait.as_ref().map(parse).transpose()
}

/// The job as the live view watches it.
struct Fetching<'a> {
    run: &'a Run<'a>,
    /// Whether rows are printed.
    rows: bool,
    view: JobView,
}

impl Watched for Fetching<'_> {
    async fn status(&mut self) -> (Status, Timestamp) {
        self.view.status(&self.run.job.name, SideWork::default()).await
    }

    fn stop(&mut self) -> String {
        let count = self.run.pool.in_flight();
        self.run.pool.stop();
        self.run.gate.hurry();
        let requests = if count == 1 { "request" } else { "requests" };
        let pending = self.view.stop().map(|pending| format!(", {pending}"));
        format!("{count} {requests} in flight{}", pending.unwrap_or_default())
    }

    fn quit_message(&self) -> String {
        let how = how_to_resume(&*self.run.store, &self.run.job.name, Repeat::Nothing, self.rows);
        let how = how.map_or_else(String::new, |how| format!("\n{how}"));
        format!("Stopped; requests in flight will be repeated when the job is resumed{how}")
    }
}

/// Reports on a job that has already ended. Nothing happened in this run, so its failures are not listed again.
async fn already_ended(
    global: &Global,
    fetch: &Fetch,
    store: &dyn Store,
    job: &Job,
    is_more: bool,
) -> anyhow::Result<u8> {
    jobs::sweep(store, job, &Clock::of(store).await?).await?;
    let (name, quoted, state) = (&job.name, shell_word(&job.name), job.state);
    let code = if state == JobState::Done && job.counts.failed == 0 { exit::DONE } else { exit::FAILURES };
    let line = format!("job {name} is already {state}: {}; nothing was sent", report::progress(job));
    if global.json {
        let mut object = report::summary(job, 0);
        object["this_run"] = report::this_run(&RunCounts::default(), 0, None);
        object["message"] = json!(job.message.as_ref().unwrap_or(&line));
        output::object(&object);
    } else if global.quiet {
        // The exit code needs an explanation.
        if code != exit::DONE && !is_more {
            output::warning(&line);
        }
    } else {
        match (stream::is_wanted(fetch), code) {
            (false, _) => output::line(&line),
            (true, exit::DONE) => output::remark(&line),
            (true, _) => output::warning(&line),
        }
    }
    if is_more {
        return Err(exit::usage(format!(
            "job = {name:?}: the job is {state} and takes no more URLs; use another --job, or reopen it with comity jobs retry {quoted}"
        )));
    }
    if !global.quiet {
        job.message.iter().for_each(|message| output::remark(message));
        let options = options(global, fetch, Some(&job.options), &JobRequest::default());
        Change::of(job, &options).iter().for_each(|change| output::warning(&change.without_effect()));
        hints::retry(store, job).await?.iter().for_each(|hint| output::remark(hint));
        if state == JobState::Done {
            output::remark(&format!(
                "To fetch what has changed: comity fetch --job {quoted} --refresh; to add URLs: comity fetch --job {quoted} --input FILE"
            ));
        }
        jobs::pruned_urls(store, job).await?.iter().for_each(|pruned| output::remark(pruned));
    }
    Ok(code)
}

/// The latest job that saved its pages to the `--out` folder.
async fn last_job_in(store: &dyn Store, fetch: &Fetch, has_input: bool) -> anyhow::Result<Option<Job>> {
    let Some(out) = fetch.out.as_ref().filter(|_| !stream::is_stdout(fetch)) else {
        return Err(exit::usage("--refresh: name the job with --job, or the folder of its pages with --out"));
    };
    let out = absolute(out).display().to_string();
    let jobs = store.list_jobs().await?;
    let last = jobs.into_iter().find(|job| job.options["out"] == out.as_str());
    if last.is_none() && !has_input {
        let what = format!("--refresh: no job saves its pages in {out}; comity jobs list shows all jobs");
        return Err(exit::usage(what));
    }
    Ok(last)
}

/// Writes rows that may be missing because a process was killed right after the last page of the job.
async fn write_missing_rows(
    global: &Global,
    fetch: &Fetch,
    config: &Config,
    store: &Arc<dyn Store>,
    job: &Job,
) -> anyhow::Result<()> {
    let config = setup::config_without_warning(global, overrides(fetch, Some(&job.options)))
        .unwrap_or_else(|_| config.clone());
    let archive = archive(&job.options, &job.name, &config)?;
    let transport = client::transport(&config)?;
    let gate = setup::gate(&config, store.clone(), &format!("fetch {}", job.name)).await?;
    let parts = Parts {
        gate: gate.clone(),
        store: store.clone(),
        transport,
        archive,
        config,
        job: job.clone(),
        until: Until::DONE,
        rows: stream::rows(fetch),
    };
    let caught_up = Pool::new(parts).catch_up().await;
    gate.close(CloseMode::Stop).await?;
    Ok(caught_up?)
}

fn no_input(fetch: &Fetch) -> anyhow::Error {
    match &fetch.job {
        Some(name) => exit::usage(format!("job = {name:?}: no such job, and no URLs were given to start it")),
        None => {
            exit::usage("no URLs given: pass URLs, --input FILE (- for stdin), or --job NAME to resume a job")
        }
    }
}

/// Refuses to start if a variable or file is missing without which no URL of the run can be fetched. URLs of other
/// sites are fetched without it.
async fn check_sites(store: &dyn Store, fetch: &Fetch, transport: &Transport) -> anyhow::Result<()> {
    // A list is read while the job runs.
    if fetch.input.is_some() {
        return Ok(());
    }
    let mut missing: Vec<String> = Vec::new();
    let mut is_missing = |url: &str| {
        let Some(error) = Url::parse(url).ok().and_then(|url| transport.check(&url).err()) else {
            return false;
        };
        let error = error.to_string();
        if !missing.contains(&error) {
            missing.push(error);
        }
        true
    };
    if !fetch.urls.iter().chain(&fetch.sitemap).all(|url| is_missing(url)) {
        return Ok(());
    }
    let job = match &fetch.job {
        Some(name) => store.find_job(name.clone()).await?,
        None => None,
    };
    // Its sitemaps were not read to the end, and may list other sites.
    if job.as_ref().is_some_and(|job| job.unread) {
        return Ok(());
    }
    // A refresh fetches everything again.
    let state = (!fetch.refresh).then(|| "waiting".to_owned());
    let left = TaskFilter { state, settled_since: None };
    let mut after = None;
    while let Some(job) = &job {
        let page = store.page_tasks(job.id, left.clone(), after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        if !page.iter().all(|task| is_missing(&task.url)) {
            return Ok(());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(exit::usage(missing.join("\n"))) }
}

/// Checks the name of a job that doesn't exist yet, which may be that of an unset variable.
fn check_name(name: Option<&str>) -> anyhow::Result<()> {
    let checked = name.map_or(Ok(()), |name| job_name::check(name, NamedBy::Command));
    checked.map_err(|expected| {
        exit::usage(format!("--job = {:?}: expected {expected}", shortened(name.unwrap_or_default())))
    })
}

/// A name for a job without one.
fn new_name(now: Timestamp) -> String {
    let stamp: String = report::moment(now).chars().filter(char::is_ascii_digit).collect();
    format!("fetch-{stamp}-{}", std::process::id())
}

/// How many tasks are read at once.
const PAGE: u32 = 1_000;

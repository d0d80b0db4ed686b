//! `comity fetch`.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use comity::archive::{Archive, Warc};
use comity::client;
use comity::clock::Clock;
use comity::config::{ArchiveFormat, Config, Given};
use comity::core::domain::Domain;
use comity::core::task::{JobState, JobStep};
use comity::core::time::Timestamp;
use comity::gate::{Gate, HandsOff};
use comity::jobs::{Ended, Filled, Go, Lists, OnBad, Parts, Pool, Until};
use comity::request::JobRequest;
use comity::shown;
use comity::status::Status;
use comity::store::Store;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Counts, Job, Revival};
use serde_json::{Map, Value, json};
use url::Url;

use super::{failures, jobs, report, stream};
use crate::args::{Fetch, Format, Global, urls};
use crate::live::{self, Beside, JobView, Limits, Watched};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, fetch: Fetch) -> anyhow::Result<u8> {
    urls::check(&fetch.urls)?;
    let config = setup::config(global, given(&fetch, None))?;
    output::log(&config.log, global);
    if stream::is_stdout(&fetch) && fetch.format.is_some_and(|format| format != Format::None) {
        return Err(exit::usage(
            "--out -: prints rows and keeps no pages, so --format has nothing to do there",
        ));
    }
    let store = setup::open_store_to_work(&config).await?;
    let known = match &fetch.job {
        Some(name) => store.find_job(name.clone()).await?,
        None if fetch.refresh => last_job_in(&*store, &fetch).await?,
        None => None,
    };
    let fetch = Fetch { job: fetch.job.or_else(|| known.as_ref().map(|job| job.name.clone())), ..fetch };
    let has_input = !fetch.urls.is_empty() || fetch.input.is_some() || !fetch.sitemap.is_empty();
    match &known {
        Some(job) if job.options["kind"] == SCRAPE_JOB => {
            let what = format!("job = {:?}: it scrapes items; comity run resumes it", job.name);
            return Err(exit::usage(what));
        }
        // One that is done takes more, and can be refreshed (B49).
        Some(job) if job.state == JobState::Done && (has_input || fetch.refresh) => {}
        Some(job) if job.state.is_terminal() => {
            close_left_over(job, &config);
            if job.deserted {
                write_left_out(global, &fetch, &config, &store, job).await?;
            }
            return ended_before(global, &fetch, &*store, job, has_input || fetch.refresh).await;
        }
        None if !has_input => return Err(no_input(&fetch)),
        _ => {}
    }
    let input = Input { lines: open_input(&fetch)?, sitemaps: sitemaps(&fetch, known.as_ref())? };
    let options = known.as_ref().map(|job| &job.options);
    let config = match options {
        Some(options) => setup::config(global, given(&fetch, Some(options)))?,
        None => config,
    };
    let request = request(&fetch, options)?;
    let run = Run::begin(global, &fetch, config, store, options, &request).await?;
    run.finish(input, &fetch).await
}

/// Where URLs come from.
struct Input {
    lines: Option<Box<dyn Read + Send>>,
    sitemaps: Vec<Url>,
}

/// One run of `fetch`.
struct Run<'a> {
    global: &'a Global,
    store: Arc<dyn Store>,
    gate: Gate,
    pool: Pool,
    job: Job,
    began: Timestamp,
    limits: Limits,
}

impl<'a> Run<'a> {
    async fn begin(
        global: &'a Global,
        fetch: &Fetch,
        config: Config,
        store: Arc<dyn Store>,
        saved: Option<&Value>,
        request: &JobRequest,
    ) -> anyhow::Result<Self> {
        let name = fetch.job.clone().unwrap_or_else(|| new_name(Clock::new().now()));
        let options = options(global, fetch, saved, request);
        // What it is sent with is looked up first: without it nothing is begun.
        let transport = client::transport_for(&config, request)?;
        let archive = archive(&options, &name, &config)?;
        let gate = setup::gate(&config, store.clone(), &format!("fetch {name}")).await?;
        let began = gate.clock().now();
        let (job, made) = store.open_job(name, options.clone(), began).await?;
        if !made && job.options != options {
            store.set_options(job.id, options).await?;
        }
        if fetch.refresh && !made {
            let revival = Revival { done_before: Some(began), ..Revival::default() };
            store.reopen_job(job.id, revival).await?;
        } else if job.state == JobState::Done {
            store.step_job(job.id, JobStep::Extend, None, began).await?;
        }
        // What an earlier process did not get to after the job was reopened.
        jobs::sweep(&*store, &job, gate.clock()).await?;
        let what = if made { "started" } else { "resumed" };
        tracing::info!(job = job.name, store = store.place(), profile = config.profile, "job {what}");
        setup::warn_without_contact(&config);
        setup::warn_of_risks(&config, request);
        let limits = Limits::of(&config);
        let parts = Parts {
            gate: gate.clone(),
            store: store.clone(),
            transport,
            archive,
            config,
            job: job.clone(),
            until: Until::Done,
            rows: stream::rows(fetch),
        };
        Ok(Self { global, store, gate, pool: Pool::new(parts), job, began, limits })
    }

    async fn finish(self, input: Input, fetch: &Fetch) -> anyhow::Result<u8> {
        let mut signals = Signals::new()?;
        let strict = fetch.strict;
        let filling = input.lines.is_some() || !input.sitemaps.is_empty();
        self.pool.set_filling(filling);
        let pool = self.pool.clone();
        let working = tokio::spawn(async move { pool.run().await });
        let pool = self.pool.clone();
        let reading = tokio::spawn(async move {
            if !filling {
                return Ok(None);
            }
            let Input { lines, sitemaps } = input;
            let on_problem = Box::new(|problem: &str| output::remark(problem));
            pool.fill_from(Lists { lines, on_bad: on_bad(strict), sitemaps, on_problem }).await.map(Some)
        });
        let view = JobView::new(&self.gate, &self.store, &self.job, Counts::default(), self.limits);
        let mut watched = Fetching { run: &self, view };
        let (ended, interrupted) = live::watch(self.global, &mut watched, working, &mut signals).await;
        let ended = ended.context("the pool ended by itself")?;
        // A list that is still being read is of no interest any more when the job ended.
        let reading = tokio::time::timeout(Duration::from_millis(500), reading);
        let filled = reading.await.ok().and_then(Result::ok);
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let _ = tokio::time::timeout(Duration::from_secs(2), self.gate.close(HandsOff::Stop)).await;
                return Err(error.into());
            }
        };
        let filled = filled.transpose()?.flatten();
        self.gate.close(HandsOff::Stop).await?;
        let job = self.store.find_job(self.job.name.clone()).await?.unwrap_or(self.job.clone());
        if job.state.is_terminal() {
            jobs::sweep(&*self.store, &job, self.gate.clock()).await?;
        }
        let job = self.store.find_job(self.job.name.clone()).await?.unwrap_or(job);
        self.tell(&job, &ended, filled.as_ref(), fetch);
        if self.global.quiet {
            failures::of_job(&*self.store, &job).await?;
        }
        let is_bad = |filled: &Filled| filled.bad + filled.bad_sitemaps > 0;
        let nothing = filled.as_ref().is_some_and(is_bad) && job.counts.tasks == 0;
        Ok(match ended {
            Ended::Stopped if interrupted => exit::INTERRUPTED,
            // Whoever read the rows has seen enough; what could not be written is a failure all the same.
            Ended::Stopped if output::is_lost() => exit::DONE,
            Ended::Unread => exit::USAGE,
            _ if nothing => exit::USAGE,
            Ended::Job(JobState::Done) if job.counts.failed == 0 => exit::DONE,
            _ => exit::FAILURES,
        })
    }

    fn tell(&self, job: &Job, ended: &Ended, filled: Option<&Filled>, fetch: &Fetch) {
        if let Some(error) = filled.and_then(|filled| filled.error.as_ref()) {
            output::remark(&format!("the list could not be read to its end: {error}"));
        }
        if let Some(filled) = filled.filter(|filled| filled.bad > 0) {
            let lines = if filled.bad == 1 { "line" } else { "lines" };
            output::remark(&match filled.stopped {
                true => "Stopped at an invalid line (--strict)".to_owned(),
                false => format!("Skipped {} invalid {lines}", filled.bad),
            });
        }
        if let Some(refused) = filled.map(|filled| filled.refused).filter(|refused| *refused > 0) {
            output::remark(&format!("{refused} URLs came too late: the job had ended"));
        }
        let elapsed = self.gate.clock().now().since(self.began);
        if self.global.json {
            output::object(&report::summary(job, elapsed.as_millis_up()));
        } else if !self.global.quiet {
            let state = match ended {
                Ended::Stopped => "stopped".to_owned(),
                Ended::Unread | Ended::Idle | Ended::Left(_) | Ended::Halted(_) => "open".to_owned(),
                Ended::Job(_) => job.state.to_string(),
            };
            let line = format!("job {}: {state}, {} in {}", job.name, report::progress(job), elapsed.about());
            // Where rows are printed nothing else is.
            if stream::is_wanted(fetch) { output::remark(&line) } else { output::line(&line) }
        }
        if let Some(message) = &job.message {
            output::remark(message);
        }
        if !matches!(ended, Ended::Job(_)) {
            output::remark(&self.how_to_resume(job.unread));
        } else if job.counts.failed > 0 && !self.global.quiet {
            let name = &job.name;
            output::remark(&format!(
                "comity jobs show {name} lists what failed; comity jobs retry {name} tries it again"
            ));
        }
    }

    fn how_to_resume(&self, unread: bool) -> String {
        let store = match self.store.place().as_str() {
            "comity.db" => String::new(),
            "memory" => return "the store was in memory: there is nothing to resume".to_owned(),
            place => format!(" --store sqlite:{place}"),
        };
        let command = format!("To resume: comity fetch{store} --job {}", self.job.name);
        match unread {
            true => format!("the list was not read to its end: give it once more\n{command} --input FILE"),
            false => command,
        }
    }
}

/// What is shown while it runs.
struct Fetching<'a> {
    run: &'a Run<'a>,
    view: JobView,
}

impl Watched for Fetching<'_> {
    async fn status(&mut self) -> (Status, Timestamp) {
        self.view.status(&self.run.job.name, Beside::default()).await
    }

    fn stop(&mut self) -> String {
        let count = self.run.pool.in_flight();
        self.run.pool.stop();
        self.run.gate.hurry();
        let requests = if count == 1 { "request" } else { "requests" };
        format!("{count} {requests} in flight")
    }

    fn stopped_at_once(&self) -> String {
        let how = self.run.how_to_resume(false);
        format!("Stopped; what was in flight is fetched again when the job is resumed\n{how}")
    }
}

/// A job that ended says so and does nothing.
async fn ended_before(
    global: &Global,
    fetch: &Fetch,
    store: &dyn Store,
    job: &Job,
    is_more: bool,
) -> anyhow::Result<u8> {
    jobs::sweep(store, job, &Clock::of(store).await?).await?;
    if global.json {
        output::object(&report::summary(job, 0));
    } else if !global.quiet {
        let line = format!("job {} is {} already: {}", job.name, job.state, report::progress(job));
        if stream::is_wanted(fetch) { output::remark(&line) } else { output::line(&line) }
    }
    if global.quiet {
        failures::of_job(store, job).await?;
    }
    if is_more {
        let (name, state) = (&job.name, job.state);
        return Err(exit::usage(format!(
            "job = {name:?}: a job that is {state} takes no more URLs; name another --job, or reopen it with comity jobs retry {name}"
        )));
    }
    Ok(if job.state == JobState::Done && job.counts.failed == 0 { exit::DONE } else { exit::FAILURES })
}

/// The last job that kept its pages in the folder that was typed.
async fn last_job_in(store: &dyn Store, fetch: &Fetch) -> anyhow::Result<Option<Job>> {
    let Some(out) = fetch.out.as_ref().filter(|_| !stream::is_stdout(fetch)) else {
        return Err(exit::usage("--refresh: name the --job to refresh, or the --out folder of its pages"));
    };
    let out = absolute(out).display().to_string();
    let jobs = store.list_jobs().await?;
    Ok(jobs.into_iter().find(|job| job.options["out"] == out.as_str()))
}

/// Somebody was killed right after the last page of a job: rows may be missing.
async fn write_left_out(
    global: &Global,
    fetch: &Fetch,
    config: &Config,
    store: &Arc<dyn Store>,
    job: &Job,
) -> anyhow::Result<()> {
    let config = setup::config(global, given(fetch, Some(&job.options))).unwrap_or_else(|_| config.clone());
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
        until: Until::Done,
        rows: stream::rows(fetch),
    };
    let caught_up = Pool::new(parts).catch_up().await;
    gate.close(HandsOff::Stop).await?;
    Ok(caught_up?)
}

/// The sitemaps that were typed. A job whose sitemaps were not read to their end reads them again.
fn sitemaps(fetch: &Fetch, known: Option<&Job>) -> anyhow::Result<Vec<Url>> {
    let saved = known.filter(|job| job.unread && fetch.sitemap.is_empty());
    let saved = saved.and_then(|job| job.options["sitemaps"].as_array()).into_iter().flatten();
    let saved = saved.filter_map(Value::as_str).map(str::to_owned);
    let wrong = |text: &str| {
        exit::usage(format!("--sitemap {:?}: expected an http or https URL with a host", shown::text(text)))
    };
    fetch
        .sitemap
        .iter()
        .cloned()
        .chain(saved)
        .map(|text| match Url::parse(&text) {
            Ok(url) if Domain::of(&url).is_some() => Ok(url),
            _ => Err(wrong(&text)),
        })
        .collect()
}

fn no_input(fetch: &Fetch) -> anyhow::Error {
    match &fetch.job {
        Some(name) => {
            exit::usage(format!("job = {name:?}: there is no such job, and no URLs were given to start it"))
        }
        None => {
            exit::usage("no URLs: name some, or a file with --input FILE (- for stdin), or a --job to resume")
        }
    }
}

/// What was typed, over what the job had.
fn given(fetch: &Fetch, saved: Option<&Value>) -> Given {
    let saved = |key: &str| saved?.get(key)?.as_str().map(str::to_owned);
    let or = |typed: &Option<String>, key: &str| typed.clone().or_else(|| saved(key));
    Given {
        profile: saved("profile"),
        delay: or(&fetch.delay, "delay"),
        learning: or(&fetch.learning, "learning"),
        robots: or(&fetch.robots, "robots"),
        concurrency: or(&fetch.concurrency, "concurrency"),
        max_retries: or(&fetch.max_retries, "max_retries"),
        ..Given::default()
    }
}

/// What requests are sent with: what was typed, over what the job had.
fn request(fetch: &Fetch, saved: Option<&Value>) -> anyhow::Result<JobRequest> {
    let saved = saved.map_or(&Value::Null, |saved| &saved["request"]);
    JobRequest::new(&fetch.request.typed(), saved).map_err(|wrong| exit::usage(wrong.join("\n")))
}

/// The options that are kept with the job: what was typed, now or before.
fn options(global: &Global, fetch: &Fetch, saved: Option<&Value>, request: &JobRequest) -> Value {
    let mut options: Map<String, Value> = saved.and_then(Value::as_object).cloned().unwrap_or_default();
    let is_stdout = stream::is_stdout(fetch);
    let out = fetch.out.as_ref().filter(|_| !is_stdout).map(|out| absolute(out).display().to_string());
    let format = match is_stdout {
        true => Some(ArchiveFormat::None),
        // Who names a folder for a job that kept nothing so far wants its pages there.
        false if fetch.format.is_none() && out.is_some() && options.get("format") == Some(&json!("none")) => {
            Some(ArchiveFormat::Files)
        }
        false => fetch.format.map(ArchiveFormat::from),
    };
    let format = format.map(|format| format.as_str().to_owned());
    if !fetch.sitemap.is_empty() {
        options.insert("sitemaps".to_owned(), json!(fetch.sitemap));
    }
    for (key, typed) in [
        ("profile", &global.profile),
        ("delay", &fetch.delay),
        ("learning", &fetch.learning),
        ("robots", &fetch.robots),
        ("concurrency", &fetch.concurrency),
        ("max_retries", &fetch.max_retries),
        ("out", &out),
        ("format", &format),
    ] {
        if let Some(typed) = typed {
            options.insert(key.to_owned(), json!(typed));
        }
    }
    if *request != JobRequest::default() {
        options.insert("request".to_owned(), request.to_json());
    }
    options.entry("format").or_insert_with(|| json!("files"));
    if options["format"] != "none" {
        let default = absolute(Path::new(DEFAULT_OUT)).display().to_string();
        options.entry("out").or_insert_with(|| json!(default));
    }
    Value::Object(options)
}

/// A job may go on from another folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Where a job with these options keeps its pages.
fn archive(options: &Value, job: &str, config: &Config) -> anyhow::Result<Archive> {
    let format = options["format"].as_str().and_then(ArchiveFormat::parse);
    match (format, options["out"].as_str()) {
        (Some(format), Some(out)) => setup::archive("--out", format, Path::new(out), job, config),
        _ => Ok(Archive::Nothing),
    }
}

/// A kill right after the last page may have left a file of its archive open.
fn close_left_over(job: &Job, config: &Config) {
    let out = job.options["out"].as_str().map(Path::new).filter(|out| out.is_dir());
    if let (Some("warc"), Some(out)) = (job.options["format"].as_str(), out)
        && let Err(error) = Warc::open(out, &job.name, config, Clock::new())
    {
        tracing::warn!("{error}");
    }
}

/// The URLs that were typed, then those of the file.
fn open_input(fetch: &Fetch) -> anyhow::Result<Option<Box<dyn Read + Send>>> {
    let typed = Cursor::new(fetch.urls.join("\n") + "\n");
    let file: Option<Box<dyn Read + Send>> = match &fetch.input {
        None => None,
        Some(path) if path.as_os_str() == "-" => Some(Box::new(std::io::stdin())),
        Some(path) => {
            let opened = File::open(path);
            Some(Box::new(
                opened.map_err(|error| exit::usage(format!("--input {}: {error}", path.display())))?,
            ))
        }
    };
    Ok(match (fetch.urls.is_empty(), file) {
        (true, None) => None,
        (true, Some(file)) => Some(file),
        (false, None) => Some(Box::new(typed)),
        (false, Some(file)) => Some(Box::new(typed.chain(file))),
    })
}

fn on_bad(strict: bool) -> OnBad {
    let mut told = 0;
    Box::new(move |bad| {
        told += 1;
        if told <= BAD_SHOWN {
            output::remark(&bad.to_string());
        } else if told == BAD_SHOWN + 1 {
            output::remark("more lines are invalid; from here on they are only counted");
        }
        if strict { Go::Stop } else { Go::On }
    })
}

/// A name for a job that was given none.
fn new_name(now: Timestamp) -> String {
    let stamp: String = report::moment(now).chars().filter(char::is_ascii_digit).collect();
    format!("fetch-{stamp}-{}", std::process::id())
}

const DEFAULT_OUT: &str = "comity-pages";
/// Bad lines that are shown one by one.
const BAD_SHOWN: u64 = 20;

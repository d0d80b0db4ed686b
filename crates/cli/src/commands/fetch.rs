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
use comity::core::task::JobState;
use comity::core::time::Timestamp;
use comity::gate::{Gate, HandsOff};
use comity::jobs::{Ended, Filled, Go, OnBad, Parts, Pool, Until};
use comity::status::Status;
use comity::store::Store;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Counts, Job};
use serde_json::{Map, Value, json};

use super::{jobs, report};
use crate::args::{Fetch, Global};
use crate::live::{self, Beside, JobView, Watched};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, fetch: Fetch) -> anyhow::Result<u8> {
    let config = setup::config(global, given(&fetch, None))?;
    output::log(&config.log, global);
    let store = setup::open_store_to_work(&config).await?;
    let known = match &fetch.job {
        Some(name) => store.find_job(name.clone()).await?,
        None => None,
    };
    let has_input = !fetch.urls.is_empty() || fetch.input.is_some();
    match &known {
        Some(job) if job.options["kind"] == SCRAPE_JOB => {
            let what = format!("job = {:?}: items are scraped with it; comity run goes on with it", job.name);
            return Err(exit::usage(what));
        }
        Some(job) if job.state.is_terminal() => {
            close_left_over(job, &config);
            return ended_before(global, &*store, job, has_input).await;
        }
        None if !has_input => return Err(no_input(&fetch)),
        _ => {}
    }
    let input = open_input(&fetch)?;
    let options = known.as_ref().map(|job| &job.options);
    let config = match options {
        Some(options) => setup::config(global, given(&fetch, Some(options)))?,
        None => config,
    };
    let run = Run::begin(global, &fetch, config, store, options).await?;
    run.finish(input, fetch.strict).await
}

/// One run of `fetch`.
struct Run<'a> {
    global: &'a Global,
    store: Arc<dyn Store>,
    gate: Gate,
    pool: Pool,
    job: Job,
    began: Timestamp,
}

impl<'a> Run<'a> {
    async fn begin(
        global: &'a Global,
        fetch: &Fetch,
        config: Config,
        store: Arc<dyn Store>,
        saved: Option<&Value>,
    ) -> anyhow::Result<Self> {
        let name = fetch.job.clone().unwrap_or_else(|| new_name(Clock::new().now()));
        let options = options(global, fetch, saved);
        let archive = archive(&options, &name, &config)?;
        let transport = client::transport(&config)?;
        let gate = setup::gate(&config, store.clone(), &format!("fetch {name}")).await?;
        let began = gate.clock().now();
        let (job, made) = store.open_job(name, options.clone(), began).await?;
        if !made && job.options != options {
            store.set_options(job.id, options).await?;
        }
        // What an earlier process did not get to after the job was reopened.
        jobs::sweep(&*store, &job, gate.clock()).await?;
        let what = if made { "begun" } else { "goes on" };
        tracing::info!(job = job.name, store = store.place(), profile = config.profile, "job {what}");
        setup::warn_without_contact(&config);
        let parts = Parts {
            gate: gate.clone(),
            store: store.clone(),
            transport,
            archive,
            config,
            job: job.clone(),
            until: Until::Done,
        };
        Ok(Self { global, store, gate, pool: Pool::new(parts), job, began })
    }

    async fn finish(self, input: Option<Box<dyn Read + Send>>, strict: bool) -> anyhow::Result<u8> {
        let mut signals = Signals::new()?;
        let filling = input.is_some();
        self.pool.set_filling(filling);
        let pool = self.pool.clone();
        let working = tokio::spawn(async move { pool.run().await });
        let pool = self.pool.clone();
        let reading = tokio::spawn(async move {
            match input {
                Some(input) => pool.fill(input, on_bad(strict)).await.map(Some),
                None => Ok(None),
            }
        });
        let view = JobView::new(&self.gate, &self.store, self.job.id, &self.job.name, Counts::default());
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
        self.tell(&job, &ended, filled.as_ref());
        let nothing = filled.as_ref().is_some_and(|filled| filled.bad > 0) && job.counts.tasks == 0;
        Ok(match ended {
            Ended::Stopped if interrupted => exit::INTERRUPTED,
            Ended::Unread => exit::USAGE,
            _ if nothing => exit::USAGE,
            Ended::Job(JobState::Done) if job.counts.failed == 0 => exit::DONE,
            _ => exit::FAILURES,
        })
    }

    fn tell(&self, job: &Job, ended: &Ended, filled: Option<&Filled>) {
        if let Some(error) = filled.and_then(|filled| filled.error.as_ref()) {
            output::remark(&format!("the list could not be read to its end: {error}"));
        }
        if let Some(filled) = filled.filter(|filled| filled.bad > 0) {
            let what = if filled.bad == 1 { "line is no URL" } else { "lines are no URLs" };
            let then = if filled.stopped { ": stopped there, as --strict says" } else { ", passed over" };
            output::remark(&format!("{} {what}{then}", filled.bad));
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
            output::line(&format!(
                "job {}: {state}, {} in {}",
                job.name,
                report::progress(job),
                elapsed.about()
            ));
        }
        if let Some(message) = &job.message {
            output::remark(message);
        }
        if !matches!(ended, Ended::Job(_)) {
            output::remark(&self.how_to_resume(job.unread));
        } else if job.counts.failed > 0 && !self.global.quiet {
            let name = &job.name;
            output::remark(&format!(
                "comity jobs show {name} lists what failed, comity jobs retry {name} reopens it"
            ));
        }
    }

    fn how_to_resume(&self, unread: bool) -> String {
        let store = match self.store.place().as_str() {
            "comity.db" => String::new(),
            "memory" => return "the store was in memory: there is nothing to go on with".to_owned(),
            place => format!(" --store sqlite:{place}"),
        };
        let command = format!("to go on: comity fetch{store} --job {}", self.job.name);
        match unread {
            true => format!("the list was not read to its end: give it again\n{command} --input FILE"),
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
        let what = if count == 1 { "request is" } else { "requests are" };
        format!("stopping: {count} {what} finished first")
    }

    fn stopped_at_once(&self) -> String {
        let how = self.run.how_to_resume(false);
        format!("stopped at once; what was in flight is fetched again when the job goes on\n{how}")
    }
}

/// A job that ended says so and does nothing.
async fn ended_before(global: &Global, store: &dyn Store, job: &Job, has_input: bool) -> anyhow::Result<u8> {
    jobs::sweep(store, job, &Clock::of(store).await?).await?;
    if global.json {
        output::object(&report::summary(job, 0));
    } else {
        output::line(&format!("job {} is {} already: {}", job.name, job.state, report::progress(job)));
    }
    if has_input {
        let name = &job.name;
        return Err(exit::usage(format!(
            "job = {name:?}: a job that ended takes no more URLs; name another --job, or reopen it with comity jobs retry {name}"
        )));
    }
    Ok(if job.state == JobState::Done && job.counts.failed == 0 { exit::DONE } else { exit::FAILURES })
}

fn no_input(fetch: &Fetch) -> anyhow::Error {
    match &fetch.job {
        Some(name) => {
            exit::usage(format!("job = {name:?}: there is no such job, and no URLs were given to begin it"))
        }
        None => exit::usage(
            "no URLs: name some, or a file with --input FILE (- for stdin), or a --job to go on with",
        ),
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

/// The options that are kept with the job: what was typed, now or before.
fn options(global: &Global, fetch: &Fetch, saved: Option<&Value>) -> Value {
    let mut options: Map<String, Value> = saved.and_then(Value::as_object).cloned().unwrap_or_default();
    let out = fetch.out.as_ref().map(|out| absolute(out).display().to_string());
    let format = fetch.format.map(|format| ArchiveFormat::from(format).as_str().to_owned());
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
            output::remark("more lines are no URLs; they are counted from here on");
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

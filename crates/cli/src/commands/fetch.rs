//! `comity fetch`.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use comity::archive::{Archive, Files};
use comity::client;
use comity::clock::Clock;
use comity::config::{Config, Given};
use comity::core::task::JobState;
use comity::core::time::Timestamp;
use comity::event::Counters;
use comity::gate::{Gate, HandsOff};
use comity::jobs::{Ended, Filled, Go, OnBad, Parts, Pool};
use comity::store::Store;
use comity::store::jobs::Job;
use serde_json::{Map, Value, json};

use super::{jobs, report};
use crate::args::{Fetch, Format, Global};
use crate::output::{self, Progress};
use crate::{exit, setup};

pub(crate) async fn run(global: &Global, fetch: Fetch) -> anyhow::Result<u8> {
    let config = setup::config(global, given(&fetch, None))?;
    output::log(&config.log, global);
    let store = setup::open_store(&config)?;
    let known = match &fetch.job {
        Some(name) => store.find_job(name.clone()).await?,
        None => None,
    };
    let has_input = !fetch.urls.is_empty() || fetch.input.is_some();
    match &known {
        Some(job) if job.state.is_terminal() => return ended_before(global, &*store, job, has_input).await,
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
        let clock = Clock::new();
        let began = clock.now();
        let name = fetch.job.clone().unwrap_or_else(|| new_name(began));
        let options = options(global, fetch, saved);
        let archive = archive(&options)?;
        let transport = client::transport(&config)?;
        let gate = setup::gate(&config, store.clone(), &format!("fetch {name}")).await?;
        let (job, made) = store.open_job(name, options.clone(), began).await?;
        if !made && job.options != options {
            store.set_options(job.id, options).await?;
        }
        // What an earlier process did not get to after the job was reopened.
        jobs::sweep(&*store, &job, &clock).await?;
        let what = if made { "begun" } else { "goes on" };
        tracing::info!(job = job.name, store = store.place(), profile = config.profile, "job {what}");
        if config.http.contact.is_none() {
            tracing::warn!(
                "no contact is set, so sites cannot reach you: set http.contact in comity.toml or COMITY_HTTP_CONTACT"
            );
        }
        let parts =
            Parts { gate: gate.clone(), store: store.clone(), transport, archive, config, job: job.clone() };
        Ok(Self { global, store, gate, pool: Pool::new(parts), job, began })
    }

    async fn finish(self, input: Option<Box<dyn BufRead + Send>>, strict: bool) -> anyhow::Result<u8> {
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
        let interrupted = self.watch(&working).await;
        let ended = working.await.context("the pool ended by itself")?;
        // A list that is still being read is of no interest any more when the job ended.
        let filled =
            if reading.is_finished() || ended.is_ok() && !interrupted { reading.await.ok() } else { None };
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
        let unread = filled.as_ref().is_some_and(|filled| filled.error.is_some() || strict && filled.bad > 0);
        Ok(match ended {
            Ended::Stopped if interrupted => exit::INTERRUPTED,
            _ if unread => exit::USAGE,
            Ended::Job(JobState::Done) if job.counts.failed == 0 => exit::DONE,
            _ => exit::FAILURES,
        })
    }

    /// Shows how far it is and listens for Ctrl-C until the work is done; true when it was interrupted.
    async fn watch<T>(&self, working: &tokio::task::JoinHandle<T>) -> bool {
        let mut progress = Progress::start(self.global);
        let mut interrupted = false;
        let mut signals = Signals::new();
        let mut tick = tokio::time::interval(Duration::from_millis(125));
        let before = self.job.counts;
        while !working.is_finished() {
            tokio::select! {
                _ = tick.tick() => {
                    let elapsed = self.gate.clock().now().since(self.began);
                    let counters = self.gate.events().counters();
                    let settled = before.done + before.failed + before.skipped + settled(counters);
                    let tasks = self.pool.tasks().max(settled);
                    let secs = elapsed.as_secs_f64().max(0.001);
                    let rate = settled_rate(settled - before.done - before.failed - before.skipped, secs);
                    progress.show(settled, tasks, elapsed, || format!("{rate}{}", self.waits()));
                }
                () = signals.next() => {
                    if interrupted {
                        drop(progress);
                        output::remark("stopped at once; what was in flight is fetched again when the job goes on");
                        output::remark(&self.how_to_resume());
                        std::process::exit(exit::INTERRUPTED.into());
                    }
                    interrupted = true;
                    let count = self.pool.in_flight();
                    let what = if count == 1 { "request is" } else { "requests are" };
                    output::remark(&format!("stopping: {count} {what} finished first (Ctrl-C again stops at once)"));
                    self.pool.stop();
                }
            }
        }
        interrupted
    }

    /// What holds the work back.
    fn waits(&self) -> String {
        let slowest = self.gate.slowest(1);
        slowest.first().map_or_else(String::new, |(domain, waiting, reason)| {
            format!(" · {domain}: {reason} ({waiting} in line)")
        })
    }

    fn tell(&self, job: &Job, ended: &Ended, filled: Option<&Filled>) {
        if let Some(error) = filled.and_then(|filled| filled.error.as_ref()) {
            output::remark(&format!("the list could not be read to its end: {error}"));
        }
        if let Some(filled) = filled.filter(|filled| filled.bad > 0) {
            output::remark(&format!("{} lines were no URLs and were passed over", filled.bad));
        }
        let elapsed = self.gate.clock().now().since(self.began);
        if self.global.json {
            output::object(&report::summary(job, elapsed.as_millis_up()));
        } else if !self.global.quiet {
            let state = if *ended == Ended::Stopped { "stopped".to_owned() } else { job.state.to_string() };
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
        if *ended == Ended::Stopped {
            output::remark(&self.how_to_resume());
        } else if job.counts.failed > 0 && !self.global.quiet {
            let name = &job.name;
            output::remark(&format!(
                "comity jobs show {name} lists what failed, comity jobs retry {name} reopens it"
            ));
        }
    }

    fn how_to_resume(&self) -> String {
        let place = self.store.place();
        let store = if place == "comity.db" { String::new() } else { format!(" --store sqlite:{place}") };
        format!("to go on: comity fetch{store} --job {}", self.job.name)
    }
}

fn settled(counters: &Counters) -> u64 {
    use std::sync::atomic::Ordering::Relaxed;
    counters.done.load(Relaxed) + counters.failed.load(Relaxed) + counters.skipped.load(Relaxed)
}

fn settled_rate(settled: u64, secs: f64) -> String {
    format!("{:.1}/s", settled as f64 / secs)
}

/// Ctrl-C, or the system asking to stop.
struct Signals {
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> Self {
        Self {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok(),
        }
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(terminate) = &mut self.terminate {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// A job that ended says so and does nothing.
async fn ended_before(global: &Global, store: &dyn Store, job: &Job, has_input: bool) -> anyhow::Result<u8> {
    jobs::sweep(store, job, &Clock::new()).await?;
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
    let format = fetch.format.map(|format| match format {
        Format::Files => "files".to_owned(),
        Format::None => "none".to_owned(),
    });
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
    if options["format"] == "files" {
        let default = absolute(Path::new(DEFAULT_OUT)).display().to_string();
        options.entry("out").or_insert_with(|| json!(default));
    }
    Value::Object(options)
}

/// A job may go on from another folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn archive(options: &Value) -> anyhow::Result<Archive> {
    match (options["format"].as_str(), options["out"].as_str()) {
        (Some("files"), Some(out)) => {
            let files = Files::open(out).map_err(|error| exit::usage(format!("--out: {error}")))?;
            Ok(Archive::Files(files))
        }
        _ => Ok(Archive::Nothing),
    }
}

/// The URLs that were typed, then those of the file.
fn open_input(fetch: &Fetch) -> anyhow::Result<Option<Box<dyn BufRead + Send>>> {
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
        (true, Some(file)) => Some(Box::new(BufReader::with_capacity(READ, file))),
        (false, None) => Some(Box::new(typed)),
        (false, Some(file)) => Some(Box::new(BufReader::with_capacity(READ, typed.chain(file)))),
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
/// Bytes of a list that are read at once.
const READ: usize = 256 << 10;

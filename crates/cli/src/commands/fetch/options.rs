//! The options of a job: those from the command line, now or earlier, and where they say that pages are saved.

use std::path::{Path, PathBuf};

use comity::archive::{Archive, Warc};
use comity::clock::Clock;
use comity::config::{ArchiveFormat, Config, Overrides};
use comity::request::JobRequest;
use comity::store::jobs::Job;
use serde_json::{Map, Value, json};

use crate::args::{Fetch, Global};
use crate::commands::stream;
use crate::{exit, setup};

/// Settings from the command line, which override the job's saved options.
pub(super) fn overrides(fetch: &Fetch, saved: Option<&Value>) -> Overrides {
    let saved = |key: &str| saved?.get(key)?.as_str().map(str::to_owned);
    let or = |flag: &Option<String>, key: &str| flag.clone().or_else(|| saved(key));
    Overrides {
        profile: saved("profile"),
        delay: or(&fetch.delay, "delay"),
        learning: or(&fetch.learning, "learning"),
        robots: or(&fetch.robots, "robots"),
        concurrency: or(&fetch.concurrency, "concurrency"),
        max_retries: or(&fetch.max_retries, "max_retries"),
        ..Overrides::default()
    }
}

/// Request options from the command line, which override the job's saved ones.
pub(super) fn request(fetch: &Fetch, saved: Option<&Value>) -> anyhow::Result<JobRequest> {
    let saved = saved.map_or(&Value::Null, |saved| &saved["request"]);
    JobRequest::new(&fetch.request.typed(), saved).map_err(|wrong| exit::usage(wrong.join("\n")))
}

/// The options to save with the job: those from the command line, now or earlier.
pub(super) fn options(global: &Global, fetch: &Fetch, saved: Option<&Value>, request: &JobRequest) -> Value {
    let mut options: Map<String, Value> = saved.and_then(Value::as_object).cloned().unwrap_or_default();
    let is_stdout = stream::is_stdout(fetch);
    let out = fetch.out.as_ref().filter(|_| !is_stdout).map(|out| absolute(out).display().to_string());
    let format = match is_stdout {
        true => Some(ArchiveFormat::None),
        // Naming a folder for a job that saved no pages so far means: save them there from now on.
        false if fetch.format.is_none() && out.is_some() && options.get("format") == Some(&json!("none")) => {
            Some(ArchiveFormat::Files)
        }
        false => fetch.format.map(ArchiveFormat::from),
    };
    let format = format.map(|format| format.as_str().to_owned());
    if !fetch.sitemap.is_empty() {
        options.insert("sitemaps".to_owned(), json!(fetch.sitemap));
    }
    for (key, flag) in [
        ("profile", &global.profile),
        ("delay", &fetch.delay),
        ("learning", &fetch.learning),
        ("robots", &fetch.robots),
        ("concurrency", &fetch.concurrency),
        ("max_retries", &fetch.max_retries),
        ("out", &out),
        ("format", &format),
    ] {
        if let Some(value) = flag {
            options.insert(key.to_owned(), json!(value));
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

/// Makes a path absolute, because a job may be resumed from another folder. A slash at its end is dropped.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.components().collect()
}

/// The archive that a job with these options saves its pages to.
pub(super) fn archive(options: &Value, job: &str, config: &Config) -> anyhow::Result<Archive> {
    let format = options["format"].as_str().and_then(ArchiveFormat::parse);
    match (format, options["out"].as_str()) {
        (Some(format), Some(out)) => setup::archive("--out", format, Path::new(out), job, config),
        _ => Ok(Archive::Nothing),
    }
}

/// Closes a WARC file that a process left open because it was killed right after the last page.
pub(super) fn close_open_warc(job: &Job, config: &Config) {
    let out = job.options["out"].as_str().map(Path::new).filter(|out| out.is_dir());
    if let (Some("warc"), Some(out)) = (job.options["format"].as_str(), out)
        && let Err(error) = Warc::open(out, &job.name, config, Clock::new())
    {
        tracing::warn!("{error}");
    }
}

/// Default folder for pages.
const DEFAULT_OUT: &str = "comity-pages";

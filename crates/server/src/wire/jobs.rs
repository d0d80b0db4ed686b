//! Jobs and their URLs.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// Its name.
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub(crate) name: String,
    /// What to fetch.
    #[serde(default)]
    #[schema(required = false, max_items = 10000)]
    pub(crate) urls: Vec<JobUrl>,
}

/// URLs to be added to a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTasks {
    /// What to fetch.
    #[schema(min_items = 1, max_items = 10000)]
    pub(crate) urls: Vec<JobUrl>,
}

/// A URL of a job, or what is sent there.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum JobUrl {
    /// A plain GET.
    #[schema(format = "http-url")]
    Url(String),
    /// Anything else.
    Task(JobTask),
}

/// A request of a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobTask {
    /// Where to.
    #[schema(format = "http-url", max_length = 8192)]
    pub(crate) url: String,
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`; `GET` when it is left out, and `POST` when there is a body.
    #[serde(default)]
    #[schema(required = false, pattern = "^(GET|POST|PUT|PATCH|DELETE)$")]
    pub(crate) method: Option<String>,
    /// What is sent. Two tasks with the same URL are the same when method and body are.
    #[serde(default)]
    #[schema(required = false)]
    pub(crate) body: Option<String>,
    /// Headers that hold no secret, such as `Content-Type`. Credentials come from whoever fetches.
    #[serde(default)]
    #[schema(required = false)]
    pub(crate) headers: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for JobUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = JobUrl;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL as a string, or an object with url, method, body and headers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<JobUrl, E> {
                Ok(JobUrl::Url(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JobUrl, A::Error> {
                JobTask::deserialize(MapAccessDeserializer::new(map)).map(JobUrl::Task)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// What became of URLs that were added.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Added {
    /// Added.
    pub(crate) new: u64,
    /// The job had them already.
    pub(crate) known: u64,
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Job {
    /// Its name.
    pub(crate) job: String,
    /// `running`, `stopped` (not over, but nobody works on it), `done`, `failed` or `cancelled`.
    pub(crate) state: &'static str,
    /// Its URLs.
    pub(crate) tasks: u64,
    /// Fetched.
    pub(crate) fetched: u64,
    /// Given up.
    pub(crate) failed: u64,
    /// Not to be fetched.
    pub(crate) skipped: u64,
    /// Not settled yet.
    pub(crate) waiting: u64,
    /// Answers that said "too many requests".
    pub(crate) rate_limited: u64,
    /// Attempts that were followed by another.
    pub(crate) retries: u64,
    /// When it was made.
    pub(crate) created_at: String,
    /// When it ended.
    pub(crate) ended_at: Option<String>,
    /// Why it failed or was cancelled.
    pub(crate) message: Option<String>,
    /// The command that works on it.
    pub(crate) worked_on_by: String,
    /// Its latest failed and skipped URLs, when one job is shown.
    pub(crate) troubles: Vec<Trouble>,
}

/// A URL that was not fetched.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Trouble {
    /// Which, without user, password and query.
    pub(crate) url: String,
    /// `failed` or `skipped`.
    pub(crate) state: String,
    /// The status of the last answer.
    pub(crate) status: Option<u16>,
    /// Why.
    pub(crate) error: Option<String>,
}

/// Jobs, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Jobs {
    /// Some of them.
    pub(crate) jobs: Vec<Job>,
    /// Whether there are older ones.
    pub(crate) more: bool,
    /// What to give as `after` to get those.
    pub(crate) next: Option<String>,
}

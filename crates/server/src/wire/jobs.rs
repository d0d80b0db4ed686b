//! Jobs and their tasks.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// The job's name.
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub(crate) name: String,
    /// The URLs to fetch.
    #[serde(default)]
    #[schema(required = false, max_items = 10000)]
    pub(crate) urls: Vec<JobUrl>,
}

/// URLs to add to a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTasks {
    /// The URLs to fetch.
    #[schema(min_items = 1, max_items = 10000)]
    pub(crate) urls: Vec<JobUrl>,
}

/// An entry of a job: a URL, or a complete request.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum JobUrl {
    /// A URL to fetch with a plain GET.
    #[schema(format = "http-url")]
    Url(String),
    /// A request with a method, body or headers of its own.
    Task(JobTask),
}

/// A request to send as part of a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobTask {
    /// The URL to send it to.
    #[schema(format = "http-url", max_length = 8192)]
    pub(crate) url: String,
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`. The default is `POST` if there is a body, and `GET` if not.
    #[serde(default)]
    #[schema(required = false, pattern = "^(GET|POST|PUT|PATCH|DELETE)$")]
    pub(crate) method: Option<String>,
    /// The request body. Two requests with the same URL are the same if method and body are equal too.
    #[serde(default)]
    #[schema(required = false)]
    pub(crate) body: Option<String>,
    /// Request headers, such as `Content-Type`. Headers that may contain secrets are refused: credentials are not
    /// saved with a job, but configured where `comity fetch` runs.
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

/// How many URLs were added.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Added)]
pub(crate) struct AddTasksResponse {
    /// URLs that were added.
    pub(crate) new: u64,
    /// URLs that the job already had.
    pub(crate) known: u64,
}

/// A job and its progress.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobResponse {
    /// The job's name.
    pub(crate) job: String,
    /// `running`, `stopped` (unfinished, but no process works on it), `done`, `failed` or `cancelled`.
    pub(crate) state: &'static str,
    /// The number of URLs.
    pub(crate) tasks: u64,
    /// URLs that were fetched.
    pub(crate) fetched: u64,
    /// URLs that failed for good.
    pub(crate) failed: u64,
    /// URLs that were skipped.
    pub(crate) skipped: u64,
    /// URLs that are not finished yet.
    pub(crate) waiting: u64,
    /// Responses that were rate limited (429).
    pub(crate) rate_limited: u64,
    /// Retries: attempts after the first one for a URL.
    pub(crate) retries: u64,
    /// When the job was created.
    pub(crate) created_at: String,
    /// When the job ended; null if it has not.
    pub(crate) ended_at: Option<String>,
    /// Why the job failed or was cancelled.
    pub(crate) message: Option<String>,
    /// The command that works on this job; if it is `stopped`, `nobody:` and the command that would; if it has ended,
    /// `nobody: the job has ended`.
    pub(crate) worked_on_by: String,
    /// The latest failed and skipped URLs. Only filled in when a single job is requested.
    pub(crate) troubles: Vec<UnfetchedUrl>,
}

/// A URL that failed or was skipped.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Trouble)]
pub(crate) struct UnfetchedUrl {
    /// The URL, without user name, password and query.
    pub(crate) url: String,
    /// `failed` or `skipped`.
    pub(crate) state: String,
    /// The HTTP status of the last response; null if there was none.
    pub(crate) status: Option<u16>,
    /// Why it failed or was skipped.
    pub(crate) error: Option<String>,
}

/// A page of jobs, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Jobs)]
pub(crate) struct JobListResponse {
    /// The jobs of this page.
    pub(crate) jobs: Vec<JobResponse>,
    /// Whether there are older jobs.
    pub(crate) more: bool,
    /// Pass this as `after` to get the next page; null on the last page.
    pub(crate) next: Option<String>,
}

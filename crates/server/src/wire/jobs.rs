//! Jobs and their URLs.

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

/// A URL of a job.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(format = "http-url", max_length = 8192)]
pub(crate) struct JobUrl(pub(crate) String);

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
    /// `running`, `done`, `failed` or `cancelled`.
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
}

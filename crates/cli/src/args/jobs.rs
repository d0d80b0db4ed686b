//! Arguments of `comity jobs`.

use clap::{Subcommand, ValueEnum};

/// List, show, export and manage jobs
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Jobs {
    /// List jobs, newest first
    #[command(after_help = "Examples:
  comity jobs list
  comity jobs list --limit 20
  comity jobs list --after news                 # jobs older than news")]
    List {
        /// Maximum number of jobs to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// List jobs older than this one
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
    },
    /// Show a job: progress, options, failed URLs
    #[command(after_help = "Examples:
  comity jobs show news
  comity jobs show news --failed                # every URL that failed
  comity jobs show news --limit 100 --json")]
    Show {
        /// Name of the job
        name: String,
        /// Show every failed URL, and no skipped ones
        #[arg(long)]
        failed: bool,
        /// Maximum number of failed and of skipped URLs to show [default: 10, or all with --failed]
        #[arg(long)]
        limit: Option<u32>,
    },
    /// Print a job's results, one row per URL
    #[command(after_help = "Examples:
  comity jobs export news --format csv > news.csv
  comity jobs export news --state failed | jq -r .url

The rows are the same as in index.jsonl and fetch --jsonl; see docs/jobs.md.")]
    Export {
        /// Name of the job
        name: String,
        /// Output format
        #[arg(long, value_enum, default_value_t = RowFormat::Jsonl)]
        format: RowFormat,
        /// Only URLs in this state
        #[arg(long, value_enum)]
        state: Option<TaskState>,
    },
    /// Cancel a job; waiting URLs are skipped
    #[command(after_help = "Example:
  comity jobs cancel news")]
    Cancel {
        /// Name of the job
        name: String,
    },
    /// Retry what failed in a job that has ended or is stopped
    #[command(after_help = "Examples:
  comity jobs retry news && comity fetch --job news
  comity jobs retry news --status 5xx,timeout
  comity jobs retry news --match '*/archive/*'
  comity jobs retry news --status robots && comity fetch --job news --robots ignore

Without --status and --match, everything that failed is retried except 404 and 410, and so is what was skipped because
the job ended. --status takes statuses (404), classes (5xx), outcomes (timeout, network_error, rate_limited, blocked,
unavailable, server_error, answered), skipped (because the job ended), robots (forbidden by robots.txt), or all.
While a job is running, nothing is changed, and the exit code is 2.")]
    Retry {
        /// Name of the job
        name: String,
        /// Retry only URLs that failed this way, such as 404, 5xx, timeout, robots or all
        #[arg(long, value_name = "LIST", value_delimiter = ',')]
        status: Vec<String>,
        /// Retry only URLs that match this pattern; * matches anything
        #[arg(long = "match", value_name = "GLOB")]
        matching: Option<String>,
    },
    /// Delete jobs and their results from the store; fetched pages are kept
    #[command(after_help = "Examples:
  comity jobs remove news old-news
  comity jobs remove --older-than 30d --dry-run # jobs that ended more than 30 days ago
  comity jobs remove --state done --older-than 30d --match 'fetch-*'

Without names, only jobs that have ended are removed. A job that is stopped can be removed by name, and one that is
running can't. Jobs that were started without --job are called fetch-…. To delete the URLs of old jobs, and keep the jobs
with their counts, use comity prune.")]
    Remove(JobsRemove),
}

/// Which jobs to remove: by name, or those that have ended and match everything else.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct JobsRemove {
    /// Names of the jobs
    #[arg(value_name = "NAME", conflicts_with_all = ["state", "older_than", "matching"])]
    pub(crate) names: Vec<String>,
    /// Jobs that ended this way [default: all three]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub(crate) state: Vec<EndState>,
    /// Jobs that ended longer ago than this, such as 30d
    #[arg(long, value_name = "AGE")]
    pub(crate) older_than: Option<String>,
    /// Jobs whose names match this pattern; * matches anything, ? one character
    #[arg(long = "match", value_name = "GLOB")]
    pub(crate) matching: Option<String>,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndState {
    /// Every URL is finished
    Done,
    /// It gave up on every site that still had URLs
    Failed,
    /// It was cancelled
    Cancelled,
}

/// Output formats of `jobs export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowFormat {
    /// One JSON object per line
    Jsonl,
    /// CSV with a header row
    Csv,
}

/// The states of a URL in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TaskState {
    /// Not fetched yet
    Waiting,
    /// Fetched
    Done,
    /// Given up after an error
    Failed,
    /// Skipped, such as by robots.txt
    Skipped,
}

impl TaskState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

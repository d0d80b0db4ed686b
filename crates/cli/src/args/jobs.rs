//! What `comity jobs` takes.

use clap::{Subcommand, ValueEnum};

/// Look at jobs and steer them
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Jobs {
    /// List jobs, the newest first
    #[command(after_help = "Examples:
  comity jobs list
  comity jobs list --limit 20
  comity jobs list --after news                 # the jobs older than news")]
    List {
        /// Jobs to list at most
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Continue behind this job
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
    },
    /// Show one job: how far it is, its options, what failed
    #[command(after_help = "Examples:
  comity jobs show news
  comity jobs show news --failed                # every URL that failed
  comity jobs show news --limit 100 --json")]
    Show {
        /// Its name
        name: String,
        /// Show every URL that failed, and nothing of those that were skipped
        #[arg(long)]
        failed: bool,
        /// Failed and skipped URLs to show at most [default: 10, or all with --failed]
        #[arg(long)]
        limit: Option<u32>,
    },
    /// Write a job's results, one row per URL
    #[command(after_help = "Examples:
  comity jobs export news --format csv > news.csv
  comity jobs export news --state failed | jq -r .url

The rows are those of index.jsonl and of fetch --jsonl; docs/jobs.md describes them.")]
    Export {
        /// Its name
        name: String,
        /// How rows are written
        #[arg(long, value_enum, default_value_t = RowFormat::Jsonl)]
        format: RowFormat,
        /// Only URLs in this state
        #[arg(long, value_enum)]
        state: Option<TaskState>,
    },
    /// End a job; what waits is skipped
    #[command(after_help = "Example:
  comity jobs cancel news")]
    Cancel {
        /// Its name
        name: String,
    },
    /// Reopen a job that ended: what failed, or was skipped with its end, waits again
    #[command(after_help = "Examples:
  comity jobs retry news && comity fetch --job news
  comity jobs retry news --status 5xx,timeout
  comity jobs retry news --match '*/archive/*'

Without --status and --match, URLs that were answered 404 or 410 stay failed.")]
    Retry {
        /// Its name
        name: String,
        /// Retry only what failed like this: 404, 5xx, timeout, network_error, rate_limited, blocked, unavailable, server_error, answered, skipped (with the end of the job) or all
        #[arg(long, value_name = "LIST", value_delimiter = ',')]
        status: Vec<String>,
        /// Retry only URLs that match this pattern, in which * stands for anything
        #[arg(long = "match", value_name = "GLOB")]
        matching: Option<String>,
    },
    /// Remove a job with everything known of its URLs; the pages it fetched stay
    #[command(after_help = "Example:
  comity jobs remove news")]
    Remove {
        /// Its name
        name: String,
    },
}

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowFormat {
    /// One JSON object per line
    Jsonl,
    /// A table with a header line
    Csv,
}

/// Where a URL of a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TaskState {
    /// Not fetched yet
    Waiting,
    /// Fetched
    Done,
    /// Given up
    Failed,
    /// Not to be fetched
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

//! Arguments of `comity run` and `comity scrape`.

use std::path::PathBuf;

use clap::Args as Group;

use super::{Format, item_number, source_number};

/// Fetch the sources that are due, and scrape their new items
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity run                                    # fetch what is due now, for example from cron
  comity run --watch                            # keep running; sleep until the next source is due
  comity run --source 3 --force                 # one source, even if it is not due
  comity run --window-end 2026-01-05T12:00:00Z  # catch up on a missed run
  comity run --exec 'jq -r .url >> new.txt'     # run a command per new item, with its JSON on stdin

A source without a cadence is due in every run (every 15 minutes with --watch). Feeds are fetched with ETag and
Last-Modified, and never more often than they or their server allow. Ctrl-C finishes what is in flight; the rest waits
for the next run. With --watch, SIGHUP reloads the configuration.")]
pub(crate) struct Run {
    /// Treat this time as "now" when deciding what is due [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) window_end: Option<String>,
    /// Keep running, and fetch sources as they become due
    #[arg(long, conflicts_with = "window_end")]
    pub(crate) watch: bool,
    /// Only this source; may be repeated
    #[arg(long, value_name = "ID", value_parser = source_number)]
    pub(crate) source: Vec<i64>,
    /// Fetch sources only; their items are left for a later run or comity scrape
    #[arg(long)]
    pub(crate) no_scrape: bool,
    /// Ignore cadences and fetch sources that are not due; other limits still apply
    #[arg(long, conflicts_with = "watch")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) options: ScrapeOptions,
    #[command(flatten)]
    pub(crate) exec: Exec,
}

/// The command to run for each new item.
#[derive(Debug, Clone, Group)]
pub(crate) struct Exec {
    /// Run this command (with sh -c) for each new item once it is scraped, with one line of JSON on stdin
    #[arg(long, value_name = "CMD")]
    pub(crate) exec: Option<String>,
    /// Maximum number of --exec commands to run at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64), requires = "exec")]
    pub(crate) exec_jobs: u8,
    /// Kill an --exec command that takes longer
    #[arg(long, value_name = "DURATION", default_value = "60s", requires = "exec")]
    pub(crate) exec_timeout: String,
}

impl Exec {
    /// No command.
    pub(crate) fn none() -> Self {
        Self { exec: None, exec_jobs: 4, exec_timeout: "60s".to_owned() }
    }
}

/// Where scraped pages go, and how fast they are scraped.
#[derive(Debug, Clone, Group)]
pub(crate) struct ScrapeOptions {
    /// Folder for pages [default: scrape.out, or comity-items]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// How to save pages [default: scrape.format, or files]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Maximum requests in flight, over all sites; requests to unresponsive sites don't count [default: 16]
    #[arg(long, short, value_name = "N")]
    pub(crate) concurrency: Option<String>,
    /// Minimum delay between requests to a site in this run, such as 2s or 250ms
    #[arg(long, short, value_name = "DURATION")]
    pub(crate) delay: Option<String>,
}

/// Scrape items on demand
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity scrape 12 13                           # these items
  comity scrape --source 3                      # unscraped and failed items of a source
  comity scrape --all-unscraped                 # the same for all sources, in batches

Bulk scrapes take up to scrape.max_bulk_batch_size items (100) and respect scrape.max_in_flight_per_source.")]
#[group(required = true, multiple = false, args = ["items", "source", "all_unscraped"])]
pub(crate) struct Scrape {
    /// Items to scrape, by number
    #[arg(value_name = "ITEM", value_parser = item_number)]
    pub(crate) items: Vec<i64>,
    /// Scrape unscraped and failed items of this source
    #[arg(long, value_name = "ID", value_parser = source_number)]
    pub(crate) source: Option<i64>,
    /// Scrape unscraped and failed items of all sources
    #[arg(long)]
    pub(crate) all_unscraped: bool,
    #[command(flatten)]
    pub(crate) options: ScrapeOptions,
}

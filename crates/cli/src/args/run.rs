//! What can be typed after `comity run` and `comity scrape`.

use std::path::PathBuf;

use clap::Args as Group;

use super::Format;

/// One ingest run: ask the sources that are due, and scrape what they lead to
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity run                                    # what is due, now; from cron, say
  comity run --watch                            # stay, and sleep until the next source is due
  comity run --source 3 --force                 # one source, although it is not due
  comity run --window-end 2026-01-05T12:00:00Z  # as if it were run then (a window that was missed)
  comity run --exec 'jq -r .url >> new.txt'     # a command for each new item: its row of items export on stdin

A source without a cadence is due in every run (every 15 minutes with --watch). Feeds are asked with ETag and
Last-Modified, and never sooner than they and their servers say. Ctrl-C finishes what is in flight; what is left waits
for the next run. With --watch, SIGHUP reads the configuration again.")]
pub(crate) struct Run {
    /// Treat this time as "now" when deciding what is due [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) window_end: Option<String>,
    /// Stay, and run whenever a source is due
    #[arg(long, conflicts_with = "window_end")]
    pub(crate) watch: bool,
    /// Only this source; may be given more than once
    #[arg(long, value_name = "ID")]
    pub(crate) source: Vec<i64>,
    /// Ask sources only; their items wait for a later run
    #[arg(long)]
    pub(crate) no_scrape: bool,
    /// Ask sources that are not due too; what holds them back otherwise still does
    #[arg(long, conflicts_with = "watch")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) keep: Keep,
    #[command(flatten)]
    pub(crate) exec: Exec,
}

/// A command for each new item.
#[derive(Debug, Clone, Group)]
pub(crate) struct Exec {
    /// Run this command (with sh -c) for each new item, once it was scraped; it reads one line of JSON on its stdin
    #[arg(long, value_name = "CMD")]
    pub(crate) exec: Option<String>,
    /// Commands of --exec that run at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64), requires = "exec")]
    pub(crate) exec_jobs: u8,
    /// A command of --exec that takes longer is killed
    #[arg(long, value_name = "DURATION", default_value = "60s", requires = "exec")]
    pub(crate) exec_timeout: String,
}

impl Exec {
    /// No command.
    pub(crate) fn none() -> Self {
        Self { exec: None, exec_jobs: 4, exec_timeout: "60s".to_owned() }
    }
}

/// How what is scraped is kept, and how fast.
#[derive(Debug, Clone, Group)]
pub(crate) struct Keep {
    /// Where pages are kept [default: scrape.out of the configuration, comity-items]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// How pages are kept [default: scrape.format of the configuration, files]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Requests in flight at once, over all domains; sites that keep silent leave their place to others [default: 16]
    #[arg(long, short, value_name = "N")]
    pub(crate) concurrency: Option<String>,
    /// Minimum delay of every domain in this run, such as 2s or 250ms
    #[arg(long, short, value_name = "DURATION")]
    pub(crate) delay: Option<String>,
}

/// Scrape items by hand
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity scrape 12 13                           # these items
  comity scrape --source 3                      # what was not scraped of a source, or failed
  comity scrape --all-unscraped                 # of all sources, a batch at a time

Bulk scrapes take at most scrape.max_bulk_batch_size items (100) and stop where scrape.max_in_flight_per_source says.")]
#[group(required = true, multiple = false, args = ["items", "source", "all_unscraped"])]
pub(crate) struct Scrape {
    /// Which items
    #[arg(value_name = "ITEM")]
    pub(crate) items: Vec<i64>,
    /// What was not scraped of this source, or failed
    #[arg(long, value_name = "ID")]
    pub(crate) source: Option<i64>,
    /// What was not scraped of any source, or failed
    #[arg(long)]
    pub(crate) all_unscraped: bool,
    #[command(flatten)]
    pub(crate) keep: Keep,
}

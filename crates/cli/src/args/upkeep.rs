//! What can be typed after `comity prune` and `comity backup`.

use std::path::PathBuf;

use clap::Args as Group;

/// Remove what is old from the store
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity prune --keep 30d --dry-run             # how much would go
  comity prune --keep 30d
  comity prune                                  # as upkeep.keep in comity.toml says

Removes the tasks and attempts of jobs that ended before then (the jobs stay, with their counts), scrape logs and fetch runs
that are older, and what is known of sites that nobody used for a day and about which nothing was learned. Jobs that run
or were stopped, sources, items, and the last scrape and fetch of each source are never touched. It works while others do,
a few rows at a time. With upkeep.keep set, whatever runs on the store does the same by and by.")]
pub(crate) struct Prune {
    /// How long to keep rows, such as 30d [default: upkeep.keep of the configuration]
    #[arg(long, value_name = "AGE")]
    pub(crate) keep: Option<String>,
    /// Only count what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Copy the store to a file, while others work on it
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity backup \"comity-$(date +%F).db\"
  comity --store sqlite:/var/lib/comity/comity.db backup /backups/comity.db --force

The copy is consistent, complete and readable only by you; it is there when it is whole, and not before. To restore one, stop
everything, remove the store with its -wal and -shm files, and copy the backup to its place: see docs/jobs.md.")]
pub(crate) struct Backup {
    /// Where to
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

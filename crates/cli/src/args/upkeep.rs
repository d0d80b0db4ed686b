//! Arguments of `comity prune` and `comity backup`.

use std::path::PathBuf;

use clap::Args as Group;

/// Delete old data from the store
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity prune --keep 30d --dry-run             # how much would be deleted
  comity prune --keep 30d
  comity prune                                  # uses upkeep.keep from comity.toml

Deletes the URLs and attempts of jobs that ended before then (the jobs and their counts stay), older scrape logs and
fetch runs, and sites that were not used for a day and about which nothing was learned. Open jobs, sources, items, and
the latest scrape and fetch of each source are never touched. It is safe to run while the store is in use: it deletes a
few rows at a time. If upkeep.keep is set, every process on the store does the same in the background.")]
pub(crate) struct Prune {
    /// Delete data older than this, such as 30d [default: upkeep.keep]
    #[arg(long, value_name = "AGE")]
    pub(crate) keep: Option<String>,
    /// Count what would be deleted, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Back up the store while it is in use
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity backup \"comity-$(date +%F).db\"
  comity --store sqlite:/var/lib/comity/comity.db backup /backups/comity.db --force

The copy is consistent and readable only by you, and it appears only once it is complete. To restore it, stop every
process, delete the store with its -wal and -shm files, and copy the backup in its place; see docs/jobs.md.")]
pub(crate) struct Backup {
    /// File to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

//! Arguments of `comity store`.

use clap::{Args as Group, Subcommand};

/// Move a store to another kind of database
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy a store from SQLite to PostgreSQL, or back
    Copy(StoreCopy),
}

/// Copy a store from SQLite to PostgreSQL, or back
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity store copy sqlite:comity.db postgres://comity@db.example/comity
  comity store copy postgres://comity@db.example/comity sqlite:comity.db
  comity store copy sqlite:comity.db 'postgres://db.example/comity?schema=news'   # several stores in one database

Copies everything: jobs, sources, items, wikis, what was learned about each site, and the deadlines that sites stated.
Jobs resume from the copy: pass it as --store. Saved pages stay where they are.

Stop every process that uses the source first: a source in use is refused, and nothing can use it while it is copied. To
be sure that no process on another machine uses a store in PostgreSQL, the command may wait for 11 s. The target must be
empty. It is created if needed, and appears once it is complete: after Ctrl-C or a crash it is as it was before. The
source isn't changed; delete it, or never start anything on it again, because two stores don't share a pace.

Exit codes: 2 if a store can't be used for this, 3 if one is unavailable.")]
pub(crate) struct StoreCopy {
    /// Store to read: sqlite:PATH or postgres://HOST/DATABASE
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// Empty store to write: the other kind
    #[arg(value_name = "TO")]
    pub(crate) to: String,
}

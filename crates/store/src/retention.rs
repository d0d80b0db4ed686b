//! Deletes rows that nobody needs once they are old: tasks and attempts of jobs that ended, scrapes, fetches of sources, and
//! the list of who changed what.
//!
//! Nothing that is needed to resume is deleted: running and stopped jobs, the last scrape of a source (its minimum
//! interval counts from it), the last fetch of a source, sources and items. How old is old is decided elsewhere.

use comity_core::time::Timestamp;

use crate::Reply;

/// How many rows were deleted, or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Jobs that ended and lost their tasks. Their own rows stay, with their counts.
    pub jobs: u64,
    /// Tasks of such jobs.
    pub tasks: u64,
    /// Attempts at those tasks.
    pub attempts: u64,
    /// Rows of the scrape log.
    pub scrapes: u64,
    /// Rows of the fetch log.
    pub fetches: u64,
    /// Changes that somebody made ([`crate::audit`]).
    pub changes: u64,
}

/// Where to continue pruning. Start with the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PruneFrom {
    /// The next job that ended and still has tasks.
    #[default]
    Jobs,
    /// Scrapes with an id greater than this.
    Scrapes(i64),
    /// Fetches with an id greater than this.
    Fetches(i64),
    /// Changes with a number greater than this.
    Audit(i64),
}

/// Deletion of old rows.
pub trait RetentionStore {
    /// Deletes rows older than `before`: tasks of jobs that ended before then, and log rows that started before then.
    /// Looks at no more than about `limit` rows, so that nobody waits long. Returns what was deleted and where to
    /// continue; `None` when everything was looked at. A job that is reopened meanwhile keeps what is left of it.
    fn prune(&self, from: PruneFrom, before: Timestamp, limit: u32)
    -> Reply<'_, (Pruned, Option<PruneFrom>)>;

    /// How many rows a complete run would delete.
    fn count_prunable(&self, before: Timestamp) -> Reply<'_, Pruned>;
}

impl std::ops::AddAssign for Pruned {
    fn add_assign(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.tasks += other.tasks;
        self.attempts += other.attempts;
        self.scrapes += other.scrapes;
        self.fetches += other.fetches;
        self.changes += other.changes;
    }
}

//! Rows that nobody needs any more once they are old: tasks and attempts of jobs that ended, scrapes, fetches of sources.
//!
//! What a resume needs is never among them: a job that runs or was stopped, the last scrape of a source (its minimum
//! interval counts from there), the last fetch of a source, sources and items. How old is old is for others to say.

use comity_core::time::Timestamp;

use crate::Reply;

/// How many rows went, or would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Jobs that ended and lost their tasks. Their rows stay, with their counts.
    pub jobs: u64,
    /// Tasks of such jobs,
    pub tasks: u64,
    /// and the attempts at them.
    pub attempts: u64,
    /// Rows of the scrape log.
    pub scrapes: u64,
    /// Fetches of sources.
    pub fetches: u64,
}

/// How far a sweep over old rows is. One begins with the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PruneFrom {
    /// The next job that ended and has tasks.
    #[default]
    Jobs,
    /// Scrapes after that number.
    Scrapes(i64),
    /// Fetches after that number.
    Fetches(i64),
}

/// Rows that are old.
pub trait RetentionStore {
    /// Removes rows that are older than `before`: of the jobs those that ended before, of the others those that began
    /// before. Looks at about `limit` rows and no more, so that nobody waits long. What went, and where to continue; nothing
    /// when the sweep is over. A job that is reopened meanwhile keeps what it still has.
    fn prune(&self, from: PruneFrom, before: Timestamp, limit: u32)
    -> Reply<'_, (Pruned, Option<PruneFrom>)>;

    /// How many rows a whole sweep would remove.
    fn count_prunable(&self, before: Timestamp) -> Reply<'_, Pruned>;
}

impl std::ops::AddAssign for Pruned {
    fn add_assign(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.tasks += other.tasks;
        self.attempts += other.attempts;
        self.scrapes += other.scrapes;
        self.fetches += other.fetches;
    }
}

//! What processes on one store are at, and how much is left for them: for whoever looks on. Nothing is decided by it.

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use serde_json::Value;

use crate::Reply;
use crate::domains::HolderId;

/// A process that lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Working {
    /// Who it is, for people.
    pub name: String,
    /// Since when.
    pub since: Timestamp,
    /// What it told last, as it wrote it, and when.
    pub told: Option<(Value, Timestamp)>,
}

/// Tasks of a job that wait for one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Which domain.
    pub domain: Domain,
    /// How many, counted up to a limit.
    pub waiting: u64,
}

/// What processes are at.
pub trait StatusStore {
    /// A holder tells what it is at. Its last word counts, and is gone when it is.
    fn tell(&self, holder: HolderId, status: Value, now: Timestamp) -> Reply<'_, ()>;

    /// Who lives, as far as can be seen without asking them, the oldest first.
    fn working(&self) -> Reply<'_, Vec<Working>>;

    /// How many tasks of a job wait for which domain: at most `lanes` of them, each counted up to `tasks`, so that the
    /// cost does not grow with the queue.
    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>>;
}

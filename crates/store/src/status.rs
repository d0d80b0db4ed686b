//! What processes on one store are at, and how much is left for them: for whoever looks on. Nothing is decided by it.

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use serde_json::Value;

use crate::Reply;
use crate::domains::{DomainKey, Hold, HolderId};

/// A process that lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Working {
    /// Who it is, for people.
    pub name: String,
    /// Since when.
    pub since: Timestamp,
    /// What it told last, as it wrote it, and when.
    pub told: Option<(Value, Timestamp)>,
    /// What it published of its domains then, as it wrote it.
    pub sights: Value,
}

/// A domain as its holder saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sight {
    /// By what right.
    pub hold: Hold,
    /// What it saw, as it wrote it.
    pub told: Value,
}

/// Tasks of a job that wait for one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Which domain.
    pub domain: Domain,
    /// How many, counted up to a limit.
    pub waiting: u64,
    /// Nobody works on them before then, because none may go; `None` when somebody does.
    pub due_at: Option<Timestamp>,
}

/// What processes are at.
pub trait StatusStore {
    /// A holder tells what it is at, and publishes some of its domains. Its last word counts, and is gone when it is.
    fn tell(&self, holder: HolderId, status: Value, sights: Value, now: Timestamp) -> Reply<'_, ()>;

    /// Who lives, as far as can be seen without asking them, the oldest first.
    fn working(&self) -> Reply<'_, Vec<Working>>;

    /// How many tasks of a job wait for which domain: at most `lanes` of them, each counted up to `tasks`, so that the
    /// cost does not grow with the queue.
    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>>;

    /// Somebody wishes to see domains that others hold. Nothing changes for those; wishes are forgotten after a while.
    fn wish(&self, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, ()>;

    /// Which domains of `holder` somebody wishes to see, and were not shown since.
    fn wished(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>>;

    /// A holder shows domains. What it does not hold any more is skipped, and so is what nobody wished to see.
    fn show(&self, holder: HolderId, sights: Vec<Sight>, now: Timestamp) -> Reply<'_, ()>;

    /// What was last shown of domains by those who hold them still, and when; in the order asked for.
    fn shown(&self, domains: Vec<Domain>) -> Reply<'_, Vec<Option<(Value, Timestamp)>>>;
}

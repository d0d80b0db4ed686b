//! What the processes on a store are doing, and how much work is left. For display only: no decision depends on it.

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use serde_json::Value;

use crate::Reply;
use crate::domains::{DomainKey, HolderId, Tenure};

/// A live process.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveProcess {
    /// The name it registered with.
    pub name: String,
    /// When it registered.
    pub since: Timestamp,
    /// The status it last reported, exactly as it wrote it, and when.
    pub status: Option<(Value, Timestamp)>,
    /// The domains it published with that status, exactly as it wrote them.
    pub sights: Value,
}

/// The state of a domain, published by its holder.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainSnapshot {
    /// The tenure under which it was published.
    pub tenure: Tenure,
    /// The state, exactly as the holder wrote it.
    pub value: Value,
}

/// Tasks of a job that are waiting for one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The domain.
    pub domain: Domain,
    /// How many are waiting, counted up to a limit.
    pub waiting: u64,
    /// No task may go before this time, so nobody works on them; `None` if somebody does.
    pub due_at: Option<Timestamp>,
}

/// A transaction that has been open for long. While it is, the database keeps all rows that were replaced since it began, and everything
/// becomes slower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldTransaction {
    /// How long it has been open.
    pub age: Span,
    /// Whose it is, for people.
    pub owner: String,
}

/// Storage of status reports.
pub trait StatusStore {
    /// The oldest transaction of any program that keeps the store's tables from being cleaned up, if it has been open for at least
    /// `age`. Always `None` for a store that cleans up as it goes.
    fn old_transaction(&self, age: Span) -> Reply<'_, Option<OldTransaction>>;

    /// A holder reports its status and publishes some of its domains. Only the latest report is kept, for as long as
    /// the holder exists.
    fn report_status(&self, holder: HolderId, status: Value, sights: Value, now: Timestamp) -> Reply<'_, ()>;

    /// Live processes, oldest first, as far as can be determined without contacting them.
    fn live_processes(&self) -> Reply<'_, Vec<LiveProcess>>;

    /// How many tasks of a job are waiting, per domain. Returns at most `lanes` domains and counts each up to `tasks`,
    /// so that the cost does not grow with the queue.
    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>>;

    /// Asks the holders of these domains to publish snapshots of them. The domains themselves are not affected.
    /// Requests expire after a while.
    fn request_snapshots(&self, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, ()>;

    /// The domains of `holder` whose snapshots were requested and not published since.
    fn requested_snapshots(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>>;

    /// Publishes snapshots. Those of domains that the holder no longer holds, or that nobody requested, are skipped.
    fn publish_snapshots(
        &self,
        holder: HolderId,
        snapshots: Vec<DomainSnapshot>,
        now: Timestamp,
    ) -> Reply<'_, ()>;

    /// The latest snapshots of domains by their current holders, with the time they were taken, in the order asked for.
    fn snapshots(&self, domains: Vec<Domain>) -> Reply<'_, Vec<Option<(Value, Timestamp)>>>;
}

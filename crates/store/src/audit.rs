//! Who changed what: one row per change that somebody made through the service.

use comity_core::time::Timestamp;

use crate::Reply;

/// A change that somebody made, or tried to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// Who: the name of a token, or that there was none.
    pub who: String,
    /// The role in which it was made.
    pub role: String,
    /// What was done, such as `cancel`.
    pub action: String,
    /// To what, such as `job nightly`.
    pub target: String,
    /// What it affected, such as `skips 1,240 waiting tasks`; empty if nothing was counted.
    pub impact: String,
    /// The result: `done`, or why it failed.
    pub result: String,
}

/// A change as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number. Later ones have higher numbers.
    pub id: i64,
    /// When it was made.
    pub at: Timestamp,
    /// What it was.
    pub entry: NewAuditEntry,
}

/// Storage of changes. [`crate::retention`] deletes old ones.
pub trait AuditStore {
    /// Adds a change.
    fn add_audit(&self, entry: NewAuditEntry, now: Timestamp) -> Reply<'_, ()>;

    /// Changes in pages, newest first: at most `limit` with a lower number than `before`.
    fn page_audit(&self, before: Option<i64>, limit: u32) -> Reply<'_, Vec<AuditEntry>>;
}

//! The robots.txt files of origins. How long one is good for is decided elsewhere.

use comity_core::time::Timestamp;

use crate::Reply;

/// A robots.txt as it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RobotsRow {
    /// Whose it is: scheme, host and port.
    pub origin: String,
    /// When it was fetched.
    pub fetched_at: Timestamp,
    /// The status of the answer.
    pub status: u16,
    /// What it said.
    pub body: Vec<u8>,
}

/// The robots.txt files of origins.
pub trait RobotsStore {
    /// What is kept of `origin`, however old.
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>>;

    /// Keeps what was answered.
    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()>;

    /// Forgets what was fetched before a moment, at most `limit` at once: true when there may be more.
    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool>;
}

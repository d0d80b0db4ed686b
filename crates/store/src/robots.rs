//! Cached robots.txt files, one per origin. How long one is valid is decided elsewhere.

use comity_core::time::Timestamp;

use crate::Reply;

/// A robots.txt response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RobotsRow {
    /// The origin: scheme, host and port.
    pub origin: String,
    /// When it was fetched.
    pub fetched_at: Timestamp,
    /// The HTTP status.
    pub status: u16,
    /// The response body.
    pub body: Vec<u8>,
}

/// Storage of robots.txt files.
pub trait RobotsStore {
    /// The stored robots.txt of `origin`, however old it is.
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>>;

    /// Saves a robots.txt response.
    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()>;

    /// Deletes files fetched before this time, at most `limit` per call. True if there may be more.
    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool>;
}

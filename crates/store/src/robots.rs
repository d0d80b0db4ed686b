//! Cached robots.txt files, one per origin. How long one is valid is decided elsewhere.

use comity_core::time::{Span, Timestamp};

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
    /// The delay between two requests that the file asks of whoever fetched it.
    pub crawl_delay: Span,
}

/// Storage of robots.txt files.
pub trait RobotsStore {
    /// The stored robots.txt of `origin`, however old it is.
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>>;

    /// Saves a robots.txt response.
    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()>;

    /// The origins whose files ask for more than this delay, with their delays.
    fn long_crawl_delays(&self, above: Span) -> Reply<'_, Vec<(String, Span)>>;

    /// Deletes files fetched before this time, at most `limit` per call. Those that ask for a delay are kept for twice
    /// that delay in addition. True if there may be more.
    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool>;
}

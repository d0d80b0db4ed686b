//! Counters, summed over all processes on one store.

use crate::Reply;

/// Storage of counters that all processes on a store share.
pub trait CountStore {
    /// Adds to counters, by name; a new counter starts at zero.
    fn add_counts(&self, added: Vec<(String, u64)>) -> Reply<'_, ()>;

    /// All counters.
    fn counts(&self) -> Reply<'_, Vec<(String, u64)>>;
}

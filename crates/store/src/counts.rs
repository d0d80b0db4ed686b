//! What processes on one store counted, added up.

use crate::Reply;

/// Counters that everybody on one store shares.
pub trait CountStore {
    /// Adds to counters, by name; new ones begin at zero.
    fn add_counts(&self, added: Vec<(String, u64)>) -> Reply<'_, ()>;

    /// All counters.
    fn counts(&self) -> Reply<'_, Vec<(String, u64)>>;
}

//! Secrets that all processes on one store share: created once, never shown.

use crate::Reply;

/// Storage of shared secrets.
pub trait SecretStore {
    /// Returns the secret called `name`, creating it from `fresh` if there is none. Concurrent callers all get the same
    /// one.
    fn secret(&self, name: String, fresh: Vec<u8>) -> Reply<'_, Vec<u8>>;
}

//! Secrets that everybody on one store shares: made once, never shown.

use crate::Reply;

/// Secrets that everybody on one store shares.
pub trait SecretStore {
    /// The secret called `name`; when there is none yet, `fresh` becomes it. Of any number who ask at once all get the
    /// same.
    fn secret(&self, name: String, fresh: Vec<u8>) -> Reply<'_, Vec<u8>>;
}

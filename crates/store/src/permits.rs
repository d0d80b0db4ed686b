//! Permits that were given out of the process which drew them, so that whoever takes its domain after a crash knows
//! what may be on the wire.

use comity_core::pace::Lent;

use crate::Reply;
use crate::domains::{Hold, HolderId};

/// Permits that were lent. Rows whose leases have ended go away with the next one that is written.
pub trait PermitStore {
    /// Keeps a permit until its lease ends, or anew until then. [`crate::StoreError::Lost`] when its domain is not held
    /// under that hold any more.
    fn lend(&self, holder: HolderId, hold: Hold, lent: Lent) -> Reply<'_, ()>;

    /// Permits that were recorded or released. What is no longer held is skipped.
    fn forget_lent(&self, holder: HolderId, settled: Vec<(Hold, u32)>) -> Reply<'_, ()>;
}

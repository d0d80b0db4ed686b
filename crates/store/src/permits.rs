//! Permits handed out to other processes. After a crash, the next holder of the domain learns from them which requests
//! may still be in flight.

use comity_core::pace::LentPermit;

use crate::Reply;
use crate::domains::{HolderId, Tenure};

/// Storage of lent permits. Rows whose lease has ended are deleted when the next one is written.
pub trait PermitStore {
    /// Saves a permit until its lease ends; saving it again renews the lease. [`crate::StoreError::Lost`] if the tenure
    /// is no longer valid.
    fn lend(&self, holder: HolderId, tenure: Tenure, lent: LentPermit) -> Reply<'_, ()>;

    /// Deletes permits that were recorded or released. Those of domains no longer held are skipped.
    fn forget_lent(&self, holder: HolderId, settled: Vec<(Tenure, u32)>) -> Reply<'_, ()>;
}

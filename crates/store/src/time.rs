//! The time that all processes on a store share. The store owns it, and each process builds a clock from it.

use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::HolderId;

/// The store's time, and the machine's uptime at that moment. A clock needs both, so that it does not matter how long
/// the answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreTime {
    /// The store's time.
    pub now: Timestamp,
    /// The machine's uptime at that moment, from [`crate::machine::ThisMachine`].
    pub up: Span,
}

/// The store's time. Every `now` that is passed to a store is on this timeline.
pub trait TimeStore {
    /// Returns the current time, for processes that only read or are about to register.
    fn time(&self) -> Reply<'_, StoreTime>;

    /// Joins the store's timeline right after registering. While any other process is alive on the store, the time is
    /// theirs, whatever the wall clock reads. A holder that is alone sets the time from the wall clock, and every
    /// deadline and start time in the store that matters to a decision is moved by the difference. The holder's own
    /// lease starts over.
    fn join_time(&self, holder: HolderId) -> Reply<'_, StoreTime>;
}

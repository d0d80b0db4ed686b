//! The time that everybody on one store shares. A store owns it; each process makes a clock of it.

use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::HolderId;

/// What the time on a store was when this machine had been up for so long: a clock is made of both, so that it does not
/// matter how long the answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreTime {
    /// The time.
    pub now: Timestamp,
    /// How long this machine had been up, by [`crate::machine::ThisMachine`].
    pub up: Span,
}

/// Which time it is. Whatever a store is told as `now` is this time.
pub trait TimeStore {
    /// What the time is, for whoever only looks or is about to register.
    fn time(&self) -> Reply<'_, StoreTime>;

    /// A holder that has just registered asks which time it goes by. While anybody else lives on the store, that is
    /// theirs, whatever the wall clock says. A holder that is alone sets it by the wall clock, and everything in the store
    /// that is waited for or counts from a moment moves along. Its own time in the store begins anew.
    fn join_time(&self, holder: HolderId) -> Reply<'_, StoreTime>;
}

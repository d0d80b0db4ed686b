//! A copy of a store, as it was at one moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a copy does to a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing: it is refused.
    Keep,
    /// It takes its place, when it is whole.
    Replace,
}

/// How far a copy is; shared with whoever makes it.
#[derive(Debug, Default)]
pub struct Progress {
    written: AtomicU64,
    all: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Bytes written so far, and about how many there will be. A copy has no gaps, so it may be over sooner.
    pub fn bytes(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    /// Gives it up: nothing is left of it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, written: u64, all: u64) {
        self.written.store(written, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }
}

//! Backups: consistent copies of a store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What to do if the target file exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep the existing file and fail.
    Keep,
    /// Replace it once the copy is complete.
    Replace,
}

/// The progress of a backup, shared with whoever makes it.
#[derive(Debug, Default)]
pub struct Progress {
    written: AtomicU64,
    all: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Bytes written so far, and roughly how many there will be. The copy is compacted, so it may finish earlier.
    pub fn bytes(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    /// Aborts the backup and leaves nothing behind.
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

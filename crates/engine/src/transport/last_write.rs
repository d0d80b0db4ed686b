//! When something was last written to a connection: the true start of a request, however long its task had to wait for
//! the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

/// When something was last written.
pub(super) struct LastWrite {
    base: Instant,
    micros: AtomicU64,
}

impl LastWrite {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { base: Instant::now(), micros: AtomicU64::new(0) })
    }

    pub(super) fn last(&self) -> Instant {
        self.base + Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    /// Notes a write.
    pub(super) fn set(&self) {
        let micros = u64::try_from(self.base.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.micros.store(micros, Ordering::Relaxed);
    }
}

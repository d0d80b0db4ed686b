//! When something was last written to a connection: the true start of a request, however long its writer had to
//! wait for a core.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

/// When something was last written.
pub(super) struct Stamp {
    base: Instant,
    micros: AtomicU64,
}

impl Stamp {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { base: Instant::now(), micros: AtomicU64::new(0) })
    }

    pub(super) fn last(&self) -> Instant {
        self.base + Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    /// Something was written.
    pub(super) fn set(&self) {
        let micros = u64::try_from(self.base.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.micros.store(micros, Ordering::Relaxed);
    }
}

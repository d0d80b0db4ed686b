//! What went through a proxy.

use std::sync::atomic::{AtomicU64, Ordering};

use comity_core::time::Span;

/// What went through a proxy so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProxyCounts {
    /// Requests that were sent to sites. A tunnel counts as one.
    pub requests: u64,
    /// Responses with 429, and those that said the same in another way.
    pub rate_limited: u64,
    /// Requests that the proxy answered itself.
    pub refused: u64,
    /// The total time that requests waited in line.
    pub waited: Span,
}

#[derive(Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    rate_limited: AtomicU64,
    refused: AtomicU64,
    waited_micros: AtomicU64,
}

impl Counters {
    pub(super) fn values(&self) -> ProxyCounts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyCounts {
            requests: value(&self.requests),
            rate_limited: value(&self.rate_limited),
            refused: value(&self.refused),
            waited: Span::from_micros(value(&self.waited_micros)),
        }
    }

    pub(super) fn sent(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn rate_limited(&self) {
        self.rate_limited.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waited(&self, span: Span) {
        self.waited_micros.fetch_add(span.as_micros(), Ordering::Relaxed);
    }
}

//! Passes the raw bytes of an exchange on an HTTP/1.1 connection to an observer: header lines in their original order
//! and case, chunks with their framing, bodies as encoded.
//!
//! Nothing is parsed or stored here.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Observes the bytes of one exchange.
///
/// Called on the connection's own task, possibly even after the exchange has ended: a connection that was given up
/// keeps reading until it notices.
pub trait Witness: Send + Sync {
    /// The request is about to be written; `server` is its address if no proxy is in between. Bytes seen before this
    /// belong to a connection that was closed before anything was written.
    fn begin(&self, server: Option<IpAddr>);
    /// These bytes were written.
    fn sent(&self, bytes: &[u8]);
    /// These bytes were read.
    fn received(&self, bytes: &[u8]);
}

/// The current observer of a connection.
pub(super) struct Tap {
    server: Option<IpAddr>,
    witness: Mutex<Option<Arc<dyn Witness>>>,
}

impl Tap {
    pub(super) fn new(server: Option<IpAddr>) -> Self {
        Self { server, witness: Mutex::default() }
    }

    /// Starts observing an exchange.
    pub(super) fn start(&self, witness: &Arc<dyn Witness>) {
        witness.begin(self.server);
        *self.lock() = Some(witness.clone());
    }

    /// Stops observing.
    pub(super) fn stop(&self) {
        *self.lock() = None;
    }

    /// These bytes were written.
    pub(super) fn sent(&self, bytes: &[u8]) {
        self.notify(|witness| witness.sent(bytes));
    }

    /// These bytes were read.
    pub(super) fn received(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.notify(|witness| witness.received(bytes));
        }
    }

    fn notify(&self, notify: impl FnOnce(&dyn Witness)) {
        if let Some(witness) = &*self.lock() {
            notify(&**witness);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Witness>>> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

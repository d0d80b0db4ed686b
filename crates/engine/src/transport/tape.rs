//! What passes on an HTTP/1.1 connection while one exchange is under way, told byte by byte to whoever wants to
//! keep it: header lines in the order and case they came in, chunks with their framing, bodies as they are encoded.
//!
//! What is made of it is decided elsewhere; here nothing is parsed and nothing is kept.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sees what passes on a connection during one exchange.
///
/// It is called on the connection's own task, and may be called after its exchange is over: a connection that is
/// given up reads on until it notices.
pub trait Witness: Send + Sync {
    /// The request is about to be written, to the server at this address if no proxy is in between. What was seen
    /// before belongs to a connection that was closed before anything was written.
    fn begin(&self, server: Option<IpAddr>);
    /// These bytes were written.
    fn sent(&self, bytes: &[u8]);
    /// These bytes were read.
    fn received(&self, bytes: &[u8]);
}

/// Who sees what passes on a connection at the moment.
pub(super) struct Tape {
    server: Option<IpAddr>,
    witness: Mutex<Option<Arc<dyn Witness>>>,
}

impl Tape {
    pub(super) fn new(server: Option<IpAddr>) -> Self {
        Self { server, witness: Mutex::default() }
    }

    /// An exchange begins.
    pub(super) fn start(&self, witness: &Arc<dyn Witness>) {
        witness.begin(self.server);
        *self.lock() = Some(witness.clone());
    }

    /// The exchange is over.
    pub(super) fn stop(&self) {
        *self.lock() = None;
    }

    /// These bytes were written.
    pub(super) fn sent(&self, bytes: &[u8]) {
        self.tell(|witness| witness.sent(bytes));
    }

    /// These bytes were read.
    pub(super) fn received(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.tell(|witness| witness.received(bytes));
        }
    }

    fn tell(&self, tell: impl FnOnce(&dyn Witness)) {
        if let Some(witness) = &*self.lock() {
            tell(&**witness);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Witness>>> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

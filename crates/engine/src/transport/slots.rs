//! Connection slots: limits open connections to the number of file descriptors available.
//!
//! A connection keeps its slot until its socket is closed. When all slots are taken, idle connections are closed. If
//! none is idle, or descriptors are short for another reason, a caller waits a while and then gets
//! [`TransportError::Exhausted`]; nothing was sent to the site.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use super::error::TransportError;
use super::pool::ConnectionPool;
use crate::{descriptors, lock};

/// The slots of a transport.
pub(super) struct Slots {
    free: Arc<Semaphore>,
    max: usize,
    reported_at: Mutex<Option<Instant>>,
}

/// The right to have one connection open.
pub(super) type Slot = OwnedSemaphorePermit;

impl Slots {
    pub(super) fn new(max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(max)), max, reported_at: Mutex::default() }
    }

    /// Waits for a slot for a new connection.
    pub(super) async fn take(&self, pool: &ConnectionPool, until: Instant) -> Result<Slot, TransportError> {
        let taking = async {
            tokio::select! {
                biased;
                taken = self.free.clone().acquire_owned() => taken.ok(),
                none = make_room(pool) => none,
            }
        };
        let taken = timeout_at(until, taking).await;
        taken.ok().flatten().ok_or(TransportError::Exhausted { source: None })
    }

    /// Logs a shortage, but not for every affected request.
    pub(super) fn report(&self, shortage: &TransportError) {
        let mut reported_at = lock(&self.reported_at);
        if reported_at.is_some_and(|at| at.elapsed() < REPORTED_AGAIN) {
            return;
        }
        *reported_at = Some(Instant::now());
        let (open_files_max, connections_max) = (descriptors::limit(), self.max);
        let TransportError::Exhausted { source } = shortage else { return };
        if let Some(cause) = source.as_ref().filter(|cause| cause.kind() == io::ErrorKind::AddrNotAvailable) {
            tracing::warn!(%cause, "out of local ports: requests wait until some are free; no retries are spent");
            return;
        }
        let cause = source.as_ref().map(ToString::to_string);
        tracing::warn!(
            open_files_max,
            connections_max,
            cause,
            "out of file descriptors: requests wait until some are free; no retries are spent \
             (raise the limit with ulimit -n or LimitNOFILE)"
        );
    }
}

/// Closes idle connections, one at a time, while somebody waits for a slot.
async fn make_room(pool: &ConnectionPool) -> Option<Slot> {
    loop {
        pool.close_oldest();
        sleep(LOOK).await;
    }
}

/// How often to check for connections that have become idle.
const LOOK: Duration = Duration::from_millis(50);
/// How often a lasting shortage is logged.
const REPORTED_AGAIN: Duration = Duration::from_secs(10);

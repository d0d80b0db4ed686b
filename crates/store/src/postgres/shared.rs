//! What all connections of a store share.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::connection::Server;
use super::failure::{Failure, Result};
use super::liveness::LeaseWatch;
use super::location::Location;
use super::outages::Outages;

/// Called in each transaction that changed something, after its last statement and before its commit. Only tests set it.
pub(super) type BeforeCommit = Box<dyn Fn() + Send + Sync>;

/// What all connections of a store share.
pub(super) struct Shared {
    pub(super) location: Location,
    pub(super) outages: Outages,
    pub(super) watch: LeaseWatch,
    pub(super) before_commit: Option<BeforeCommit>,
    /// The history and start of the server that answered last.
    server: Mutex<Option<(u32, String)>>,
    /// How often another history was found, which may lack commits of this process.
    pub(super) histories: AtomicU64,
    /// The number of [`super::news`] that was read last.
    pub(super) news: AtomicI64,
    /// The machine's uptime when this process last sent a notification, in microseconds.
    pub(super) notified: AtomicU64,
}

impl Shared {
    pub(super) fn new(location: Location, outages: Outages) -> Self {
        Self {
            location,
            outages,
            watch: LeaseWatch::default(),
            before_commit: None,
            server: Mutex::default(),
            histories: AtomicU64::new(0),
            news: AtomicI64::new(0),
            notified: AtomicU64::new(0),
        }
    }

    /// Compares the server of a transaction with the one that answered last. An older history is refused: that server was
    /// replaced by a promoted one, and what is written to it will be lost.
    pub(super) fn meet(&self, server: &Server) -> Result<()> {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((history, started)) if *history == server.history && *started == server.started => {
                return Ok(());
            }
            Some((history, _)) if *history > server.history => {
                return Err(Failure::OtherServer(format!(
                    "this server is on timeline {}, but the store has been on timeline {history}: it was replaced by another \
                     server; stop it, or point --store at the new one",
                    server.history
                )));
            }
            Some((history, _)) => {
                if *history != server.history {
                    self.histories.fetch_add(1, Ordering::SeqCst);
                }
                self.watch.clear();
            }
            None => {}
        }
        *known = Some((server.history, server.started.clone()));
        Ok(())
    }
}

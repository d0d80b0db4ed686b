//! What all connections of a store share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use comity_core::time::{Span, Timestamp};

use super::connection::Server;
use super::failure::{Failure, Result};
use super::liveness::LeaseWatch;
use super::location::Location;
use super::outages::Outages;
use super::replacement::History;
use super::time::Offsets;
use crate::domains::HolderId;
use crate::machine::{Machine, ThisMachine};

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
    /// The machine's uptime when another server was found, in microseconds.
    replaced: AtomicU64,
    /// The history that the rows are from, once it is known.
    pub(super) history: Mutex<Option<History>>,
    /// How often another history was found, which may lack commits of this process.
    pub(super) histories: AtomicU64,
    /// The holders that registered here, with [`Self::histories`] at that time.
    registered: Mutex<HashMap<i64, u64>>,
    /// When this machine booted, on the store's timeline, as this process has learned it.
    pub(super) booted_at: Mutex<Option<Timestamp>>,
    /// What heartbeats measured.
    pub(super) offsets: Mutex<Offsets>,
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
            watch: LeaseWatch::on_this_machine(),
            before_commit: None,
            server: Mutex::default(),
            replaced: AtomicU64::new(0),
            history: Mutex::default(),
            histories: AtomicU64::new(0),
            registered: Mutex::default(),
            booted_at: Mutex::default(),
            offsets: Mutex::default(),
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
                    // Nothing is sent until a heartbeat, even if the change took no time.
                    self.outages.interrupted();
                }
                self.replaced.store(ThisMachine.up().as_micros().max(1), Ordering::SeqCst);
                self.watch.clear();
            }
            None => {}
        }
        *known = Some((server.history, server.started.clone()));
        Ok(())
    }

    /// Whether another server was found a moment ago. Its clock may be another one too.
    pub(super) fn is_new_server(&self) -> bool {
        let replaced = Span::from_micros(self.replaced.load(Ordering::SeqCst));
        !replaced.is_zero() && ThisMachine.up().less(replaced) < NEW
    }

    /// A number that changes when another process has written something.
    pub(super) fn version(&self) -> i64 {
        // A failover may lose numbers, which then come again.
        let histories = self.histories.load(Ordering::SeqCst) as i64;
        self.news.load(Ordering::Relaxed).wrapping_add(histories << 40)
    }

    /// Remembers a holder that registered when this many histories had been found.
    pub(super) fn register(&self, holder: HolderId, histories: u64) {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).insert(holder.0, histories);
    }

    pub(super) fn unregister(&self, holder: HolderId) {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).remove(&holder.0);
    }

    /// Whether commits of a holder may be lost, because another history was found since it registered.
    pub(super) fn may_have_lost(&self, holder: HolderId) -> bool {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.get(&holder.0).is_some_and(|then| *then != self.histories.load(Ordering::SeqCst))
    }
}

/// For how long a server is new: until every process has sent heartbeats to it.
const NEW: Span = Span::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: HolderId = HolderId(7);

    fn server(history: u32, started: &str) -> Server {
        Server { history, started: started.to_owned(), xid: String::new() }
    }

    fn shared() -> Shared {
        let location = Location::parse("postgres://db.example/store").unwrap();
        Shared::new(location.clone(), Outages::new(location, Span::ZERO))
    }

    /// B77: a promoted standby may lack the last commits.
    #[test]
    fn after_a_failover_holders_may_have_lost_commits_until_they_register_again() {
        let shared = shared();
        shared.meet(&server(1, "monday")).unwrap();
        shared.register(HOLDER, shared.histories.load(Ordering::SeqCst));
        let version = shared.version();
        shared.meet(&server(1, "tuesday")).unwrap();
        assert!(!shared.may_have_lost(HOLDER), "a server that was restarted has lost nothing");
        shared.meet(&server(2, "tuesday")).unwrap();
        assert!(shared.may_have_lost(HOLDER));
        assert_ne!(shared.version(), version);
        shared.register(HOLDER, shared.histories.load(Ordering::SeqCst));
        assert!(!shared.may_have_lost(HOLDER));
    }

    /// B77: what is written to a server that was replaced will be lost.
    #[test]
    fn a_server_that_was_replaced_is_refused() {
        let shared = shared();
        shared.meet(&server(2, "monday")).unwrap();
        let refused = shared.meet(&server(1, "monday")).unwrap_err();
        assert!(
            refused.what().starts_with("this server is on timeline 1, but the store has been on timeline 2")
        );
        shared.meet(&server(2, "monday")).unwrap();
    }
}

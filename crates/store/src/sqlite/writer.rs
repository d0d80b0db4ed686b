//! The writer: the only thread that writes to the database. Requests that arrive while it is busy run in one
//! transaction, and nobody gets an answer before it is committed.
//!
//! - This file: how requests reach the thread, and its main loop.
//! - `transaction`: one attempt. An error of one caller is rolled back and reported to that caller alone. If a commit
//!   fails, the stamp that each transaction leaves shows whether it was committed after all.
//! - `outage`: while the database is locked, full, gone or unreadable, the thread and all callers wait. It reopens the
//!   database where that helps.

mod outage;
mod transaction;

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use comity_core::time::Span;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::holders::{LeaseWatch, Liveness};
use super::location::Location;
use super::open_store::OpenStore;
use super::unreadable_rows::Reported;
use super::waiting::{FIRST_LOCK_TIMEOUT, Patience};
use crate::domains::HolderId;
use crate::{Availability, Reply, StoreError};

/// A connection inside a transaction, and the writer's cache.
pub(super) struct Tx<'a> {
    pub(super) sql: &'a Connection,
    pub(super) cache: &'a mut Cache,
}

/// What the thread caches; cleared when a transaction fails.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// Ids of domains by name, to add tasks quickly.
    pub(super) domain_ids: HashMap<String, i64>,
    /// Ids of lanes by job and domain.
    pub(super) lane_ids: HashMap<(i64, i64), i64>,
    /// How many times domains or lanes had been deleted when these ids were read.
    forgotten: i64,
    /// The number of transactions that had changed something when this one started, and the stamp of the last of them.
    commits: i64,
    stamp: i64,
    /// Whether the store is a restored copy, and since when; `None` if that has to be read first.
    pub(super) restored: Option<Option<i64>>,
    /// The leases last seen of other holders.
    pub(super) watch: LeaseWatch,
    /// Holders that ended in this transaction. What proved that they were alive is removed once that is committed.
    pub(super) ended: Vec<(Liveness, i64)>,
    /// Rows that could not be read and were logged.
    pub(super) reported: Reported,
}

impl Cache {
    /// Clears cached ids if domains or lanes have been deleted, by whatever process.
    fn look_up(&mut self, sql: &Connection) -> rusqlite::Result<()> {
        let known = "SELECT forgotten, commits, stamp, restored_us FROM identity";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let (forgotten, commits, stamp, restored) = sql.prepare_cached(known)?.query_row([], read)?;
        (self.commits, self.stamp, self.restored) = (commits, stamp, Some(restored));
        if std::mem::replace(&mut self.forgotten, forgotten) != forgotten {
            self.domain_ids.clear();
            self.lane_ids.clear();
        }
        Ok(())
    }
}

/// One piece of work. It runs inside the transaction and returns what to do afterwards. It runs again if the database
/// was locked or the disk full.
type Work = Box<dyn FnMut(&mut Tx<'_>) -> Result<After, rusqlite::Error> + Send>;
/// Answers the caller, after the commit or its failure.
type After = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Called inside each transaction that changed something, after its last statement and before its commit. Only tests
/// set it, to hold a transaction open.
pub(super) type BeforeCommit = Box<dyn Fn() + Send>;

enum Message {
    Work(WorkItem),
    Version(oneshot::Sender<Result<i64, StoreError>>),
    BeforeCommit(BeforeCommit),
}

/// What a caller asked for.
struct WorkItem {
    work: Work,
    /// Tells the caller that its work failed; `None` once it was told.
    refused: Option<Box<dyn FnOnce(StoreError) + Send>>,
    /// Whether to check first that the files are still the ones that were opened.
    check_files: bool,
}

/// The writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    sender: Option<Arc<Sender<Message>>>,
    patience: Patience,
    availability: Arc<Availability>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
}

/// A handle that does not keep the thread alive.
pub(super) struct WriterHandle(Weak<Sender<Message>>);

impl WriterHandle {
    /// The same as [`Writer::run`].
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (work_item, receiver) = work_item(work);
        // A closed channel drops the message and, with it, the sender of the answer.
        self.0.upgrade().map(|sender| sender.send(Message::Work(work_item)));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        open_store: Arc<OpenStore>,
        patience: Span,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        let location = open_store.location.clone();
        connection.busy_timeout(FIRST_LOCK_TIMEOUT).map_err(|error| location.error(&error))?;
        let (patience, availability) = (Patience::new(patience), Arc::<Availability>::default());
        let run = WriterThread {
            connection,
            is_open: true,
            has_worked: false,
            open_store,
            lost: Vec::new(),
            cache: Cache::default(),
            patience: patience.clone(),
            availability: availability.clone(),
            gave_up: None,
            stamp: stamp(),
            before_commit: None,
            commit,
        };
        let thread = std::thread::Builder::new()
            .name("comity-store".to_owned())
            .spawn(move || {
                let _ends = ends;
                run.run(&receiver);
            })
            .map_err(|error| location.unavailable(format!("could not start a thread: {error}")))?;
        let (sender, ended) = (Some(Arc::new(sender)), Mutex::new(ended));
        Ok(Self { sender, patience, availability, thread: Some(thread), ended })
    }

    /// Sets how long to wait for an unavailable database.
    pub(super) fn set_patience(&self, patience: Span) {
        self.patience.set(patience);
    }

    pub(super) fn availability(&self) -> Arc<Availability> {
        self.availability.clone()
    }

    /// Runs `work` in the next transaction. Its value is returned after the commit.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.handle().run(work)
    }

    /// Like [`Self::run`], after checking that the database is still the one that was opened.
    pub(super) fn run_checked<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (work_item, receiver) = work_item(work);
        self.send(Message::Work(WorkItem { check_files: true, ..work_item }));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// A number that changes when another connection commits something.
    pub(super) fn version(&self) -> Reply<'static, i64> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Version(sender));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// A handle for callers that may outlive the thread.
    pub(super) fn handle(&self) -> WriterHandle {
        WriterHandle(self.sender.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// From the next transaction on, calls `hook` before each commit of a change.
    pub(super) fn before_commit(&self, hook: BeforeCommit) {
        self.send(Message::BeforeCommit(hook));
    }

    fn send(&self, message: Message) {
        // A closed channel drops the message and, with it, the sender of the answer.
        self.sender.as_ref().map(|sender| sender.send(message));
    }
}

/// Wraps work with the channel for its answer.
fn work_item<T: Send + 'static>(
    mut work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (WorkItem, oneshot::Receiver<Result<T, StoreError>>) {
    let (sender, receiver) = oneshot::channel::<Result<T, StoreError>>();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let tell = move |sender: &Mutex<Option<oneshot::Sender<_>>>, result| {
        let sender = sender.lock().ok().and_then(|mut sender| sender.take());
        // The caller may not be waiting any more.
        sender.map(|sender| sender.send(result));
    };
    let refused = sender.clone();
    let work: Work = Box::new(move |tx| {
        let (value, sender) = (work(tx)?, sender.clone());
        Ok(Box::new(move |committed: Result<(), StoreError>| tell(&sender, committed.map(|()| value))))
    });
    let refused = Box::new(move |error| tell(&refused, Err(error)));
    (WorkItem { work, refused: Some(refused), check_files: false }, receiver)
}

impl Drop for Writer {
    /// Waits until everything requested is committed, but not forever if the disk hangs.
    fn drop(&mut self) {
        self.patience.set(Span::ZERO);
        self.sender = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(CLOSE_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

struct WriterThread {
    connection: Connection,
    /// Whether the connection can be used.
    is_open: bool,
    /// Whether anything was ever committed.
    has_worked: bool,
    open_store: Arc<OpenStore>,
    /// Holders of this process that lost everything they held, because writes were lost.
    lost: Vec<HolderId>,
    cache: Cache,
    patience: Patience,
    availability: Arc<Availability>,
    /// How long the database was waited for before giving up.
    gave_up: Option<Span>,
    /// The stamp that the next transaction leaves in the database.
    stamp: i64,
    before_commit: Option<BeforeCommit>,
    /// How a transaction is committed; tests replace it.
    commit: fn(&Connection) -> rusqlite::Result<()>,
}

impl WriterThread {
    fn run(mut self, receiver: &Receiver<Message>) {
        let mut wrote = false;
        let mut looks = 0;
        loop {
            let first = match receiver.recv_timeout(QUIET) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    // Nobody asks for anything: a good time for a checkpoint.
                    if std::mem::take(&mut wrote) {
                        self.checkpoint();
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (mut batch, mut versions) = (Vec::new(), Vec::new());
            for message in std::iter::once(first).chain(receiver.try_iter().take(BATCH)) {
                match message {
                    Message::Work(work_item) => batch.push(work_item),
                    Message::Version(sender) => versions.push(sender),
                    Message::BeforeCommit(hook) => self.before_commit = Some(hook),
                }
            }
            let outage = !versions.is_empty() && self.ensure_open().is_err();
            if !outage {
                if !versions.is_empty() {
                    self.availability.set_available();
                }
                let version = self.version();
                versions.drain(..).for_each(|sender| drop(sender.send(Ok(version))));
            }
            if batch.is_empty() && !outage {
                looks += 1;
                if looks >= QUIET_LOOKS && std::mem::take(&mut wrote) {
                    self.checkpoint();
                }
                continue;
            }
            looks = 0;
            let done = self.commit(batch, outage);
            versions.into_iter().for_each(|sender| drop(sender.send(done.clone().map(|()| self.version()))));
            wrote = true;
        }
    }

    fn checkpoint(&self) {
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// An in-memory database has no other connections, so every change counts.
    fn version(&self) -> i64 {
        match self.open_store.location {
            Location::Memory => self.connection.total_changes() as i64,
            Location::File(_) => {
                let version = self.connection.pragma_query_value(None, "data_version", |row| row.get(0));
                version.unwrap_or(0)
            }
        }
    }
}

fn commit(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("COMMIT")
}

/// A random number, so that no two processes start with the same stamp.
fn stamp() -> i64 {
    std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8) as i64
}

#[cfg(test)]
mod tests;

/// How long closing the store waits for outstanding work.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum number of requests in one transaction.
const BATCH: usize = 512;
/// This many version checks without work count as idle too.
const QUIET_LOOKS: u32 = 50;
/// After this long without work, a checkpoint is made.
const QUIET: Duration = Duration::from_secs(1);

//! The one thread that writes to the database. What was asked meanwhile runs in one transaction, and nobody hears
//! of it before it is committed.
//!
//! - here: who asks, and the thread
//! - `transaction`: one try. One caller's error is undone and reported to that caller alone. When a commit fails, the stamp
//!   that the transaction left tells whether it was done
//! - `away`: while the database is locked, full, gone or unreadable the thread waits, and with it everybody who asked; it
//!   opens it again where that helps

mod away;
mod transaction;

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use comity_core::time::Span;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::aside::Reported;
use super::holders::Watch;
use super::in_use::InUse;
use super::patience::{FIRST_TRY, Patience};
use super::place::Place;
use crate::domains::HolderId;
use crate::{Availability, Reply, StoreError};

/// A connection inside a transaction, and what is remembered beside it.
pub(super) struct Tx<'a> {
    pub(super) sql: &'a Connection,
    pub(super) memory: &'a mut Memory,
}

/// What the thread remembers; forgotten when a transaction fails.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Numbers of domains by name, to fill quickly.
    pub(super) domain_ids: HashMap<String, i64>,
    /// Numbers of lanes by job and domain.
    pub(super) lane_ids: HashMap<(i64, i64), i64>,
    /// How often domains had been forgotten when these numbers were read.
    forgotten: i64,
    /// How many transactions had changed something when this one began, and the stamp of the last of them.
    commits: i64,
    stamp: i64,
    /// What was last seen of other holders.
    pub(super) watch: Watch,
    /// Rows that could not be read.
    pub(super) reported: Reported,
}

impl Memory {
    /// Forgets the numbers of domains when some of them are gone, whoever removed them.
    fn look_up(&mut self, sql: &Connection) -> rusqlite::Result<()> {
        let known = "SELECT forgotten, commits, stamp FROM identity";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let (forgotten, commits, stamp) = sql.prepare_cached(known)?.query_row([], read)?;
        (self.commits, self.stamp) = (commits, stamp);
        if std::mem::replace(&mut self.forgotten, forgotten) != forgotten {
            self.domain_ids.clear();
            self.lane_ids.clear();
        }
        Ok(())
    }
}

/// One piece of work; run inside the transaction, it says what to do once that is over. Run again when the database was
/// locked or the disk full.
type Work = Box<dyn FnMut(&mut Tx<'_>) -> Result<After, rusqlite::Error> + Send>;
/// Tells whoever asked, after the commit or after its failure.
type After = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Called inside each transaction that changed something, after its last statement and before its commit. Tests hold a
/// transaction open there; nobody else sets it.
pub(super) type BeforeCommit = Box<dyn Fn() + Send>;

enum Message {
    Work(Piece),
    Version(oneshot::Sender<Result<i64, StoreError>>),
    BeforeCommit(BeforeCommit),
}

/// What somebody asked for.
struct Piece {
    work: Work,
    /// Tells whoever asked that its work could not be done; gone when that was told.
    refused: Option<Box<dyn FnOnce(StoreError) + Send>>,
    /// Whether the files are to be the ones that were opened.
    in_place: bool,
}

/// The thread that uses the database.
#[derive(Debug)]
pub(super) struct Writer {
    sender: Option<Arc<Sender<Message>>>,
    patience: Patience,
    availability: Arc<Availability>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
}

/// A way to the thread that does not keep it from ending.
pub(super) struct Remote(Weak<Sender<Message>>);

impl Remote {
    /// The same as [`Writer::run`].
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (piece, receiver) = piece(work);
        // A closed channel drops the message, and with it the sender of its answer.
        self.0.upgrade().map(|sender| sender.send(Message::Work(piece)));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        in_use: Arc<InUse>,
        patience: Span,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        let place = in_use.place.clone();
        connection.busy_timeout(FIRST_TRY).map_err(|error| place.error(&error))?;
        let (patience, availability) = (Patience::new(patience), Arc::<Availability>::default());
        let run = Run {
            connection,
            is_open: true,
            has_worked: false,
            in_use,
            lost: Vec::new(),
            memory: Memory::default(),
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
            .map_err(|error| place.unavailable(format!("no thread could be started: {error}")))?;
        let (sender, ended) = (Some(Arc::new(sender)), Mutex::new(ended));
        Ok(Self { sender, patience, availability, thread: Some(thread), ended })
    }

    /// A database that is away is waited for so long.
    pub(super) fn set_patience(&self, patience: Span) {
        self.patience.set(patience);
    }

    pub(super) fn availability(&self) -> Arc<Availability> {
        self.availability.clone()
    }

    /// Runs `work` in the next transaction; its value comes when that is committed.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.remote().run(work)
    }

    /// The same, after a look whether the database is still the one that was opened.
    pub(super) fn run_in_place<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (piece, receiver) = piece(work);
        self.send(Message::Work(Piece { in_place: true, ..piece }));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// A number that changes when another connection committed something.
    pub(super) fn version(&self) -> Reply<'static, i64> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Version(sender));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// A way to the thread for whoever may outlive it.
    pub(super) fn remote(&self) -> Remote {
        Remote(self.sender.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// From the next transaction on, `hook` is called before each commit of a change.
    pub(super) fn before_commit(&self, hook: BeforeCommit) {
        self.send(Message::BeforeCommit(hook));
    }

    fn send(&self, message: Message) {
        // A closed channel drops the message, and with it the sender of its answer.
        self.sender.as_ref().map(|sender| sender.send(message));
    }
}

/// A piece of work, with where its answer comes out.
fn piece<T: Send + 'static>(
    mut work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (Piece, oneshot::Receiver<Result<T, StoreError>>) {
    let (sender, receiver) = oneshot::channel::<Result<T, StoreError>>();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let tell = move |sender: &Mutex<Option<oneshot::Sender<_>>>, result| {
        let sender = sender.lock().ok().and_then(|mut sender| sender.take());
        // Whoever does not wait any more need not be told.
        sender.map(|sender| sender.send(result));
    };
    let refused = sender.clone();
    let work: Work = Box::new(move |tx| {
        let (value, sender) = (work(tx)?, sender.clone());
        Ok(Box::new(move |committed: Result<(), StoreError>| tell(&sender, committed.map(|()| value))))
    });
    let refused = Box::new(move |error| tell(&refused, Err(error)));
    (Piece { work, refused: Some(refused), in_place: false }, receiver)
}

impl Drop for Writer {
    /// Waits until everything asked for is committed; for a disk that does not answer any more not for ever.
    fn drop(&mut self) {
        self.patience.set(Span::ZERO);
        self.sender = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(LAST) != Err(RecvTimeoutError::Timeout) {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

struct Run {
    connection: Connection,
    /// Whether that is a connection to the database that may be used.
    is_open: bool,
    /// Whether anything was ever committed.
    has_worked: bool,
    in_use: Arc<InUse>,
    /// Holders of this process that hold nothing any more, because something of the database was lost.
    lost: Vec<HolderId>,
    memory: Memory,
    patience: Patience,
    availability: Arc<Availability>,
    /// The database was waited for in vain, for so long.
    gave_up: Option<Span>,
    /// What the next transaction leaves in the database, to be recognised by.
    stamp: i64,
    before_commit: Option<BeforeCommit>,
    /// How a transaction is committed; tests have others.
    commit: fn(&Connection) -> rusqlite::Result<()>,
}

impl Run {
    fn run(mut self, receiver: &Receiver<Message>) {
        let mut wrote = false;
        let mut looks = 0;
        loop {
            let first = match receiver.recv_timeout(QUIET) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    // Nobody asks for anything: time to move the log into the database.
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
                    Message::Work(piece) => batch.push(piece),
                    Message::Version(sender) => versions.push(sender),
                    Message::BeforeCommit(hook) => self.before_commit = Some(hook),
                }
            }
            let away = !versions.is_empty() && self.present().is_err();
            if !away {
                if !versions.is_empty() {
                    self.availability.returns();
                }
                let version = self.version();
                versions.drain(..).for_each(|sender| drop(sender.send(Ok(version))));
            }
            if batch.is_empty() && !away {
                looks += 1;
                if looks >= QUIET_LOOKS && std::mem::take(&mut wrote) {
                    self.checkpoint();
                }
                continue;
            }
            looks = 0;
            let done = self.commit(batch, away);
            versions.into_iter().for_each(|sender| drop(sender.send(done.clone().map(|()| self.version()))));
            wrote = true;
        }
    }

    fn checkpoint(&self) {
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// In memory there is no other connection: there, whatever changes counts.
    fn version(&self) -> i64 {
        match self.in_use.place {
            Place::Memory => self.connection.total_changes() as i64,
            Place::File(_) => {
                let version = self.connection.pragma_query_value(None, "data_version", |row| row.get(0));
                version.unwrap_or(0)
            }
        }
    }
}

fn commit(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("COMMIT")
}

/// A number that no other process begins with.
fn stamp() -> i64 {
    std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8) as i64
}

#[cfg(test)]
mod tests;

/// How long whoever lets go of the store waits for what was asked of it.
pub(super) const LAST: Duration = Duration::from_secs(15);
/// Pieces of work in one transaction, at most.
const BATCH: usize = 512;
/// So many looks without work count as quiet too.
const QUIET_LOOKS: u32 = 50;
/// Without work for this long, the log is moved into the database.
const QUIET: Duration = Duration::from_secs(1);

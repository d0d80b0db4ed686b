//! The one thread that writes to the database. What was asked meanwhile runs in one transaction, and nobody hears
//! of it before it is committed. One caller's error is undone and reported to that caller alone. When a commit fails,
//! the stamp that the transaction left tells whether it was done. While another program keeps the database locked, or the
//! disk is full, it waits; so does everybody who asked, and a process that cannot renew its time sends nothing.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use comity_core::time::Span;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::aside::{Reported, is_of_one};
use super::holders::Watch;
use super::place::Place;
use crate::{Reply, StoreError};

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
    /// How many transactions had changed something when this one began.
    commits: i64,
    /// What was last seen of other holders.
    pub(super) watch: Watch,
    /// Rows that could not be read.
    pub(super) reported: Reported,
}

impl Memory {
    /// Forgets the numbers of domains when some of them are gone, whoever removed them.
    fn look_up(&mut self, sql: &Connection) -> rusqlite::Result<()> {
        let known = "SELECT forgotten, commits FROM identity";
        let known = sql.prepare_cached(known)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)));
        let (forgotten, commits) = known?;
        self.commits = commits;
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
    Version(oneshot::Sender<i64>),
    BeforeCommit(BeforeCommit),
}

/// What somebody asked for.
struct Piece {
    work: Work,
    /// Tells whoever asked that its work could not be done; gone when that was told.
    refused: Option<Box<dyn FnOnce(StoreError) + Send>>,
}

/// Why a transaction was not committed.
struct Failed {
    error: StoreError,
    /// What is waited for, if that may help.
    awaited: Option<Awaited>,
}

/// What passes by itself, or by somebody's help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Another program keeps the database locked; SQLite has waited already.
    Lock,
    Room,
}

/// The thread that uses the database.
#[derive(Debug)]
pub(super) struct Writer {
    sender: Option<Sender<Message>>,
    /// For so many seconds a database that is locked, or a disk that is full, is waited for.
    patience: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, place: Place, memory: Memory) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        connection.busy_timeout(A_TRY).map_err(|error| place.error(&error))?;
        let patience = Arc::new(AtomicU64::new(super::BUSY.as_secs()));
        let run = Run {
            connection,
            place: place.clone(),
            memory,
            patience: patience.clone(),
            locked: false,
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
        Ok(Self { sender: Some(sender), patience, thread: Some(thread), ended: Mutex::new(ended) })
    }

    /// A database that is locked, or a disk that is full, is waited for so long.
    pub(super) fn set_patience(&self, patience: Duration) {
        self.patience.store(patience.as_secs(), Ordering::Relaxed);
    }

    /// Runs `work` in the next transaction; its value comes when that is committed.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (piece, receiver) = piece(work);
        self.send(Message::Work(piece));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// A number that changes when another connection committed something.
    pub(super) fn version(&self) -> Reply<'static, i64> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Version(sender));
        Box::pin(async move { receiver.await.map_err(|_| StoreError::Closed) })
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
    (Piece { work, refused: Some(refused) }, receiver)
}

impl Drop for Writer {
    /// Waits until everything asked for is committed; for a disk that does not answer any more not for ever.
    fn drop(&mut self) {
        self.patience.store(0, Ordering::Relaxed);
        self.sender = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(LAST) != Err(RecvTimeoutError::Timeout) {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

struct Run {
    connection: Connection,
    place: Place,
    memory: Memory,
    patience: Arc<AtomicU64>,
    /// Another program kept the database locked for as long as we wait.
    locked: bool,
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
            let mut batch = Vec::new();
            for message in std::iter::once(first).chain(receiver.try_iter().take(BATCH)) {
                match message {
                    Message::Work(piece) => batch.push(piece),
                    Message::Version(sender) => {
                        let _ = sender.send(self.version());
                    }
                    Message::BeforeCommit(hook) => self.before_commit = Some(hook),
                }
            }
            if batch.is_empty() {
                looks += 1;
                if looks >= QUIET_LOOKS && std::mem::take(&mut wrote) {
                    self.checkpoint();
                }
                continue;
            }
            looks = 0;
            self.commit(batch);
            wrote = true;
        }
    }

    fn checkpoint(&self) {
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// In memory there is no other connection: there, whatever changes counts.
    fn version(&self) -> i64 {
        match self.place {
            Place::Memory => self.connection.total_changes() as i64,
            Place::File(_) => {
                let version = self.connection.pragma_query_value(None, "data_version", |row| row.get(0));
                version.unwrap_or(0)
            }
        }
    }

    /// Does what was asked for in one transaction, waiting for a database that is locked and for room on the disk.
    fn commit(&mut self, mut batch: Vec<Piece>) {
        let mut tries = 0;
        let (afters, result) = loop {
            let (afters, result) = self.attempt(&mut batch);
            // Whoever comes after one that waited in vain does not wait as long again.
            let patience = if self.locked { 0 } else { self.patience.load(Ordering::Relaxed) };
            let awaited = result.as_ref().err().and_then(|failed| failed.awaited);
            let Some(awaited) = awaited.filter(|_| tries < patience) else { break (afters, result) };
            tries += 1;
            if tries == QUIETLY {
                tracing::warn!("{}", awaited.notice(&self.place, patience));
            }
            if awaited == Awaited::Room {
                std::thread::sleep(A_TRY);
            }
        };
        if tries > 0 {
            // Nobody could renew its time meanwhile: whoever did not is not taken for dead.
            self.memory.watch = Watch::default();
        }
        if tries >= QUIETLY && result.is_ok() {
            tracing::warn!("{}: works again; work continues", self.place);
        }
        let locked = result.as_ref().is_err_and(|failed| failed.awaited == Some(Awaited::Lock));
        if locked != std::mem::replace(&mut self.locked, locked) {
            let _ = self.connection.busy_timeout(if locked { BRIEFLY } else { A_TRY });
        }
        let result = result.map_err(|failed| failed.error);
        if let Err(error) = &result {
            let refusals = batch.into_iter().filter_map(|piece| piece.refused);
            refusals.for_each(|refused| refused(error.clone()));
        }
        afters.into_iter().for_each(|after| after(result.clone()));
    }

    /// One try. What one caller does wrong is told to that caller, and the others continue without it.
    fn attempt(&mut self, batch: &mut [Piece]) -> (Vec<After>, Result<(), Failed>) {
        let mut afters = Vec::with_capacity(batch.len());
        let many = batch.len() > 1;
        let changes = self.connection.total_changes();
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE");
        let mut failed = begun.and_then(|()| self.memory.look_up(&self.connection)).err();
        for piece in batch.iter_mut().filter(|piece| piece.refused.is_some()) {
            if failed.is_some() {
                break;
            }
            let work = &mut piece.work;
            match if many { self.apart(work) } else { self.work(work).map(Ok) } {
                Ok(Ok(after)) => afters.push(after),
                Ok(Err(error)) => {
                    let refused = piece.refused.take();
                    refused.into_iter().for_each(|refused| refused(self.place.error(&error)));
                }
                Err(error) => failed = Some(error),
            }
        }
        let result = match failed {
            None => self.finish(changes),
            Some(error) => Err(self.undo(&error)),
        };
        (afters, result)
    }

    /// Commits. When that fails, the database itself tells whether it was done all the same.
    fn finish(&mut self, changes_before: u64) -> Result<(), Failed> {
        let is_changed = self.connection.total_changes() != changes_before;
        let stamped = if is_changed { self.leave_stamp() } else { Ok(()) };
        if let Some(hook) = self.before_commit.as_ref().filter(|_| is_changed && stamped.is_ok()) {
            hook();
        }
        let Err(error) = stamped.and_then(|()| (self.commit)(&self.connection)) else { return Ok(()) };
        if !self.connection.is_autocommit() || !is_changed {
            return Err(self.undo(&error));
        }
        match self.find_stamp() {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(self.undo(&error)),
            Ok(None) | Err(_) => {
                self.forget();
                let (place, what) = (self.place.to_string(), error.to_string());
                Err(Failed { error: StoreError::Uncertain { place, what }, awaited: None })
            }
        }
    }

    /// Takes back what a transaction did.
    fn undo(&mut self, error: &rusqlite::Error) -> Failed {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.forget();
        let awaited = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Some(Awaited::Room),
            _ => super::is_busy(error).then_some(Awaited::Lock),
        };
        Failed { error: self.place.error(error), awaited }
    }

    /// Leaves the stamp of this transaction in the database.
    fn leave_stamp(&mut self) -> rusqlite::Result<()> {
        self.stamp = self.stamp.wrapping_add(1);
        let sql = "UPDATE identity SET commits = ?1, stamp = ?2";
        let values = [self.memory.commits.wrapping_add(1), self.stamp];
        self.connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// Whether the transaction with our last stamp is in the database; nothing when others wrote since.
    fn find_stamp(&self) -> rusqlite::Result<Option<bool>> {
        let sql = "SELECT commits, stamp FROM identity";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (commits, stamp) = self.connection.prepare_cached(sql)?.query_row([], read)?;
        Ok(match commits.wrapping_sub(self.memory.commits) {
            0 => Some(false),
            1 => Some(stamp == self.stamp),
            _ => None,
        })
    }

    fn work(&mut self, work: &mut Work) -> rusqlite::Result<After> {
        let mut tx = Tx { sql: &self.connection, memory: &mut self.memory };
        // What panics is undone like what fails, and the thread works on for everybody else.
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut tx)));
        done.unwrap_or_else(|_| Err(rusqlite::Error::ToSqlConversionFailure("it panicked".into())))
    }

    /// Does one piece of work of many. The inner error is its own, and the others continue without it.
    fn apart(&mut self, work: &mut Work) -> rusqlite::Result<rusqlite::Result<After>> {
        let run = |sql| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        run("SAVEPOINT one")?;
        let done = self.work(work);
        let run = |sql| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        match done {
            Err(error) if is_of_one(&error) => {
                run("ROLLBACK TO one")?;
                run("RELEASE one")?;
                self.forget();
                Ok(Err(error))
            }
            done => {
                let after = done?;
                run("RELEASE one")?;
                Ok(Ok(after))
            }
        }
    }

    /// What was remembered of rows that are not there after all is forgotten.
    fn forget(&mut self) {
        let Memory { watch, reported, commits, .. } = std::mem::take(&mut self.memory);
        self.memory = Memory { watch, reported, commits, ..Memory::default() };
    }
}

impl Awaited {
    /// What is waited for, for people.
    fn notice(self, place: &Place, patience: u64) -> String {
        let what = match self {
            Self::Lock => "locked by another program",
            Self::Room => "the disk is full",
        };
        let patience = Span::from_secs(patience).about();
        format!("{place}: {what}; waiting up to {patience} for it, and nothing is sent meanwhile")
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
/// How long one try waits for a database that is locked, or for room on the disk.
const A_TRY: Duration = Duration::from_secs(1);
/// From this try on people are told.
const QUIETLY: u64 = 3;
/// How long a database that was waited for in vain is waited for.
const BRIEFLY: Duration = Duration::from_millis(500);
/// Pieces of work in one transaction, at most.
const BATCH: usize = 512;
/// So many looks without work count as quiet too.
const QUIET_LOOKS: u32 = 50;
/// Without work for this long, the log is moved into the database.
const QUIET: Duration = Duration::from_secs(1);

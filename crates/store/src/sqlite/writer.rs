//! The one thread that uses the database. What was asked meanwhile runs in one transaction, and nobody hears
//! of it before it is committed.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
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
    /// What was last seen of other holders.
    pub(super) watch: Watch,
    /// Rows that could not be read.
    pub(super) reported: Reported,
}

impl Memory {
    /// Forgets the numbers of domains when some of them are gone, whoever removed them.
    fn look_up(&mut self, sql: &Connection) -> rusqlite::Result<()> {
        let forgotten = "SELECT forgotten FROM identity";
        let forgotten = sql.prepare_cached(forgotten)?.query_row([], |row| row.get(0))?;
        if std::mem::replace(&mut self.forgotten, forgotten) != forgotten {
            self.domain_ids.clear();
            self.lane_ids.clear();
        }
        Ok(())
    }
}

/// One piece of work; run inside the transaction, it says what to do once that is over.
type Work = Box<dyn FnOnce(&mut Tx<'_>) -> Result<After, rusqlite::Error> + Send>;
/// Tells whoever asked, after the commit or after its failure.
type After = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

enum Message {
    Work(Work, Refused),
    Version(oneshot::Sender<i64>),
}

/// Tells whoever asked that its work could not be done.
type Refused = Box<dyn FnOnce(StoreError) + Send>;

/// The thread that uses the database.
#[derive(Debug)]
pub(super) struct Writer {
    sender: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, place: Place, memory: Memory) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("comity-store".to_owned())
            .spawn({
                let place = place.clone();
                move || {
                    let _ends = ends;
                    Run { connection, place, memory, locked: false }.run(&receiver);
                }
            })
            .map_err(|error| place.unavailable(format!("no thread could be started: {error}")))?;
        Ok(Self { sender: Some(sender), thread: Some(thread), ended: Mutex::new(ended) })
    }

    /// Runs `work` in the next transaction; its value comes when that is committed.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (sender, receiver) = oneshot::channel::<Result<T, StoreError>>();
        let sender = std::sync::Arc::new(std::sync::Mutex::new(Some(sender)));
        let tell = move |sender: &std::sync::Mutex<Option<oneshot::Sender<_>>>, result| {
            let sender = sender.lock().ok().and_then(|mut sender| sender.take());
            // Whoever does not wait any more need not be told.
            sender.map(|sender| sender.send(result));
        };
        let refused = sender.clone();
        let work: Work = Box::new(move |tx| {
            let value = work(tx)?;
            Ok(Box::new(move |committed: Result<(), StoreError>| tell(&sender, committed.map(|()| value))))
        });
        self.send(Message::Work(work, Box::new(move |error| tell(&refused, Err(error)))));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// A number that changes when another connection committed something.
    pub(super) fn version(&self) -> Reply<'static, i64> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Version(sender));
        Box::pin(async move { receiver.await.map_err(|_| StoreError::Closed) })
    }

    fn send(&self, message: Message) {
        // A closed channel drops the message, and with it the sender of its answer.
        self.sender.as_ref().map(|sender| sender.send(message));
    }
}

impl Drop for Writer {
    /// Waits until everything asked for is committed; for a disk that does not answer any more not for ever.
    fn drop(&mut self) {
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
    /// Another program kept the database locked for as long as we wait.
    locked: bool,
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
                    Message::Work(work, refused) => batch.push((work, refused)),
                    Message::Version(sender) => {
                        let _ = sender.send(self.version());
                    }
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

    fn commit(&mut self, batch: Vec<(Work, Refused)>) {
        let mut afters = Vec::with_capacity(batch.len());
        let mut refusals = Vec::new();
        let many = batch.len() > 1;
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE");
        let mut failed = begun.and_then(|()| self.memory.look_up(&self.connection)).err();
        for (work, refused) in batch {
            if failed.is_none() {
                match if many { self.apart(work) } else { self.work(work).map(Ok) } {
                    Ok(Ok(after)) => afters.push(after),
                    Ok(Err(error)) => {
                        refused(self.place.error(&error));
                        continue;
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if failed.is_some() {
                refusals.push(refused);
            }
        }
        if failed.is_none() {
            failed = self.connection.execute_batch("COMMIT").err();
        }
        // Whoever waits behind one that waited in vain does not wait as long again.
        let locked = failed.as_ref().is_some_and(super::is_busy);
        if locked != std::mem::replace(&mut self.locked, locked) {
            let _ = self.connection.busy_timeout(if locked { BRIEFLY } else { super::BUSY });
        }
        let result = match failed {
            None => Ok(()),
            Some(error) => {
                if !self.connection.is_autocommit() {
                    let _ = self.connection.execute_batch("ROLLBACK");
                }
                self.forget();
                Err(self.place.error(&error))
            }
        };
        if let Err(error) = &result {
            refusals.into_iter().for_each(|refused| refused(error.clone()));
        }
        afters.into_iter().for_each(|after| after(result.clone()));
    }

    fn work(&mut self, work: Work) -> rusqlite::Result<After> {
        work(&mut Tx { sql: &self.connection, memory: &mut self.memory })
    }

    /// Does one piece of work of many. The inner error is its own, and the others continue without it.
    fn apart(&mut self, work: Work) -> rusqlite::Result<rusqlite::Result<After>> {
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
        let Memory { watch, reported, .. } = std::mem::take(&mut self.memory);
        self.memory = Memory { watch, reported, ..Memory::default() };
    }
}

/// How long whoever lets go of the store waits for what was asked of it.
const LAST: Duration = Duration::from_secs(15);
/// How long a database that was found locked is waited for.
const BRIEFLY: Duration = Duration::from_millis(500);
/// Pieces of work in one transaction, at most.
const BATCH: usize = 512;
/// So many looks without work count as quiet too.
const QUIET_LOOKS: u32 = 50;
/// Without work for this long, the log is moved into the database.
const QUIET: Duration = Duration::from_secs(1);

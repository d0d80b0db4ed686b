//! The threads that do the work, each with a connection of its own that it opens when it is first used: one for heartbeats,
//! which nothing else delays; two for everything that writes; one for what only reads.
//!
//! Work is a closure that runs in one transaction. It runs again if two transactions were in each other's way, or if the
//! database went away meanwhile; if the answer to a commit was lost, the stamp that was committed with it tells its outcome.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use comity_core::decision::Outage;
use comity_core::time::Span;
use tokio::sync::oneshot;

use super::connection::{Server, Session, Stamp};
use super::failure::{Failure, Remedy, Result};
use super::shared::Shared;
use super::tx::Tx;
use crate::machine::{Machine, ThisMachine};
use crate::{Reply, StoreError};

/// Which connection does some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Heartbeats, and the time.
    Beat,
    /// Whatever writes.
    Work,
    /// Whatever only reads.
    Read,
}

type Message = Box<dyn FnOnce(&mut Worker) + Send>;

/// The threads.
pub(super) struct Lanes {
    beat: Option<Sender<Message>>,
    work: Option<Sender<Message>>,
    read: Option<Sender<Message>>,
    threads: Vec<JoinHandle<()>>,
    ended: Mutex<Receiver<()>>,
    shared: Arc<Shared>,
}

impl Lanes {
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let (ends, ended) = channel();
        let mut threads = Vec::new();
        let mut senders = Vec::new();
        for (count, patience) in [(1, BEAT_PATIENCE), (WORKERS, WORK_PATIENCE), (1, WORK_PATIENCE)] {
            let (sender, receiver) = channel::<Message>();
            let receiver = Arc::new(Mutex::new(receiver));
            for _ in 0..count {
                let mut worker = Worker {
                    nth: threads.len(),
                    patience,
                    session: None,
                    id: super::random(),
                    asked: Span::ZERO,
                    shared: shared.clone(),
                };
                let (receiver, ends) = (receiver.clone(), ends.clone());
                let thread =
                    std::thread::Builder::new().name("comity-store".to_owned()).spawn(move || {
                        let _ends = ends;
                        loop {
                            let message = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                            match message {
                                Ok(message) => message(&mut worker),
                                Err(_) => return,
                            }
                        }
                    })?;
                threads.push(thread);
            }
            senders.push(sender);
        }
        let (read, work, beat) = (senders.pop(), senders.pop(), senders.pop());
        Ok(Self { beat, work, read, threads, ended: Mutex::new(ended), shared })
    }

    /// Runs `work` in a transaction that may write. Its value is returned after the commit.
    pub(super) fn write<T: Send + 'static>(
        &self,
        lane: Lane,
        mut work: impl FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.send(lane, move |worker| worker.write(&mut work))
    }

    /// Runs `work` in a transaction that only reads, and sees one state of the database.
    pub(super) fn read<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.send(Lane::Read, move |worker| worker.read(&mut work))
    }

    /// Runs `work` on a thread that may wait for the database.
    pub(super) fn send<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce(&mut Worker) -> std::result::Result<T, StoreError> + Send + 'static,
    ) -> Reply<'static, T> {
        let (sender, receiver) = oneshot::channel();
        let asked = ThisMachine.up();
        let message: Message = Box::new(move |worker| {
            worker.asked = asked;
            let location = worker.shared.location.clone();
            let done = catch_unwind(AssertUnwindSafe(|| work(worker)));
            if done.is_err() {
                worker.session = None;
            }
            let done = done.unwrap_or_else(|_| Err(location.rejected("a panic while the store was used")));
            // The caller may not be waiting any more.
            let _ = sender.send(done);
        });
        let lane = match lane {
            Lane::Beat => &self.beat,
            Lane::Work => &self.work,
            Lane::Read => &self.read,
        };
        // A closed channel drops the message and, with it, the sender of the answer.
        lane.as_ref().map(|sender| sender.send(message));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }
}

impl Drop for Lanes {
    /// Waits until everything requested is committed, but not forever if the database hangs.
    fn drop(&mut self) {
        self.shared.outages.set_patience(Span::ZERO);
        (self.beat, self.work, self.read) = (None, None, None);
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(CLOSE_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

/// One thread and its connection.
pub(super) struct Worker {
    nth: usize,
    /// The longest time a statement may take.
    patience: Duration,
    session: Option<Session>,
    /// Its row in the table of stamps.
    id: i64,
    /// The machine's uptime when the current work was asked for.
    asked: Span,
    pub(super) shared: Arc<Shared>,
}

/// How one attempt to commit ended.
enum Ended<T> {
    Committed(T),
    /// The answer to the commit was lost.
    Unsure(T, Server, Stamp, Failure),
}

impl Worker {
    /// Runs work in a transaction until it is committed or cannot be.
    pub(super) fn write<T>(
        &mut self,
        work: &mut dyn FnMut(&mut Tx<'_>) -> Result<T>,
    ) -> std::result::Result<T, StoreError> {
        let mut conflicts = 0;
        loop {
            match self.attempt(work) {
                Ok(Ended::Committed(value)) => {
                    self.works();
                    return Ok(value);
                }
                Ok(Ended::Unsure(value, server, stamp, why)) => {
                    if self.was_committed(&server, stamp, &why)? {
                        self.works();
                        return Ok(value);
                    }
                }
                Err(failure) => self.failed(&failure, &mut conflicts)?,
            }
        }
    }

    /// Runs work in a transaction that only reads.
    pub(super) fn read<T>(
        &mut self,
        work: &mut dyn FnMut(&mut Tx<'_>) -> Result<T>,
    ) -> std::result::Result<T, StoreError> {
        let mut conflicts = 0;
        loop {
            let asked = self.asked;
            let read = self.session().and_then(|(session, shared)| {
                session.begin_reading(&shared.location.schema)?;
                let value = work(&mut Tx::new(session, &shared.watch).asked_at(asked))?;
                session.commit()?;
                Ok(value)
            });
            match read {
                Ok(value) => {
                    self.works();
                    return Ok(value);
                }
                Err(failure) => self.failed(&failure, &mut conflicts)?,
            }
        }
    }

    /// Runs something on the connection, without a transaction and without waiting for the database.
    pub(super) fn directly<T>(
        &mut self,
        work: impl FnOnce(&Session) -> Result<T>,
    ) -> std::result::Result<T, StoreError> {
        let done = self.session().and_then(|(session, _)| work(session));
        done.map_err(|failure| {
            self.session = None;
            self.error(&failure)
        })
    }

    fn session(&mut self) -> Result<(&Session, &Shared)> {
        if self.session.as_ref().is_none_or(Session::is_closed) {
            self.session = None;
            self.session = Some(Session::open(&self.shared.location, self.patience)?);
        }
        match &self.session {
            Some(session) => Ok((session, &self.shared)),
            None => Err(Failure::Timeout),
        }
    }

    fn attempt<T>(&mut self, work: &mut dyn FnMut(&mut Tx<'_>) -> Result<T>) -> Result<Ended<T>> {
        let server = match self.begin() {
            // An idle connection may have been closed by the server meanwhile: that is no outage.
            Err(failure) if failure.breaks_connection() && self.session.take().is_some() => self.begin()?,
            begun => begun?,
        };
        let asked = self.asked;
        // The connection that the transaction was begun on, and no other.
        let (Some(session), shared) = (&self.session, &self.shared) else { return Err(Failure::Timeout) };
        let mut tx = Tx::new(session, &shared.watch).asked_at(asked).in_use(shared, server.history);
        let value = work(&mut tx)?;
        let (changed, news) = (tx.has_changed(), tx.has_news());
        if news {
            tell(&mut tx, shared)?;
        }
        if changed && let Some(hook) = &shared.before_commit {
            hook();
        }
        let stamp = Stamp { id: self.id, n: super::random() };
        let committed = if changed { session.commit_stamped(stamp) } else { session.commit() };
        match committed {
            Ok(()) => Ok(Ended::Committed(value)),
            Err(failure) if changed && failure.breaks_connection() => {
                self.session = None;
                Ok(Ended::Unsure(value, server, stamp, failure))
            }
            Err(failure) => Err(failure),
        }
    }

    fn begin(&mut self) -> Result<Server> {
        let (session, shared) = self.session()?;
        let server = session.begin(&shared.location.schema)?;
        shared.meet(&server)?;
        Ok(server)
    }

    /// Looks up whether a transaction was committed whose answer was lost.
    fn was_committed(
        &mut self,
        server: &Server,
        stamp: Stamp,
        why: &Failure,
    ) -> std::result::Result<bool, StoreError> {
        let uncertain = |worker: &Self, what: String| StoreError::Uncertain {
            location: worker.shared.location.to_string(),
            what,
        };
        let mut conflicts = 0;
        loop {
            let looked_up = self.begin().and_then(|now| {
                let (Some(session), shared) = (&self.session, &self.shared) else {
                    return Err(Failure::Timeout);
                };
                let mut tx = Tx::new(session, &shared.watch);
                let is_there =
                    tx.exists("SELECT 1 FROM stamp WHERE id = $1 AND n = $2", &[&stamp.id, &stamp.n])?;
                let is_same = (now.history, &now.started) == (server.history, &server.started);
                let status = match (is_there, is_same) {
                    (true, _) => Some("committed".to_owned()),
                    // Nothing is still being committed, and the id may belong to another transaction by now.
                    (false, false) => Some("aborted".to_owned()),
                    (false, true) => {
                        let rows = tx.rows("SELECT pg_xact_status($1::text::xid8)", &[&server.xid])?;
                        rows.first().and_then(|row| row.get::<_, Option<String>>(0))
                    }
                };
                session.commit()?;
                Ok(status)
            });
            match looked_up.as_ref().map(Option::as_deref) {
                Ok(Some("committed")) => return Ok(true),
                Ok(Some("aborted")) => return Ok(false),
                // The server has not noticed yet that the connection broke, or waits for a standby.
                Ok(Some("in progress")) => {
                    let outages = &self.shared.outages;
                    outages.failed(self.nth, Outage::Locked, "the last changes are still being saved")?;
                }
                Ok(_) => return Err(uncertain(self, why.what())),
                Err(failure) => {
                    self.failed(failure, &mut conflicts).map_err(|error| uncertain(self, error.what()))?
                }
            }
        }
    }

    /// Returns when it is time to run work again after a failure, or an error if that does not help.
    fn failed(&mut self, failure: &Failure, conflicts: &mut u32) -> std::result::Result<(), StoreError> {
        let is_usable = !failure.breaks_connection() && self.session.as_ref().is_some_and(Session::roll_back);
        if !is_usable {
            self.session = None;
        }
        match failure.remedy() {
            Remedy::Again if *conflicts < CONFLICTS_MAX => {
                *conflicts += 1;
                // Not at the same time as the other one again.
                std::thread::sleep(Duration::from_millis(u64::from(*conflicts) * (1 + self.nth as u64)));
                Ok(())
            }
            Remedy::Wait(outage) => {
                // Perhaps nobody can renew its lease now, so nobody is declared dead for it.
                self.shared.watch.clear();
                self.shared.outages.failed(self.nth, outage, &failure.what())
            }
            Remedy::Again => Err(self.shared.location.outage(Outage::Locked, failure.what())),
            Remedy::GiveUp => Err(self.error(failure)),
        }
    }

    fn works(&self) {
        if self.shared.outages.works(self.nth) {
            // Nobody could renew its lease meanwhile, so nobody is declared dead for it.
            self.shared.watch.clear();
        }
    }

    fn error(&self, failure: &Failure) -> StoreError {
        let location = &self.shared.location;
        match (failure, failure.remedy()) {
            (Failure::Lost, _) => StoreError::Lost,
            (_, Remedy::Wait(outage)) => location.outage(outage, failure.what()),
            _ => location.rejected(failure.what()),
        }
    }
}

/// Tells other processes that there is something for them. Notifications are sent now and then, because each takes a lock
/// that all commits of the database share; who missed one looks a quarter of a second later.
fn tell(tx: &mut Tx<'_>, shared: &Shared) -> Result<()> {
    tx.change("UPDATE news SET n = n + 1", &[])?;
    let now = ThisMachine.up().as_micros();
    let last = shared.notified.load(Ordering::Relaxed);
    if last == 0 || now.saturating_sub(last) >= NOTIFY_EVERY.as_micros() {
        shared.notified.store(now, Ordering::Relaxed);
        let channel = channel_of(&shared.location.schema);
        tx.rows("SELECT pg_notify($1, '')", &[&channel])?;
    }
    Ok(())
}

/// The channel of a store's notifications.
pub(super) fn channel_of(schema: &str) -> String {
    format!("comity_{schema}").chars().take(CHANNEL_MAX).collect()
}

/// Connections for work that writes.
const WORKERS: usize = 2;
/// The longest time a statement of a heartbeat may take: its lease runs meanwhile.
const BEAT_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time any other statement may take.
const WORK_PATIENCE: Duration = Duration::from_secs(60);
/// How long closing the store waits for outstanding work.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often work runs again because of others.
const CONFLICTS_MAX: u32 = 50;
/// The shortest time between two notifications of a process.
const NOTIFY_EVERY: Span = Span::from_millis(50);
/// PostgreSQL's limit for names.
const CHANNEL_MAX: usize = 63;

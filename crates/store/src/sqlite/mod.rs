//! The SQLite store: one file in WAL mode, one writer thread and one reader thread. Requests that arrive while the
//! writer is busy share one transaction.
//!
//! Several processes on one machine can share a file. The in-memory store is the same code on a database that is never
//! written to disk.
//!
//! - `location`: where the database is, and what SQLite's errors mean to a person
//! - `files`: the files of a store and their permissions
//! - `schema`: tables and migrations
//! - `identity`: which store this is, and whether it is a restored copy
//! - `opening`: opening a database and the checks before it is used; `open_store`: what the threads share
//! - `writer`: the writer thread; `reader`: the reader thread for lists and lookups
//! - `waiting`: waiting while the database is unavailable; `lock_owner`: which process has it locked
//! - `holders`: which processes are alive
//! - `timeline`: the time shared by all processes
//! - `unreadable_rows`: skipping rows that cannot be read; `stranded`: tasks that no claim returns because of one
//! - `backup`: copying the database; `copying`: from and to another kind of database; `part`: files that
//!   appear once they are complete
//! - `idle_domains`: deleting domains with nothing worth keeping; `retention`: deleting old rows; `used_ids`: which ids
//!   are never given out again
//! - `settling` and `results`: results of tasks; `job_retry`: reopening jobs, and removing them
//! - `request_parts`: method, body and headers of tasks; `origins`: origins listed in a job
//! - `activity`, `audit`: what happens on domains, and who changed what; `failures`: failed tasks by reason
//! - `domains`, `permits`, `jobs`, `tasks`, `sources`, `items`, `details`, `scrapes`, `sharing`, `hooks`, `wiki`,
//!   `wiki_files`, `status`, `robots`, `counts_and_secrets`: one part of the `Store` trait each, next to its SQL
//!
//! This file opens and closes the store.

mod activity;
mod audit;
mod backup;
#[cfg(feature = "postgres")]
pub(crate) mod copying;
mod counts_and_secrets;
mod details;
mod domains;
mod failures;
mod files;
mod holders;
mod hooks;
mod identity;
mod idle_domains;
mod items;
mod job_retry;
mod jobs;
mod location;
mod lock_owner;
mod open_store;
mod opening;
mod origins;
mod part;
mod permits;
mod reader;
mod request_parts;
mod results;
mod retention;
mod robots;
mod schema;
mod scrapes;
mod settling;
mod sharing;
mod sources;
mod status;
mod stranded;
mod tasks;
mod timeline;
mod unreadable_rows;
mod used_ids;
mod waiting;
mod wiki;
mod wiki_files;
mod writer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use comity_core::time::{Span, Timestamp};
use rusqlite::Connection;

use crate::PATIENCE;
use crate::backup::{Existing, Progress};
use crate::machine::{Machine, ThisMachine};
use crate::{Availability, Identity, Reply, Store, StoreError};
use holders::Liveness;
use location::Location;
use open_store::OpenStore;
use opening::{Connected, connect, initialize, real};
use reader::{ReadResult, Reader};
use writer::{Tx, Writer};

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    /// Serves lists and lookups. `None` for an in-memory database, whose only connection does everything. Closed before
    /// the writer.
    reader: Option<Reader>,
    writer: Writer,
    location: Location,
    liveness: Liveness,
    open_store: Arc<OpenStore>,
    /// The clocks that the store's time is derived from.
    machine: Arc<dyn Machine>,
    notes: Vec<String>,
}

impl Sqlite {
    /// Opens the database at `path`, creating it if it does not exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_as(path.as_ref(), None, PATIENCE)
    }

    /// Replaces the clocks, as if this process ran on another machine or at another time. For tests.
    #[doc(hidden)]
    pub fn on(self, machine: Arc<dyn Machine>) -> Self {
        Self { machine, ..self }
    }

    /// Calls `hook` on the writer thread in each transaction that changed something, after its last statement and
    /// before its commit. For tests that hold a transaction open.
    #[doc(hidden)]
    pub fn before_commit(self, hook: impl Fn() + Send + 'static) -> Self {
        self.writer.before_commit(Box::new(hook));
        self
    }

    /// Opens a database that was in use before. It is never created, and a different store in its place is refused.
    pub fn reopen(path: impl AsRef<Path>, known: &Identity) -> Result<Self, StoreError> {
        Self::open_as(path.as_ref(), Some(known), PATIENCE)
    }

    pub(crate) fn open_as(path: &Path, known: Option<&Identity>, patience: Span) -> Result<Self, StoreError> {
        let location = Location::File(path.to_owned());
        let Connected { connection, identity, opened } =
            waiting::open_waiting(&location, patience, || connect(path, &location, known))?;
        let open_store = Arc::new(OpenStore::new(location, identity, Some(opened)));
        // Open the reading connection now rather than on first use. If that fails, reads go through the writer.
        drop(open_store.reading());
        let mut store = Self::start(connection, Liveness::beside(&real(path)), open_store, patience)?;
        store.reader = Reader::start(store.open_store.clone()).ok();
        store.notes = files::tighten(&real(path));
        Ok(store)
    }

    /// Opens an in-memory database, which disappears when it is closed.
    pub fn in_memory() -> Result<Self, StoreError> {
        let mut connection = Connection::open_in_memory().map_err(|error| Location::Memory.error(&error))?;
        let identity = initialize(&mut connection, &Location::Memory, None, "")?;
        let liveness = Liveness::InProcess(Arc::new(Mutex::new(HashSet::new())));
        let open_store = Arc::new(OpenStore::new(Location::Memory, identity, None));
        Self::start(connection, liveness, open_store, PATIENCE)
    }

    fn start(
        connection: Connection,
        liveness: Liveness,
        open_store: Arc<OpenStore>,
        patience: Span,
    ) -> Result<Self, StoreError> {
        let (location, machine) = (open_store.location.clone(), Arc::new(ThisMachine));
        let writer = Writer::start(connection, open_store.clone(), patience)?;
        Ok(Self { reader: None, writer, location, liveness, open_store, machine, notes: Vec::new() })
    }

    /// Runs a read-only query concurrently with the writer. If the database cannot be read right now, the query goes
    /// through the writer, which waits for it.
    fn read<T: Send + 'static>(
        &self,
        query: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let Some(reader) = &self.reader else { return self.writer.run(query) };
        let (reading, writer) = (reader.run(query), self.writer.handle());
        Box::pin(async move {
            match reading.await? {
                ReadResult::Found(value) => Ok(value),
                ReadResult::Unavailable(query) => writer.run(query).await,
            }
        })
    }
}

impl Store for Sqlite {
    fn location(&self) -> String {
        self.location.to_string()
    }

    fn identity(&self) -> Identity {
        self.open_store.identity()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn set_patience(&self, patience: Span) {
        self.writer.set_patience(patience);
    }

    fn availability(&self) -> Arc<Availability> {
        self.writer.availability()
    }

    fn backup(&self, file: PathBuf, existing: Existing, progress: Arc<Progress>) -> Reply<'_, u64> {
        backup::backup(self.open_store.clone(), file, existing, progress)
    }
}

/// Whether there is no database at `path`, and no trace of one that was there a moment ago.
pub(crate) fn is_missing(path: &Path) -> bool {
    let file = files::follow(path);
    let log = files::beside(&file, "-wal");
    files::is_missing(&file) && !files::has_content(&log) && !Liveness::beside(&file).is_anyone_alive()
}

/// A timestamp as a column value.
fn us(at: Timestamp) -> i64 {
    at.as_micros()
}

/// A column value as a timestamp.
fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

//! The store in SQLite: one file, one thread that writes, one that reads for people, WAL, transactions of everything asked
//! meanwhile.
//!
//! Several processes of one machine may share a file. The store in memory is the same code on a database that
//! is never written to disk.
//!
//! - `place`: where the file is, and what its errors mean
//! - `files`: the files it consists of, and who may read them
//! - `schema`: the tables
//! - `identity`: which store it is
//! - `opening`: what must hold before it is used; `in_use`: what its threads share
//! - `writer`: the thread that writes; `reader`: the one that reads for people
//! - `patience`: waiting for one that is locked, full, gone or unreadable; `lockers`: who keeps it locked
//! - `holders`: who lives
//! - `timeline`: which time it is
//! - `aside`: rows that cannot be read
//! - `backup`: a copy of it
//! - `forgetting`: domains of which nothing is worth keeping; `retention`: rows that are old
//! - `results`: what became of tasks; `reopening`: which of them wait again, and jobs that are removed
//! - `domains`, `jobs`, `tasks`, `sources`, `items`, `details`, `scrapes`, `sharing`, `hooks`, `wiki`, `wiki_files`, `status`, `robots`, `shared`: what
//!   each part of the contract does, beside its SQL
//!
//! Here: opening and closing.

mod aside;
mod backup;
mod details;
mod domains;
mod files;
mod forgetting;
mod holders;
mod hooks;
mod identity;
mod in_use;
mod items;
mod jobs;
mod lockers;
mod opening;
mod origins;
mod patience;
mod permits;
mod place;
mod reader;
mod reopening;
mod results;
mod retention;
mod robots;
mod schema;
mod scrapes;
mod sends;
mod shared;
mod sharing;
mod sources;
mod status;
mod tasks;
mod timeline;
mod wiki;
mod wiki_files;
mod writer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use comity_core::time::{Span, Timestamp};
use rusqlite::Connection;

use crate::backup::{Existing, Progress};
use crate::machine::{Machine, ThisMachine};
use crate::{Availability, Identity, Reply, Store, StoreError};
use holders::Living;
use in_use::InUse;
use opening::{Link, connect, real, settle_in};
use place::Place;
use reader::{Looked, Reader};
use writer::{Tx, Writer};

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    /// Reads for people; a database in memory has one connection, which does everything. Closed before the writer.
    reader: Option<Reader>,
    writer: Writer,
    place: Place,
    living: Living,
    in_use: Arc<InUse>,
    /// What the time is made of.
    machine: Arc<dyn Machine>,
    notes: Vec<String>,
}

impl Sqlite {
    /// Opens the database at `path`, which is made when it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_as(path.as_ref(), None, PATIENCE)
    }

    /// This store as a process on another machine, or at another time, would see it.
    #[doc(hidden)]
    pub fn on(self, machine: Arc<dyn Machine>) -> Self {
        Self { machine, ..self }
    }

    /// This store with `hook` called inside each transaction that changed something, after its last statement and before
    /// its commit, on the thread that writes. For tests that hold a transaction open.
    #[doc(hidden)]
    pub fn before_commit(self, hook: impl Fn() + Send + 'static) -> Self {
        self.writer.before_commit(Box::new(hook));
        self
    }

    /// Opens a database that was in use before. It is never made, and another one in its place is refused.
    pub fn reopen(path: impl AsRef<Path>, known: &Identity) -> Result<Self, StoreError> {
        Self::open_as(path.as_ref(), Some(known), PATIENCE)
    }

    pub(crate) fn open_as(path: &Path, known: Option<&Identity>, patience: Span) -> Result<Self, StoreError> {
        let place = Place::File(path.to_owned());
        let Link { connection, identity, opened } =
            patience::opened(&place, patience, || connect(path, &place, known))?;
        let in_use = Arc::new(InUse::new(place, identity, Some(opened)));
        // Opened by now, and not only when somebody looks. Where that fails, people wait their turn.
        drop(in_use.reading());
        let mut store = Self::start(connection, Living::beside(&real(path)), in_use, patience)?;
        store.reader = Reader::start(store.in_use.clone()).ok();
        store.notes = files::tighten(&real(path));
        Ok(store)
    }

    /// A database in memory, gone with its last user.
    pub fn in_memory() -> Result<Self, StoreError> {
        let mut connection = Connection::open_in_memory().map_err(|error| Place::Memory.error(&error))?;
        let identity = settle_in(&mut connection, &Place::Memory, None, "")?;
        let living = Living::Here(Arc::new(Mutex::new(HashSet::new())));
        let in_use = Arc::new(InUse::new(Place::Memory, identity, None));
        Self::start(connection, living, in_use, PATIENCE)
    }

    fn start(
        connection: Connection,
        living: Living,
        in_use: Arc<InUse>,
        patience: Span,
    ) -> Result<Self, StoreError> {
        let (place, machine) = (in_use.place.clone(), Arc::new(ThisMachine));
        let writer = Writer::start(connection, in_use.clone(), patience)?;
        Ok(Self { reader: None, writer, place, living, in_use, machine, notes: Vec::new() })
    }

    /// Runs `look`, which changes nothing, beside whatever is being written. What cannot be read at the moment is waited
    /// for with everybody who writes.
    fn read<T: Send + 'static>(
        &self,
        look: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let Some(reader) = &self.reader else { return self.writer.run(look) };
        let (looking, writer) = (reader.run(look), self.writer.remote());
        Box::pin(async move {
            match looking.await? {
                Looked::Seen(value) => Ok(value),
                Looked::Away(look) => writer.run(look).await,
            }
        })
    }
}

impl Store for Sqlite {
    fn place(&self) -> String {
        self.place.to_string()
    }

    fn identity(&self) -> Identity {
        self.in_use.identity()
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
        backup::backup(self.in_use.clone(), file, existing, progress)
    }
}

/// A moment as it stands in a column.
fn us(at: Timestamp) -> i64 {
    at.as_micros()
}

/// A column as a moment.
fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// How long a database that is away is waited for unless somebody says otherwise.
pub(crate) const PATIENCE: Span = patience::BRIEF;

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
//! - `writer`: the thread that writes; `reader`: the one that reads for people
//! - `holders`: who lives
//! - `timeline`: which time it is
//! - `aside`: rows that cannot be read
//! - `forgetting`: domains of which nothing is worth keeping
//! - `domains`, `jobs`, `tasks`, `sources`, `items`, `scrapes`, `wiki`, `wiki_files`, `status`, `robots`, `shared`: what
//!   each part of the contract does, beside its SQL
//!
//! Here: opening and closing.

mod aside;
mod domains;
mod files;
mod forgetting;
mod holders;
mod identity;
mod items;
mod jobs;
mod permits;
mod place;
mod reader;
mod robots;
mod schema;
mod scrapes;
mod shared;
mod sources;
mod status;
mod tasks;
mod timeline;
mod wiki;
mod wiki_files;
mod writer;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity_core::time::{Span, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::domains::HolderId;
use crate::machine::{Machine, ThisMachine};
use crate::{Identity, Reply, Store, StoreError};
use files::{Mark, Opened, Replaced};
use holders::{Living, Proof};
use place::Place;
use reader::Reader;
use writer::{Memory, Tx, Writer};

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    /// Reads for people; a database in memory has one connection, which does everything. Closed before the writer.
    reader: Option<Reader>,
    writer: Writer,
    place: Place,
    living: Living,
    /// The holders of this process, alive while they are in here.
    proofs: Arc<Mutex<HashMap<HolderId, Proof>>>,
    /// The files that were opened, to notice when others lie in their place.
    opened: Option<Opened>,
    identity: Identity,
    /// What the time is made of.
    machine: Arc<dyn Machine>,
    /// Its files were deleted or replaced while it was open.
    doubtful: AtomicBool,
    notes: Vec<String>,
}

impl Sqlite {
    /// Opens the database at `path`, which is made when it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_as(path.as_ref(), None)
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
        Self::open_as(path.as_ref(), Some(known))
    }

    fn open_as(path: &Path, known: Option<&Identity>) -> Result<Self, StoreError> {
        let place = Place::File(path.to_owned());
        match known {
            None => make(&files::follow(path), &place)?,
            Some(_) if files::is_missing(&files::follow(path)) => {
                let gone =
                    "is gone; put it back or mount its volume: a store that was in use is not created again";
                return Err(place.unavailable(gone));
            }
            Some(_) => make(&files::follow(path), &place)?,
        }
        refuse_second_name(path, &place)?;
        refuse_without_log(path, &place)?;
        let (before, birth) = (Mark::of(path), files::birth(path));
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| place.error(&error))?;
        let mut store = Self::start(connection, place, Living::beside(&real(path)), known, &birth)?;
        // Where no second connection can be had, people wait their turn.
        store.reader = open_to_read(path).ok().and_then(|sql| Reader::start(sql, store.place.clone()).ok());
        let opened = Opened::at(&real(path));
        if Mark::of(path) != before {
            return Err(store.place.unavailable("was replaced while it was being opened; try again"));
        }
        (store.opened, store.notes) = (Some(opened), files::tighten(&real(path)));
        Ok(store)
    }

    /// A database in memory, gone with its last user.
    pub fn in_memory() -> Result<Self, StoreError> {
        let connection = Connection::open_in_memory().map_err(|error| Place::Memory.error(&error))?;
        let living = Living::Here(Arc::new(Mutex::new(HashSet::new())));
        Self::start(connection, Place::Memory, living, None, "")
    }

    fn start(
        mut connection: Connection,
        place: Place,
        living: Living,
        known: Option<&Identity>,
        file: &str,
    ) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY).map_err(|error| place.error(&error))?;
        schema::recognise(&connection, &place)?;
        if let Some(known) = known {
            identity::compare(&connection, &place, known)?;
        }
        prepare(&connection).map_err(|error| place.error(&error))?;
        schema::migrate(&mut connection, &place)?;
        let identity = identity::settle_in(&mut connection, &place, known, file)?;
        let writer = Writer::start(connection, place.clone(), Memory::default())?;
        let (proofs, doubtful) = (Arc::default(), AtomicBool::new(false));
        let machine = Arc::new(ThisMachine);
        Ok(Self {
            reader: None,
            writer,
            place,
            living,
            proofs,
            opened: None,
            identity,
            machine,
            doubtful,
            notes: Vec::new(),
        })
    }

    /// Runs `look`, which changes nothing, beside whatever is being written.
    fn read<T: Send + 'static>(
        &self,
        look: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        match &self.reader {
            Some(reader) => reader.run(look),
            None => self.writer.run(look),
        }
    }

    /// An error when the files of the database are gone, or others by now: what is written would be lost, and others
    /// would not see it.
    fn check_files(&self) -> Result<(), StoreError> {
        let Some(Replaced { path, is_log }) = self.opened.as_ref().and_then(Opened::replaced) else {
            return Ok(());
        };
        // What is only in the log goes with it. A database that is gone has its log when it comes back.
        self.doubtful.fetch_or(is_log, Ordering::Relaxed);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Err(self.place.unavailable(format!("the file {name} was deleted or replaced while it was in use")))
    }
}

/// By whatever name a database is opened, what belongs to it lies beside the file itself.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Makes an empty file for a database, unless something is there, or was until a moment ago.
fn make(path: &Path, place: &Place) -> Result<(), StoreError> {
    // Whoever makes one at the same time makes the database first: one that is there now was not deleted.
    let deleted = |sign: bool| sign && files::is_missing(path);
    if !files::is_empty(path) {
        return Ok(());
    }
    let log = files::beside(path, "-wal");
    // SQLite deletes the log of a database that is empty, and all that was written is in there.
    if files::has_content(&log) && files::is_empty(path) {
        let is = if files::is_missing(path) { "is gone" } else { "is empty" };
        return Err(place.unavailable(format!(
            "{is}, but its log {} is not: put the database back, or delete the log too to start anew",
            log.display()
        )));
    }
    if deleted(Living::beside(&real(path)).is_anybody()) {
        return Err(
            place.unavailable("is gone, but processes use it: put it back, or end them to start anew")
        );
    }
    // What cannot be made is told by SQLite, which cannot open it either.
    let _ = files::create(path);
    Ok(())
}

/// Refuses a database that is in several folders at once: whoever opens it by another of its names has another log, does
/// not see who else uses it, and sends as well.
fn refuse_second_name(path: &Path, place: &Place) -> Result<(), StoreError> {
    match files::names(path) {
        0 | 1 => Ok(()),
        names => Err(place.unavailable(format!(
            "has {names} names (hard links), and processes that use different ones do not see each other: \
             delete all but one (a copy is made with: sqlite3 STORE '.backup COPY')"
        ))),
    }
}

/// Refuses a database whose log or its index was deleted while others use it: they would not see what is written to a
/// new one, and both would send.
fn refuse_without_log(path: &Path, place: &Place) -> Result<(), StoreError> {
    let real = real(path);
    let living = Living::beside(&real);
    let missing = || {
        let is_made = std::fs::metadata(&real).is_ok_and(|file| file.len() > 0);
        let log =
            ["-wal", "-shm"].map(|ending| files::beside(&real, ending)).into_iter().find(|log| !log.exists());
        log.filter(|_| is_made && living.is_anybody())
    };
    for _ in 0..LOG_TRIES {
        // One that is just ending removes its log a moment before its lock.
        if missing().is_none() {
            return Ok(());
        }
        std::thread::sleep(LOG_TRY);
    }
    match missing() {
        None => Ok(()),
        Some(log) => Err(place.unavailable(format!(
            "{} was deleted while other processes use it; end them first, then start again",
            log.display()
        ))),
    }
}

/// A connection that only reads.
fn open_to_read(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    tune(&connection)?;
    // Opened by now, and not only when somebody looks: it must be the same file.
    connection.query_row("SELECT 1 FROM identity", [], |_| Ok(()))?;
    Ok(connection)
}

/// Statements are compiled once and kept. SQLite would compile them anew for other values, as their number of rows may
/// suggest another plan; ours have one good plan each.
fn tune(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Durable against a kill, not against a power cut in the last moments; a log that is moved over seldom.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    tune(connection)?;
    // Two processes that make the database at once: the second waits for the first.
    let wal = || connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()));
    connection.busy_timeout(Duration::ZERO)?;
    for tries in 0.. {
        match wal() {
            Err(error) if is_busy(&error) && tries < 500 => std::thread::sleep(Duration::from_millis(20)),
            result => {
                result?;
                break;
            }
        }
    }
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "journal_size_limit", 256 << 20)?;
    connection.pragma_update(None, "cache_size", -(64 << 10))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

impl Store for Sqlite {
    fn place(&self) -> String {
        self.place.to_string()
    }

    fn identity(&self) -> Identity {
        let _ = self.check_files();
        Identity { doubtful: self.doubtful.load(Ordering::Relaxed), ..self.identity.clone() }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn set_patience(&self, patience: Span) {
        self.writer.set_patience(patience.into());
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

/// How long another program may keep the database locked.
const BUSY: Duration = Duration::from_secs(10);
/// Compiled statements that are kept: more than there are.
const STATEMENTS: usize = 300;
/// A log that is missing is looked for so many times,
const LOG_TRIES: u32 = 50;
/// so far apart.
const LOG_TRY: Duration = Duration::from_millis(20);

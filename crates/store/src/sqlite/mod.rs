//! The store in SQLite: one file, one thread that uses it, WAL, transactions of everything asked meanwhile.
//!
//! Several processes of one machine may share a file. The store in memory is the same code on a database that
//! is never written to disk.
//!
//! - `place`: where the file is, and what its errors mean
//! - `schema`: the tables
//! - `writer`: the thread
//! - `holders`: who lives
//! - `aside`: rows that cannot be read
//! - `domains`, `jobs`, `tasks`, `sources`, `items`, `scrapes`, `wiki`, `wiki_files`, `status`, `robots`, `shared`: what
//!   each part of the contract does, beside its SQL
//!
//! Here: opening and closing.

mod aside;
mod domains;
mod holders;
mod items;
mod jobs;
mod place;
mod robots;
mod schema;
mod scrapes;
mod shared;
mod sources;
mod status;
mod tasks;
mod wiki;
mod wiki_files;
mod writer;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags};

use crate::domains::HolderId;
use crate::{Store, StoreError};
use holders::{Living, Proof};
use place::Place;
use writer::{Memory, Writer};

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    writer: Writer,
    place: Place,
    living: Living,
    /// The holders of this process, alive while they are in here.
    proofs: Arc<Mutex<HashMap<HolderId, Proof>>>,
    /// The file that was opened, to notice when another one lies in its place.
    file: Option<u64>,
}

impl Sqlite {
    /// Opens the database at `path`, which is made when it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let place = Place::File(path.as_ref().to_owned());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path.as_ref(), flags).map_err(|error| place.error(&error))?;
        // By whatever name it was opened, its holders are found beside the file itself.
        let real = path.as_ref().canonicalize().unwrap_or_else(|_| path.as_ref().to_owned());
        Self::start(connection, place, Living::beside(&real))
    }

    /// A database in memory, gone with its last user.
    pub fn in_memory() -> Result<Self, StoreError> {
        let connection = Connection::open_in_memory().map_err(|error| Place::Memory.error(&error))?;
        Self::start(connection, Place::Memory, Living::Here(Arc::new(Mutex::new(HashSet::new()))))
    }

    fn start(mut connection: Connection, place: Place, living: Living) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY).map_err(|error| place.error(&error))?;
        schema::recognise(&connection, &place)?;
        prepare(&connection).map_err(|error| place.error(&error))?;
        schema::migrate(&mut connection, &place)?;
        let file = place.path().and_then(file_number);
        let writer = Writer::start(connection, place.clone(), Memory::default())?;
        let proofs = Arc::default();
        Ok(Self { writer, place, living, proofs, file })
    }
}

/// Durable against a kill, not against a power cut in the last moments; a log that is moved over seldom.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(100);
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

/// The number of a file on its disk.
#[cfg(unix)]
fn file_number(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| file.ino())
}

#[cfg(not(unix))]
fn file_number(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|_| 0)
}

impl Store for Sqlite {
    fn place(&self) -> String {
        self.place.to_string()
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

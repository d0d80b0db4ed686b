//! Opens a database, checks it, and prepares it for use. Waiting for a locked one is in `waiting`; reopening after an
//! outage is in `writer::outage`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_core::decision::Outage;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::files::{self, FileId, Opened};
use super::holders::Liveness;
use super::location::{Location, outage_of};
use super::waiting::LOCK_TIMEOUT;
use super::{identity, schema};
use crate::{Identity, StoreError};

/// A database file that was opened.
pub(super) struct Connected {
    pub(super) connection: Connection,
    pub(super) identity: Identity,
    pub(super) opened: Opened,
}

/// Opens the database at `path`. One that was in use before is never created, and a different store in its place is
/// refused.
pub(super) fn connect(
    path: &Path,
    location: &Location,
    known: Option<&Identity>,
) -> Result<Connected, StoreError> {
    let file = files::follow(path);
    if known.is_some() && files::is_missing(&file) {
        let gone = "is gone; put it back, or mount its volume; a store that was in use is never recreated";
        return Err(location.outage(Outage::Gone, gone));
    }
    if let Some(what) = special_file(&file) {
        // A store that was in use may be put back.
        return Err(match known {
            Some(_) => location.outage(Outage::Unreadable, what),
            None => location.unavailable(what),
        });
    }
    create_database(&file, location)?;
    refuse_second_name(path, location)?;
    refuse_without_log(path, location)?;
    let (before, birth) = (FileId::of(path), files::birth(path));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|error| location.error(&error))?;
    let identity = initialize(&mut connection, location, known, &birth)?;
    let opened = Opened::at(&real(path), birth);
    if FileId::of(path) != before {
        return Err(location.outage(Outage::Gone, "was replaced while it was being opened; try again"));
    }
    Ok(Connected { connection, identity, opened })
}

/// Prepares a connection for use, and returns the identity of the store.
pub(super) fn initialize(
    connection: &mut Connection,
    location: &Location,
    known: Option<&Identity>,
    file: &str,
) -> Result<Identity, StoreError> {
    connection.busy_timeout(LOCK_TIMEOUT).map_err(|error| location.error(&error))?;
    schema::recognize(connection, location)?;
    if let Some(known) = known {
        identity::compare(connection, location, known)?;
    }
    prepare(connection).map_err(|error| location.error(&error))?;
    schema::migrate(connection, location)?;
    identity::initialize(connection, location, known, file)
}

/// Opens a read-only connection to the store that is in use.
pub(super) fn connect_to_read(
    path: &Path,
    location: &Location,
    known: &Identity,
) -> Result<Connection, StoreError> {
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(LOCK_TIMEOUT)?;
        tune(&connection)?;
        Ok(connection)
    };
    let connection = open().map_err(|error| location.error(&error))?;
    identity::compare(&connection, location, known)?;
    Ok(connection)
}

/// Resolves links: the log and the lock files are next to the real file, whatever path is used to open it.
pub(super) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Creates an empty database file, unless there is one, or there was one a moment ago.
fn create_database(path: &Path, location: &Location) -> Result<(), StoreError> {
    // Another process that creates the store creates the database first: if it exists now, it was not deleted.
    let deleted = |sign: bool| sign && files::is_missing(path);
    if !files::is_empty(path) {
        return Ok(());
    }
    let log = files::beside(path, "-wal");
    // SQLite deletes the log of an empty database, and everything that was written is in it.
    if files::has_content(&log) && files::is_empty(path) {
        let is = if files::is_missing(path) { "is gone" } else { "is empty" };
        return Err(location.unavailable(format!(
            "{is}, but its log {} is not: put the database back, or delete the log too to start over",
            log.display()
        )));
    }
    if deleted(Liveness::beside(&real(path)).is_anyone_alive()) {
        return Err(
            location.unavailable("is gone, but processes use it: put it back, or stop them to start over")
        );
    }
    // If this fails, SQLite cannot open the file either and reports why.
    let _ = files::create(path);
    Ok(())
}

/// Why a database can't be at `path`, if something other than a file is there. SQLite would take a device for an empty
/// database, and create its journal next to it.
fn special_file(path: &Path) -> Option<&'static str> {
    let found = std::fs::metadata(path).ok().filter(|found| !found.is_file())?;
    Some(match found.is_dir() {
        true => "could not be opened: it is a folder; name a file in it",
        false => "could not be opened: it is a device, a pipe or a socket; name a file",
    })
}

/// Refuses a database with several hard links: a process that opens it under another name has another log, does not see
/// who else uses it, and would send requests as well.
fn refuse_second_name(path: &Path, location: &Location) -> Result<(), StoreError> {
    match files::names(path) {
        0 | 1 => Ok(()),
        names => Err(location.unavailable(format!(
            "has {names} names (hard links), and processes that use different names do not see each other; \
             delete all but one (comity backup FILE makes a copy)"
        ))),
    }
}

/// Refuses a database whose log or log index was deleted while others use it: they would not see what is written to a
/// new one, and both would send requests.
fn refuse_without_log(path: &Path, location: &Location) -> Result<(), StoreError> {
    let real = real(path);
    let liveness = Liveness::beside(&real);
    let missing = || {
        let is_made = std::fs::metadata(&real).is_ok_and(|file| file.len() > 0);
        let log =
            ["-wal", "-shm"].map(|ending| files::beside(&real, ending)).into_iter().find(|log| !log.exists());
        log.filter(|_| is_made && liveness.is_anyone_alive())
    };
    for _ in 0..LOG_TRIES {
        // A process that is just exiting removes its log a moment before its lock.
        if missing().is_none() {
            return Ok(());
        }
        std::thread::sleep(LOG_RETRY_INTERVAL);
    }
    match missing() {
        None => Ok(()),
        Some(log) => Err(location.unavailable(format!(
            "{} was deleted while other processes use it; stop them first, then start again",
            log.display()
        ))),
    }
}

/// Compiles each statement once and caches it. By default, SQLite recompiles a statement when other values may suggest
/// another plan; ours have one good plan each.
pub(super) fn tune(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Durable across a kill, though not across a power cut in the last moments. Checkpoints are rare.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    tune(connection)?;
    // If two processes create the database at the same time, the second waits for the first.
    let wal = || connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()));
    connection.busy_timeout(Duration::ZERO)?;
    for tries in 0.. {
        match wal() {
            Err(error) if outage_of(&error) == Some(Outage::Locked) && tries < WAL_TRIES => {
                std::thread::sleep(LOG_RETRY_INTERVAL);
            }
            result => {
                result?;
                break;
            }
        }
    }
    connection.busy_timeout(LOCK_TIMEOUT)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "journal_size_limit", 256 << 20)?;
    connection.pragma_update(None, "cache_size", -(64 << 10))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// The number of compiled statements to cache: more than there are.
const STATEMENTS: usize = 300;
/// How many times a missing log is looked for.
const LOG_TRIES: u32 = 50;
/// The time between two such looks, and between two attempts to switch to WAL mode.
const LOG_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How many times switching to WAL mode is attempted.
const WAL_TRIES: u32 = 50;

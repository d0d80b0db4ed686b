//! Opening a database: what must hold before it is used, and which one it is. Waiting for one that is locked is
//! `patience`; opening one again that went away is the writer's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_core::decision::Away;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::files::{self, Mark, Opened};
use super::holders::Living;
use super::patience::A_TRY;
use super::place::{Place, passing};
use super::{identity, schema};
use crate::{Identity, StoreError};

/// A database in a file that was opened.
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) identity: Identity,
    pub(super) opened: Opened,
}

/// Opens the database at `path`. One that was in use before is never made, and another one in its place is refused.
pub(super) fn connect(path: &Path, place: &Place, known: Option<&Identity>) -> Result<Link, StoreError> {
    let file = files::follow(path);
    if known.is_some() && files::is_missing(&file) {
        let gone = "is gone; put it back or mount its volume: a store that was in use is not created again";
        return Err(place.away(Away::Gone, gone));
    }
    make(&file, place)?;
    refuse_second_name(path, place)?;
    refuse_without_log(path, place)?;
    let (before, birth) = (Mark::of(path), files::birth(path));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|error| place.error(&error))?;
    let identity = settle_in(&mut connection, place, known, &birth)?;
    let opened = Opened::at(&real(path), birth);
    if Mark::of(path) != before {
        return Err(place.away(Away::Gone, "was replaced while it was being opened; try again"));
    }
    Ok(Link { connection, identity, opened })
}

/// Makes a connection ready for use; which store it is.
pub(super) fn settle_in(
    connection: &mut Connection,
    place: &Place,
    known: Option<&Identity>,
    file: &str,
) -> Result<Identity, StoreError> {
    connection.busy_timeout(A_TRY).map_err(|error| place.error(&error))?;
    schema::recognise(connection, place)?;
    if let Some(known) = known {
        identity::compare(connection, place, known)?;
    }
    prepare(connection).map_err(|error| place.error(&error))?;
    schema::migrate(connection, place)?;
    identity::settle_in(connection, place, known, file)
}

/// A connection to the store that is in use which only reads.
pub(super) fn connect_to_read(
    path: &Path,
    place: &Place,
    known: &Identity,
) -> Result<Connection, StoreError> {
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(A_TRY)?;
        tune(&connection)?;
        Ok(connection)
    };
    let connection = open().map_err(|error| place.error(&error))?;
    identity::compare(&connection, place, known)?;
    Ok(connection)
}

/// By whatever name a database is opened, what belongs to it lies beside the file itself.
pub(super) fn real(path: &Path) -> PathBuf {
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
             delete all but one (comity backup FILE makes a copy)"
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

/// Statements are compiled once and kept. SQLite would compile them anew for other values, as their number of rows may
/// suggest another plan; ours have one good plan each.
pub(super) fn tune(connection: &Connection) -> rusqlite::Result<()> {
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
            Err(error) if passing(&error) == Some(Away::Locked) && tries < WAL_TRIES => {
                std::thread::sleep(LOG_TRY);
            }
            result => {
                result?;
                break;
            }
        }
    }
    connection.busy_timeout(A_TRY)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "journal_size_limit", 256 << 20)?;
    connection.pragma_update(None, "cache_size", -(64 << 10))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// Compiled statements that are kept: more than there are.
const STATEMENTS: usize = 300;
/// A log that is missing is looked for so many times,
const LOG_TRIES: u32 = 50;
/// so far apart.
const LOG_TRY: Duration = Duration::from_millis(20);
/// So often a log is asked for within one try, as far apart.
const WAL_TRIES: u32 = 50;

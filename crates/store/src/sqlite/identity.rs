//! Which store a database is, and whether it is a restored copy.
//!
//! The table `identity` records which file the database is in. A restored copy is a different file. It does not know
//! what was sent after it was made, so every domain continues as if its last holder had just sent a request.

use comity_core::time::{Span, Timestamp};
use rusqlite::{Connection, TransactionBehavior};

use super::location::Location;
use super::writer::Tx;
use super::{at, us};
use crate::{Identity, StoreError};

/// Refuses any store other than `known`, before anything is changed in it.
pub(super) fn compare(
    connection: &Connection,
    location: &Location,
    known: &Identity,
) -> Result<(), StoreError> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'identity'";
    let there: i64 =
        connection.query_row(sql, [], |row| row.get(0)).map_err(|error| location.error(&error))?;
    if there > 0 && read(connection, location)? == known.id {
        return Ok(());
    }
    Err(StoreError::Another { location: location.to_string() })
}

/// Reads the identity of the store. Records it if the store is a restored copy, or if some of its writes were lost
/// while it was in use.
pub(super) fn initialize(
    connection: &mut Connection,
    location: &Location,
    known: Option<&Identity>,
    file: &str,
) -> Result<Identity, StoreError> {
    if known.is_none() {
        renew(connection).map_err(|error| location.error(&error))?;
    }
    let id = read(connection, location)?;
    let doubtful = known.is_some_and(|known| known.doubtful);
    let is_noted = |sql: &Connection| {
        let noted = "SELECT file IS ?1 FROM identity";
        sql.query_row(noted, [file], |row| row.get::<_, bool>(0))
    };
    let mut note = || -> rusqlite::Result<()> {
        if is_noted(connection)? && !doubtful {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let is_first = "SELECT file IS NULL FROM identity";
        let is_first: bool = transaction.query_row(is_first, [], |row| row.get(0))?;
        // Another process may have recorded it meanwhile.
        if doubtful || !is_first && !is_noted(&transaction)? {
            forget_state(&transaction)?;
        }
        transaction.execute("UPDATE identity SET file = ?1", [file])?;
        transaction.commit()
    };
    note().map_err(|error| location.error(&error))?;
    Ok(Identity { id, doubtful: false })
}

/// Makes every domain continue as if its last holder had just sent a request.
fn forget_state(sql: &Connection) -> rusqlite::Result<()> {
    sql.execute("UPDATE domains SET left_as = 'lost' WHERE left_as <> 'new'", [])?;
    sql.execute("UPDATE identity SET restored_us = 0", [])?;
    // Holders that registered after the copy was made may still be alive, and the copy does not know their ids.
    let seq = "UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'holders'";
    sql.execute(seq, [HOLDERS_LOST_MAX]).map(|_| ())
}

/// Gives the store a new identity if the bytes of its own are damaged. It then counts as a restored copy: nobody knows what
/// else is damaged.
fn renew(connection: &mut Connection) -> rusqlite::Result<()> {
    if ids(connection)? != [None] {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have renewed it meanwhile.
    if ids(&transaction)? == [None] {
        transaction.execute("UPDATE identity SET id = randomblob(16)", [])?;
        forget_state(&transaction)?;
        tracing::warn!("the identity of the store could not be read, and was renewed; every site waits once");
    }
    transaction.commit()
}

/// The rows of the table; `None` for one that can't be read.
fn ids(connection: &Connection) -> rusqlite::Result<Vec<Option<[u8; 16]>>> {
    let mut select = connection.prepare("SELECT id FROM identity LIMIT 2")?;
    select.query_map([], |row| Ok(row.get(0).ok()))?.collect()
}

fn read(connection: &Connection, location: &Location) -> Result<[u8; 16], StoreError> {
    match ids(connection).map_err(|error| location.error(&error))?.as_slice() {
        [Some(id)] => Ok(*id),
        _ => Err(location.unavailable(
            "its identity cannot be read (table identity); restore a backup, or move it away to start over",
        )),
    }
}

impl Tx<'_> {
    /// When a copy was restored, at the earliest; `None` if this is not a restored copy.
    pub(super) fn restored_at(&mut self, now: Timestamp) -> rusqlite::Result<Option<Timestamp>> {
        let restored: Option<i64> = match self.cache.restored {
            Some(restored) => restored,
            None => self
                .sql
                .prepare_cached("SELECT restored_us FROM identity")?
                .query_row([], |row| row.get(0))?,
        };
        if restored == Some(0) {
            // Whoever opened it did not know the time.
            self.sql.prepare_cached("UPDATE identity SET restored_us = ?1")?.execute([us(now)])?;
            self.cache.restored = Some(Some(us(now)));
            return Ok(Some(now));
        }
        Ok(restored.map(|restored| at(restored).min(now)))
    }

    /// Like [`Self::restored_at`], if it was recent enough to matter for domains that are not in the copy.
    pub(super) fn restored_recently(&mut self, now: Timestamp) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.restored_at(now)?.filter(|restored_at| now.since(*restored_at) < RECENTLY))
    }
}

/// For how long a restored copy affects domains that are not in it.
const RECENTLY: Span = Span::from_hours(24);
/// More holders than ever register between two copies.
const HOLDERS_LOST_MAX: i64 = 1_000_000;

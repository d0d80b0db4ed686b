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
            transaction.execute("UPDATE domains SET left_as = 'lost' WHERE left_as <> 'new'", [])?;
            transaction.execute("UPDATE identity SET restored_us = 0", [])?;
            // Holders that registered after the copy was made may still be alive, and the copy does not know their ids.
            let sql = "UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'holders'";
            transaction.execute(sql, [HOLDERS_LOST_MAX])?;
        }
        transaction.execute("UPDATE identity SET file = ?1", [file])?;
        transaction.commit()
    };
    note().map_err(|error| location.error(&error))?;
    Ok(Identity { id, doubtful: false })
}

fn read(connection: &Connection, location: &Location) -> Result<[u8; 16], StoreError> {
    let mut ids = Vec::new();
    let mut read = || -> rusqlite::Result<()> {
        let mut select = connection.prepare("SELECT id FROM identity LIMIT 2")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            ids.push(row.get::<_, [u8; 16]>(0).ok());
        }
        Ok(())
    };
    match (read(), ids.as_slice()) {
        (Err(error), _) => Err(location.error(&error)),
        (Ok(()), [Some(id)]) => Ok(*id),
        _ => Err(location.unavailable(
            "its identity cannot be read (table identity); restore a backup, or move it away to start over",
        )),
    }
}

impl Tx<'_> {
    /// When a copy was restored, at the earliest; `None` if this is not a restored copy.
    pub(super) fn restored_at(&self, now: Timestamp) -> rusqlite::Result<Option<Timestamp>> {
        let sql = "SELECT restored_us FROM identity";
        let restored: Option<i64> = self.sql.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        if restored == Some(0) {
            // Whoever opened it did not know the time.
            self.sql.prepare_cached("UPDATE identity SET restored_us = ?1")?.execute([us(now)])?;
            return Ok(Some(now));
        }
        Ok(restored.map(|restored| at(restored).min(now)))
    }

    /// Like [`Self::restored_at`], if it was recent enough to matter for domains that are not in the copy.
    pub(super) fn restored_recently(&self, now: Timestamp) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.restored_at(now)?.filter(|restored_at| now.since(*restored_at) < RECENTLY))
    }
}

/// For how long a restored copy affects domains that are not in it.
const RECENTLY: Span = Span::from_hours(24);
/// More holders than ever register between two copies.
const HOLDERS_LOST_MAX: i64 = 1_000_000;

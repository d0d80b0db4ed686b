//! Which store a database is, and whether it is a copy of what it was.
//!
//! The row names the file that the database is in. A copy that was put in its place is in another file: whatever was
//! sent after the copy was made is not in it, so that each domain goes on as if its last holder had sent right before
//! (B77).

use comity_core::time::{Span, Timestamp};
use rusqlite::{Connection, TransactionBehavior};

use super::place::Place;
use super::writer::Tx;
use super::{at, us};
use crate::{Identity, StoreError};

/// Refuses any store but `known`, before anything is changed in it.
pub(super) fn compare(connection: &Connection, place: &Place, known: &Identity) -> Result<(), StoreError> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'identity'";
    let there: i64 = connection.query_row(sql, [], |row| row.get(0)).map_err(|error| place.error(&error))?;
    if there > 0 && read(connection, place)? == known.id {
        return Ok(());
    }
    Err(StoreError::Another { place: place.to_string() })
}

/// Which store this is. A copy, or a store of which something was lost while it was in use, is noted as such.
pub(super) fn settle_in(
    connection: &mut Connection,
    place: &Place,
    known: Option<&Identity>,
    file: &str,
) -> Result<Identity, StoreError> {
    let id = read(connection, place)?;
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
        // Another process may have noted it meanwhile.
        if doubtful || !is_first && !is_noted(&transaction)? {
            transaction.execute("UPDATE domains SET left_as = 'lost' WHERE left_as <> 'new'", [])?;
            transaction.execute("UPDATE identity SET restored_us = 0", [])?;
            // Holders that registered after the copy was made live on, and their numbers are not in it.
            let sql = "UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'holders'";
            transaction.execute(sql, [HOLDERS_LOST_MAX])?;
        }
        transaction.execute("UPDATE identity SET file = ?1", [file])?;
        transaction.commit()
    };
    note().map_err(|error| place.error(&error))?;
    Ok(Identity { id, doubtful: false })
}

fn read(connection: &Connection, place: &Place) -> Result<[u8; 16], StoreError> {
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
        (Err(error), _) => Err(place.error(&error)),
        (Ok(()), [Some(id)]) => Ok(*id),
        _ => Err(place.unavailable(
            "its identity cannot be read (table identity); restore a copy, or move it away and start anew",
        )),
    }
}

impl Tx<'_> {
    /// When something of this store was lost, because a copy took its place; as early as can be said.
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

    /// The same, for domains of which nothing is known: whether any of them was known before.
    pub(super) fn restored_lately(&self, now: Timestamp) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.restored_at(now)?.filter(|restored_at| now.since(*restored_at) < LATELY))
    }
}

/// For this long it matters that something was lost of domains that are not in a copy.
const LATELY: Span = Span::from_hours(24);
/// No copy lacks more holders than this.
const HOLDERS_LOST_MAX: i64 = 1_000_000;

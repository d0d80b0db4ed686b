//! Rows that cannot be read, whatever wrote them: each is reported with its key and set aside, and everything else
//! continues (B82).
//!
//! Here: reading around them. What becomes of the work behind such a row is decided where it is read.

use std::cell::RefCell;
use std::collections::HashSet;

use comity_core::problem::shortened;
use rusqlite::types::ValueRef;
use rusqlite::{ErrorCode, Params, Row};

use super::writer::Tx;

/// A row that could not be read: its key, and why.
pub(super) type Unreadable = (i64, String);

/// Rows that were reported, so that each is reported once.
#[derive(Debug, Default)]
pub(super) struct Reported(RefCell<HashSet<(&'static str, String)>>);

impl Reported {
    fn report(&self, table: &'static str, key: String, why: &str) {
        let mut reported = self.0.borrow_mut();
        if reported.len() < REPORTED_MAX && reported.insert((table, key.clone())) {
            tracing::warn!(table, key, why, "skipped a row of the store that cannot be read");
        }
    }
}

impl Tx<'_> {
    /// The rows of a query that can be read; the others are reported. The first column is the key of a row in
    /// `table`.
    pub(super) fn readable<T>(
        &self,
        table: &'static str,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.sorted(table, sql, params, read).map(|(readable, _)| readable)
    }

    /// The same, with those that cannot be read.
    pub(super) fn sorted<T>(
        &self,
        table: &'static str,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<(Vec<T>, Vec<Unreadable>)> {
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
        while let Some(row) = rows.next()? {
            match read(row) {
                Ok(value) => readable.push(value),
                Err(error) if is_of_one(&error) => {
                    let why = error.to_string();
                    self.memory.reported.report(table, key(row), &why);
                    unreadable.push((row.get(0).unwrap_or_default(), why));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((readable, unreadable))
    }
}

/// Whether an error is about what was asked, and not about the database: nobody else needs to suffer from it, and trying
/// again does not help.
pub(super) fn is_of_one(error: &rusqlite::Error) -> bool {
    use ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, FileLockingProtocolFailed,
        NotADatabase, OperationInterrupted, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
    };
    !matches!(
        error.sqlite_error_code(),
        Some(
            CannotOpen
                | DatabaseBusy
                | DatabaseCorrupt
                | DatabaseLocked
                | DiskFull
                | FileLockingProtocolFailed
                | NotADatabase
                | OperationInterrupted
                | OutOfMemory
                | PermissionDenied
                | ReadOnly
                | SystemIoFailure
        )
    )
}

/// The first column, for people.
fn key(row: &Row<'_>) -> String {
    match row.get_ref(0) {
        Ok(ValueRef::Integer(key)) => key.to_string(),
        Ok(ValueRef::Text(key)) => format!("{:?}", shortened(&String::from_utf8_lossy(key))),
        _ => "unknown".to_owned(),
    }
}

/// So many rows are reported by one process, at most.
const REPORTED_MAX: usize = 1_000;

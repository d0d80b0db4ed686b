//! Rows that cannot be read, whatever wrote them: each is logged with its key and skipped, and everything else
//! continues.
//!
//! This module reads around such rows. What happens to the work behind a row is decided by whoever reads it.

use std::cell::RefCell;
use std::collections::HashSet;

use comity_core::problem::shortened;
use rusqlite::types::ValueRef;
use rusqlite::{ErrorCode, Params, Row};

use super::writer::Tx;

/// The key of a row that could not be read, and the reason.
pub(super) type Unreadable = (i64, String);

/// The rows that were logged, so that each is logged once.
#[derive(Debug, Default)]
pub(super) struct Reported(RefCell<HashSet<(&'static str, String)>>);

impl Reported {
    pub(super) fn report(&self, table: &'static str, key: String, why: &str) {
        let mut reported = self.0.borrow_mut();
        if reported.len() < REPORTED_MAX && reported.insert((table, key.clone())) {
            tracing::warn!(table, key, why, "skipped a row of the store that could not be read");
        }
    }
}

impl Tx<'_> {
    /// Returns the readable rows of a query and logs the others. The first column must be the row's key in `table`.
    pub(super) fn readable<T>(
        &self,
        table: &'static str,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.readable_and_unreadable(table, sql, params, read).map(|(readable, _)| readable)
    }

    /// Like [`Self::readable`], but also returns the unreadable rows.
    pub(super) fn readable_and_unreadable<T>(
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
                Err(error) if is_callers_error(&error) => {
                    let why = error.to_string();
                    self.cache.reported.report(table, key(row), &why);
                    unreadable.push((row.get(0).unwrap_or_default(), why));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((readable, unreadable))
    }
}

/// The same result, with an error that names the table if the row can't be read.
pub(super) fn in_table<T>(table: &'static str, read: rusqlite::Result<T>) -> rusqlite::Result<T> {
    use rusqlite::Error;
    read.map_err(|error| match error {
        Error::Utf8Error(..)
        | Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..) => {
            let what = format!(
                "a row of the table {table} cannot be read ({error}); restore a backup, or delete the row"
            );
            Error::ToSqlConversionFailure(what.into())
        }
        error => error,
    })
}

/// Whether an error concerns only the caller's request and not the database. Other requests are not affected by it, and
/// retrying does not help.
pub(super) fn is_callers_error(error: &rusqlite::Error) -> bool {
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

/// The first column, for the log.
fn key(row: &Row<'_>) -> String {
    match row.get_ref(0) {
        Ok(ValueRef::Integer(key)) => key.to_string(),
        Ok(ValueRef::Text(key)) => format!("{:?}", shortened(&String::from_utf8_lossy(key))),
        _ => "unknown".to_owned(),
    }
}

/// The maximum number of unreadable rows that a process logs.
const REPORTED_MAX: usize = 1_000;

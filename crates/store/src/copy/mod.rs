//! Copies a whole store from SQLite to PostgreSQL, or back. Jobs continue in the copy where they were.
//!
//! It is a plain copy, table by table, of the columns in `tables`: rows are read in batches in the order of their keys, and written in
//! one transaction. Who used the source is not copied, and must not use it meanwhile: a site would have two holders. How a kind of
//! database is read and written is in `sqlite::copying` and `postgres::copying`.
//!
//! Two stores of the same kind have better ways: `comity backup`, and PostgreSQL's own tools.

mod batch;
mod table;
mod tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Shift;
use tokio::sync::oneshot;

pub(crate) use batch::{Batch, Values};
pub(crate) use table::{Dialect, Ids, Table};
pub(crate) use tables::TABLES;

use crate::postgres::copying as postgres;
use crate::sqlite::copying as sqlite;
use crate::{Reply, StoreError};

/// The progress of a copy, shared with whoever makes it.
#[derive(Debug, Default)]
pub struct Progress {
    copied: AtomicU64,
    all: AtomicU64,
    stopped: AtomicBool,
}

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The store that was read, for messages to people.
    pub from: String,
    /// The store that was written.
    pub to: String,
    /// The rows of each table, by its name in SQLite.
    pub tables: Vec<(&'static str, u64)>,
}

impl Progress {
    /// Rows copied so far, and how many there are; both are 0 until they were counted.
    pub fn rows(&self) -> (u64, u64) {
        (self.copied.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    /// Aborts the copy, and leaves the target as it was.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl Copied {
    /// The rows of all tables.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(_, rows)| rows).sum()
    }
}

/// Copies the store at `from` to `to`: one of them is `sqlite:PATH`, the other one `postgres://…`. The source must exist, and no
/// process may use it; the target is created if needed, and must be empty. The copy is complete or absent.
///
/// [`StoreError::Rejected`] if one of these conditions does not hold. Whether a process that used a store in PostgreSQL is dead shows
/// when it sent no heartbeat for [`LEASE`](crate::LEASE); the copy waits for that.
pub fn copy(from: String, to: String, progress: Arc<Progress>) -> Reply<'static, Copied> {
    let (sender, receiver) = oneshot::channel();
    let started = std::thread::Builder::new().name("comity-copy".to_owned()).spawn(move || {
        let _ = sender.send(copy_stores(&from, &to, &progress));
    });
    Box::pin(async move {
        if started.is_err() {
            return Err(StoreError::Closed);
        }
        receiver.await.unwrap_or(Err(StoreError::Closed))
    })
}

/// A store that is read. Nobody changes it meanwhile, and it is as it was when this is dropped.
pub(crate) trait Source {
    fn location(&self) -> String;

    /// The time on this store.
    fn now(&mut self) -> Result<Timestamp, StoreError>;

    /// Moves all times that decisions depend on, for a target whose time is another one.
    fn shift(&mut self, shift: Shift) -> Result<(), StoreError>;

    /// All columns of all tables, as (table, column) pairs.
    fn columns(&mut self) -> Result<Vec<(String, String)>, StoreError>;

    /// How many rows of a table are to be copied.
    fn count(&mut self, table: &Table) -> Result<u64, StoreError>;

    /// Reads them.
    fn read(
        &mut self,
        table: &Table,
        take: &mut dyn FnMut(Batch) -> Result<(), StoreError>,
    ) -> Result<(), StoreError>;

    /// An id that no id of this table was ever above, other than those of its rows.
    fn used_id(&mut self, table: &Table) -> Result<i64, StoreError>;
}

/// A store that is written, in one transaction. Nothing is written if this is dropped.
pub(crate) trait Target {
    fn location(&self) -> String;

    /// The time that the copy will go by, if the source's time is `source_now`.
    fn now(&mut self, source_now: Timestamp) -> Result<Timestamp, StoreError>;

    fn write(&mut self, table: &Table, batch: &Batch) -> Result<(), StoreError>;

    /// How many rows a table has now.
    fn count(&mut self, table: &Table) -> Result<u64, StoreError>;

    /// Makes sure that rows get ids above this one and above those of all rows.
    fn set_used_id(&mut self, table: &Table, used: i64) -> Result<(), StoreError>;

    fn commit(self: Box<Self>) -> Result<(), StoreError>;
}

fn copy_stores(from: &str, to: &str, progress: &Progress) -> Result<Copied, StoreError> {
    let (mut source, mut target): (Box<dyn Source>, Box<dyn Target>) =
        match (Place::of(from)?, Place::of(to)?) {
            // The source comes first: without it, no target is created.
            (Place::Sqlite(from), Place::Postgres(to)) => {
                (Box::new(sqlite::Source::open(from)?), Box::new(postgres::Target::open(to)?))
            }
            (Place::Postgres(from), Place::Sqlite(to)) => {
                let is_stopped = || progress.stopped.load(Ordering::Relaxed);
                (Box::new(postgres::Source::open(from, &is_stopped)?), Box::new(sqlite::Target::open(to)?))
            }
            (Place::Sqlite(_), Place::Sqlite(_)) => {
                return Err(same_kind(from, "SQLite", "copy it with: comity backup FILE"));
            }
            (Place::Postgres(_), Place::Postgres(_)) => {
                return Err(same_kind(from, "PostgreSQL", "copy it with pg_dump and pg_restore"));
            }
        };
    refuse_unknown_columns(&mut *source)?;
    let now = source.now()?;
    let copied_at = target.now(now)?;
    if now.since(copied_at).max(copied_at.since(now)) >= TOLERANCE {
        source.shift(Shift { from: now, to: copied_at })?;
    }
    let counts = TABLES.iter().map(|table| source.count(table)).collect::<Result<Vec<_>, _>>()?;
    progress.all.store(counts.iter().sum(), Ordering::Relaxed);
    for (table, count) in TABLES.iter().zip(&counts) {
        copy_table(table, *count, &mut *source, &mut *target, progress)?;
    }
    let (from, to) = (source.location(), target.location());
    target.commit()?;
    let tables = TABLES.iter().map(|table| table.sqlite).zip(counts).collect();
    Ok(Copied { from, to, tables })
}

/// Refuses to lose a column that a migration has added and this list lacks.
fn refuse_unknown_columns(source: &mut dyn Source) -> Result<(), StoreError> {
    for (table, column) in source.columns()? {
        let is_known =
            tables::LEFT_OUT.contains(&&*table) || TABLES.iter().any(|known| known.has(&table, &column));
        if !is_known {
            let what = format!("this version cannot copy the column {column} of {table}");
            return Err(StoreError::Rejected { location: source.location(), what });
        }
    }
    Ok(())
}

fn copy_table(
    table: &Table,
    count: u64,
    source: &mut dyn Source,
    target: &mut dyn Target,
    progress: &Progress,
) -> Result<(), StoreError> {
    source.read(table, &mut |batch| {
        if progress.stopped.load(Ordering::Relaxed) {
            return Err(stopped(target.location()));
        }
        target.write(table, &batch)?;
        progress.copied.fetch_add(batch.rows as u64, Ordering::Relaxed);
        Ok(())
    })?;
    let written = target.count(table)?;
    if written != count {
        let what = format!("{written} of {count} rows of {} were written; nothing was copied", table.sqlite);
        return Err(StoreError::Rejected { location: target.location(), what });
    }
    if table.ids != Ids::None {
        target.set_used_id(table, source.used_id(table)?)?;
    }
    Ok(())
}

/// Which kind of store a URL names.
enum Place<'a> {
    Sqlite(&'a str),
    Postgres(&'a str),
}

impl<'a> Place<'a> {
    fn of(url: &'a str) -> Result<Self, StoreError> {
        match url.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path)),
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(url)),
            // An invalid URL may contain anything, including a password: only its scheme is repeated.
            _ => {
                let scheme = url.split(':').next().unwrap_or_default();
                let expected = "sqlite:PATH or postgres://…: a store that can be copied";
                Err(StoreError::Unsupported { url: format!("{scheme}:…"), expected })
            }
        }
    }
}

fn same_kind(from: &str, kind: &str, instead: &str) -> StoreError {
    let location = from.strip_prefix("sqlite:").unwrap_or("postgres").to_owned();
    let what = format!("both stores are in {kind}; {instead}");
    StoreError::Rejected { location, what }
}

/// Somebody interrupted the copy.
pub(crate) fn stopped(location: String) -> StoreError {
    StoreError::Rejected { location, what: "stopped; nothing was copied".to_owned() }
}

/// Processes use a store that must not be used.
pub(crate) fn in_use(location: String, names: &[String]) -> StoreError {
    let (shown, more) = names.split_at(names.len().min(SHOWN_MAX));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    let what = format!("in use by {}{more}; stop every process that uses it, then copy it", shown.join(", "));
    StoreError::Rejected { location, what }
}

/// The target has rows already.
pub(crate) fn not_empty(location: String, table: &str, instead: &str) -> StoreError {
    let what = format!("is not empty (table {table}): a store is copied into an empty one only; {instead}");
    StoreError::Rejected { location, what }
}

/// Differences of clocks below this are ignored, as on one store.
const TOLERANCE: Span = Span::from_secs(1);
/// How many processes an error names.
const SHOWN_MAX: usize = 3;

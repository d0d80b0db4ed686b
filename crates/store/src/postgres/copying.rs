//! A store in PostgreSQL as the source or the target of a copy from or to another kind of database. What is copied is in
//! `crate::copy`.
//!
//! Both lock the tables, so that nobody starts to use the store meanwhile.

use std::time::Duration;

use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Shift;
use futures_util::{StreamExt, TryStreamExt};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connection::Session;
use super::failure::{Failure, Remedy, Result};
use super::liveness::LeaseWatch;
use super::location::Location;
use super::param::{Param, opt_text};
use super::time::DB_US;
use super::tx::Tx;
use super::{Missing, Postgres, at, migrations, random_id};
use crate::copy::{self, Batch, Dialect, Ids, TABLES, Table, Values};
use crate::machine::{Machine, ThisMachine};
use crate::{LEASE, PATIENCE, StoreError};

type Outcome<T> = std::result::Result<T, StoreError>;

/// The store that is read.
pub(crate) struct Source(Locked);

/// The store that is written.
pub(crate) struct Target(Locked);

/// A connection with a transaction that is rolled back unless it is committed.
struct Locked {
    session: Session,
    location: Location,
    watch: LeaseWatch,
}

/// A process that was not declared dead: its id, its name and its heartbeat.
type Holder = (i64, String, i64);

impl Source {
    /// Waits until all processes that may be alive are known to be dead.
    pub(crate) fn open(url: &str, is_stopped: &dyn Fn() -> bool) -> Outcome<Self> {
        let location = Location::parse(url)?;
        if Postgres::open_as(url, None, Missing::Report, PATIENCE)?.is_none() {
            return Err(location.unavailable("there is no store here; check the name and ?schema="));
        }
        let mut locked = Locked::connect(location)?;
        let dead = locked.outlive_holders(is_stopped)?;
        locked.begin("ISOLATION LEVEL REPEATABLE READ", "SHARE")?;
        let used: Vec<String> =
            locked.holders()?.into_iter().filter(|holder| !dead.contains(holder)).map(name).collect();
        match used.is_empty() {
            true => Ok(Self(locked)),
            false => Err(copy::in_use(locked.location.to_string(), &used)),
        }
    }
}

impl Target {
    pub(crate) fn open(url: &str) -> Outcome<Self> {
        // Brings it up to date, if there is one.
        let is_new = Postgres::open_as(url, None, Missing::Report, PATIENCE)?.is_none();
        let mut locked = Locked::connect(Location::parse(url)?)?;
        match is_new {
            // Its tables appear when the copy is complete, so an interrupted one leaves nothing that opens as a store.
            true => locked.begin_new("EXCLUSIVE")?,
            false => locked.begin("ISOLATION LEVEL READ COMMITTED", "EXCLUSIVE")?,
        }
        for table in &TABLES {
            let sql = format!("SELECT 1 FROM {} LIMIT 1", table.postgres);
            if locked.run(|tx| tx.exists(&sql, &[]))? {
                let instead = "choose another schema: ?schema=NAME";
                return Err(copy::not_empty(locked.location.to_string(), table.postgres, instead));
            }
        }
        let used: Vec<String> = locked.holders()?.into_iter().map(name).collect();
        match used.is_empty() {
            true => Ok(Self(locked)),
            false => Err(copy::in_use(locked.location.to_string(), &used)),
        }
    }
}

impl Locked {
    fn connect(location: Location) -> Outcome<Self> {
        match Session::open(&location, STATEMENT_TIMEOUT) {
            Ok(session) => Ok(Self { session, location, watch: LeaseWatch::default() }),
            Err(failure) => Err(error(&location, &failure)),
        }
    }

    /// Begins the transaction, and locks the tables before it sees anything.
    fn begin(&mut self, isolation: &str, lock: &str) -> Outcome<()> {
        self.lock(&format!("BEGIN {isolation}; "), lock)
    }

    /// Begins the transaction by creating the tables.
    fn begin_new(&mut self, lock: &str) -> Outcome<()> {
        migrations::begin(&self.session, &self.location.schema, &random_id())
            .map_err(|failure| error(&self.location, &failure))?;
        self.lock("", lock)
    }

    fn lock(&mut self, begin: &str, lock: &str) -> Outcome<()> {
        let schema = &self.location.schema;
        let tables = TABLES.iter().map(|table| table.postgres).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "{begin}SET LOCAL search_path = \"{schema}\"; SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECS}s';
            LOCK TABLE holder, filler, {tables} IN {lock} MODE; SET LOCAL enable_sort = off"
        );
        let locked = self.session.wait_for(self.session.client().batch_execute(&sql));
        locked.map_err(|failure| error(&self.location, &failure))
    }

    fn run<T>(&self, run: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Outcome<T> {
        run(&mut Tx::new(&self.session, &self.watch)).map_err(|failure| error(&self.location, &failure))
    }

    fn holders(&self) -> Outcome<Vec<Holder>> {
        let schema = &self.location.schema;
        let sql = format!("SELECT id, name, beat FROM \"{schema}\".holder WHERE died_us IS NULL ORDER BY id");
        let rows = self.run(|tx| tx.rows(&sql, &[]))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    /// Returns processes that were not declared dead, but sent no heartbeat for a lease. If any sends one, the store is in use.
    fn outlive_holders(&self, is_stopped: &dyn Fn() -> bool) -> Outcome<Vec<Holder>> {
        let (holders, began) = (self.holders()?, ThisMachine.up());
        while !holders.is_empty() && ThisMachine.up().less(began) < LEASE + MARGIN {
            if is_stopped() {
                return Err(copy::stopped(self.location.to_string()));
            }
            std::thread::sleep(LOOK_AGAIN);
            let now = self.holders()?;
            let used: Vec<String> =
                now.into_iter().filter(|holder| !holders.contains(holder)).map(name).collect();
            if !used.is_empty() {
                return Err(copy::in_use(self.location.to_string(), &used));
            }
        }
        Ok(holders)
    }

    fn count(&self, sql: &str) -> Outcome<u64> {
        self.run(|tx| tx.one(sql, &[])).map(|row| row.get::<_, i64>(0).max(0) as u64)
    }

    /// The time of a store that no process uses.
    fn now(&self) -> Outcome<Timestamp> {
        let sql = format!("SELECT {DB_US} + (SELECT max(offset_us) FROM timeline)");
        self.run(|tx| tx.one(&sql, &[])).map(|row| at(row.get(0)))
    }
}

impl copy::Source for Source {
    fn location(&self) -> String {
        self.0.location.to_string()
    }

    fn now(&mut self) -> Outcome<Timestamp> {
        self.0.now()
    }

    fn shift(&mut self, _shift: Shift) -> Outcome<()> {
        let what = "the time of a store in PostgreSQL is its server's";
        Err(self.0.location.rejected(what))
    }

    fn columns(&mut self) -> Outcome<Vec<(String, String)>> {
        let sql = "SELECT relname::text, attname::text FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
            WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped";
        let rows = self.0.run(|tx| tx.rows(sql, &[]))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn count(&mut self, table: &Table) -> Outcome<u64> {
        self.0.count(&table.count(Dialect::Postgres))
    }

    fn read(&mut self, table: &Table, take: &mut dyn FnMut(Batch) -> Outcome<()>) -> Outcome<()> {
        let Locked { session, location, .. } = &self.0;
        let failed = |failure: Failure| error(location, &failure);
        let sql = table.select(Dialect::Postgres);
        // The server sends no more than is taken.
        let no_params = std::iter::empty::<(&(dyn ToSql + Sync), Type)>();
        let rows = session.wait_for(session.client().query_typed_raw(&sql, no_params)).map_err(failed)?;
        let mut rows = Box::pin(rows.fuse());
        loop {
            let some = async {
                let mut batch = Batch::new(table);
                while !batch.is_full()
                    && let Some(row) = rows.try_next().await?
                {
                    batch.push(|nth, values| read_value(&row, nth, values))?;
                }
                Ok(batch)
            };
            let batch = session.wait_for(some).map_err(failed)?;
            if batch.rows == 0 {
                return Ok(());
            }
            take(batch)?;
        }
    }

    fn used_id(&mut self, table: &Table) -> Outcome<i64> {
        let sql = match table.ids {
            Ids::Noted("removed_job") => "SELECT greatest(coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, 'id')::regclass), 0),
                (SELECT max(removed_job) FROM identity))",
            _ => "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, 'id')::regclass), 0)",
        };
        self.0.run(|tx| tx.one(sql, &[&table.postgres])).map(|row| row.get(0))
    }
}

impl copy::Target for Target {
    fn location(&self) -> String {
        self.0.location.to_string()
    }

    fn now(&mut self, _source_now: Timestamp) -> Outcome<Timestamp> {
        self.0.now()
    }

    fn write(&mut self, table: &Table, batch: &Batch) -> Outcome<()> {
        let places = (1..=table.columns.len()).map(|nth| format!("${nth}")).collect::<Vec<_>>().join(", ");
        let columns = table.column_names(Dialect::Postgres);
        let sql = format!(
            "INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT * FROM unnest({places}) AS given",
            table.postgres
        );
        let params: Vec<Box<dyn Param + '_>> = batch.columns.iter().map(param).collect();
        let params: Vec<&dyn Param> = params.iter().map(|param| &**param).collect();
        self.0.run(|tx| tx.change(&sql, &params)).map(drop)
    }

    fn count(&mut self, table: &Table) -> Outcome<u64> {
        self.0.count(&format!("SELECT count(*) FROM {}", table.postgres))
    }

    fn set_used_id(&mut self, table: &Table, used: i64) -> Outcome<()> {
        let name = table.postgres;
        let sql = format!(
            "SELECT setval(pg_get_serial_sequence($1, 'id'), highest) FROM (
                SELECT greatest(max(id), $2) AS highest FROM {name}) AS used WHERE highest > 0"
        );
        self.0.run(|tx| {
            tx.rows(&sql, &[&name, &used])?;
            if let Ids::Noted("removed_job") = table.ids {
                tx.change("UPDATE identity SET removed_job = greatest(removed_job, $1)", &[&used])?;
            }
            Ok(())
        })
    }

    fn commit(self: Box<Self>) -> Outcome<()> {
        self.0.session.commit().map_err(|failure| StoreError::Uncertain {
            location: self.0.location.to_string(),
            what: failure.what(),
        })
    }
}

fn name((_, name, _): Holder) -> String {
    name
}

fn error(location: &Location, failure: &Failure) -> StoreError {
    match failure.remedy() {
        Remedy::Wait(outage) => location.outage(outage, failure.what()),
        Remedy::Again | Remedy::GiveUp => location.rejected(failure.what()),
    }
}

/// Appends the value of a column; returns its size.
fn read_value(
    row: &Row,
    nth: usize,
    values: &mut Values,
) -> std::result::Result<usize, tokio_postgres::Error> {
    Ok(match values {
        Values::Integers(integers) => {
            integers.push(row.try_get(nth)?);
            size_of::<i64>()
        }
        Values::Reals(reals) => {
            reals.push(row.try_get(nth)?);
            size_of::<f64>()
        }
        Values::Flags(flags) => {
            flags.push(row.try_get(nth)?);
            size_of::<bool>()
        }
        Values::Texts(texts) => {
            let text: Option<String> = row.try_get(nth)?;
            let size = text.as_ref().map_or(0, String::len);
            texts.push(text);
            size
        }
        Values::Blobs(blobs) => {
            let blob: Option<Vec<u8>> = row.try_get(nth)?;
            let size = blob.as_ref().map_or(0, Vec::len);
            blobs.push(blob);
            size
        }
    })
}

/// A column as a parameter.
fn param(values: &Values) -> Box<dyn Param + '_> {
    match values {
        Values::Integers(integers) => Box::new(&integers[..]),
        Values::Reals(reals) => Box::new(&reals[..]),
        Values::Flags(flags) => Box::new(&flags[..]),
        Values::Texts(texts) => {
            Box::new(texts.iter().map(|text| opt_text(text.as_deref())).collect::<Vec<_>>())
        }
        Values::Blobs(blobs) => Box::new(&blobs[..]),
    }
}

/// The longest time that a statement may take; each writes a batch, or counts a table.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a process that writes right now is waited for.
const LOCK_TIMEOUT_SECS: u32 = 10;
/// How often heartbeats are looked at, and how long after the lease.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const MARGIN: Span = Span::from_secs(1);

//! A store in SQLite as the source or the target of a copy into another kind of database. What is copied is in `crate::copy`; copies of
//! the file are made by `backup`.
//!
//! Both take the write lock, so that nobody starts to use the store meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_core::time::Timestamp;
use comity_core::timeline::{Shift, Timeline};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Row, ToSql};

use super::files;
use super::holders::Liveness;
use super::location::Location;
use super::opening::{connect, real};
use super::part::Part;
use super::us;
use super::waiting::open_waiting;
use super::writer::{Cache, Tx};
use crate::backup::Existing;
use crate::copy::{self, Batch, Dialect, Ids, TABLES, Table, Values};
use crate::machine::{Machine, ThisMachine};
use crate::{PATIENCE, StoreError};

/// The store that is read.
pub(crate) struct Source(Locked);

/// The store that is written. A new one gets its name when it is complete, so an interrupted copy leaves nothing that opens as a
/// store.
pub(crate) struct Target {
    // Closed before the file is deleted.
    locked: Locked,
    new: Option<New>,
}

/// A database that is not in its place yet.
struct New {
    part: Part,
    file: PathBuf,
}

/// A database with a transaction that is rolled back unless it is committed.
struct Locked {
    connection: Connection,
    location: Location,
    liveness: Liveness,
}

impl Source {
    pub(crate) fn open(path: &str) -> Result<Self, StoreError> {
        let location = Location::File(path.into());
        if super::is_missing(path.as_ref()) {
            return Err(location.unavailable("there is no store here; check the name"));
        }
        let locked = Locked::open(path.as_ref(), location)?;
        locked.refuse_if_in_use()?;
        Ok(Self(locked))
    }
}

impl Target {
    pub(crate) fn open(path: &str) -> Result<Self, StoreError> {
        let file = PathBuf::from(path);
        // A log without its database may contain a store: opening it decides.
        if files::is_missing(&file) && !files::has_content(&files::beside(&file, "-wal")) {
            let part = Part::create(&file).map_err(|error| unwritable(path, &error))?;
            let locked = Locked::open(&part.path, Location::File(file.clone()))?;
            return Ok(Self { locked, new: Some(New { part, file }) });
        }
        let locked = Locked::open(&file, Location::File(file.clone()))?;
        locked.refuse_if_in_use()?;
        for table in &TABLES {
            if locked.number(&format!("SELECT EXISTS (SELECT 1 FROM {})", table.sqlite))? > 0 {
                let instead = "choose another file";
                return Err(copy::not_empty(locked.location.to_string(), table.sqlite, instead));
            }
        }
        Ok(Self { locked, new: None })
    }
}

fn unwritable(path: &str, error: &io::Error) -> StoreError {
    StoreError::Unavailable {
        location: path.to_owned(),
        what: format!("could not be created: {error}"),
        outage: None,
    }
}

impl Locked {
    /// Opens the database at `path`, which messages call `location`.
    fn open(path: &Path, location: Location) -> Result<Self, StoreError> {
        let connection = open_waiting(&location, PATIENCE, || connect(path, &location, None))?.connection;
        let liveness = Liveness::beside(&real(path));
        let locked = Self { connection, liveness, location };
        locked.run(|sql| {
            sql.busy_timeout(LOCK_TIMEOUT)?;
            sql.execute_batch("BEGIN IMMEDIATE")
        })?;
        Ok(locked)
    }

    fn run<T>(&self, run: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        run(&self.connection).map_err(|error| self.location.error(&error))
    }

    /// Runs something as in a transaction of the store.
    fn run_tx<T>(&self, run: impl FnOnce(&mut Tx<'_>) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        self.run(|sql| run(&mut Tx { sql, cache: &mut Cache::default() }))
    }

    /// The only value of a query; 0 if there is none.
    fn number(&self, sql: &str) -> Result<i64, StoreError> {
        self.run(|connection| {
            connection.query_row(sql, [], |row| Ok(row.get::<_, Option<i64>>(0)?.unwrap_or(0)))
        })
    }

    fn refuse_if_in_use(&self) -> Result<(), StoreError> {
        let names = self.run_tx(|tx| {
            let sql = "SELECT id, name FROM holders WHERE died_us IS NULL ORDER BY id";
            let mut statement = tx.sql.prepare(sql)?;
            let holders = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let holders: Vec<(i64, String)> = holders.collect::<rusqlite::Result<_>>()?;
            let mut names = Vec::new();
            for (holder, name) in holders {
                if tx.seems_alive(&self.liveness, holder)? {
                    names.push(name);
                }
            }
            Ok(names)
        })?;
        if names.is_empty() { Ok(()) } else { Err(copy::in_use(self.location.to_string(), &names)) }
    }

    fn count(&self, sql: &str) -> Result<u64, StoreError> {
        self.number(sql).map(|count| count.max(0) as u64)
    }
}

impl copy::Source for Source {
    fn location(&self) -> String {
        self.0.location.to_string()
    }

    fn now(&mut self) -> Result<Timestamp, StoreError> {
        let known = self.0.run_tx(|tx| tx.timeline())?;
        Ok(Timeline::now(known.as_ref(), &ThisMachine.read()))
    }

    fn shift(&mut self, shift: Shift) -> Result<(), StoreError> {
        self.0.run_tx(|tx| tx.shift(shift))
    }

    fn columns(&mut self) -> Result<Vec<(String, String)>, StoreError> {
        let sql = "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
            WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite%'";
        self.0.run(|connection| {
            let mut select = connection.prepare(sql)?;
            select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
    }

    fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        self.0.count(&table.count(Dialect::Sqlite))
    }

    fn read(
        &mut self,
        table: &Table,
        take: &mut dyn FnMut(Batch) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let failed = |error: rusqlite::Error| self.0.location.error(&error);
        let mut select = self.0.connection.prepare(&table.select(Dialect::Sqlite)).map_err(failed)?;
        let mut rows = select.query([]).map_err(failed)?;
        let mut batch = Batch::new(table);
        while let Some(row) = rows.next().map_err(failed)? {
            batch.push(|nth, values| read_value(row, nth, values)).map_err(failed)?;
            if batch.is_full() {
                take(std::mem::replace(&mut batch, Batch::new(table)))?;
            }
        }
        if batch.rows > 0 { take(batch) } else { Ok(()) }
    }

    fn used_id(&mut self, table: &Table) -> Result<i64, StoreError> {
        match table.ids {
            Ids::None | Ids::Highest => Ok(0),
            Ids::Noted(column) => self.0.number(&format!("SELECT {column} FROM identity")),
            Ids::Counted => self
                .0
                .number(&format!("SELECT max(seq) FROM sqlite_sequence WHERE name = '{}'", table.sqlite)),
        }
    }
}

impl copy::Target for Target {
    fn location(&self) -> String {
        self.locked.location.to_string()
    }

    fn now(&mut self, source_now: Timestamp) -> Result<Timestamp, StoreError> {
        // As if it came from another machine: the first process that uses it sets it to its wall clock.
        self.locked.run(|sql| {
            sql.execute("DELETE FROM timeline", [])?;
            let insert =
                "INSERT INTO timeline (boot, booted_us, last_us, wall_us) VALUES ('copied', 0, ?1, ?2)";
            sql.execute(insert, [us(source_now), us(ThisMachine.wall())])
        })?;
        Ok(source_now)
    }

    fn write(&mut self, table: &Table, batch: &Batch) -> Result<(), StoreError> {
        let places = vec!["?"; table.columns.len()].join(", ");
        let columns = table.column_names(Dialect::Sqlite);
        let sql = format!("INSERT INTO {} ({columns}) VALUES ({places})", table.sqlite);
        self.locked.run(|connection| {
            let mut insert = connection.prepare_cached(&sql)?;
            for row in 0..batch.rows {
                let values = batch.columns.iter().map(|values| Field(values, row));
                insert.execute(rusqlite::params_from_iter(values))?;
            }
            Ok(())
        })
    }

    fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        self.locked.count(&format!("SELECT count(*) FROM {}", table.sqlite))
    }

    fn set_used_id(&mut self, table: &Table, used: i64) -> Result<(), StoreError> {
        let name = table.sqlite;
        self.locked.run(|sql| match table.ids {
            Ids::None | Ids::Highest => Ok(0),
            Ids::Noted(column) => {
                sql.execute(&format!("UPDATE identity SET {column} = max({column}, ?1)"), [used])
            }
            Ids::Counted => {
                let insert = "INSERT INTO sqlite_sequence (name, seq)
                    SELECT ?1, 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?1)";
                sql.execute(insert, [name])?;
                sql.execute("UPDATE sqlite_sequence SET seq = max(seq, ?2) WHERE name = ?1", (name, used))
            }
        })?;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        let Self { locked, new } = *self;
        locked.run(|sql| sql.execute_batch("COMMIT"))?;
        let Some(New { part, file }) = new else { return Ok(()) };
        let (connection, location) = (locked.connection, locked.location);
        // The last connection moves the log into the database and deletes it.
        connection.close().map_err(|(_, error)| location.error(&error))?;
        let name = file.display().to_string();
        if files::has_content(&files::beside(&part.path, "-wal")) {
            let what = "its log could not be merged into it; nothing was copied".to_owned();
            return Err(StoreError::Unavailable { location: name, what, outage: None });
        }
        part.put(&file, Existing::Keep).map(drop).map_err(|error| unwritable(&name, &error))
    }
}

/// Appends the value of a column. Text that is not UTF-8 was damaged: what can be read of it is copied.
fn read_value(row: &Row<'_>, nth: usize, values: &mut Values) -> rusqlite::Result<usize> {
    Ok(match values {
        Values::Integers(integers) => {
            integers.push(row.get(nth)?);
            size_of::<i64>()
        }
        Values::Reals(reals) => {
            reals.push(row.get(nth)?);
            size_of::<f64>()
        }
        Values::Flags(flags) => {
            flags.push(row.get::<_, Option<i64>>(nth)?.map(|flag| flag != 0));
            size_of::<bool>()
        }
        Values::Texts(texts) => {
            let text = match row.get_ref(nth)? {
                ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
                _ => row.get(nth)?,
            };
            let size = text.as_ref().map_or(0, String::len);
            texts.push(text);
            size
        }
        Values::Blobs(blobs) => {
            let blob: Option<Vec<u8>> = row.get(nth)?;
            let size = blob.as_ref().map_or(0, Vec::len);
            blobs.push(blob);
            size
        }
    })
}

/// A value of a column, in that row of its batch.
struct Field<'a>(&'a Values, usize);

impl ToSql for Field<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let Self(values, row) = *self;
        Ok(match values {
            Values::Integers(integers) => {
                ToSqlOutput::Owned(integers[row].map_or(Value::Null, Value::Integer))
            }
            Values::Reals(reals) => ToSqlOutput::Owned(reals[row].map_or(Value::Null, Value::Real)),
            Values::Flags(flags) => {
                ToSqlOutput::Owned(flags[row].map_or(Value::Null, |flag| Value::Integer(flag.into())))
            }
            Values::Texts(texts) => texts[row].to_sql()?,
            Values::Blobs(blobs) => blobs[row].to_sql()?,
        })
    }
}

/// How long a process that writes right now is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

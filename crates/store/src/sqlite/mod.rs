//! The store in SQLite: one file, one thread that uses it, WAL, transactions of everything asked meanwhile.
//!
//! Several processes of one machine may share a file. The store in memory is the same code on a database that
//! is never written to disk.
//!
//! - `place`: where the file is, and what its errors mean
//! - `schema`: the tables
//! - `writer`: the thread
//! - `holders`, `domains`, `jobs`, `tasks`, `sources`, `items`, `wiki`, `status`: what it does

mod domains;
mod holders;
mod items;
mod jobs;
mod place;
mod schema;
mod sources;
mod status;
mod tasks;
mod wiki;
mod wiki_files;
mod writer;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity_core::domain::Domain;
use comity_core::enqueue::{self, Asker};
use comity_core::task::{JobId, JobStep};
use comity_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde_json::Value;

use crate::counts::CountStore;
use crate::domains::{DomainKey, DomainRow, DomainStore, HolderId, Released, Saved, Take};
use crate::items::{
    Item, ItemCounts, ItemId, ItemStore, Items, LogId, ScrapeLog, ScrapeTerms, Start, Started, Wish,
};
use crate::jobs::{Filling, Job, JobStore, Stepped};
use crate::robots::{RobotsRow, RobotsStore};
use crate::secrets::SecretStore;
use crate::sources::{
    Changed, FetchEnd, FetchRun, Kept, NewItem, NewSource, Source, SourceChange, SourceClaim, SourceId,
    SourceStore,
};
use crate::status::{Backlog, StatusStore, Working};
use crate::tasks::{
    Claim, Claimed, Enqueued, LaneId, NewTask, Refill, Settle, Settled, TaskRow, TaskStore, TaskView,
};
use crate::{Reply, Store, StoreError};
use holders::{Living, Proof};
use place::Place;
use writer::{Memory, Writer};

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    writer: Writer,
    place: Place,
    living: Living,
    /// The holders of this process, alive while they are in here.
    proofs: Arc<Mutex<HashMap<HolderId, Proof>>>,
    /// The file that was opened, to notice when another one lies in its place.
    file: Option<u64>,
}

impl Sqlite {
    /// Opens the database at `path`, which is made when it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let place = Place::File(path.as_ref().to_owned());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path.as_ref(), flags).map_err(|error| place.error(&error))?;
        // By whatever name it was opened, its holders are found beside the file itself.
        let real = path.as_ref().canonicalize().unwrap_or_else(|_| path.as_ref().to_owned());
        Self::start(connection, place, Living::beside(&real))
    }

    /// A database in memory, gone with its last user.
    pub fn in_memory() -> Result<Self, StoreError> {
        let connection = Connection::open_in_memory().map_err(|error| Place::Memory.error(&error))?;
        Self::start(connection, Place::Memory, Living::Here(Arc::new(Mutex::new(HashSet::new()))))
    }

    fn start(mut connection: Connection, place: Place, living: Living) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY).map_err(|error| place.error(&error))?;
        schema::recognise(&connection, &place)?;
        prepare(&connection).map_err(|error| place.error(&error))?;
        schema::migrate(&mut connection, &place)?;
        let file = place.path().and_then(file_number);
        let writer = Writer::start(connection, place.clone(), Memory::default())?;
        let proofs = Arc::default();
        Ok(Self { writer, place, living, proofs, file })
    }
}

/// Durable against a kill, not against a power cut in the last moments; a log that is moved over seldom.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(100);
    // Two processes that make the database at once: the second waits for the first.
    let wal = || connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()));
    connection.busy_timeout(Duration::ZERO)?;
    for tries in 0.. {
        match wal() {
            Err(error) if is_busy(&error) && tries < 500 => std::thread::sleep(Duration::from_millis(20)),
            result => {
                result?;
                break;
            }
        }
    }
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "journal_size_limit", 256 << 20)?;
    connection.pragma_update(None, "cache_size", -(64 << 10))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

/// The number of a file on its disk.
#[cfg(unix)]
fn file_number(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| file.ino())
}

#[cfg(not(unix))]
fn file_number(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|_| 0)
}

impl Store for Sqlite {
    fn place(&self) -> String {
        self.place.to_string()
    }
}

impl DomainStore for Sqlite {
    fn register(&self, name: String, now: Timestamp) -> Reply<'_, HolderId> {
        let (living, place) = (self.living.clone(), self.place.clone());
        let registered = self.writer.run(move |tx| {
            let holder = tx.register(&name, now)?;
            // Proved before the commit: nobody sees a holder that does not live yet.
            Ok((holder, living.prove(holder.0)))
        });
        Box::pin(async move {
            let (holder, proof) = registered.await?;
            let proof =
                proof.map_err(|error| place.unavailable(format!("no lock file beside it: {error}")))?;
            self.proofs.lock().unwrap_or_else(PoisonError::into_inner).insert(holder, proof);
            Ok(holder)
        })
    }

    fn beat(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()> {
        if self.place.path().is_some_and(|path| file_number(path) != self.file) {
            let gone = self.place.unavailable("the file was deleted or replaced while it was in use");
            return Box::pin(async move { Err(gone) });
        }
        let living = self.living.clone();
        let beaten = self.writer.run(move |tx| {
            let renewed = tx.renew(holder, now)?;
            tx.look_round(&living, holder, now)?;
            Ok(renewed)
        });
        Box::pin(async move { if beaten.await? { Ok(()) } else { Err(StoreError::Lost) } })
    }

    fn version(&self) -> Reply<'_, i64> {
        self.writer.version()
    }

    fn wanted(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>> {
        self.writer.run(move |tx| tx.wanted(holder))
    }

    fn take(&self, holder: HolderId, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, Vec<Take>> {
        let living = self.living.clone();
        let taken = self.writer.run(move |tx| {
            if !tx.is_holder(holder)? {
                return Ok(None);
            }
            let take = |domain: &Domain| {
                let id = tx.domain_id(domain.as_str())?;
                tx.take(&living, holder, id, now)
            };
            domains.iter().map(take).collect::<rusqlite::Result<Vec<Take>>>().map(Some)
        });
        Box::pin(async move { taken.await?.ok_or(StoreError::Lost) })
    }

    fn save(&self, holder: HolderId, saved: Vec<Saved>) -> Reply<'_, ()> {
        self.writer.run(move |tx| saved.iter().try_for_each(|saved| tx.save(holder, saved).map(|_| ())))
    }

    fn release(&self, holder: HolderId, released: Vec<Released>, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| released.iter().try_for_each(|released| tx.release(holder, released, now)))
    }

    fn deregister(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()> {
        let living = self.living.clone();
        let proof = self.proofs.lock().unwrap_or_else(PoisonError::into_inner).remove(&holder);
        drop(proof);
        self.writer.run(move |tx| {
            tx.look_at(&living, holder.0, now)?;
            tx.look_round(&living, HolderId(0), now)
        })
    }

    fn list_domains(&self, like: String, after: String, limit: u32) -> Reply<'_, Vec<DomainRow>> {
        self.writer.run(move |tx| tx.rows(&like, &after, limit))
    }

    fn find_domain(&self, domain: Domain) -> Reply<'_, Option<DomainRow>> {
        self.writer.run(move |tx| tx.row(domain.as_str()))
    }
}

impl JobStore for Sqlite {
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)> {
        self.writer.run(move |tx| tx.open_job(&name, &options, now))
    }

    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>> {
        self.writer.run(move |tx| tx.make_job(&name, &options, tasks, now))
    }

    fn find_job(&self, name: String) -> Reply<'_, Option<Job>> {
        self.writer.run(move |tx| tx.job_named(&name))
    }

    fn list_jobs(&self) -> Reply<'_, Vec<Job>> {
        self.writer.run(|tx| tx.jobs())
    }

    fn set_options(&self, job: JobId, options: Value) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "UPDATE jobs SET options = ?2 WHERE id = ?1";
            tx.sql.prepare_cached(sql)?.execute(params![job.0 as i64, options.to_string()]).map(|_| ())
        })
    }

    fn filling(&self, job: JobId, holder: HolderId, filling: Filling, now: Timestamp) -> Reply<'_, ()> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.filling(&living, job, holder, filling, now))
    }

    fn step_job(
        &self,
        job: JobId,
        step: JobStep,
        message: Option<String>,
        now: Timestamp,
    ) -> Reply<'_, Stepped> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.step_job(&living, job, step, message.as_deref(), now))
    }

    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.sweep(job, limit, now))
    }
}

impl TaskStore for Sqlite {
    fn enqueue(&self, job: JobId, tasks: Vec<NewTask>, now: Timestamp) -> Reply<'_, Enqueued> {
        self.writer.run(move |tx| tx.enqueue(job, tasks, now))
    }

    fn claim(&self, holder: HolderId, claim: Claim, now: Timestamp) -> Reply<'_, Vec<Claimed>> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.claim(&living, holder, claim, now))
    }

    fn refill(&self, refills: Vec<Refill>) -> Reply<'_, Vec<(LaneId, Vec<TaskRow>)>> {
        self.writer.run(move |tx| {
            refills.into_iter().map(|refill| Ok((refill.lane, tx.read_lane(refill)?))).collect()
        })
    }

    fn settle(&self, holder: HolderId, settles: Vec<Settle>, now: Timestamp) -> Reply<'_, Vec<Settled>> {
        self.writer.run(move |tx| tx.settle(holder, settles, now))
    }

    fn park(&self, holder: HolderId, lanes: Vec<(LaneId, Timestamp)>) -> Reply<'_, ()> {
        self.writer
            .run(move |tx| lanes.into_iter().try_for_each(|(lane, due_at)| tx.park(holder, lane, due_at)))
    }

    fn next_due(&self, job: JobId) -> Reply<'_, Option<Timestamp>> {
        self.writer.run(move |tx| tx.next_due(job))
    }

    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>> {
        self.writer.run(move |tx| tx.views(job, &state, limit))
    }
}

impl StatusStore for Sqlite {
    fn tell(&self, holder: HolderId, status: Value, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.tell(holder, &status, now))
    }

    fn working(&self, now: Timestamp) -> Reply<'_, Vec<Working>> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.working(&living, now))
    }

    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>> {
        self.writer.run(move |tx| tx.backlog(job, lanes, tasks))
    }
}

impl SourceStore for Sqlite {
    fn add_source(&self, source: NewSource, now: Timestamp) -> Reply<'_, (Source, bool)> {
        self.writer.run(move |tx| tx.add_source(&source, now))
    }

    fn find_source(&self, id: SourceId) -> Reply<'_, Option<Source>> {
        self.writer.run(move |tx| tx.source(id))
    }

    fn list_sources(&self) -> Reply<'_, Vec<Source>> {
        self.writer.run(|tx| tx.sources())
    }

    fn change_source(&self, id: SourceId, change: SourceChange) -> Reply<'_, Changed> {
        self.writer.run(move |tx| tx.change_source(id, &change))
    }

    fn remove_source(&self, id: SourceId) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.remove_source(id))
    }

    fn keep_items(&self, source: SourceId, items: Vec<NewItem>, now: Timestamp) -> Reply<'_, Kept> {
        self.writer.run(move |tx| tx.keep_items(source, &items, now))
    }

    fn claim_source(&self, id: SourceId, holder: HolderId, now: Timestamp) -> Reply<'_, SourceClaim> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.claim_source(&living, id, holder, now))
    }

    fn leave_source(&self, id: SourceId, holder: HolderId) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.leave_source(id, holder))
    }

    fn end_fetch(&self, end: FetchEnd) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.end_fetch(&end))
    }

    fn list_fetches(&self, source: SourceId, limit: u32) -> Reply<'_, Vec<FetchRun>> {
        self.writer.run(move |tx| tx.fetches(source, limit))
    }
}

impl ItemStore for Sqlite {
    fn find_item(&self, id: ItemId) -> Reply<'_, Option<Item>> {
        self.writer.run(move |tx| tx.item(id))
    }

    fn list_items(&self, items: Items) -> Reply<'_, Vec<Item>> {
        self.writer.run(move |tx| tx.items(items))
    }

    fn count_items(&self, source: SourceId) -> Reply<'_, ItemCounts> {
        self.writer.run(move |tx| tx.count_items(source))
    }

    fn sources_with_unscraped(&self) -> Reply<'_, Vec<SourceId>> {
        self.writer.run(|tx| tx.sources_with_unscraped())
    }

    fn scrape_job(&self, now: Timestamp) -> Reply<'_, Job> {
        self.writer.run(move |tx| tx.scrape_job(now))
    }

    fn enqueue_items(
        &self,
        job: JobId,
        wishes: Vec<Wish>,
        asker: Asker,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Reply<'_, Vec<enqueue::Enqueued>> {
        self.writer.run(move |tx| tx.enqueue_items(job, &wishes, asker, terms, now))
    }

    fn start_scrape(&self, holder: HolderId, start: Start, now: Timestamp) -> Reply<'_, Started> {
        self.writer.run(move |tx| tx.start_scrape(holder, start, now))
    }

    fn call_off_scrape(&self, log: LogId) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.call_off_scrape(log))
    }

    fn list_scrapes(&self, item: ItemId, limit: u32) -> Reply<'_, Vec<ScrapeLog>> {
        self.writer.run(move |tx| tx.scrapes(item, limit))
    }
}

impl CountStore for Sqlite {
    fn add_counts(&self, added: Vec<(String, u64)>) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "INSERT INTO counts (name, value) VALUES (?1, ?2)
                ON CONFLICT (name) DO UPDATE SET value = value + excluded.value";
            let mut add = tx.sql.prepare_cached(sql)?;
            for (name, count) in &added {
                add.execute(params![name, i64::try_from(*count).unwrap_or(i64::MAX)])?;
            }
            Ok(())
        })
    }

    fn counts(&self) -> Reply<'_, Vec<(String, u64)>> {
        self.writer.run(|tx| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.max(0) as u64));
            tx.sql.prepare_cached("SELECT name, value FROM counts")?.query_map([], row)?.collect()
        })
    }
}

impl SecretStore for Sqlite {
    fn secret(&self, name: String, fresh: Vec<u8>) -> Reply<'_, Vec<u8>> {
        self.writer.run(move |tx| {
            let sql = "INSERT OR IGNORE INTO secrets (name, value) VALUES (?1, ?2)";
            tx.sql.prepare_cached(sql)?.execute(params![name, fresh])?;
            let sql = "SELECT value FROM secrets WHERE name = ?1";
            tx.sql.prepare_cached(sql)?.query_row([&name], |row| row.get(0))
        })
    }
}

impl RobotsStore for Sqlite {
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>> {
        self.writer.run(move |tx| {
            let sql = "SELECT fetched_us, status, body FROM robots WHERE origin = ?1";
            let row = tx
                .sql
                .prepare_cached(sql)?
                .query_row([&origin], |row| Ok((at(row.get(0)?), row.get(1)?, row.get(2)?)));
            Ok(row.optional()?.map(|(fetched_at, status, body)| RobotsRow {
                origin,
                fetched_at,
                status,
                body,
            }))
        })
    }

    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let RobotsRow { origin, fetched_at, status, body } = row;
            let sql =
                "INSERT OR REPLACE INTO robots (origin, fetched_us, status, body) VALUES (?1, ?2, ?3, ?4)";
            tx.sql.prepare_cached(sql)?.execute(params![origin, us(fetched_at), status, body]).map(|_| ())
        })
    }

    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool> {
        self.writer.run(move |tx| {
            let sql = "DELETE FROM robots WHERE origin IN (SELECT origin FROM robots WHERE fetched_us < ?1 LIMIT ?2)";
            let pruned = tx.sql.prepare_cached(sql)?.execute(params![us(before), limit])?;
            Ok(pruned == limit as usize && limit > 0)
        })
    }
}

/// A moment as it stands in a column.
fn us(at: Timestamp) -> i64 {
    at.as_micros()
}

/// A column as a moment.
fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// How long another program may keep the database locked.
const BUSY: Duration = Duration::from_secs(10);

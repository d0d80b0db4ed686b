//! The PostgreSQL store: one schema that processes on any number of machines share.
//!
//! PostgreSQL only records who holds what; the holder decides, in memory. Every statement is typed and unnamed, and nothing
//! depends on a session, so a transaction pooler may stand in between. What one caller asks for is one transaction of a few
//! statements, each about all rows at once.
//!
//! - `location`: the URL; `connection`: one connection; `failure`: what errors mean; `outages`: waiting for the database
//! - `lanes`: the threads and their connections; `tx`, `param`: how statements are run; `shared`: what threads share
//! - `news`: hearing from other processes; `liveness`: which of them are alive; `replacement`: after a failover
//! - `migrations`: the tables, in `migrations/*.sql`; `copying`: from and to another kind of database
//! - `time`, `holders`, `domains`, `idle_domains`, `permits`, `status`, `jobs`, `job_retry`, `tasks`, `claiming`, `settling`,
//!   `results`, `retention`, `sources`, `fetches`, `items`, `details`, `scrapes`, `scrape_log`, `sharing`, `hooks`, `wiki`, `wiki_files`,
//!   `wiki_revisions`, `robots`, `activity`, `audit`, `failures`, `counts_and_secrets`: one part of the `Store` trait each, next to its SQL
//!
//! This file opens and closes the store.

mod activity;
mod audit;
mod claiming;
mod connection;
#[cfg(feature = "sqlite")]
pub(crate) mod copying;
mod counts_and_secrets;
mod details;
mod domains;
mod enqueueing;
mod failure;
mod failures;
mod fetches;
mod holders;
mod hooks;
mod idle_domains;
mod items;
mod job_retry;
mod jobs;
mod lanes;
mod liveness;
mod location;
mod migrations;
mod news;
mod origins;
mod outages;
mod param;
mod permits;
mod replacement;
mod request_parts;
mod results;
mod retention;
mod robots;
mod scrape_log;
mod scrapes;
mod settled_rows;
mod settling;
mod shared;
mod sharing;
mod sources;
mod status;
mod stranded;
mod tasks;
mod time;
mod tx;
mod wiki;
mod wiki_files;
mod wiki_revisions;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use comity_core::time::{Span, Timestamp};

use crate::backup::{Existing, Progress};
use crate::machine::{Machine, ThisMachine};
use crate::{Availability, Identity, PATIENCE, Reply, Store, StoreError};
use failure::Result;
use lanes::{Lane, Lanes};
use liveness::LeaseWatch;
use location::Location;
use migrations::Found;
use outages::Outages;
use shared::Shared;
use tx::Tx;

/// A store in PostgreSQL.
pub struct Postgres {
    lanes: Lanes,
    shared: Arc<Shared>,
    identity: Identity,
    /// The clock that the time since boot is read from.
    machine: Arc<dyn Machine>,
}

/// What to do if there is no store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create it.
    Create,
    /// Leave it at that.
    Report,
}

impl Postgres {
    /// Opens the store at `url`, creating it if there is none.
    pub fn open(url: &str) -> std::result::Result<Self, StoreError> {
        Opening::of(url)?.open(Missing::Create, None)?.ok_or(StoreError::Closed)
    }

    /// Opens a store whose transactions call `hook`, each that changed something after its last statement and before its
    /// commit, and that reads the time since boot from `machine`. For tests.
    #[doc(hidden)]
    pub fn open_for_tests(
        url: &str,
        machine: Arc<dyn Machine>,
        hook: impl Fn() + Send + Sync + 'static,
    ) -> std::result::Result<Self, StoreError> {
        let mut opening = Opening::of(url)?;
        opening.shared.before_commit = Some(Box::new(hook));
        opening.shared.watch = LeaseWatch::default();
        opening.open(Missing::Create, None)?.map(|store| Self { machine, ..store }).ok_or(StoreError::Closed)
    }

    /// Opens the store at `url`, with a limit on how long callers wait for it, now and later. `None` if there is none and it
    /// is not to be created.
    pub(crate) fn open_as(
        url: &str,
        known: Option<&Identity>,
        missing: Missing,
        patience: Span,
    ) -> std::result::Result<Option<Self>, StoreError> {
        let opening = Opening::of(url)?;
        opening.shared.outages.set_patience(patience);
        opening.open(missing, known)
    }

    /// Runs `work` in a transaction that may write.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.lanes.write(Lane::Work, work)
    }

    /// Runs `work` in a transaction of the connection for heartbeats. It must never wait for long.
    fn write_now<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.lanes.write(Lane::Beat, work)
    }

    /// Runs `work` in a transaction that only reads.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        self.lanes.read(work)
    }
}

/// A store that is about to be opened.
struct Opening {
    shared: Shared,
}

impl Opening {
    fn of(url: &str) -> std::result::Result<Self, StoreError> {
        let location = Location::parse(url)?;
        Ok(Self { shared: Shared::new(location.clone(), Outages::new(location, PATIENCE)) })
    }

    fn open(
        self,
        missing: Missing,
        known: Option<&Identity>,
    ) -> std::result::Result<Option<Postgres>, StoreError> {
        let shared = Arc::new(self.shared);
        let location = shared.location.clone();
        let no_thread = |error| location.unavailable(format!("could not start a thread: {error}"));
        let lanes = Lanes::start(shared.clone()).map_err(no_thread)?;
        // The caller may be inside a runtime, where nothing may block on another one: the thread of the connection opens it.
        let opened: Arc<Mutex<Option<_>>> = Arc::default();
        let (result, (done, is_done)) = (opened.clone(), std::sync::mpsc::channel::<()>());
        let known = known.map(|known| known.id);
        drop(lanes.send(Lane::Beat, move |worker| {
            let _done = done;
            let found = initialize(worker, missing, known).map_err(while_opening);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            Ok(())
        }));
        let _ = is_done.recv();
        let found = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(id) = found.unwrap_or(Err(StoreError::Closed))? else { return Ok(None) };
        news::start(&shared).map_err(no_thread)?;
        let (identity, machine) = (Identity { id, doubtful: false }, Arc::new(ThisMachine));
        Ok(Some(Postgres { lanes, shared, identity, machine }))
    }
}

/// Makes sure that the store is there and is the right one; returns its identity.
fn initialize(
    worker: &mut lanes::Worker,
    missing: Missing,
    known: Option<[u8; 16]>,
) -> std::result::Result<Option<[u8; 16]>, StoreError> {
    let location = worker.shared.location.clone();
    let schema = location.schema.clone();
    let found = worker.directly(|session| {
        migrations::check_server(session)?;
        migrations::find(session, &schema)
    })?;
    match found {
        Found::Foreign => {
            let what =
                format!("the schema {schema} belongs to another program; use another one: ?schema=NAME");
            return Err(location.unavailable(what));
        }
        Found::Newer(found) => {
            return Err(StoreError::Newer {
                location: location.to_string(),
                found,
                known: migrations::KNOWN,
            });
        }
        Found::Nothing if missing == Missing::Report => return Ok(None),
        Found::Nothing if known.is_some() => {
            return Err(location.outage(comity_core::decision::Outage::Gone, "there is no store any more"));
        }
        Found::Nothing | Found::Older(_) => {
            let id = random_id();
            worker.directly(|session| migrations::migrate(session, &schema, &id))?;
        }
        Found::Current => {}
    }
    let sql = format!("SELECT id FROM \"{schema}\".identity");
    let rows = worker.directly(|session| session.wait_for(session.client().query_typed(&sql, &[])))?;
    let id: Option<Vec<u8>> = rows.first().map(|row| row.get(0));
    let id: [u8; 16] = id.and_then(|id| id.try_into().ok()).ok_or_else(|| {
        location.unavailable("the table identity is empty: this is not a complete store; restore a backup")
    })?;
    match known {
        Some(known) if known != id => Err(StoreError::Another { location: location.to_string() }),
        _ => Ok(Some(id)),
    }
}

/// What a refusal means before there is a store: it cannot be used, as with a wrong password.
fn while_opening(error: StoreError) -> StoreError {
    match error {
        StoreError::Rejected { location, what } => StoreError::Unavailable { location, what, outage: None },
        error => error,
    }
}

impl Store for Postgres {
    fn location(&self) -> String {
        self.shared.location.to_string()
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn set_patience(&self, patience: Span) {
        self.shared.outages.set_patience(patience);
    }

    fn availability(&self) -> Arc<Availability> {
        self.shared.outages.availability.clone()
    }

    fn backup(&self, _file: PathBuf, _existing: Existing, _progress: Arc<Progress>) -> Reply<'_, u64> {
        let error = self.shared.location.rejected(
            "a store in PostgreSQL is backed up with PostgreSQL's own tools, such as pg_dump or a base backup; docs/fleet.md says how",
        );
        Box::pin(async { Err(error) })
    }
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").field("location", &self.location()).finish_non_exhaustive()
    }
}

/// A random number: ids that a failover must not repeat. Never 0.
fn random() -> i64 {
    let hash = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
    (hash >> 1).max(1) as i64
}

fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random().to_ne_bytes());
    id[8..].copy_from_slice(&random().to_ne_bytes());
    id
}

/// A timestamp as a column value.
fn us(at: Timestamp) -> i64 {
    at.as_micros()
}

/// A column value as a timestamp.
fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// A span as a column value.
fn micros(span: Span) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

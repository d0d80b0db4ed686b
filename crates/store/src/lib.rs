//! Persistent state for Comity, with atomic updates. A store records who holds a domain, which tasks are waiting and
//! what was learned. It never decides when a request may leave.
//!
//! # Holding a domain
//! A process *registers* and becomes a **holder**. Its lease expires unless it sends heartbeats ([`LEASE`]). It *takes*
//! domains; while it holds one, its in-memory gate alone decides that domain's pace. Each take starts a new **epoch**,
//! and every write by a holder is checked against it: a holder that was silent for too long and whose domains were
//! taken can no longer write. A process that finds a domain held marks it as *wanted*; the holder sees that and
//! *releases* the domain with its complete pace. A dead holder is noticed at once where the operating system helps (its
//! lock file is free again), and otherwise when its lease has expired.
//!
//! # Lanes
//! A **lane** is the tasks of one job on one domain. A *claim* reads lanes that are due, never tasks, so a blocked
//! domain with a million tasks costs one row. The tasks of a lane are read a few at a time, and their rows stay
//! `waiting` until they are *settled*. The holder's epoch protects them, and a crash frees them together with the
//! domain.
//!
//! # Time
//! The store owns the time ([`mod@time`]). A process asks for it when it registers and builds its clock from the
//! answer; every `now` passed to the store is read from that clock. All methods return futures, and none needs a
//! particular async runtime.
//!
//! # Sources and items
//! A **source** is followed, and what is found via it are **items**. Scraping an item is a task of the scrape job. Its
//! row in the scrape log is committed together with the check that the scrape may start.
//!
//! # When the store is unavailable
//! While a store is locked, full, gone or unreadable, callers wait for up to [`Store::set_patience`] and then get an
//! error. A file that was moved away, or deleted and put back, is reopened, and so is a connection to a server; a missing
//! store is never created.
//! [`Store::availability`] shows when sending has to stop. If some of this process's writes are missing when the
//! store is back, its holders are lost.
//!
//! # Store identity
//! Every store gets a random identity when it is created. To reopen a store that was in use, pass its identity to
//! [`reopen`]: nothing is created then, and finding a different store is an error.
//!
//! Modules in reading order: [`error`], [`machine`], [`mod@time`], [`domains`], [`permits`], [`jobs`], [`tasks`],
//! [`robots`], [`sources`], [`items`], [`details`], [`hooks`], [`retention`], [`secrets`], [`counts`], [`wiki`],
//! [`status`], [`activity`], [`audit`], [`backup`]; [`sqlite`]; `postgres`, if it is compiled in.

// Parts of backends, which they share.
#![cfg_attr(not(feature = "sqlite"), allow(dead_code))]

pub mod activity;
pub mod audit;
mod availability;
pub mod backup;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
pub mod copy;
pub mod counts;
pub mod details;
pub mod domains;
pub mod error;
mod history;
pub mod hooks;
mod identity;
pub mod items;
pub mod jobs;
pub mod machine;
pub mod permits;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod retention;
pub mod robots;
pub mod secrets;
pub mod sources;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod status;
pub mod tasks;
pub mod time;
pub mod wiki;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use comity_core::time::Span;

pub use availability::Availability;
pub use error::StoreError;
pub use identity::Identity;

/// The return type of all store methods.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Everything a store can do.
pub trait Store:
    domains::DomainStore
    + jobs::JobStore
    + tasks::TaskStore
    + permits::PermitStore
    + robots::RobotsStore
    + secrets::SecretStore
    + counts::CountStore
    + sources::SourceStore
    + items::ItemStore
    + details::DetailStore
    + retention::RetentionStore
    + hooks::HookStore
    + wiki::WikiStore
    + status::StatusStore
    + activity::ActivityStore
    + audit::AuditStore
    + time::TimeStore
    + Send
    + Sync
{
    /// Where the store is, for messages to people.
    fn location(&self) -> String;

    /// The identity to pass to [`reopen`]. Ask for it after a failure, not before: only then does it know whether
    /// writes may be lost.
    fn identity(&self) -> Identity;

    /// Notes for people from opening the store, for example that its file permissions were changed.
    fn notes(&self) -> Vec<String>;

    /// How long callers wait for a store that is locked, full, gone or unreadable before they get an error. The default
    /// is 10 seconds.
    fn set_patience(&self, patience: Span);

    /// Whether the store can be used right now.
    fn availability(&self) -> Arc<Availability>;

    /// Writes a consistent copy of the store to `file` and returns its size in bytes. The copy is complete or absent,
    /// readable by its owner only, and verified. Writers are not blocked meanwhile. Whoever opens the copy later treats
    /// every domain as lost.
    fn backup(
        &self,
        file: std::path::PathBuf,
        existing: backup::Existing,
        progress: Arc<backup::Progress>,
    ) -> Reply<'_, u64>;
}

/// Whether this version has a backend for stores such as the one at `url`.
pub fn is_supported(url: &str) -> bool {
    let kind = url.split_once(':').map(|(kind, _)| kind);
    cfg!(feature = "sqlite") && matches!(kind, Some("sqlite" | "memory"))
        || cfg!(feature = "postgres") && matches!(kind, Some("postgres" | "postgresql"))
}

/// Opens the store at `url`: `sqlite:PATH`, `memory:` or `postgres://USER@HOST:PORT/DATABASE?schema=NAME`. A missing one is
/// created; a locked one is retried for up to 10 seconds.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    open_as(url, None, PATIENCE)
}

/// Like [`open`], with its own limit on how long to wait for the store, both now and later.
pub fn open_with_patience(url: &str, patience: Span) -> Result<Arc<dyn Store>, StoreError> {
    open_as(url, None, patience)
}

/// Opens the store at `url` like [`open`], but never creates one. `None` if there is none yet.
pub fn open_existing(url: &str, patience: Span) -> Result<Option<Arc<dyn Store>>, StoreError> {
    match url.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if sqlite::is_missing(path.as_ref()) => Ok(None),
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => open_postgres(url, None, postgres::Missing::Report, patience),
        _ => open_as(url, None, patience).map(Some),
    }
}

/// Reopens a store that was in use before, and never creates one. A missing store is [`StoreError::Unavailable`], and a
/// different one in its place is [`StoreError::Another`]. A `memory:` store disappears when it is closed, so it can
/// never be reopened.
pub fn reopen(url: &str, identity: &Identity) -> Result<Arc<dyn Store>, StoreError> {
    open_as(url, Some(identity), PATIENCE)
}

fn open_as(url: &str, known: Option<&Identity>, patience: Span) -> Result<Arc<dyn Store>, StoreError> {
    match (url.split_once(':'), known) {
        #[cfg(feature = "sqlite")]
        (Some(("sqlite", path)), known) if !path.is_empty() => {
            Ok(Arc::new(sqlite::Sqlite::open_as(path.as_ref(), known, patience)?))
        }
        #[cfg(feature = "sqlite")]
        (Some(("memory", "")), None) => Ok(Arc::new(sqlite::Sqlite::in_memory()?)),
        #[cfg(feature = "sqlite")]
        (Some(("memory", "")), Some(_)) => Err(StoreError::Another { location: "memory".to_owned() }),
        #[cfg(feature = "postgres")]
        (Some(("postgres" | "postgresql", _)), known) => {
            let store = open_postgres(url, known, postgres::Missing::Create, patience)?;
            store.ok_or(StoreError::Closed)
        }
        #[cfg(not(feature = "postgres"))]
        (Some(("postgres" | "postgresql", _)), _) => {
            Err(StoreError::Unsupported { url: "postgres://…".to_owned(), expected: EXPECTED_INSTEAD })
        }
        // An invalid URL may contain anything, including a password: only its scheme is repeated.
        _ => {
            let scheme = url.split(':').next().unwrap_or_default();
            let _ = (known, patience);
            Err(StoreError::Unsupported { url: format!("{scheme}:…"), expected: EXPECTED })
        }
    }
}

#[cfg(feature = "postgres")]
fn open_postgres(
    url: &str,
    known: Option<&Identity>,
    missing: postgres::Missing,
    patience: Span,
) -> Result<Option<Arc<dyn Store>>, StoreError> {
    let store = postgres::Postgres::open_as(url, known, missing, patience)?;
    Ok(store.map(|store| Arc::new(store) as Arc<dyn Store>))
}

/// How long [`open`] waits for a store that is locked, and callers for one that is unavailable, by default.
pub const PATIENCE: Span = Span::from_secs(10);
/// A holder that sent no heartbeat for this long may be treated as dead.
pub const LEASE: Span = Span::from_secs(10);
#[cfg(all(feature = "sqlite", feature = "postgres"))]
const EXPECTED: &str = "sqlite:PATH, memory: or postgres://HOST/DATABASE";
#[cfg(all(feature = "sqlite", not(feature = "postgres")))]
const EXPECTED: &str = "sqlite:PATH or memory:";
#[cfg(all(feature = "postgres", not(feature = "sqlite")))]
const EXPECTED: &str = "postgres://HOST/DATABASE (the feature `sqlite` is off)";
#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
const EXPECTED: &str = "a kind of store that was compiled in (the features `sqlite` and `postgres` are off)";
#[cfg(all(feature = "sqlite", not(feature = "postgres")))]
const EXPECTED_INSTEAD: &str = "sqlite:PATH or memory: (this version does not support PostgreSQL)";
#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
const EXPECTED_INSTEAD: &str = EXPECTED;

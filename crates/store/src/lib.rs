//! Rows and atomicity for Comity. A store says who holds a domain, which tasks wait and what was learnt; it
//! never decides when a request may leave.
//!
//! # Holding a domain
//! A process *registers* and becomes a **holder**, whose time runs out unless it *beats* ([`LEASE`]). It *takes*
//! domains; while it holds one, its gate in memory is the only authority over that domain's pace. Each taking has
//! a new **epoch**, and what a holder writes is checked against it: one that was silent for too long, and whose
//! domains were taken, writes nothing any more. A process that finds a domain held marks it *wanted*; the holder
//! sees that and *releases* it with its whole pace. A holder that died is noticed at once where the operating
//! system tells (a lock file that is free again), and otherwise when its time has run out.
//!
//! # Lanes
//! A **lane** is the tasks of one job on one domain. A *claim* reads lanes that are due, never tasks: a blocked
//! domain with a million tasks costs one row. Tasks of a lane are read a few at a time and stay `waiting` in
//! their row until they are *settled*; the holder's epoch protects them, and a crash frees them with the hold.
//!
//! A store owns the time ([`mod@time`]): a process that registers asks for it and makes a clock of it, and what comes in as
//! `now` is read from that. Everything returns a future; nothing here needs a particular runtime.
//!
//! # Sources and items
//! A **source** is followed; what it leads to are **items**. A scrape of an item is a task of the scrape job, and its
//! row in the scrape log is committed with the check that it may start.
//!
//! # A store that is away
//! While a store is locked, full, gone or unreadable, whoever asked it for something waits: for as long as
//! [`Store::set_patience`] says, and then hears that it is unavailable. One whose file was moved, or deleted and put back,
//! is opened again; one that is missing is never created. [`Store::availability`] tells who must not send meanwhile.
//! When it comes back and something is missing of what this process wrote, its holders are lost.
//!
//! # Which store it is
//! A store has an identity, made at random with it. Whoever opens one again that was in use a moment ago names the
//! identity ([`reopen`]): nothing is created then, and another store in its place is an error.
//!
//! Modules in reading order: [`error`], [`machine`], [`mod@time`], [`domains`], [`permits`], [`jobs`], [`tasks`], [`robots`], [`sources`], [`items`], [`details`], [`hooks`], [`retention`],
//! [`secrets`], [`counts`], [`wiki`], [`status`]; [`sqlite`].

mod availability;
pub mod backup;
pub mod counts;
pub mod details;
pub mod domains;
pub mod error;
pub mod hooks;
mod identity;
pub mod items;
pub mod jobs;
pub mod machine;
pub mod permits;
pub mod retention;
pub mod robots;
pub mod secrets;
pub mod sources;
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

/// What a store's methods return.
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
    + time::TimeStore
    + Send
    + Sync
{
    /// Where it is, for people.
    fn place(&self) -> String;

    /// Which store it is, to open it again with [`reopen`]. To be asked after it failed, not before: then it knows
    /// whether something may be lost.
    fn identity(&self) -> Identity;

    /// What was noticed as it was opened and people should know.
    fn notes(&self) -> Vec<String>;

    /// For how long a store that is locked, full, gone or unreadable is waited for before whoever asked hears that it is
    /// unavailable; 10 seconds unless said otherwise.
    fn set_patience(&self, patience: Span);

    /// Whether it can be used at the moment.
    fn availability(&self) -> Arc<Availability>;

    /// Writes a copy of everything, as it is at one moment, to `file`: whole or not at all, readable by its owner only, and
    /// checked. Nobody who writes meanwhile is held up. How many bytes it has. Whoever works with the copy later takes every
    /// domain for lost.
    fn backup(
        &self,
        file: std::path::PathBuf,
        existing: backup::Existing,
        progress: Arc<backup::Progress>,
    ) -> Reply<'_, u64>;
}

/// Opens the store at `url`: `sqlite:PATH` or `memory:`. One that is not there is created, one that is locked is waited for
/// for 10 seconds.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    open_as(url, None, sqlite::PATIENCE)
}

/// The same for long work: the store is waited for so long, now and later.
pub fn open_patiently(url: &str, patience: Span) -> Result<Arc<dyn Store>, StoreError> {
    open_as(url, None, patience)
}

/// Opens a store again that was in use before. It is never created: one that is missing is
/// [`StoreError::Unavailable`], another one in its place [`StoreError::Another`]. A store in memory is gone when it is
/// closed, so there is never one to open again.
pub fn reopen(url: &str, identity: &Identity) -> Result<Arc<dyn Store>, StoreError> {
    open_as(url, Some(identity), sqlite::PATIENCE)
}

fn open_as(url: &str, known: Option<&Identity>, patience: Span) -> Result<Arc<dyn Store>, StoreError> {
    match (url.split_once(':'), known) {
        (Some(("sqlite", path)), known) if !path.is_empty() => {
            Ok(Arc::new(sqlite::Sqlite::open_as(path.as_ref(), known, patience)?))
        }
        (Some(("memory", "")), None) => Ok(Arc::new(sqlite::Sqlite::in_memory()?)),
        (Some(("memory", "")), Some(_)) => Err(StoreError::Another { place: "memory".to_owned() }),
        (Some(("postgres" | "postgresql", _)), _) => Err(StoreError::Unsupported {
            url: "postgres://…".to_owned(),
            expected: "sqlite:PATH or memory: (this version has no PostgreSQL)",
        }),
        // What is no store may be anything, passwords included: only its beginning is repeated.
        _ => {
            let scheme = url.split(':').next().unwrap_or_default();
            Err(StoreError::Unsupported { url: format!("{scheme}:…"), expected: "sqlite:PATH or memory:" })
        }
    }
}

/// A holder that did not beat for this long may be taken for gone.
pub const LEASE: Span = Span::from_secs(10);

//! The SQLite stores, as opened by the conformance suite.

use std::path::PathBuf;
use std::sync::Arc;

use comity_conformance::{Backend, BoxFuture, Opened, Pause, Process};
use comity_core::time::Timestamp;
use comity_store::machine::Machine;
use comity_store::sqlite::Sqlite;
use tempfile::TempDir;

/// One in-memory store, which all processes share.
pub(crate) struct Memory(Opened);

pub(crate) async fn memory() -> Memory {
    Memory(opened(Sqlite::in_memory().unwrap()))
}

impl Backend for Memory {
    fn open_on(&self, _machine: Arc<dyn Machine>) -> BoxFuture<'_, Opened> {
        Box::pin(async { self.0.clone() })
    }

    fn kill(&self, process: Process, now: Timestamp) -> BoxFuture<'_, ()> {
        // It shares its only connection with the live processes.
        Box::pin(async move { process.store.deregister(process.holder, now).await.unwrap() })
    }
}

/// A file that each process opens for itself.
pub(crate) struct SqliteFile {
    path: PathBuf,
    _folder: TempDir,
}

pub(crate) async fn sqlite_file() -> SqliteFile {
    let folder = tempfile::tempdir().unwrap();
    SqliteFile { path: folder.path().join("comity.db"), _folder: folder }
}

impl Backend for SqliteFile {
    fn open_on(&self, machine: Arc<dyn Machine>) -> BoxFuture<'_, Opened> {
        Box::pin(async { opened(Sqlite::open(&self.path).unwrap().on(machine)) })
    }

    fn kill(&self, process: Process, _now: Timestamp) -> BoxFuture<'_, ()> {
        // Its connection is closed, which frees its lock.
        Box::pin(async { drop(process) })
    }
}

/// A store whose transactions can be paused.
pub(crate) fn opened(store: Sqlite) -> Opened {
    let pause = Pause::default();
    let hook = pause.clone();
    Opened { store: Arc::new(store.before_commit(move || hook.before_commit_blocking())), pause }
}

//! The stores that the promises are checked against.

use std::sync::Arc;

use comity_core::time::Timestamp;
use comity_store::Store;
use comity_store::sqlite::Sqlite;
use tempfile::TempDir;

use crate::process::Process;

/// A database that several processes share.
pub(crate) struct Backend {
    open: Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
    death: Death,
    _folder: Option<TempDir>,
}

/// How a process of this backend ends without a word.
enum Death {
    /// Its connection goes, and with it its lock.
    Dropped,
    /// It shares its one connection with the living; stopping without releasing anything comes to the same.
    Deregistered,
}

/// One store in memory, which all processes share.
pub(crate) fn memory() -> Backend {
    let store: Arc<dyn Store> = Arc::new(Sqlite::in_memory().unwrap());
    Backend { open: Box::new(move || store.clone()), death: Death::Deregistered, _folder: None }
}

/// A file, opened anew by each process.
pub(crate) fn sqlite_file() -> Backend {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("comity.db").display());
    let open = move || comity_store::open(&url).unwrap();
    Backend { open: Box::new(open), death: Death::Dropped, _folder: Some(folder) }
}

impl Backend {
    /// The store as one more process opens it.
    pub(crate) fn open(&self) -> Arc<dyn Store> {
        (self.open)()
    }

    /// Ends a process in the middle of whatever it does.
    pub(crate) async fn kill(&self, process: Process, now: Timestamp) {
        match self.death {
            Death::Dropped => drop(process),
            Death::Deregistered => process.store.deregister(process.holder, now).await.unwrap(),
        }
    }
}

//! Copies the database into one file while others keep writing.
//!
//! The copy is read in one transaction on its own connection, which blocks nobody. It is written next to the target
//! under a temporary name, readable by its owner only, then verified, synced to disk and moved into place. The copy is
//! marked as one: whoever opens it later treats every domain as lost (see `identity`).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comity_core::decision::Outage;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::oneshot;

use super::location::Location;
use super::open_store::OpenStore;
use super::opening::{connect_to_read, real};
use super::part::Part;
use super::{files, identity};
use crate::backup::{Existing, Progress};
use crate::{Reply, StoreError};

/// Writes a copy to `file` on its own thread, and returns its size in bytes.
pub(super) fn backup(
    open_store: Arc<OpenStore>,
    file: PathBuf,
    existing: Existing,
    progress: Arc<Progress>,
) -> Reply<'static, u64> {
    let (sender, receiver) = oneshot::channel();
    let started = std::thread::Builder::new().name("comity-copy".to_owned()).spawn(move || {
        let _ = sender.send(copy(&open_store, &file, existing, &progress));
    });
    Box::pin(async move {
        if started.is_err() {
            return Err(StoreError::Closed);
        }
        receiver.await.unwrap_or(Err(StoreError::Closed))
    })
}

fn copy(
    open_store: &OpenStore,
    file: &Path,
    existing: Existing,
    progress: &Progress,
) -> Result<u64, StoreError> {
    let Some(store) = &open_store.path else {
        return Err(refused(
            &open_store.location.to_string(),
            "nothing to back up: a store in memory is lost when its process ends",
        ));
    };
    let name = file.display().to_string();
    refuse_own_files(store, file)?;
    if existing == Existing::Keep && fs::symlink_metadata(file).is_ok() {
        return Err(exists(&name));
    }
    let failed = |error: io::Error| refused(&name, &error.to_string());
    let part = Part::create(file).map_err(failed)?;
    let source = connect_to_read(store, &open_store.location, &open_store.identity)?;
    fill(&source, &open_store.location, &part, &name, progress)?;
    check(&part, open_store)?;
    let bytes = part.put(file, existing).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(&name),
        _ => failed(error),
    })?;
    progress.set(bytes, bytes);
    Ok(bytes)
}

fn refused(location: &str, what: &str) -> StoreError {
    StoreError::Rejected { location: location.to_owned(), what: what.to_owned() }
}

fn exists(name: &str) -> StoreError {
    refused(name, "already exists; choose another file, or replace it with --force")
}

/// Refuses to overwrite the database or one of its own files with a copy.
fn refuse_own_files(store: &Path, file: &Path) -> Result<(), StoreError> {
    let store = real(store);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = real(folder).join(file.file_name().unwrap_or_default());
    let own = ["-wal", "-shm", "-journal"].map(|ending| files::beside(&store, ending));
    if real(&file) == store || own.contains(&file) {
        return Err(refused(&file.display().to_string(), "is the store itself; choose another file"));
    }
    Ok(())
}

/// Copies the whole database, as of one moment.
fn fill(
    source: &Connection,
    location: &Location,
    part: &Part,
    name: &str,
    progress: &Progress,
) -> Result<(), StoreError> {
    let error = |error: rusqlite::Error| match progress.is_stopped() {
        true => refused(&part.path.display().to_string(), "stopped; no copy was written"),
        // The store itself is only read.
        false => match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => refused(name, "its disk is full; no copy was written"),
            _ => match Location::File(part.path.clone()).error(&error).outage() {
                Some(Outage::Full) => refused(name, "its disk is full; no copy was written"),
                _ => location.error(&error),
            },
        },
    };
    let size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let all: i64 = source.query_row(size, [], |row| row.get(0)).map_err(error)?;
    let (over, interrupt) = (AtomicBool::new(false), source.get_interrupt_handle());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let written = fs::metadata(&part.path).map_or(0, |file| file.len());
                progress.set(written, all.max(0) as u64);
                if progress.is_stopped() {
                    interrupt.interrupt();
                }
                std::thread::park_timeout(LOOK);
            }
        });
        // `VACUUM INTO` writes a compacted copy in one pass.
        let copied = source.execute("VACUUM INTO ?1", [part.path.to_string_lossy()]);
        over.store(true, Ordering::Relaxed);
        copied.map(drop).map_err(error)
    })
}

/// Verifies that the copy is intact and is a copy of this store, and marks it as a copy.
fn check(part: &Part, open_store: &OpenStore) -> Result<(), StoreError> {
    let location = Location::File(part.path.clone());
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let verify = || -> rusqlite::Result<(Connection, String)> {
        let copy = Connection::open_with_flags(&part.path, flags)?;
        copy.execute("UPDATE identity SET file = 'a copy'", [])?;
        let found = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        Ok((copy, found))
    };
    let (copy, found) = verify().map_err(|error| location.error(&error))?;
    if found != "ok" {
        return Err(open_store
            .location
            .unavailable(format!("the copy is corrupt and was discarded: {found}")));
    }
    identity::compare(&copy, &open_store.location, &open_store.identity)
}

/// How often progress is updated.
const LOOK: Duration = Duration::from_millis(100);

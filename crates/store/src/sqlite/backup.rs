//! A copy of the database in one file, made while others write.
//!
//! It is read in one transaction on a connection of its own, which holds nobody up; written beside its place under another
//! name, for its owner's eyes only; checked; and moved there when it is whole and on the disk. The copy says that it is
//! one: whoever works with it later takes every domain for lost (see `identity`).

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::in_use::InUse;
use super::opening::{connect_to_read, real};
use super::place::Place;
use super::{files, identity};
use crate::backup::{Existing, Progress};
use crate::{Reply, StoreError};

/// Writes a copy to `file`, on a thread of its own; how many bytes it has.
pub(super) fn backup(
    in_use: Arc<InUse>,
    file: PathBuf,
    existing: Existing,
    progress: Arc<Progress>,
) -> Reply<'static, u64> {
    let (sender, receiver) = oneshot::channel();
    let started = std::thread::Builder::new().name("comity-copy".to_owned()).spawn(move || {
        let _ = sender.send(copy(&in_use, &file, existing, &progress));
    });
    Box::pin(async move {
        if started.is_err() {
            return Err(StoreError::Closed);
        }
        receiver.await.unwrap_or(Err(StoreError::Closed))
    })
}

fn copy(in_use: &InUse, file: &Path, existing: Existing, progress: &Progress) -> Result<u64, StoreError> {
    let Some(store) = &in_use.path else {
        return Err(refused(
            &in_use.place.to_string(),
            "a store in memory is gone with its process: there is nothing to back up",
        ));
    };
    let name = file.display().to_string();
    refuse_own_files(store, file)?;
    if existing == Existing::Keep && fs::symlink_metadata(file).is_ok() {
        return Err(exists(&name));
    }
    let failed = |error: io::Error| refused(&name, &error.to_string());
    let part = Part::create(file).map_err(failed)?;
    let source = connect_to_read(store, &in_use.place, &in_use.identity)?;
    fill(&source, &in_use.place, &part, progress)?;
    check(&part, in_use)?;
    let bytes = part.put(file, existing).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(&name),
        _ => failed(error),
    })?;
    progress.set(bytes, bytes);
    Ok(bytes)
}

fn refused(place: &str, what: &str) -> StoreError {
    StoreError::Rejected { place: place.to_owned(), what: what.to_owned() }
}

fn exists(name: &str) -> StoreError {
    refused(name, "exists already; name another file, or replace it with --force")
}

/// A copy in the place of the database, or of what belongs to it, would be the end of it.
fn refuse_own_files(store: &Path, file: &Path) -> Result<(), StoreError> {
    let store = real(store);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = real(folder).join(file.file_name().unwrap_or_default());
    let own = ["-wal", "-shm", "-journal"].map(|ending| files::beside(&store, ending));
    if real(&file) == store || own.contains(&file) {
        return Err(refused(&file.display().to_string(), "is the store itself; name another file"));
    }
    Ok(())
}

/// Copies everything, as it is at one moment.
fn fill(source: &Connection, place: &Place, part: &Part, progress: &Progress) -> Result<(), StoreError> {
    let error = |error: rusqlite::Error| match progress.is_stopped() {
        true => refused(&part.0.display().to_string(), "stopped: nothing was kept"),
        false => place.error(&error),
    };
    let size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let all: i64 = source.query_row(size, [], |row| row.get(0)).map_err(error)?;
    let (over, interrupt) = (AtomicBool::new(false), source.get_interrupt_handle());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let written = fs::metadata(&part.0).map_or(0, |file| file.len());
                progress.set(written, all.max(0) as u64);
                if progress.is_stopped() {
                    interrupt.interrupt();
                }
                std::thread::park_timeout(LOOK);
            }
        });
        // What has no gaps in it is smaller, and is written once.
        let copied = source.execute("VACUUM INTO ?1", [part.0.to_string_lossy()]);
        over.store(true, Ordering::Relaxed);
        copied.map(drop).map_err(error)
    })
}

/// Whether the copy is whole and one of this store. It is noted in it that it is a copy.
fn check(part: &Part, in_use: &InUse) -> Result<(), StoreError> {
    let place = Place::File(part.0.clone());
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let look = || -> rusqlite::Result<(Connection, String)> {
        let copy = Connection::open_with_flags(&part.0, flags)?;
        copy.execute("UPDATE identity SET file = 'a copy'", [])?;
        let found = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        Ok((copy, found))
    };
    let (copy, found) = look().map_err(|error| place.error(&error))?;
    if found != "ok" {
        return Err(in_use.place.unavailable(format!("its copy is damaged, so it was not kept: {found}")));
    }
    identity::compare(&copy, &in_use.place, &in_use.identity)
}

/// A file in the making. Dropped before it is whole, nothing is left of it.
struct Part(PathBuf);

impl Part {
    fn create(file: &Path) -> io::Result<Self> {
        let wrong = || io::Error::new(ErrorKind::InvalidInput, "expected the name of a file");
        let name = file.file_name().ok_or_else(wrong)?.to_string_lossy();
        let part = file.with_file_name(format!(".{name}.{}.part", std::process::id()));
        // What a process with our number left behind when it was killed.
        let _ = fs::remove_file(&part);
        files::new_file(&part, 0o600)?;
        Ok(Self(part))
    }

    /// It is whole: put on the disk, and in its place.
    fn put(self, file: &Path, existing: Existing) -> io::Result<u64> {
        let made = File::open(&self.0)?;
        made.sync_all()?;
        let bytes = made.metadata()?.len();
        match existing {
            Existing::Replace => fs::rename(&self.0, file)?,
            // A second name is refused where a file is by now.
            Existing::Keep => match fs::hard_link(&self.0, file) {
                Ok(()) => fs::remove_file(&self.0)?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
                // Where there are no second names.
                Err(_) if fs::symlink_metadata(file).is_err() => fs::rename(&self.0, file)?,
                Err(_) => return Err(ErrorKind::AlreadyExists.into()),
            },
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Not every file system can.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(bytes)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(files::beside(&self.0, "-journal"));
    }
}

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(100);

//! What the threads that use one database share: which files it is in, the connection that reads, and the holders of this
//! process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_core::decision::Away;
use rusqlite::Connection;

use super::files::{Opened, Replaced};
use super::holders::Proof;
use super::opening::connect_to_read;
use super::place::Place;
use crate::domains::HolderId;
use crate::{Identity, StoreError};

/// A database that is in use.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) place: Place,
    /// Where it is, if it is in a file.
    pub(super) path: Option<PathBuf>,
    pub(super) identity: Identity,
    /// The files that were opened, to notice when others lie in their place.
    opened: Mutex<Option<Opened>>,
    /// Its log was deleted or replaced while it was open.
    doubtful: AtomicBool,
    /// The connection that reads for people; none until somebody looks, and while the database is opened again.
    reading: Mutex<Option<Connection>>,
    /// The holders of this process, alive while they are in here.
    proofs: Mutex<HashMap<HolderId, Proof>>,
}

impl InUse {
    pub(super) fn new(place: Place, identity: Identity, opened: Option<Opened>) -> Self {
        // Found again from any folder.
        let path = match &place {
            Place::File(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            Place::Memory => None,
        };
        Self {
            place,
            path,
            identity,
            opened: Mutex::new(opened),
            doubtful: AtomicBool::new(false),
            reading: Mutex::default(),
            proofs: Mutex::default(),
        }
    }

    /// The holders of this process.
    pub(super) fn proofs(&self) -> MutexGuard<'_, HashMap<HolderId, Proof>> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that reads, opened when there is none.
    pub(super) fn reading(&self) -> Result<MutexGuard<'_, Option<Connection>>, StoreError> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(path)) = (&*reading, &self.path) {
            *reading = Some(connect_to_read(path, &self.place, &self.identity)?);
        }
        Ok(reading)
    }

    /// Closes the connection that reads, when nobody looks any more.
    pub(super) fn close_reading(&self) {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Which store it is, and whether something of it may be lost.
    pub(super) fn identity(&self) -> Identity {
        self.replaced();
        Identity { doubtful: self.doubtful.load(Ordering::Relaxed), ..self.identity.clone() }
    }

    /// Which of its files is gone, or another one by now: what is written would be lost, and others would not see it.
    pub(super) fn replaced(&self) -> Option<(Replaced, StoreError)> {
        let replaced = self.opened().as_ref().and_then(Opened::replaced)?;
        // What is only in the log goes with it. A database that is gone has its log when it comes back.
        self.doubtful.fetch_or(replaced.is_log, Ordering::Relaxed);
        let name = replaced.path.file_name().unwrap_or_default().to_string_lossy();
        let what = format!(
            "the file {name} was deleted, moved or replaced while it was in use; put it back or mount its volume"
        );
        let error = self.place.away(Away::Gone, what);
        Some((replaced, error))
    }

    /// It was opened again, as it is now.
    pub(super) fn reopened(&self, opened: Opened) {
        *self.opened() = Some(opened);
        self.doubtful.store(false, Ordering::Relaxed);
    }
}

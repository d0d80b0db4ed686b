//! State that the threads of one open database share: its files, the reading connection, and the holders of this
//! process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_core::decision::Outage;
use rusqlite::Connection;

use super::files::{Opened, Replaced};
use super::holders::Proof;
use super::location::Location;
use super::opening::connect_to_read;
use crate::domains::HolderId;
use crate::{Identity, StoreError};

/// An open database.
#[derive(Debug)]
pub(super) struct OpenStore {
    pub(super) location: Location,
    /// The absolute path of the database file, if there is one.
    pub(super) path: Option<PathBuf>,
    pub(super) identity: Identity,
    /// The files that were opened, to notice when they are replaced.
    opened: Mutex<Option<Opened>>,
    /// The log was deleted or replaced while the database was open.
    doubtful: AtomicBool,
    /// The connection for reads; `None` until it is first used, and while the database is being reopened.
    reading: Mutex<Option<Connection>>,
    /// The holders of this process. They count as alive while they are in here.
    proofs: Mutex<HashMap<HolderId, Proof>>,
}

impl OpenStore {
    pub(super) fn new(location: Location, identity: Identity, opened: Option<Opened>) -> Self {
        // An absolute path stays valid when the working directory changes.
        let path = match &location {
            Location::File(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            Location::Memory => None,
        };
        Self {
            location,
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

    /// The reading connection, which is opened if there is none.
    pub(super) fn reading(&self) -> Result<MutexGuard<'_, Option<Connection>>, StoreError> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(path)) = (&*reading, &self.path) {
            *reading = Some(connect_to_read(path, &self.location, &self.identity)?);
        }
        Ok(reading)
    }

    /// Closes the reading connection as soon as it is not in use.
    pub(super) fn close_reading(&self) {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The identity of the store, and whether some of its writes may be lost.
    pub(super) fn identity(&self) -> Identity {
        self.replaced();
        Identity { doubtful: self.doubtful.load(Ordering::Relaxed), ..self.identity.clone() }
    }

    /// The first of its files that is missing or was replaced: further writes would be lost, and other processes would
    /// not see them.
    pub(super) fn replaced(&self) -> Option<(Replaced, StoreError)> {
        let replaced = self.opened().as_ref().and_then(Opened::replaced)?;
        // What is only in the log is lost with it. A database that was moved away still has its log when it is back.
        self.doubtful.fetch_or(replaced.is_log, Ordering::Relaxed);
        let name = replaced.path.file_name().unwrap_or_default().to_string_lossy();
        let what = format!(
            "the file {name} was deleted, moved or replaced while it was in use; put it back, or mount its volume"
        );
        let error = self.location.outage(Outage::Gone, what);
        Some((replaced, error))
    }

    /// Records that the database was reopened.
    pub(super) fn reopened(&self, opened: Opened) {
        *self.opened() = Some(opened);
        self.doubtful.store(false, Ordering::Relaxed);
    }
}

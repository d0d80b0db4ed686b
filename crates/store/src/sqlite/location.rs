//! Where a database is, and what SQLite's errors mean to a person.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use comity_core::decision::Outage;
use rusqlite::ErrorCode;

use super::unreadable_rows::is_callers_error;
use crate::StoreError;

/// Where a database is.
#[derive(Debug, Clone)]
pub(super) enum Location {
    Memory,
    File(PathBuf),
}

impl Location {
    pub(super) fn unavailable(&self, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable { location: self.to_string(), what: what.into(), outage: None }
    }

    /// An error that may pass without anybody fixing the store.
    pub(super) fn outage(&self, outage: Outage, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable { location: self.to_string(), what: what.into(), outage: Some(outage) }
    }

    /// Turns an SQLite error into a store error.
    pub(super) fn error(&self, error: &rusqlite::Error) -> StoreError {
        if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) && self.is_disk_full() {
            return self.outage(Outage::Full, DISK_FULL);
        }
        let what = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "locked by another program; stop that program, or wait until it is done".to_owned()
            }
            Some(ErrorCode::DiskFull) => DISK_FULL.to_owned(),
            Some(ErrorCode::ReadOnly) => {
                "is not writable; check the permissions of the file and its folder".to_owned()
            }
            Some(ErrorCode::CannotOpen) if out_of_file_descriptors() => {
                "too many open files; raise ulimit -n".to_owned()
            }
            Some(ErrorCode::CannotOpen) => match self {
                Self::Memory => error.to_string(),
                Self::File(path) => format!("could not be opened: {}", why_not_opened(path)),
            },
            Some(ErrorCode::PermissionDenied) => "permission denied".to_owned(),
            Some(ErrorCode::NotADatabase) => "is not a database; use another --store".to_owned(),
            Some(ErrorCode::DatabaseCorrupt) => {
                "the database is corrupt; restore a backup, or move it away to start over".to_owned()
            }
            Some(ErrorCode::SystemIoFailure) => format!("reading or writing the disk failed: {error}"),
            _ if is_callers_error(error) => {
                return StoreError::Rejected { location: self.to_string(), what: rejected(error) };
            }
            _ => error.to_string(),
        };
        match outage_of(error) {
            Some(outage) => self.outage(outage, what),
            None => self.unavailable(what),
        }
    }
}

impl Location {
    /// Whether the disk of the database has (almost) no room left. SQLite has several errors for that: not only a full
    /// disk, but also I/O errors, such as those of the index of its log.
    fn is_disk_full(&self) -> bool {
        let Self::File(path) = self else { return false };
        let path = super::opening::real(path);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        room(folder.unwrap_or(Path::new("."))).is_some_and(|room| room < ROOM_MIN)
    }
}

/// How many bytes the disk of a folder has left for this user.
#[cfg(unix)]
fn room(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn room(_: &Path) -> Option<u64> {
    None
}

/// Why a request was rejected. A value that can't be read was damaged: nothing writes such values.
fn rejected(error: &rusqlite::Error) -> String {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    match error {
        FromSqlConversionFailure(..)
        | IntegralValueOutOfRange(..)
        | InvalidColumnType(..)
        | Utf8Error(..) => {
            format!("a value in the database is damaged ({error}); restore a backup")
        }
        _ if error.sqlite_extended_error_code() == Some(STRICT_TYPE) => {
            format!("a value in the database is damaged ({error}); restore a backup")
        }
        _ => error.to_string(),
    }
}

/// SQLite's code for a value that doesn't have the type of its column.
const STRICT_TYPE: i32 = rusqlite::ffi::SQLITE_CONSTRAINT_DATATYPE;

/// The kind of outage, if the error may pass. A corrupt database stays corrupt.
pub(super) fn outage_of(error: &rusqlite::Error) -> Option<Outage> {
    Some(match error.sqlite_error_code()? {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Outage::Locked,
        ErrorCode::DiskFull => Outage::Full,
        ErrorCode::ReadOnly
        | ErrorCode::CannotOpen
        | ErrorCode::PermissionDenied
        | ErrorCode::SystemIoFailure
        | ErrorCode::FileLockingProtocolFailed => Outage::Unreadable,
        _ => return None,
    })
}

/// Why a file can't be opened or created; SQLite does not report it.
fn why_not_opened(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Ok(found) if !found.is_dir() => return format!("{shown} is not a folder"),
        Ok(_) => {}
        Err(error) => {
            return match error.kind() {
                ErrorKind::NotFound => format!("the folder {shown} does not exist; create it first"),
                ErrorKind::NotADirectory => format!("{shown} is not in a folder"),
                ErrorKind::PermissionDenied => format!("no permission to look into the folder {shown}"),
                _ => format!("{shown}: {error}"),
            };
        }
    }
    match std::fs::metadata(path) {
        Ok(file) if file.is_dir() => return "it is a folder; name a file in it".to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return format!("it can't be created in the folder {shown}; check the folder's permissions");
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return format!("no permission to look into the folder {shown}");
        }
        Ok(_) | Err(_) => {}
    }
    match File::options().read(true).write(true).open(path) {
        Err(error) => match error.kind() {
            ErrorKind::PermissionDenied => "no permission to read and write it".to_owned(),
            ErrorKind::ReadOnlyFilesystem => "it is not writable: its file system is read-only".to_owned(),
            _ => error.to_string(),
        },
        Ok(_) => "check its permissions, and those of its folder".to_owned(),
    }
}

/// SQLite does not report why it cannot open a file.
fn out_of_file_descriptors() -> bool {
    std::fs::File::open(".").is_err_and(|error| matches!(error.raw_os_error(), Some(EMFILE | ENFILE)))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

const DISK_FULL: &str = "the disk is full; free some space and run the same command again";
/// With less room than this, in bytes, an I/O error means that the disk is full. The index of the log alone grows by
/// 32 KiB at a time.
const ROOM_MIN: u64 = 128 << 10;
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

//! Where a database is, and what its errors mean to a person.

use std::fmt;
use std::path::PathBuf;

use rusqlite::ErrorCode;

use super::aside::is_of_one;
use crate::StoreError;

/// Where a database is.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Memory,
    File(PathBuf),
}

impl Place {
    pub(super) fn unavailable(&self, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable { place: self.to_string(), what: what.into() }
    }

    /// What an error of SQLite means.
    pub(super) fn error(&self, error: &rusqlite::Error) -> StoreError {
        let what = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "locked by another program for too long; end that program or wait for it".to_owned()
            }
            Some(ErrorCode::DiskFull) => {
                "the disk is full; make room and start again, nothing is lost".to_owned()
            }
            Some(ErrorCode::ReadOnly) => {
                "cannot be written; check the permissions of file and folder".to_owned()
            }
            Some(ErrorCode::CannotOpen) if no_descriptor_is_left() => {
                "no file can be opened, as this process has too many open; raise ulimit -n".to_owned()
            }
            Some(ErrorCode::CannotOpen) => {
                "cannot be opened or made; check that the folder exists and can be written".to_owned()
            }
            Some(ErrorCode::PermissionDenied) => "permission denied".to_owned(),
            Some(ErrorCode::NotADatabase) => "is not a database; name another --store".to_owned(),
            Some(ErrorCode::DatabaseCorrupt) => {
                "the database is damaged; restore a copy, or move it away and start anew".to_owned()
            }
            Some(ErrorCode::SystemIoFailure) => format!("the disk does not work as it should: {error}"),
            _ if is_of_one(error) => {
                return StoreError::Rejected { place: self.to_string(), what: error.to_string() };
            }
            _ => error.to_string(),
        };
        self.unavailable(what)
    }
}

/// SQLite does not say why it cannot open a file.
fn no_descriptor_is_left() -> bool {
    std::fs::File::open(".").is_err_and(|error| matches!(error.raw_os_error(), Some(EMFILE | ENFILE)))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

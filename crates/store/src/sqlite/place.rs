//! Where a database is, and what its errors mean to a person.

use std::fmt;
use std::path::PathBuf;

use comity_core::decision::Away;
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
        StoreError::Unavailable { place: self.to_string(), what: what.into(), away: None }
    }

    /// The same for what may pass.
    pub(super) fn away(&self, away: Away, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable { place: self.to_string(), what: what.into(), away: Some(away) }
    }

    /// What an error of SQLite means.
    pub(super) fn error(&self, error: &rusqlite::Error) -> StoreError {
        let what = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "locked by another program; end that program or wait for it".to_owned()
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
        match passing(error) {
            Some(away) => self.away(away, what),
            None => self.unavailable(what),
        }
    }
}

/// Why the database cannot be used, if that may pass. What is damaged stays so.
pub(super) fn passing(error: &rusqlite::Error) -> Option<Away> {
    Some(match error.sqlite_error_code()? {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Away::Locked,
        ErrorCode::DiskFull => Away::Full,
        ErrorCode::ReadOnly
        | ErrorCode::CannotOpen
        | ErrorCode::PermissionDenied
        | ErrorCode::SystemIoFailure
        | ErrorCode::FileLockingProtocolFailed => Away::Unreadable,
        _ => return None,
    })
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

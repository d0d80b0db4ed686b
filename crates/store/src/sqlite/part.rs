//! A database file that appears under its name only once it is complete, for backups and copies. What it contains is up to them.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::files;
use crate::backup::Existing;

/// A file that is being written. It is deleted if it is dropped before it is complete.
pub(super) struct Part {
    /// Where it is written.
    pub(super) path: PathBuf,
}

impl Part {
    /// Creates it next to `file`, readable by its owner only.
    pub(super) fn create(file: &Path) -> io::Result<Self> {
        let wrong = || io::Error::new(ErrorKind::InvalidInput, "expected a file name");
        let name = file.file_name().ok_or_else(wrong)?.to_string_lossy();
        let part = file.with_file_name(format!(".{name}.{}.part", std::process::id()));
        // Remove what a killed process with the same pid left behind.
        let _ = fs::remove_file(&part);
        files::new_file(&part, 0o600)?;
        Ok(Self { path: part })
    }

    /// Syncs the finished file to disk and moves it into place.
    pub(super) fn put(self, file: &Path, existing: Existing) -> io::Result<u64> {
        let made = File::open(&self.path)?;
        made.sync_all()?;
        let bytes = made.metadata()?.len();
        match existing {
            Existing::Replace => fs::rename(&self.path, file)?,
            // A hard link fails if the target exists by now.
            Existing::Keep => match fs::hard_link(&self.path, file) {
                Ok(()) => fs::remove_file(&self.path)?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
                // The file system has no hard links.
                Err(_) if fs::symlink_metadata(file).is_err() => fs::rename(&self.path, file)?,
                Err(_) => return Err(ErrorKind::AlreadyExists.into()),
            },
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Not every file system can sync a folder.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(bytes)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        for ending in ["-journal", "-wal", "-shm"] {
            let _ = fs::remove_file(files::beside(&self.path, ending));
        }
    }
}

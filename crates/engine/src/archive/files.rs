//! Stores bodies as files in a folder, with an `index.jsonl` that lists them.
//!
//! A body is written to a temporary file and renamed when it is complete; its row follows when its task is settled. No
//! file is ever overwritten, because older rows point to it: a different body of the same page gets a name with its
//! hash, and an identical body reuses the existing file. A page that is fetched again has another row: the last one
//! counts.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64;

use super::atomic_file::{PutResult, remove_abandoned};
use super::confined::ConfinedFolder;
use super::names::{INDEX, file_name};
use super::written_rows::WrittenRows;
use super::{ArchiveError, AtomicFile, PageHead, Reach};
use crate::lock;
use crate::results::Row;

/// A folder of bodies.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    index: Index,
    /// Hashes of the subfolders in which the temporary files of killed processes have been removed.
    cleaned: Mutex<HashSet<u64>>,
}

#[derive(Debug)]
struct Index {
    path: PathBuf,
    file: Mutex<Lines>,
}

/// A file to which complete lines are appended.
#[derive(Debug)]
struct Lines {
    file: File,
    /// Whether a write failed, so that the last line may be incomplete.
    may_be_partial: bool,
}

/// A body being written. If it is dropped before it is finished, it leaves no file behind.
#[derive(Debug)]
pub(super) struct Draft {
    file: AtomicFile,
    folder: PathBuf,
    name: String,
}

impl Files {
    /// Opens the folder, and creates it if it doesn't exist.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ArchiveError> {
        let folder = folder.into();
        let (confined, path) = (ConfinedFolder::new(&folder, &[]), folder.join(INDEX));
        confined.create_all().map_err(at(&folder))?;
        let file = Lines::open(&confined).map_err(at(&path))?;
        Ok(Self { folder, index: Index { path, file: Mutex::new(file) }, cleaned: Mutex::default() })
    }

    pub(super) fn begin(&self, head: PageHead<'_>) -> Result<Draft, ArchiveError> {
        let name = file_name(head.final_url, head.content_type);
        self.clean(name.split('/').next().unwrap_or_default());
        let wrong = of_page(&self.folder, self.folder.join(&name));
        let file = AtomicFile::create_in(&self.folder, &name).map_err(wrong)?;
        Ok(Draft { file, folder: self.folder.clone(), name })
    }

    /// Removes what killed processes left in a subfolder, once.
    fn clean(&self, subfolder: &str) {
        if lock(&self.cleaned).insert(xxh3_64(subfolder.as_bytes())) {
            remove_abandoned(&self.folder, subfolder);
        }
    }

    /// Appends rows to the index.
    pub(super) fn add_rows(&self, rows: &[Row]) -> Result<(), ArchiveError> {
        let lines: String = rows.iter().map(|row| row.to_json() + "\n").collect();
        lock(&self.index.file).add(&lines).map_err(at(&self.index.path))
    }

    /// The size of the index, if it is known.
    pub(super) fn index_bytes(&self) -> Option<u64> {
        lock(&self.index.file).file.metadata().ok().map(|index| index.len())
    }

    /// The rows that were added to the index since it had `bytes` bytes.
    pub(super) fn rows_since(&self, bytes: u64) -> Result<WrittenRows, ArchiveError> {
        WrittenRows::read(&mut lock(&self.index.file).file, bytes).map_err(at(&self.index.path))
    }

    /// Whether there is a file with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut folders: Vec<&str> = name.split('/').collect();
        let name = folders.pop().unwrap_or_default();
        let is_plain = folders.iter().chain([&name]).all(|part| !matches!(*part, "" | "." | ".."));
        is_plain && ConfinedFolder::new(&self.folder, &folders).open(name).is_ok()
    }
}

impl Lines {
    /// Opens the index for appending. A line that a kill left incomplete is terminated, so that the next one is
    /// separate.
    fn open(folder: &ConfinedFolder) -> io::Result<Self> {
        let file = folder.append(INDEX)?;
        let mut lines = Self { file, may_be_partial: true };
        lines.repair()?;
        Ok(lines)
    }

    /// Appends lines with one write, so that lines of other processes don't get in between.
    fn add(&mut self, lines: &str) -> io::Result<()> {
        self.repair()?;
        // If the disk is full, only a part may be written.
        self.may_be_partial = true;
        self.file.write_all(lines.as_bytes())?;
        self.may_be_partial = false;
        Ok(())
    }

    /// Terminates an incomplete line.
    fn repair(&mut self) -> io::Result<()> {
        if self.may_be_partial && self.file.seek(SeekFrom::End(0))? > 0 {
            self.file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            self.file.read_exact(&mut last)?;
            if last != *b"\n" {
                self.file.write_all(b"\n")?;
            }
        }
        self.may_be_partial = false;
        Ok(())
    }
}

impl Draft {
    pub(super) fn write(&mut self, chunk: &[u8]) -> Result<(), ArchiveError> {
        self.file.write_all(chunk).map_err(at(&self.file.part()))
    }

    /// Moves the complete body to its final name; returns its path and its name inside the folder. Existing files are
    /// kept.
    pub(super) fn finish(mut self, sha256: &[u8; 32]) -> Result<(PathBuf, String), ArchiveError> {
        let wrong = of_page(&self.folder, self.file.part());
        let name = self.put(sha256).map_err(wrong)?;
        Ok((self.folder.join(&name), name))
    }

    fn put(&mut self, sha256: &[u8; 32]) -> io::Result<String> {
        let (folder, file) = self.name.rsplit_once('/').unwrap_or(("", &self.name));
        let (stem, extension) = file.rsplit_once('.').unwrap_or((file, "bin"));
        let short: String = sha256[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        // One name per body, and further names only for bodies whose hashes start with the same bytes.
        let others = (1..SAME_HASH_MAX).map(|nth| match nth {
            1 => format!("{stem}-{short}.{extension}"),
            _ => format!("{stem}-{short}-{nth}.{extension}"),
        });
        for name in std::iter::once(file.to_owned()).chain(others) {
            match self.file.put_as(&name, sha256)? {
                PutResult::Done => return Ok(format!("{folder}/{name}")),
                PutResult::NameTaken => {}
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many files with this name"))
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ArchiveError + use<> {
    let path = path.to_owned();
    move |cause| ArchiveError { path, cause, reach: Reach::Archive }
}

/// An error with the file of a page, at `path` inside `folder`.
fn of_page(folder: &Path, path: PathBuf) -> impl FnOnce(io::Error) -> ArchiveError + use<> {
    let folder = folder.to_owned();
    move |cause| {
        let is_in_the_way = matches!(
            cause.kind(),
            io::ErrorKind::AlreadyExists
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::InvalidFilename
                // A symbolic link, which is not followed.
                | io::ErrorKind::InvalidInput
        );
        // If the folder itself is gone, every page will fail.
        let reach = if is_in_the_way && folder.is_dir() { Reach::Page } else { Reach::Archive };
        ArchiveError { path, cause, reach }
    }
}

/// The maximum number of bodies of one page whose hashes start with the same bytes.
const SAME_HASH_MAX: u32 = 100;

//! Bodies as files in a folder, and `index.jsonl` that says which is which.
//!
//! A body is written beside its place and moved there when it is whole; its row follows when its task is settled. No file is
//! ever overwritten, because an older row points at it: another body of the same page gets a name with its hash, and the same
//! body keeps the file it has. After a kill a page may have two rows: the last one counts.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::below::Below;
use super::names::file_name;
use super::whole::Put;
use super::{ArchiveError, Head, WholeFile};
use crate::lock;
use crate::results::Row;

/// A folder of bodies.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    index: Index,
}

#[derive(Debug)]
struct Index {
    path: PathBuf,
    file: Mutex<Lines>,
}

/// A file that grows by whole lines.
#[derive(Debug)]
struct Lines {
    file: File,
    /// Whether a line could not be written, and may be there in part.
    is_torn: bool,
}

/// A body that is being written. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Draft {
    file: WholeFile,
    folder: PathBuf,
    name: String,
}

impl Files {
    /// The folder at `folder`, which is made when it is not there.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ArchiveError> {
        let folder = folder.into();
        let (below, path) = (Below::new(&folder, &[]), folder.join(INDEX));
        below.make().map_err(at(&folder))?;
        let file = Lines::open(&below).map_err(at(&path))?;
        Ok(Self { folder, index: Index { path, file: Mutex::new(file) } })
    }

    pub(super) fn begin(&self, head: Head<'_>) -> Result<Draft, ArchiveError> {
        let name = file_name(head.final_url, head.content_type);
        let file = WholeFile::create_below(&self.folder, &name).map_err(at(&self.folder.join(&name)))?;
        Ok(Draft { file, folder: self.folder.clone(), name })
    }

    /// Writes rows into the index.
    pub(super) fn note(&self, rows: &[Row]) -> Result<(), ArchiveError> {
        let lines: String = rows.iter().map(|row| row.to_json() + "\n").collect();
        lock(&self.index.file).add(&lines).map_err(at(&self.index.path))
    }

    /// Whether a file of that name is here.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut way: Vec<&str> = name.split('/').collect();
        let name = way.pop().unwrap_or_default();
        let is_plain = way.iter().chain([&name]).all(|part| !matches!(*part, "" | "." | ".."));
        is_plain && Below::new(&self.folder, &way).open(name).is_ok()
    }
}

impl Lines {
    /// Opens the index to add to it. A line that a kill cut short is ended, so that the next one stands alone.
    fn open(folder: &Below) -> io::Result<Self> {
        let file = folder.append(INDEX)?;
        let mut lines = Self { file, is_torn: true };
        lines.mend()?;
        Ok(lines)
    }

    /// Adds whole lines with one write: lines of other processes do not come in between.
    fn add(&mut self, lines: &str) -> io::Result<()> {
        self.mend()?;
        // A full disk may take half of it.
        self.is_torn = true;
        self.file.write_all(lines.as_bytes())?;
        self.is_torn = false;
        Ok(())
    }

    /// Ends a line that is there in part.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn && self.file.seek(SeekFrom::End(0))? > 0 {
            self.file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            self.file.read_exact(&mut last)?;
            if last != *b"\n" {
                self.file.write_all(b"\n")?;
            }
        }
        self.is_torn = false;
        Ok(())
    }
}

impl Draft {
    pub(super) fn write(&mut self, chunk: &[u8]) -> Result<(), ArchiveError> {
        self.file.write_all(chunk).map_err(at(&self.file.part()))
    }

    /// The body is whole: where it is, and its name below the folder. What is there already is left alone.
    pub(super) fn finish(mut self, sha256: &[u8; 32]) -> Result<(PathBuf, String), ArchiveError> {
        let part = at(&self.file.part());
        let name = self.put(sha256).map_err(part)?;
        Ok((self.folder.join(&name), name))
    }

    fn put(&mut self, sha256: &[u8; 32]) -> io::Result<String> {
        let (way, file) = self.name.rsplit_once('/').unwrap_or(("", &self.name));
        let (stem, extension) = file.rsplit_once('.').unwrap_or((file, "bin"));
        let short: String = sha256[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        // One name for each body, and more only for bodies whose hashes begin alike.
        let others = (1..ALIKE_MAX).map(|nth| match nth {
            1 => format!("{stem}-{short}.{extension}"),
            _ => format!("{stem}-{short}-{nth}.{extension}"),
        });
        for name in std::iter::once(file.to_owned()).chain(others) {
            match self.file.put_as(&name, sha256)? {
                Put::There => return Ok(format!("{way}/{name}")),
                Put::Taken => {}
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many files of that name"))
    }
}

fn at(place: &Path) -> impl FnOnce(io::Error) -> ArchiveError + use<> {
    let place = place.to_owned();
    move |cause| ArchiveError { place, cause }
}

const INDEX: &str = "index.jsonl";
/// Bodies of one page whose hashes begin alike.
const ALIKE_MAX: u32 = 100;

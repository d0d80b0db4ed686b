//! Bodies as files in a folder, and `index.jsonl` that says which is which.
//!
//! A body is written beside its place and moved there when it is whole; its line in the index follows. After a
//! kill a page may be fetched again and have two lines: the last one counts.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::below::Below;
use super::names::file_name;
use super::{ArchiveError, Head, Kept, WholeFile};
use crate::lock;

/// A folder of bodies.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    index: Arc<Index>,
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
pub struct Draft {
    file: WholeFile,
    path: PathBuf,
    name: String,
    url: String,
    final_url: String,
    status: u16,
    fetched_at: String,
    bytes: u64,
    index: Arc<Index>,
}

impl Files {
    /// The folder at `folder`, which is made when it is not there.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ArchiveError> {
        let folder = folder.into();
        let (below, path) = (Below::new(&folder, &[]), folder.join(INDEX));
        below.make().map_err(at(&folder))?;
        let file = Lines::open(&below).map_err(at(&path))?;
        Ok(Self { folder, index: Arc::new(Index { path, file: Mutex::new(file) }) })
    }

    pub(super) fn begin(&self, head: Head<'_>) -> Result<Draft, ArchiveError> {
        let name = file_name(head.final_url, head.content_type);
        let path = self.folder.join(&name);
        let file = WholeFile::create_below(&self.folder, &name).map_err(at(&path))?;
        Ok(Draft {
            file,
            path,
            name,
            url: head.url.to_string(),
            final_url: head.final_url.to_string(),
            status: head.status,
            fetched_at: head.fetched_at.to_string(),
            bytes: 0,
            index: self.index.clone(),
        })
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

    /// Adds a line with one write: lines of other processes do not come in between.
    fn add(&mut self, line: &str) -> io::Result<()> {
        self.mend()?;
        // A full disk may take half of it.
        self.is_torn = true;
        self.file.write_all(format!("{line}\n").as_bytes())?;
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
        self.bytes += chunk.len() as u64;
        self.file.write_all(chunk).map_err(at(&self.file.part()))
    }

    pub(super) fn finish(self) -> Result<Kept, ArchiveError> {
        let part = at(&self.file.part());
        self.file.finish().map_err(part)?;
        let line = json!({
            "url": self.url,
            "final_url": self.final_url,
            "status": self.status,
            "fetched_at": self.fetched_at,
            "file": self.name,
            "bytes": self.bytes,
        });
        lock(&self.index.file).add(&line.to_string()).map_err(at(&self.index.path))?;
        Ok(Kept { bytes: self.bytes, file: Some(self.path), content_type: None })
    }
}

fn at(place: &Path) -> impl FnOnce(io::Error) -> ArchiveError + use<> {
    let place = place.to_owned();
    move |cause| ArchiveError { place, cause }
}

const INDEX: &str = "index.jsonl";

//! What was fetched, and where it is kept. A body is on disk before its task is settled.

mod below;
mod files;
mod names;
mod warc;
mod whole;

pub(crate) use below::read_below;
pub use files::Files;
pub use warc::Warc;
pub(crate) use warc::{Ending, Recording};
#[cfg(feature = "fuzzing")]
pub use warc::{WarcRead, read_warc};
pub use whole::WholeFile;

use std::io;
use std::path::PathBuf;

use ring::digest::{Context, SHA256};
use url::Url;

use crate::results::Row;

/// Where bodies are kept.
#[derive(Debug)]
pub enum Archive {
    /// Nowhere: they are read and counted.
    Nothing,
    /// As files in a folder, with an index.
    Files(Files),
    /// As they were on the wire, with everything else that was answered.
    Warc(Warc),
}

/// A page that is being kept.
pub struct Entry {
    bytes: u64,
    hash: Context,
    /// On its way into a file; without one it is only counted.
    draft: Option<Box<files::Draft>>,
}

/// A page that was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The bytes of its body.
    pub bytes: u64,
    /// The SHA-256 of its body.
    pub sha256: Option<[u8; 32]>,
    /// The file it is in, if it has one of its own,
    pub file: Option<PathBuf>,
    /// and its name below the folder of the archive.
    pub name: Option<String>,
    /// What the answer said it is.
    pub content_type: Option<String>,
}

/// What is known of a page when its body begins.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Where redirects led.
    pub final_url: &'a Url,
    /// What the answer says it is.
    pub content_type: Option<&'a str>,
}

/// Bodies cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", place.display())]
pub struct ArchiveError {
    /// Which file or folder.
    pub place: PathBuf,
    /// What is wrong.
    #[source]
    pub cause: io::Error,
}

impl Archive {
    /// Begins to keep a page.
    pub fn begin(&self, head: Head<'_>) -> Result<Entry, ArchiveError> {
        let draft = match self {
            // What is recorded is taken from the wire; the decoded body is only counted.
            Self::Nothing | Self::Warc(_) => None,
            Self::Files(files) => Some(Box::new(files.begin(head)?)),
        };
        Ok(Entry { bytes: 0, hash: Context::new(&SHA256), draft })
    }

    /// Whether it has an index that wants rows.
    pub(crate) fn has_index(&self) -> bool {
        matches!(self, Self::Files(_))
    }

    /// Writes rows into the index, if it has one.
    pub fn note(&self, rows: &[Row]) -> Result<(), ArchiveError> {
        match self {
            Self::Files(files) => files.note(rows),
            Self::Nothing | Self::Warc(_) => Ok(()),
        }
    }

    /// Whether the page that was kept as `file` earlier is still here; where pages have no files of their own nothing can
    /// be missing.
    pub(crate) fn still_has(&self, file: Option<&str>) -> bool {
        match (self, file) {
            (Self::Files(files), Some(file)) => files.has(file),
            (Self::Files(_), None) => false,
            (Self::Nothing | Self::Warc(_), _) => true,
        }
    }

    /// Begins to record the exchange for `url`, if exchanges are recorded.
    pub(crate) fn record(&self, url: &Url) -> Option<Recording> {
        match self {
            Self::Warc(warc) => Some(warc.record(url)),
            Self::Nothing | Self::Files(_) => None,
        }
    }

    /// Nothing is kept any more.
    pub(crate) fn close(&self) -> Result<(), ArchiveError> {
        match self {
            Self::Warc(warc) => warc.close(),
            Self::Nothing | Self::Files(_) => Ok(()),
        }
    }
}

impl Entry {
    /// Adds a part of the body.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), ArchiveError> {
        self.bytes += chunk.len() as u64;
        self.hash.update(chunk);
        self.draft.as_mut().map_or(Ok(()), |draft| draft.write(chunk))
    }

    /// The body is whole: from now on it is there for others to read.
    pub fn finish(self) -> Result<Kept, ArchiveError> {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(self.hash.finish().as_ref());
        let kept = Kept { bytes: self.bytes, sha256: Some(sha256), ..Kept::default() };
        match self.draft {
            None => Ok(kept),
            Some(draft) => {
                let (file, name) = draft.finish(&sha256)?;
                Ok(Kept { file: Some(file), name: Some(name), ..kept })
            }
        }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("bytes", &self.bytes)
            .field("draft", &self.draft)
            .finish_non_exhaustive()
    }
}

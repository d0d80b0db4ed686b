//! Stores fetched pages, as files or as WARC. A body is on disk before its task is settled.
//!
//! - `files`: one file per page, and an index; `names`: the names of these files; `written_rows`: what an index has
//! - `warc`: the traffic as it was on the wire
//! - `atomic_file`: a file that is complete or absent; `confined`: folders that can't be left through symbolic links

mod atomic_file;
mod confined;
mod files;
mod names;
mod warc;
mod written_rows;

pub use atomic_file::AtomicFile;
pub(crate) use confined::read_confined;
pub use files::Files;
pub use warc::Warc;
pub(crate) use warc::{Ending, Recording};
#[cfg(feature = "fuzzing")]
pub use warc::{WarcRead, read_warc};
pub(crate) use written_rows::WrittenRows;

use std::io;
use std::path::PathBuf;

use ring::digest::{Context, SHA256};
use url::Url;

use crate::results::Row;

/// Where pages are stored.
#[derive(Debug)]
pub enum Archive {
    /// Nowhere: bodies are only read and counted.
    Nothing,
    /// As files in a folder, with an index.
    Files(Files),
    /// As WARC files, with the traffic as it was on the wire, including redirects and errors.
    Warc(Warc),
}

/// A page being stored.
pub struct PageWriter {
    bytes: u64,
    hash: Context,
    /// The file being written; without one, the body is only counted.
    draft: Option<Box<files::Draft>>,
}

/// A stored page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredPage {
    /// The size of its body.
    pub bytes: u64,
    /// The SHA-256 of its body.
    pub sha256: Option<[u8; 32]>,
    /// The path of its file, if it has one.
    pub file: Option<PathBuf>,
    /// The name of its file inside the folder of the archive.
    pub name: Option<String>,
    /// The content type of the response.
    pub content_type: Option<String>,
}

/// What is known about a page before its body arrives.
#[derive(Debug, Clone, Copy)]
pub struct PageHead<'a> {
    /// The URL after redirects.
    pub final_url: &'a Url,
    /// The content type of the response.
    pub content_type: Option<&'a str>,
}

/// A page could not be stored.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct ArchiveError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong.
    #[source]
    pub cause: io::Error,
    /// What can't be stored because of it.
    pub reach: Reach,
}

/// What can't be stored because of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// This page only: something else is in its place, or the disk doesn't accept its name.
    Page,
    /// Nothing at all, such as when the disk is full.
    Archive,
}

impl Archive {
    /// Starts storing a page.
    pub fn begin(&self, head: PageHead<'_>) -> Result<PageWriter, ArchiveError> {
        let draft = match self {
            // A WARC file is recorded from the wire, so the decoded body is only counted.
            Self::Nothing | Self::Warc(_) => None,
            Self::Files(files) => Some(Box::new(files.begin(head)?)),
        };
        Ok(PageWriter { bytes: 0, hash: Context::new(&SHA256), draft })
    }

    /// Whether it has an index.
    pub(crate) fn has_index(&self) -> bool {
        matches!(self, Self::Files(_))
    }

    /// The size of the index, if it has one.
    pub(crate) fn index_bytes(&self) -> Option<u64> {
        match self {
            Self::Files(files) => files.index_bytes(),
            Self::Nothing | Self::Warc(_) => None,
        }
    }

    /// The rows that were added to the index since it had `bytes` bytes; all of its rows if that is unknown.
    pub(crate) fn rows_since(&self, bytes: Option<u64>) -> Result<WrittenRows, ArchiveError> {
        match self {
            Self::Files(files) => files.rows_since(bytes.unwrap_or(0)),
            Self::Nothing | Self::Warc(_) => Ok(WrittenRows::default()),
        }
    }

    /// Appends rows to the index, if it has one.
    pub fn add_rows(&self, rows: &[Row]) -> Result<(), ArchiveError> {
        match self {
            Self::Files(files) => files.add_rows(rows),
            Self::Nothing | Self::Warc(_) => Ok(()),
        }
    }

    /// Whether the page that was stored as `file` earlier is still there. If pages don't have their own files, none can
    /// be missing.
    pub(crate) fn still_has(&self, file: Option<&str>) -> bool {
        match (self, file) {
            (Self::Files(files), Some(file)) => files.has(file),
            (Self::Files(_), None) => false,
            (Self::Nothing | Self::Warc(_), _) => true,
        }
    }

    /// Starts recording the exchange for `url`, if the archive records exchanges.
    pub(crate) fn record(&self, url: &Url) -> Option<Recording> {
        match self {
            Self::Warc(warc) => Some(warc.record(url)),
            Self::Nothing | Self::Files(_) => None,
        }
    }

    /// Closes the archive. Nothing can be stored after that.
    pub(crate) fn close(&self) -> Result<(), ArchiveError> {
        match self {
            Self::Warc(warc) => warc.close(),
            Self::Nothing | Self::Files(_) => Ok(()),
        }
    }
}

impl PageWriter {
    /// Adds a part of the body.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), ArchiveError> {
        self.bytes += chunk.len() as u64;
        self.hash.update(chunk);
        self.draft.as_mut().map_or(Ok(()), |draft| draft.write(chunk))
    }

    /// Completes the page. From now on others can read it.
    pub fn finish(self) -> Result<StoredPage, ArchiveError> {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(self.hash.finish().as_ref());
        let page = StoredPage { bytes: self.bytes, sha256: Some(sha256), ..StoredPage::default() };
        match self.draft {
            None => Ok(page),
            Some(draft) => {
                let (file, name) = draft.finish(&sha256)?;
                Ok(StoredPage { file: Some(file), name: Some(name), ..page })
            }
        }
    }
}

impl std::fmt::Debug for PageWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageWriter")
            .field("bytes", &self.bytes)
            .field("draft", &self.draft)
            .finish_non_exhaustive()
    }
}

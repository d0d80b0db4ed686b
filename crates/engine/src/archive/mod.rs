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
pub use whole::WholeFile;

use std::io;
use std::path::PathBuf;

use comity_core::time::Timestamp;
use url::Url;

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
#[derive(Debug)]
pub enum Entry {
    /// Only counted.
    Nothing(u64),
    /// On its way into a file.
    File(Box<files::Draft>),
}

/// A page that was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The bytes of its body.
    pub bytes: u64,
    /// The file it is in, if it has one of its own.
    pub file: Option<PathBuf>,
    /// What the answer said it is.
    pub content_type: Option<String>,
}

/// What is known of a page when its body begins.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// What was asked for.
    pub url: &'a Url,
    /// Where redirects led.
    pub final_url: &'a Url,
    /// The status of the answer.
    pub status: u16,
    /// What the answer says it is.
    pub content_type: Option<&'a str>,
    /// When it was fetched.
    pub fetched_at: Timestamp,
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
        match self {
            // What is recorded is taken from the wire; the decoded body is only counted.
            Self::Nothing | Self::Warc(_) => Ok(Entry::Nothing(0)),
            Self::Files(files) => files.begin(head).map(|draft| Entry::File(Box::new(draft))),
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
        match self {
            Self::Nothing(bytes) => {
                *bytes += chunk.len() as u64;
                Ok(())
            }
            Self::File(draft) => draft.write(chunk),
        }
    }

    /// The body is whole: from now on it is there for others to read.
    pub fn finish(self) -> Result<Kept, ArchiveError> {
        match self {
            Self::Nothing(bytes) => Ok(Kept { bytes, ..Kept::default() }),
            Self::File(draft) => draft.finish(),
        }
    }
}

//! Where the pages of a job go: into its archive.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use url::Url;

use super::Inner;
use crate::archive::{self, ArchiveError, Entry, Kept};
use crate::attempt::{Head, Sink, Wanted};
use crate::descriptors;

/// Keeps a page in the archive; of what is no page nothing is kept.
pub(super) struct Page<'a> {
    pool: &'a Inner,
    url: &'a Url,
    /// What passes is recorded, and therefore read as a whole.
    is_recorded: bool,
    begun: Option<Begun>,
}

/// A page that is being kept.
pub(super) struct Begun {
    entry: Entry,
    content_type: Option<String>,
}

impl<'a> Page<'a> {
    pub(super) fn new(pool: &'a Inner, url: &'a Url, is_recorded: bool) -> Self {
        Self { pool, url, is_recorded, begun: None }
    }

    pub(super) fn into_entry(self) -> Option<Begun> {
        self.begun
    }

    /// Begins to keep a page. When there is no file descriptor for that, idle connections make room.
    async fn open(&self, head: archive::Head<'_>) -> Result<Entry, ArchiveError> {
        for _ in 0..OPENED_AGAIN_MAX {
            match self.pool.archive.begin(head) {
                Err(error) if descriptors::ran_out(&error.cause) => {
                    self.pool.transport.make_room(error.cause).await;
                }
                begun => return begun,
            }
        }
        self.pool.archive.begin(head)
    }
}

impl Begun {
    /// The page is whole.
    pub(super) fn finish(self) -> Result<Kept, ArchiveError> {
        let Self { entry, content_type } = self;
        entry.finish().map(|kept| Kept { content_type, ..kept })
    }
}

impl Sink for Page<'_> {
    type Error = ArchiveError;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, ArchiveError> {
        if !(200..300).contains(&head.status) {
            return Ok(if self.is_recorded { Wanted::Whole { max: u64::MAX } } else { Wanted::Nothing });
        }
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let entry = self.open(archive::Head { final_url: self.url, content_type });
        let entry = entry.await?;
        self.begun = Some(Begun { entry, content_type: content_type.map(str::to_owned) });
        Ok(Wanted::Whole { max: u64::MAX })
    }

    fn piece(&mut self, piece: Bytes) -> Result<(), ArchiveError> {
        match &mut self.begun {
            Some(begun) => begun.entry.write(&piece),
            None => Ok(()),
        }
    }
}

/// How often a file is tried to be opened without a descriptor for it: for about ten seconds.
const OPENED_AGAIN_MAX: u32 = 100;

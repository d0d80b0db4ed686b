//! Saves the pages of a job in its archive.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use url::Url;

use super::Inner;
use crate::archive::{self, ArchiveError, PageWriter, StoredPage};
use crate::attempt::{Head, Sink, Wanted};

/// Saves a page in the archive. Responses other than 2xx are not saved.
pub(super) struct PageSink<'a> {
    pool: &'a Inner,
    url: &'a Url,
    /// Whether the exchange is recorded, and must therefore be read completely.
    is_recorded: bool,
    open_page: Option<OpenPage>,
}

/// A page that is being saved.
pub(super) struct OpenPage {
    entry: PageWriter,
    content_type: Option<String>,
}

impl<'a> PageSink<'a> {
    pub(super) fn new(pool: &'a Inner, url: &'a Url, is_recorded: bool) -> Self {
        Self { pool, url, is_recorded, open_page: None }
    }

    pub(super) fn into_entry(self) -> Option<OpenPage> {
        self.open_page
    }

    /// Starts saving a page. If file descriptors have run out, idle connections are closed to make room.
    async fn open(&self, head: archive::PageHead<'_>) -> Result<PageWriter, ArchiveError> {
        for _ in 0..OPENED_AGAIN_MAX {
            match self.pool.archive.begin(head) {
                Err(error) if crate::shortage::ran_out(&error.cause) => {
                    self.pool.transport.make_room(error.cause).await;
                }
                open_page => return open_page,
            }
        }
        self.pool.archive.begin(head)
    }
}

impl OpenPage {
    /// Completes the page.
    pub(super) fn finish(self) -> Result<StoredPage, ArchiveError> {
        let Self { entry, content_type } = self;
        entry.finish().map(|kept| StoredPage { content_type, ..kept })
    }
}

impl Sink for PageSink<'_> {
    type Error = ArchiveError;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, ArchiveError> {
        if !(200..300).contains(&head.status) {
            return Ok(if self.is_recorded { Wanted::Whole { max: u64::MAX } } else { Wanted::Nothing });
        }
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let entry = self.open(archive::PageHead { final_url: self.url, content_type });
        let entry = entry.await?;
        self.open_page = Some(OpenPage { entry, content_type: content_type.map(str::to_owned) });
        Ok(Wanted::Whole { max: u64::MAX })
    }

    fn chunk(&mut self, chunk: Bytes) -> Result<(), ArchiveError> {
        match &mut self.open_page {
            Some(open_page) => open_page.entry.write(&chunk),
            None => Ok(()),
        }
    }
}

/// How many times to retry opening a file without a free descriptor, which takes about ten seconds.
const OPENED_AGAIN_MAX: u32 = 100;

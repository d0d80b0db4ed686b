//! Imports lists of sources as OPML, CSV or plain URLs, and exports them as OPML.
//!
//! A list is read as far as possible: an invalid row is a [`Problem`] with its line, and the other rows are still read.
//! Only something that is not a list at all is a [`ReadError`]. Nothing here opens files, adds sources to a store or
//! interprets a cadence: the text is returned as it was written.

mod collector;
mod csv;
mod format;
mod list;
mod opml;
mod text;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use comity_store::sources::Kind;
use comity_store::tasks::Lead;

pub use collector::parse_url;
pub use format::Format;
pub use write::{ExportedSource, write_opml};

/// A source in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSource {
    /// An http or https URL, normalized by the `url` crate and without its fragment. It may contain user and password.
    pub url: String,
    /// The name in the list, on one line and without control characters.
    pub name: Option<String>,
    /// The kind, if the list states one.
    pub kind: Option<Kind>,
    /// Where its URL comes from: the operator who imports the list, unless it is an OPML file written by Comity that
    /// says otherwise.
    pub lead: Lead,
    /// The page of a feed: an http or https URL without user and password.
    pub html_url: Option<String>,
    /// The folders it is in, outermost first; the names are never empty.
    pub folder: Vec<Arc<str>>,
    /// How often to fetch it, as written: `8h`.
    pub cadence: Option<String>,
    /// The minimum time between two scrapes, as written.
    pub min_interval: Option<String>,
    /// What is switched on.
    pub switches: Switches,
    /// The line on which it starts, counting from 1.
    pub line: u64,
}

/// What is switched on for a source; everything, unless an OPML file written by Comity says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// The source is fetched.
    pub enabled: bool,
    /// Its items may be scraped.
    pub scraping: bool,
    /// Its items are scraped automatically.
    pub auto_scrape: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self { enabled: true, scraping: true, auto_scrape: true }
    }
}

impl Switches {
    /// What is off, as written in a list; `None` if everything is on.
    fn written(self) -> Option<String> {
        let all = [(self.enabled, ENABLED), (self.scraping, SCRAPING), (self.auto_scrape, AUTO_SCRAPE)];
        let off: Vec<&str> = all.into_iter().filter(|(on, _)| !on).map(|(_, word)| word).collect();
        (!off.is_empty()).then(|| off.join(" "))
    }

    /// Reads what [`Self::written`] wrote; unknown words are ignored.
    fn read(off: &str) -> Self {
        let on = |word: &str| !off.split_whitespace().any(|off| off == word);
        Self { enabled: on(ENABLED), scraping: on(SCRAPING), auto_scrape: on(AUTO_SCRAPE) }
    }
}

/// The result of reading a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceList {
    /// The sources in the order of the list. Of several with the same URL, only the first is included.
    pub entries: Vec<ListedSource>,
    /// What could not be read, by line. If there are too many problems, the last one says how many are not listed.
    pub problems: Vec<Problem>,
    /// How many rows repeat the URL of an earlier row.
    pub repeated: u64,
}

/// Something in a list that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, counting from 1.
    pub line: u64,
    /// What is wrong there. URLs are shown without user, password and query.
    pub what: String,
}

/// The input is not a list of sources; retrying does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is longer than [`BYTES_MAX`].
    #[error("the list has {bytes} bytes, but at most {BYTES_MAX} are allowed; split it into several files")]
    TooLarge {
        /// The size of the list.
        bytes: usize,
    },
    /// It is XML of another kind, or not XML.
    #[error(
        "the list starts with {found}: expected <opml>; a feed or page is not a list, add its URL instead"
    )]
    NotOpml {
        /// What was found instead of `<opml>`.
        found: String,
    },
    /// It is a table without a column `url`.
    #[error("expected a column named url, found {columns}")]
    NoUrlColumn {
        /// The existing columns.
        columns: String,
    },
}

/// Reads a list. If no format is given, it is detected.
pub fn read(bytes: &[u8], format: Option<Format>) -> Result<SourceList, ReadError> {
    if bytes.len() > BYTES_MAX {
        return Err(ReadError::TooLarge { bytes: bytes.len() });
    }
    let (text, problem) = text::decode(bytes);
    let mut collector = collector::RowCollector::default();
    if let Some(what) = problem {
        collector.problem(1, what);
    }
    match format.unwrap_or_else(|| Format::detect(&text)) {
        Format::Opml => opml::read(&text, &mut collector)?,
        Format::Csv => csv::read(&text, &mut collector)?,
        Format::List => list::read(&text, &mut collector),
    }
    Ok(collector.finish())
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// How deep folders may be nested; deeper ones are merged into the innermost of these.
pub const FOLDERS_MAX: usize = 16;
/// The maximum size of a list, 64 MiB.
pub const BYTES_MAX: usize = 64 << 20;
/// What can be switched off, as written in lists.
const ENABLED: &str = "enabled";
const SCRAPING: &str = "scrape";
const AUTO_SCRAPE: &str = "auto-scrape";

//! Sources, and the results of fetching them.
//!
//! When a source is due, and what its response means, is decided elsewhere. Here, a source's row, items and cursor
//! change together or not at all.

use comity_core::cadence::{FetchStatus, RunWindow};
use comity_core::interval::SourceInterval;
use comity_core::time::Timestamp;
use serde_json::{Map, Value};

use crate::Reply;
use crate::details::Details;
use crate::domains::HolderId;
use crate::tasks::Lead;

/// The id of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub i64);

/// The kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// RSS, Atom or JSON Feed: its entries are items.
    Feed,
    /// A page: it is its own item.
    Page,
    /// A sitemap: the pages it lists are items.
    Sitemap,
    /// A list of URLs, one per line.
    Urls,
}

/// A source as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The source's id.
    pub id: SourceId,
    /// Its display name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The URL that is fetched.
    pub url: String,
    /// The URL it was added with; it differs from `url` after a permanent redirect.
    pub listed_url: String,
    /// Where `url` comes from: the operator, or the server that redirected it.
    pub lead: Lead,
    /// Whether runs fetch it.
    pub enabled: bool,
    /// Whether its items may be scraped.
    pub scraping: bool,
    /// Whether runs scrape its items automatically.
    pub auto_scrape: bool,
    /// The minimum interval between two scrapes.
    pub interval: SourceInterval,
    /// `config_json` as stored; it contains the cadence.
    pub config_json: String,
    /// `cursor_json` as stored: `last_fetch_at` and what the next request needs.
    pub cursor_json: String,
    /// When it was added.
    pub added_at: Timestamp,
    /// Consecutive failed fetches.
    pub failures: u32,
    /// After a failure, it is not fetched again before this time.
    pub retry_at: Option<Timestamp>,
    /// Why it failed, was disabled, or was only partly read.
    pub error: Option<String>,
    /// When somebody asked to fetch it as soon as possible; `None` once it was fetched.
    pub requested_at: Option<Timestamp>,
}

/// A source to add.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSource {
    /// Its display name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The URL to fetch.
    pub url: String,
    /// Where the URL comes from: the operator, or the page that linked to it.
    pub lead: Lead,
    /// Whether it is fetched.
    pub enabled: bool,
    /// Whether its items may be scraped.
    pub scraping: bool,
    /// Whether runs scrape its items; otherwise they are only scraped on demand.
    pub auto_scrape: bool,
    /// The minimum interval between two scrapes.
    pub interval: SourceInterval,
    /// Its configuration.
    pub config: Map<String, Value>,
}

/// Changes to a source; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceChange {
    /// Its display name.
    pub name: Option<String>,
    /// A display name that replaces this other one, unless it was changed in the meantime.
    pub rename: Option<Rename>,
    /// The URL to fetch, now listed by the operator. A different URL clears the cursor.
    pub url: Option<String>,
    /// Its kind. A different kind clears the cursor.
    pub kind: Option<Kind>,
    /// Whether runs fetch it. Enabling a source clears its failures and the time before which its server asked not to
    /// be fetched.
    pub enabled: Option<bool>,
    /// Whether its items may be scraped.
    pub scraping: Option<bool>,
    /// Whether runs scrape its items automatically.
    pub auto_scrape: Option<bool>,
    /// The minimum interval between two scrapes.
    pub interval: Option<SourceInterval>,
    /// The complete new configuration. If the old one was invalid, the source's failures are cleared, because that was
    /// their cause.
    pub config: Option<Map<String, Value>>,
}

/// A display name that replaces another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The name that is replaced; any other one is kept.
    pub from: String,
    /// The new name.
    pub to: String,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "one is returned per change, and almost always with the source")]
pub enum Changed {
    /// The change was made.
    Yes(Source),
    /// Another source has that URL already.
    Taken(SourceId),
    /// There is no such source.
    Missing,
}

/// The right to report the result of fetching a source. It is valid until somebody else claims the source or the holder
/// is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceTenure {
    /// The source.
    pub source: SourceId,
    /// The process that fetches it.
    pub holder: HolderId,
    /// Which claim of the source this is.
    pub epoch: i64,
}

/// Whether a source may be fetched.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceClaim {
    /// It may. The source as it is now, and the right to report the result.
    Ours(Box<Source>, SourceTenure),
    /// Another process is fetching it.
    Taken,
    /// There is no such source.
    Missing,
}

/// An item found by a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem {
    /// What distinguishes it from other items of its source.
    pub identity: String,
    /// The URL of its page.
    pub url: String,
    /// Where the URL comes from.
    pub lead: Lead,
    /// The title.
    pub title: Option<String>,
    /// When it was published.
    pub published_at: Option<Timestamp>,
    /// A hash of what the source says about it.
    pub content_hash: u64,
    /// What else the source says about it.
    pub details: Details,
    /// Identifies its page across all sources; `None` if the page is to be fetched for this item alone.
    pub page_key: Option<[u8; 16]>,
    /// Whether a hook has to run for it if it is new.
    pub wants_hook: bool,
}

/// Items found by a fetch, compared with what was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemChanges {
    /// Not seen before.
    pub new: u64,
    /// Known and unchanged.
    pub known: u64,
    /// Known and changed.
    pub changed: u64,
}

/// How a fetch ended, or why there was none.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchEnd {
    /// The source, and the right to report about it.
    pub tenure: SourceTenure,
    /// The window of the run.
    pub window: RunWindow,
    /// When the fetch started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The result.
    pub result: FetchResult,
    /// The status of the last response.
    pub http_status: Option<u16>,
    /// The number of items found.
    pub found: u64,
    /// The items found, compared with what was stored.
    pub changes: ItemChanges,
    /// Why it failed, was held, or was only partly read.
    pub error: Option<String>,
}

/// The result of a fetch, with what it changes.
#[derive(Debug, Clone, PartialEq)]
pub enum FetchResult {
    /// It was read, completely or in part. The cursor advances.
    Read {
        /// Whether it was read completely.
        whole: bool,
        /// Cursor fields to set; null removes a field.
        cursor: Map<String, Value>,
        /// Its new URL after a permanent redirect, and where that URL comes from.
        moved_to: Option<(String, Lead)>,
    },
    /// It could not be read. The cursor stays as it is.
    Failed {
        /// It is not fetched again before this time.
        retry_at: Timestamp,
    },
    /// It is gone for good and gets disabled.
    Gone,
    /// It was due, but is not fetched for now.
    Held {
        /// When it may be fetched.
        until: Timestamp,
    },
}

/// A fetch as shown to people.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchRun {
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// `ok`, `partial`, `error` or `held`.
    pub status: String,
    /// The end of the run's window.
    pub window_end: Timestamp,
    /// The cursor before the fetch.
    pub cursor_in: String,
    /// The cursor after the fetch.
    pub cursor_out: String,
    /// The status of the last response.
    pub http_status: Option<u16>,
    /// The number of items found.
    pub found: u64,
    /// The items found, compared with what was stored.
    pub changes: ItemChanges,
    /// Why it failed, was held, or was only partly read.
    pub error: Option<String>,
}

/// Storage of sources.
pub trait SourceStore {
    /// Adds a source. If a source with that URL exists, returns that one and false.
    fn add_source(&self, source: NewSource, now: Timestamp) -> Reply<'_, (Source, bool)>;

    /// The source with this id.
    fn find_source(&self, id: SourceId) -> Reply<'_, Option<Source>>;

    /// All sources, in the order they were added.
    fn list_sources(&self) -> Reply<'_, Vec<Source>>;

    /// Changes a source.
    fn change_source(&self, id: SourceId, change: SourceChange) -> Reply<'_, Changed>;

    /// Asks to fetch a source as soon as possible, whatever its cadence. Processes that fetch sources see it with the
    /// source, until its next fetch has ended. False if there is no such source.
    fn request_fetch(&self, id: SourceId, now: Timestamp) -> Reply<'_, bool>;

    /// Removes a source with its items and logs. Waiting tasks of its items become no-ops. False if there is no such
    /// source.
    fn remove_source(&self, id: SourceId) -> Reply<'_, bool>;

    /// Saves items found by a fetch. Known items are compared by `content_hash`, and their details are always replaced
    /// by the latest ones. Saves nothing if the source is gone. [`StoreError::Lost`](crate::StoreError::Lost) if the
    /// claim is no longer valid.
    fn keep_items(&self, tenure: SourceTenure, items: Vec<NewItem>, now: Timestamp)
    -> Reply<'_, ItemChanges>;

    /// Claims a source for `holder`, which is about to fetch it. Nobody else can until it leaves the source or dies.
    fn claim_source(&self, id: SourceId, holder: HolderId, now: Timestamp) -> Reply<'_, SourceClaim>;

    /// Ends a claim. A claim that is no longer valid is ignored.
    fn leave_source(&self, tenure: SourceTenure) -> Reply<'_, ()>;

    /// Records the end of a fetch: log row, cursor and failures of the source change together. Returns whether the
    /// source moved to another URL. [`StoreError::Lost`](crate::StoreError::Lost) if the claim is no longer valid; then
    /// nothing changes.
    fn end_fetch(&self, end: FetchEnd) -> Reply<'_, bool>;

    /// The latest fetches of a source, newest first.
    fn list_fetches(&self, source: SourceId, limit: u32) -> Reply<'_, Vec<FetchRun>>;
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Feed, Self::Page, Self::Sitemap, Self::Urls];

    /// The name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Feed => "feed",
            Self::Page => "page",
            Self::Sitemap => "sitemap",
            Self::Urls => "urls",
        }
    }

    /// The kind with this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl FetchResult {
    /// The value stored in SQL.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Read { whole: true, .. } => "ok",
            Self::Read { whole: false, .. } => "partial",
            Self::Failed { .. } | Self::Gone => "error",
            Self::Held { .. } => "held",
        }
    }

    /// What it means for the cursor.
    pub fn status(&self) -> FetchStatus {
        match self {
            Self::Read { whole: true, .. } => FetchStatus::Ok,
            Self::Read { whole: false, .. } => FetchStatus::Partial,
            Self::Failed { .. } | Self::Gone => FetchStatus::Error,
            Self::Held { .. } => FetchStatus::Skipped,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Display for SourceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

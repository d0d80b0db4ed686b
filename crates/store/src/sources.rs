//! Sources that are followed, and what became of fetching them.
//!
//! When a source is due, and what its answer means, is decided elsewhere; here its row, its items and its cursor
//! change together or not at all.

use comity_core::cadence::{FetchStatus, RunWindow};
use comity_core::interval::SourceInterval;
use comity_core::time::Timestamp;
use serde_json::{Map, Value};

use crate::Reply;
use crate::details::Details;
use crate::domains::HolderId;
use crate::tasks::Lead;

/// The number of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub i64);

/// What a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// RSS, Atom or JSON Feed: its entries are items.
    Feed,
    /// A page: it is its own item.
    Page,
    /// A sitemap: the pages it lists are items.
    Sitemap,
    /// A list of URLs, one a line.
    Urls,
}

/// A source as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Its number.
    pub id: SourceId,
    /// What people call it.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Where it is asked.
    pub url: String,
    /// Where it was when it was added: another place than `url` once it moved for good.
    pub listed_url: String,
    /// Who led to `url`: the operator, or the server that moved it (B76).
    pub lead: Lead,
    /// Whether runs fetch it.
    pub enabled: bool,
    /// Whether its items may be scraped.
    pub scraping: bool,
    /// Whether runs scrape them by themselves.
    pub auto_scrape: bool,
    /// The least time between two scrapes.
    pub interval: SourceInterval,
    /// `config_json` as it stands: the cadence is in it.
    pub config_json: String,
    /// `cursor_json` as it stands: `last_fetch_at` and what the next request wants to know.
    pub cursor_json: String,
    /// When it was added.
    pub added_at: Timestamp,
    /// Fetches that failed since the last one that did not.
    pub failures: u32,
    /// It is not asked again before then, because it failed.
    pub retry_at: Option<Timestamp>,
    /// Why it failed, was disabled, or was read in part only.
    pub error: Option<String>,
}

/// A source to be added.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSource {
    /// What people call it.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Where it is asked.
    pub url: String,
    /// Who led there: the operator, or the page that named it.
    pub lead: Lead,
    /// Whether its items may be scraped.
    pub scraping: bool,
    /// The least time between two scrapes.
    pub interval: SourceInterval,
    /// Its configuration.
    pub config: Map<String, Value>,
}

/// What is to change about a source; what is `None` stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceChange {
    /// What people call it.
    pub name: Option<String>,
    /// Where it is asked, from now on listed by the operator; its cursor is cleared, because it is another place.
    pub url: Option<String>,
    /// What it is; its cursor is cleared, because it is read anew.
    pub kind: Option<Kind>,
    /// Whether runs fetch it. Enabling forgets its failures, and until when its server said not to ask.
    pub enabled: Option<bool>,
    /// Whether its items may be scraped.
    pub scraping: Option<bool>,
    /// Whether runs scrape them by themselves.
    pub auto_scrape: Option<bool>,
    /// The least time between two scrapes.
    pub interval: Option<SourceInterval>,
    /// Its configuration, as a whole. Where the old one made no sense, its failures are forgotten: they were due to it.
    pub config: Option<Map<String, Value>>,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed {
    /// It is made.
    Yes(Source),
    /// Another source has that URL already.
    Taken(SourceId),
    /// There is no such source.
    Missing,
}

/// The right to report what came of asking a source: valid until somebody else claims it, or its holder is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking {
    /// Which source.
    pub source: SourceId,
    /// Who asks.
    pub holder: HolderId,
    /// Which claim of it.
    pub epoch: i64,
}

/// Whether a source may be asked.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceClaim {
    /// It may; this is what is known of it now, and the right to say what came of it.
    Ours(Box<Source>, Asking),
    /// Another process is about to ask it, or does.
    Taken,
    /// There is no such source.
    Missing,
}

/// An item that a fetch found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem {
    /// What tells it apart from others of its source.
    pub identity: String,
    /// Where its page is.
    pub url: String,
    /// Who led there.
    pub lead: Lead,
    /// Its title.
    pub title: Option<String>,
    /// When it was published.
    pub published_at: Option<Timestamp>,
    /// A hash of what the source says about it.
    pub content_hash: u64,
    /// What else the source says about it.
    pub details: Details,
    /// What its page is told apart by, whichever source names it; nothing if it is to be fetched for this item alone.
    pub page_key: Option<[u8; 16]>,
    /// Whether it is to have a hook, if it is new.
    pub wants_hook: bool,
}

/// What became of items that were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// Not seen before.
    pub new: u64,
    /// Known, and the same.
    pub known: u64,
    /// Known, and changed.
    pub changed: u64,
}

/// How a fetch ended, or why there was none.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchEnd {
    /// Of which source, and by what right.
    pub asking: Asking,
    /// In which run's window.
    pub window: RunWindow,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How.
    pub result: FetchResult,
    /// The status of the last answer.
    pub http_status: Option<u16>,
    /// Items found.
    pub found: u64,
    /// What became of them.
    pub kept: Kept,
    /// Why it failed, was held, or was read in part only.
    pub error: Option<String>,
}

/// How a fetch ended, with what that changes.
#[derive(Debug, Clone, PartialEq)]
pub enum FetchResult {
    /// It was read, in whole or in part. The cursor advances.
    Read {
        /// Whether all of it was read.
        whole: bool,
        /// Fields of the cursor to set; null takes one out.
        cursor: Map<String, Value>,
        /// It moved there for good, and who leads there.
        moved_to: Option<(String, Lead)>,
    },
    /// It was not: the cursor stays, and it is not asked again before then.
    Failed {
        /// When it is asked again.
        retry_at: Timestamp,
    },
    /// It is gone for good: it is disabled.
    Gone,
    /// It was due but not asked, until then.
    Held {
        /// Until when.
        until: Timestamp,
    },
}

/// A fetch as people look at it.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchRun {
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// `ok`, `partial`, `error` or `held`.
    pub status: String,
    /// The end of the run's window.
    pub window_end: Timestamp,
    /// The cursor before.
    pub cursor_in: String,
    /// The cursor after.
    pub cursor_out: String,
    /// The status of the last answer.
    pub http_status: Option<u16>,
    /// Items found.
    pub found: u64,
    /// What became of them.
    pub kept: Kept,
    /// Why it failed, was held, or was read in part only.
    pub error: Option<String>,
}

/// Sources that are followed.
pub trait SourceStore {
    /// Adds a source; the one that has its URL already, and false, when there is one.
    fn add_source(&self, source: NewSource, now: Timestamp) -> Reply<'_, (Source, bool)>;

    /// The source with that number.
    fn find_source(&self, id: SourceId) -> Reply<'_, Option<Source>>;

    /// All sources, in the order they were added.
    fn list_sources(&self) -> Reply<'_, Vec<Source>>;

    /// Changes a source.
    fn change_source(&self, id: SourceId, change: SourceChange) -> Reply<'_, Changed>;

    /// Removes a source with its items and logs; tasks of its items become no-ops (B58). False when there is none.
    fn remove_source(&self, id: SourceId) -> Reply<'_, bool>;

    /// Keeps items that a fetch found; those that are known are compared by `content_hash`, and their details are always those
    /// that the source gave last. Nothing when the source is gone;
    /// [`StoreError::Lost`](crate::StoreError::Lost), and nothing, when the claim is not valid any more.
    fn keep_items(&self, asking: Asking, items: Vec<NewItem>, now: Timestamp) -> Reply<'_, Kept>;

    /// `holder` is about to ask a source: nobody else does before it leaves it, or dies.
    fn claim_source(&self, id: SourceId, holder: HolderId, now: Timestamp) -> Reply<'_, SourceClaim>;

    /// Whoever asked has done with it. A claim that is not valid any more is skipped.
    fn leave_source(&self, asking: Asking) -> Reply<'_, ()>;

    /// A fetch ended: its row, the cursor (B60) and the failures of its source change together. Whether the source is at
    /// another place now. [`StoreError::Lost`](crate::StoreError::Lost), and nothing, when the claim is not valid any more.
    fn end_fetch(&self, end: FetchEnd) -> Reply<'_, bool>;

    /// The latest fetches of a source, the last first.
    fn list_fetches(&self, source: SourceId, limit: u32) -> Reply<'_, Vec<FetchRun>>;
}

impl Kind {
    /// Every kind there is.
    pub const ALL: [Self; 4] = [Self::Feed, Self::Page, Self::Sitemap, Self::Urls];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Feed => "feed",
            Self::Page => "page",
            Self::Sitemap => "sitemap",
            Self::Urls => "urls",
        }
    }

    /// The kind that a word means.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl FetchResult {
    /// The word for it in SQL.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Read { whole: true, .. } => "ok",
            Self::Read { whole: false, .. } => "partial",
            Self::Failed { .. } | Self::Gone => "error",
            Self::Held { .. } => "held",
        }
    }

    /// How it counts for the cursor.
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

//! Items found via sources, and their scrapes.
//!
//! Scraping an item is a task of the scrape job ([`ItemStore::scrape_job`]), and the item's state follows its task.
//! [`comity_core::enqueue`] and [`comity_core::interval`] decide whether an item may be enqueued and whether a scrape
//! may start, inside the transaction that reads the rows.

use comity_core::domain::Domain;
use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::interval::Deferred;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::{HolderId, Tenure};
use crate::jobs::Job;
use crate::sources::SourceId;
use crate::tasks::Lead;

/// The id of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemId(pub i64);

/// The id of a row in the scrape log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub i64);

/// The state of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ItemState {
    /// Not scraped, and not enqueued.
    None,
    /// Its task is waiting; with a reserved wake time it is deferred.
    Waiting,
    /// It is being scraped.
    Running,
    /// Its page was saved.
    Done,
    /// The response had no content to save.
    Partial,
    /// It was given up, or is not to be fetched.
    Failed,
}

/// An item as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The item's id.
    pub id: ItemId,
    /// The source it was found via.
    pub source: SourceId,
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
    /// The item's state.
    pub state: ItemState,
    /// A hash of what the source says about it.
    pub content_hash: u64,
    /// When it was first seen.
    pub seen_at: Timestamp,
    /// When the source last changed what it says about it.
    pub changed_at: Option<Timestamp>,
    /// Its scrape is deferred until this time.
    pub wake_at: Option<Timestamp>,
    /// When its page was last saved.
    pub scraped_at: Option<Timestamp>,
    /// The HTTP status of that response.
    pub status: Option<u16>,
    /// The size of that response in bytes.
    pub bytes: Option<u64>,
    /// The `Content-Type` of that response.
    pub content_type: Option<String>,
    /// The file that response was saved to.
    pub file: Option<String>,
    /// Why the scrape failed.
    pub error: Option<String>,
    /// The item of another source whose scrape fetched the page, if it was not this item's own.
    pub scraped_as: Option<ItemId>,
}

/// Which items to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemQuery {
    /// Only items of this source.
    pub source: Option<SourceId>,
    /// Only items in this state.
    pub state: Option<ItemState>,
    /// Only items first seen at this time or later.
    pub since: Option<Timestamp>,
    /// Only items of these sources.
    pub sources: SourceScope,
    /// The order of the list.
    pub order: Order,
    /// The maximum number of items.
    pub limit: u32,
}

/// Which sources' items to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceScope {
    /// All sources.
    #[default]
    Any,
    /// Sources that may be scraped.
    Scrapable,
}

/// The order in which items are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Newest first.
    #[default]
    Newest,
    /// In the order they were first seen, starting after this item.
    After(ItemId),
    /// The longest without an attempt first.
    LeastTried,
}

/// An item to enqueue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeRequest {
    /// The item.
    pub item: ItemId,
    /// The domain whose pace applies to its page.
    pub domain: Domain,
}

/// Limits on scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrapeTerms {
    /// The minimum interval between two scrapes of a source that has none of its own.
    pub interval: Option<Span>,
    /// The maximum number of waiting or running items per source; `None` is unlimited.
    pub in_flight_max: Option<u32>,
}

/// A request to start the scrape of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The task.
    pub task: TaskId,
    /// The tenure under which it is worked on.
    pub tenure: Tenure,
    /// The global minimum interval.
    pub interval: Option<Span>,
    /// If the wait is no longer than this, the task waits itself and is not deferred.
    pub patience: Span,
    /// Whether to start the scrape, or only to ask whether it may start.
    pub step: StartStep,
}

/// How far a task is that wants to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStep {
    /// It asks before it joins its domain's queue.
    Ask,
    /// Its request is about to be sent.
    Begin,
}

/// Whether a scrape may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It may join the queue.
    MayJoin,
    /// It has started, and its log row is committed.
    Begun(LogId),
    /// It started earlier; this is a redirect of the same scrape.
    Continues(LogId),
    /// Not quite yet; it may start at this time.
    Soon(Timestamp),
    /// Too soon: its task was postponed in the store, and its item is no longer running.
    Deferred(Deferred),
    /// Its item or source is gone, or must not be scraped any more. There is nothing to do.
    Gone(&'static str),
    /// The task no longer belongs to this holder.
    Fenced,
}

/// A scrape as shown to people.
#[derive(Debug, Clone, PartialEq)]
pub struct ScrapeLog {
    /// The item that was scraped.
    pub item: ItemId,
    /// When the scrape started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// `running`, `ok`, `partial`, `failed`, `retry`, `skipped` or `interrupted`.
    pub status: String,
    /// The HTTP status of the response.
    pub http_status: Option<u16>,
    /// The size of the response in bytes.
    pub bytes: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Items of a source, counted by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemCounts {
    /// All items.
    pub items: u64,
    /// Items that were not scraped.
    pub none: u64,
    /// Items that are waiting or running.
    pub in_flight: u64,
    /// Items that were scraped.
    pub done: u64,
    /// Items that were given up.
    pub failed: u64,
}

/// Storage of items and their scrapes.
pub trait ItemStore {
    /// The item with this id.
    fn find_item(&self, id: ItemId) -> Reply<'_, Option<Item>>;

    /// Items in pages.
    fn list_items(&self, items: ItemQuery) -> Reply<'_, Vec<Item>>;

    /// Counts the items of a source by state.
    fn count_items(&self, source: SourceId) -> Reply<'_, ItemCounts>;

    /// Sources that are scraped automatically and have items that were not enqueued yet.
    fn sources_with_unscraped(&self) -> Reply<'_, Vec<SourceId>>;

    /// The job that scrapes are added to. If it has ended, it is reopened without its old tasks.
    fn scrape_job(&self, now: Timestamp) -> Reply<'_, Job>;

    /// Enqueues items into the scrape job if [`comity_core::enqueue`] allows it, and returns the result for each, in
    /// the order given. A new task is ready at once, or at the wake time reserved for it.
    ///
    /// Several items may point to the same page, with the same [`page_key`](crate::sources::NewItem::page_key) and
    /// lead. If another item's task is about to fetch that page, the item gets no task of its own: it shares that one
    /// and its result. If the page was fetched for another item within [`SHARED_FOR`], an item that was never scraped
    /// and is enqueued automatically gets that result at once. In both cases the answer is [`Enqueued::Already`].
    ///
    /// The scrape belongs to the source that owns the task: only that source gets a row in the scrape log, and only its
    /// interval counts from it. If the item of a task must not be scraped any more, the task passes to the next item
    /// that shares it.
    fn enqueue_items(
        &self,
        job: JobId,
        requests: Vec<ScrapeRequest>,
        trigger: Trigger,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Reply<'_, Vec<Enqueued>>;

    /// Starts the scrape of a task, checking and committing in one transaction: of two tasks of a source, only one
    /// starts.
    fn start_scrape(&self, holder: HolderId, start: Start, now: Timestamp) -> Reply<'_, Started>;

    /// Cancels a scrape that started but was not sent after all: its log row is deleted, and its item waits again.
    fn cancel_scrape(&self, log: LogId) -> Reply<'_, ()>;

    /// The latest scrapes of an item, newest first.
    fn list_scrapes(&self, item: ItemId, limit: u32) -> Reply<'_, Vec<ScrapeLog>>;
}

impl ItemState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Waiting, Self::Running, Self::Done, Self::Partial, Self::Failed];

    /// The name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Partial => "partial",
            Self::Failed => "failed",
        }
    }

    /// The state with this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether its task is waiting or running.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Waiting | Self::Running)
    }
}

impl std::fmt::Display for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// For how long a page that was fetched for one source's item is reused for another source's item.
pub const SHARED_FOR: Span = Span::from_hours(7 * 24);
/// The name of the scrape job.
pub const SCRAPE_JOB: &str = "scrape";

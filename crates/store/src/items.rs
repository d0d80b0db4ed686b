//! Items that sources led to, and their scrapes.
//!
//! A scrape of an item is a task of the scrape job ([`ItemStore::scrape_job`]); the item's state follows its task.
//! Whether one may be enqueued or may start is decided by [`comity_core::enqueue`] and [`comity_core::interval`],
//! on rows that nobody else changes meanwhile.

use comity_core::domain::Domain;
use comity_core::enqueue::{Asker, Enqueued};
use comity_core::interval::Deferred;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::{Hold, HolderId};
use crate::jobs::Job;
use crate::sources::SourceId;
use crate::tasks::Lead;

/// The number of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemId(pub i64);

/// The number of a row of the scrape log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub i64);

/// Where an item is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ItemState {
    /// Not scraped, and not to be yet.
    None,
    /// A task of it waits; with a wake reserved it is deferred.
    Waiting,
    /// It is being scraped.
    Running,
    /// Its page is kept.
    Done,
    /// It was answered with nothing to keep.
    Partial,
    /// It was given up, or is not to be fetched.
    Failed,
}

/// An item as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its number.
    pub id: ItemId,
    /// Of which source.
    pub source: SourceId,
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
    /// Where it is in its life.
    pub state: ItemState,
    /// A hash of what the source says about it.
    pub content_hash: u64,
    /// When it was first seen.
    pub seen_at: Timestamp,
    /// When the source last said something new about it.
    pub changed_at: Option<Timestamp>,
    /// Its scrape is deferred until then.
    pub wake_at: Option<Timestamp>,
    /// When its page was last kept.
    pub scraped_at: Option<Timestamp>,
    /// The status of that answer,
    pub status: Option<u16>,
    /// its bytes,
    pub bytes: Option<u64>,
    /// what it said it is,
    pub content_type: Option<String>,
    /// and the file it is kept in.
    pub file: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The item of another source whose scrape brought the page, if it was not its own.
    pub scraped_as: Option<ItemId>,
}

/// Which items to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Items {
    /// Of one source only.
    pub source: Option<SourceId>,
    /// In one state only.
    pub state: Option<ItemState>,
    /// First seen at that time or later only.
    pub since: Option<Timestamp>,
    /// Which of them only.
    pub only: Only,
    /// In which order.
    pub order: Order,
    /// At most so many.
    pub limit: u32,
}

/// Which items are listed only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Only {
    /// All.
    #[default]
    Any,
    /// Those of sources that may be scraped.
    Scrapable,
}

/// In which order items are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The last seen first.
    #[default]
    Newest,
    /// In the order they were seen, after this one.
    After(ItemId),
    /// Those whose last try is the longest ago first.
    LeastTried,
}

/// An item that is to be enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which.
    pub item: ItemId,
    /// Whose pace its page goes by.
    pub domain: Domain,
}

/// What scrapes go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrapeTerms {
    /// The least time between two scrapes of a source without one of its own.
    pub interval: Option<Span>,
    /// Most items of a source that wait or run; `None` is unlimited.
    pub in_flight_max: Option<u32>,
}

/// A task of an item that wants to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Which task.
    pub task: TaskId,
    /// The hold under which it is worked on.
    pub hold: Hold,
    /// The global interval.
    pub interval: Option<Span>,
    /// A wait no longer than this is waited for by the task itself: it is not deferred.
    pub patience: Span,
    /// Whether the scrape begins, or it is only asked whether it may.
    pub step: StartStep,
}

/// How far a task is that wants to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStep {
    /// It asks before it joins the line of its domain.
    Ask,
    /// Its request is about to leave.
    Begin,
}

/// Whether a scrape may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It may join the line.
    MayJoin,
    /// It has begun: its row is committed.
    Begun(LogId),
    /// It has begun before, and this is a redirect of it.
    GoesOn(LogId),
    /// Not quite yet: then.
    Soon(Timestamp),
    /// Too soon: it was put off in the store, and its item does not run any more (B53).
    Deferred(Deferred),
    /// Its item or source is gone, or not to be scraped any more: a clean no-op (B58).
    Gone(&'static str),
    /// It is not ours any more.
    Fenced,
}

/// A scrape as people look at it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScrapeLog {
    /// Of which item.
    pub item: ItemId,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// `running`, `ok`, `partial`, `failed`, `retry`, `skipped` or `interrupted`.
    pub status: String,
    /// The status of the answer.
    pub http_status: Option<u16>,
    /// The bytes of its body.
    pub bytes: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// How far the items of a source are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemCounts {
    /// In all.
    pub items: u64,
    /// Not scraped.
    pub none: u64,
    /// Waiting or running.
    pub in_flight: u64,
    /// Scraped.
    pub done: u64,
    /// Given up.
    pub failed: u64,
}

/// Items that sources led to.
pub trait ItemStore {
    /// The item with that number.
    fn find_item(&self, id: ItemId) -> Reply<'_, Option<Item>>;

    /// Items, in pages.
    fn list_items(&self, items: Items) -> Reply<'_, Vec<Item>>;

    /// How far the items of a source are.
    fn count_items(&self, source: SourceId) -> Reply<'_, ItemCounts>;

    /// Sources whose items runs scrape by themselves and that have some which were not enqueued yet.
    fn sources_with_unscraped(&self) -> Reply<'_, Vec<SourceId>>;

    /// The job that scrapes go into, open to more: after it ended it is opened again, empty.
    fn scrape_job(&self, now: Timestamp) -> Reply<'_, Job>;

    /// Enqueues items into that job, as far as B56 lets them; what became of each, in the order given. A task that
    /// is made is ready at once or at the wake that was reserved for it (B52, B55).
    ///
    /// An item that would be enqueued and whose page another item's task is about to fetch (the same
    /// [`page_key`](crate::sources::NewItem::page_key) and lead) gets no task of its own: it waits with that one, and whatever
    /// that task comes to is the result of both. One that was never scraped, enqueued automatically, whose page another item got in
    /// the last [`SHARED_FOR`] has that result at once. Both are [`Enqueued::Already`]. The scrape is that of the source whose
    /// task it is: only there is a row in the scrape log, and only there the interval counts from it. When the item of a task
    /// is not to be scraped any more, the task becomes that of the next item that waits with it.
    fn enqueue_items(
        &self,
        job: JobId,
        wishes: Vec<Wish>,
        asker: Asker,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Reply<'_, Vec<Enqueued>>;

    /// A task of an item wants to start. Checked and committed at once: of two tasks of a source one begins (B51).
    fn start_scrape(&self, holder: HolderId, start: Start, now: Timestamp) -> Reply<'_, Started>;

    /// A scrape that began was not sent after all: its row goes, and its item waits again.
    fn call_off_scrape(&self, log: LogId) -> Reply<'_, ()>;

    /// The latest scrapes of an item, the last first.
    fn list_scrapes(&self, item: ItemId, limit: u32) -> Reply<'_, Vec<ScrapeLog>>;
}

impl ItemState {
    /// Every state there is.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Waiting, Self::Running, Self::Done, Self::Partial, Self::Failed];

    /// The word for it.
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

    /// The state that a word means.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether a task of it waits or runs.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Waiting | Self::Running)
    }
}

impl std::fmt::Display for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A page that was fetched for an item of one source is that of another source's for so long.
pub const SHARED_FOR: Span = Span::from_hours(7 * 24);
/// The name of the job that scrapes go into.
pub const SCRAPE_JOB: &str = "scrape";

//! Tasks and their lanes: adding, claiming and settling tasks.

use std::borrow::Cow;
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::{HolderId, Take, Tenure};
use crate::items::ItemId;
use crate::sources::SourceId;

/// The id of a lane: the tasks of one job on one domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub i64);

/// Where a URL comes from. A URL found in a response is trusted less than one the operator listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lead {
    /// The operator listed it.
    #[default]
    Listed,
    /// It was found in a remote response: a redirect, a feed or a sitemap.
    Remote,
}

/// A task to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The URL to fetch.
    pub url: String,
    /// The domain whose pace applies.
    pub domain: Domain,
    /// Where the URL comes from.
    pub lead: Lead,
    /// Method, body and headers; `None` for a plain GET.
    pub sends: Option<Box<RequestParts>>,
}

/// What a task sends besides its URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestParts {
    /// The method, such as `POST`.
    pub method: String,
    /// The request body.
    pub body: Vec<u8>,
    /// Additional headers. They are stored in plain text, so they must not contain secrets.
    pub headers: Vec<(String, String)>,
}

impl NewTask {
    /// A plain GET of a URL that the operator listed.
    pub fn listed(url: String, domain: Domain) -> Self {
        Self { url, domain, lead: Lead::Listed, sends: None }
    }
}

/// The result of adding tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enqueued {
    /// Tasks that were added.
    pub new: u64,
    /// Tasks that the job had already.
    pub known: u64,
    /// Tasks refused because the job failed or was cancelled.
    pub refused: u64,
}

/// A waiting task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    /// The task's id.
    pub id: TaskId,
    /// The URL to fetch.
    pub url: String,
    /// Tells the task from another one with this id, if the store may give out ids again: see [`Settle::url_key`].
    pub url_key: Option<i64>,
    /// Where the URL comes from.
    pub lead: Lead,
    /// The URL that redirects have led to so far.
    pub at_url: Option<String>,
    /// The number of redirects followed so far.
    pub hops: u32,
    /// Retries used.
    pub retries: u32,
    /// Failures that did not use up a retry.
    pub forgiven: u32,
    /// The task may be fetched from this time on.
    pub ready_at: Timestamp,
    /// The item that this task scrapes, and its source.
    pub scrapes: Option<(ItemId, SourceId)>,
    /// Requests made for it so far.
    pub attempts: u32,
    /// The latest attempt.
    pub last: Option<Attempt>,
    /// The page as fetched before, if this task fetches it again to see whether it changed.
    pub previous: Option<Box<PreviousPage>>,
    /// Method, body and headers; `None` for a plain GET, and for a task that a redirect turned into one.
    pub sends: Option<Box<RequestParts>>,
}

/// A page that was fetched before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreviousPage {
    /// The size of the body in bytes.
    pub bytes: u64,
    /// The `Content-Type` of the response.
    pub content_type: Option<String>,
    /// Everything else known about it.
    pub facts: Arc<PageFacts>,
}

/// What is known about a task's last response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageFacts {
    /// The URL that redirects led to, if there were any.
    pub final_url: Option<String>,
    /// When the response headers arrived.
    pub fetched_at: Option<Timestamp>,
    /// The SHA-256 of the body.
    pub sha256: Option<[u8; 32]>,
    /// The file with the body, relative to the job's folder of pages; its whole path if the job has changed its folder
    /// since.
    pub file: Option<String>,
    /// The `ETag`, byte for byte.
    pub etag: Option<Vec<u8>>,
    /// The `Last-Modified` header, byte for byte.
    pub last_modified: Option<Vec<u8>>,
}

/// A lane that was claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The lane.
    pub lane: LaneId,
    /// The lane's job.
    pub job: JobId,
    /// The lane's domain.
    pub domain: Domain,
    /// Whether the domain was taken with this claim or was held before.
    pub take: Take,
    /// The first tasks of the lane.
    pub tasks: Vec<TaskRow>,
}

/// How far a lane was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The `ready_at` of the last task read.
    pub ready_at: Timestamp,
    /// The id of the last task read.
    pub task: TaskId,
}

/// A request for more tasks of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// The lane.
    pub lane: LaneId,
    /// Read after this task; from the start if `None`.
    pub after: Option<Cursor>,
    /// The maximum number of tasks.
    pub limit: u32,
}

/// What to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The job to claim lanes of.
    pub job: JobId,
    /// The maximum number of lanes.
    pub lanes: u32,
    /// The maximum number of tasks per lane.
    pub tasks: u32,
}

/// One request that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When the request was sent.
    pub started_at: Timestamp,
    /// How long it took.
    pub took: Span,
    /// The outcome.
    pub outcome: Outcome,
    /// The HTTP status, if there was a response.
    pub status: Option<u16>,
}

/// Requests for a robots.txt, which a task needs before its own request. All tasks of the site share them, so they are
/// counted for each of these tasks but not logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RobotsAttempts {
    /// How many there were.
    pub count: u32,
    /// The last one.
    pub last: Attempt,
}

/// The result of working on a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// The task.
    pub task: TaskId,
    /// As in [`TaskRow::url_key`]. A store that lost writes gives out their ids again: the result of a task is never that of another
    /// one. `None` is not checked.
    pub url_key: Option<i64>,
    /// The task's job.
    pub job: JobId,
    /// The tenure under which it was worked on.
    pub tenure: Tenure,
    /// The attempts since it was last settled.
    pub attempts: Vec<Attempt>,
    /// If it failed because its site's robots.txt could not be fetched: how that was tried.
    pub robots: Option<RobotsAttempts>,
    /// What is known about its last response. If the task is not done, only `final_url` and `fetched_at` are saved, and
    /// what is stored about an earlier fetch of the page stays unchanged.
    pub facts: Arc<PageFacts>,
    /// What happens to the task.
    pub step: Step,
}

/// What happens to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It was fetched.
    Done {
        /// The status of the last response.
        status: u16,
        /// The size of its body in bytes.
        bytes: u64,
        /// The file the body was written to.
        file: Option<String>,
        /// The `Content-Type` of the response.
        content_type: Option<String>,
    },
    /// It was given up.
    Failed {
        /// Why it failed.
        error: String,
        /// The status of the last response, if there was one.
        status: Option<u16>,
    },
    /// It is not to be fetched.
    Skipped {
        /// Why it was skipped.
        reason: String,
    },
    /// It will be retried.
    Retry {
        /// When the retry is ready.
        ready_at: Timestamp,
        /// The number of retries used, including this one.
        retries: u32,
        /// The number of failures that did not use up a retry.
        forgiven: u32,
        /// Why it is retried.
        error: String,
    },
    /// It continues on another domain.
    Moved {
        /// The domain whose pace applies from now on.
        domain: Domain,
        /// The URL to continue with, unless it is the task's own.
        at_url: Option<String>,
        /// Redirects followed so far.
        hops: u32,
        /// Whether method and body are sent there too.
        body: RedirectBody,
    },
}

/// What happens to the method and body of a task when it is redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedirectBody {
    /// They are sent to the next URL too.
    #[default]
    Kept,
    /// The task becomes a plain GET.
    Dropped,
}

/// Whether a result was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was committed.
    Yes,
    /// The tenure is no longer valid, or the task was settled before: nothing was written. If it was only skipped because
    /// its job ended, it can still be settled as done or failed: it was in flight at that time.
    Fenced,
}

/// The work left in a job, apart from the domains it gave up on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingWork {
    /// Tasks on other domains are waiting.
    Tasks,
    /// No tasks are waiting, but a list is still being read.
    List,
    /// Nothing is left.
    Nothing,
}

/// A task as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskView {
    /// The task's id.
    pub id: TaskId,
    /// The task's URL.
    pub url: String,
    /// The task's state.
    pub state: String,
    /// The status of the last response.
    pub status: Option<u16>,
    /// The last error, or why it was skipped.
    pub error: Option<String>,
    /// When it was last settled.
    pub settled_at: Option<Timestamp>,
    /// Requests made for it since it was added, retried or refreshed. If its site's robots.txt could not be fetched, they
    /// include those for that file.
    pub attempts: u32,
    /// When the latest request was sent.
    pub started_at: Option<Timestamp>,
    /// How long the latest request took.
    pub took: Option<Span>,
    /// The outcome of the latest request.
    pub outcome: Option<Outcome>,
    /// The size of the page in bytes, as it was last fetched.
    pub bytes: Option<u64>,
    /// The `Content-Type` of the page, as it was last fetched.
    pub content_type: Option<String>,
    /// If it is done: whether the page is new, or has another body than when it was fetched before. `None` if an older
    /// version fetched it.
    pub changed: Option<bool>,
    /// What is known about its last response. If it is not done, only `final_url` and `fetched_at`, and the rest is about
    /// the page as fetched before, if it was.
    pub facts: Arc<PageFacts>,
}

/// Which tasks of a job to return.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Only tasks in this state (`waiting`, `done`, `failed`, `skipped`).
    pub state: Option<String>,
    /// Only tasks settled at this time or later.
    pub settled_since: Option<Timestamp>,
}

/// Storage of tasks and lanes.
pub trait TaskStore {
    /// Adds tasks to a job, without duplicates: two tasks are the same if URL, method and body are. A job that is done
    /// is reopened by the first new task; one that failed or was cancelled refuses tasks. If old tasks of the job were
    /// deleted, its counts forget them when the first new one is added. The origins of URLs the
    /// operator listed are remembered for [`Self::lists`].
    fn enqueue(&self, job: JobId, tasks: Vec<NewTask>, now: Timestamp) -> Reply<'_, Enqueued>;

    /// Claims lanes that are due and whose domain is free or held by this holder. Lanes of domains that another process
    /// holds are parked, and those domains are marked as wanted.
    fn claim(&self, holder: HolderId, claim: Claim, now: Timestamp) -> Reply<'_, Vec<Claimed>>;

    /// Reads more tasks of claimed lanes.
    fn refill(&self, refills: Vec<Refill>) -> Reply<'_, Vec<(LaneId, Vec<TaskRow>)>>;

    /// Commits the results of tasks in one transaction.
    fn settle(&self, holder: HolderId, settles: Arc<[Settle]>, now: Timestamp) -> Reply<'_, Vec<Settled>>;

    /// Gives back lanes that are no longer worked on. If tasks are waiting in a lane, it becomes due again at the given
    /// time.
    fn park(&self, holder: HolderId, lanes: Vec<(LaneId, Timestamp)>) -> Reply<'_, ()>;

    /// Gives up on the domain of a lane that this holder serves. The tasks waiting there are skipped with `reason`,
    /// which starts with [`GAVE_UP`], as soon as the lane is claimed again. Returns what is left in the job.
    fn give_up(&self, holder: HolderId, lane: LaneId, reason: String) -> Reply<'_, RemainingWork>;

    /// Sets aside the tasks of a job that no claim would ever return, because a row is damaged: they fail, unless they can be
    /// claimed again. Does nothing while a lane of the job is served or due, or its list is being read. Returns whether
    /// it changed anything, as a number of rows.
    fn set_aside_stranded(&self, job: JobId, now: Timestamp) -> Reply<'_, u64>;

    /// When the first lane of a job that nobody serves is due; `None` if there is none.
    fn next_due(&self, job: JobId) -> Reply<'_, Option<Timestamp>>;

    /// Makes tasks of a domain ready at `now` that wait for a later retry, in all jobs. Returns how many.
    fn retry_now(&self, domain: Domain, now: Timestamp) -> Reply<'_, u64>;

    /// For each of these origins, in the form that [`origin_of`] returns, whether the operator listed one of its URLs
    /// in the job. This stays true for as long as the job exists.
    fn lists(&self, job: JobId, origins: Vec<String>) -> Reply<'_, Vec<bool>>;

    /// Tasks of a job in this state (`waiting`, `done`, `failed`, `skipped`), the latest settled first.
    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>>;

    /// The tasks of a job in the order they were added, in pages of at most `limit` after `after`. A shorter page is
    /// the last one.
    fn page_tasks(
        &self,
        job: JobId,
        which: TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Vec<TaskView>>;
}

/// The origin of a normalized URL: scheme, host, and the port unless it is the scheme's default. User and password are
/// left out.
pub fn origin_of(url: &str) -> Cow<'_, str> {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |length| start + length);
    match url[start..end].rfind('@') {
        Some(at) => format!("{}{}", &url[..start], &url[start + at + 1..end]).into(),
        None => url[..end].into(),
    }
}

impl Lead {
    /// The value stored in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Listed => "listed",
            Self::Remote => "remote",
        }
    }
}

/// How the reason starts for which tasks are skipped on a domain that their job gave up on.
pub const GAVE_UP: &str = "gave up on ";
/// Why a task is skipped that robots.txt forbids.
pub const FORBIDDEN: &str = "forbidden by robots.txt";
/// Why waiting tasks are skipped when their job ends.
pub const JOB_ENDED: &str = "the job ended";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_no_user_and_no_path() {
        for (url, origin) in [
            ("https://example.org/a/b?c", "https://example.org"),
            ("http://me:secret@example.org:8080/@x", "http://example.org:8080"),
            ("http://[::1]:80/", "http://[::1]:80"),
            ("https://example.org", "https://example.org"),
        ] {
            assert_eq!(origin_of(url), origin);
        }
    }
}

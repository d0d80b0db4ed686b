//! Tasks and their lanes: filling, claiming, settling.

use std::borrow::Cow;
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::{Hold, HolderId, Take};
use crate::items::ItemId;
use crate::sources::SourceId;

/// The tasks of one job on one domain, as the store numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub i64);

/// Who led to a URL (B76).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lead {
    /// The operator listed it.
    #[default]
    Listed,
    /// A remote answer did: a redirect, a feed, a sitemap.
    Remote,
}

/// A task to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// What to fetch.
    pub url: String,
    /// Whose pace it goes by.
    pub domain: Domain,
    /// Who led to it.
    pub lead: Lead,
    /// What is sent there, unless it is a plain GET.
    pub sends: Option<Box<Sends>>,
}

/// What a task sends beside its URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sends {
    /// The method, such as `POST`.
    pub method: String,
    /// The body.
    pub body: Vec<u8>,
    /// Further headers. They are kept as they are, so none of them may be a secret.
    pub headers: Vec<(String, String)>,
}

impl NewTask {
    /// A plain GET of a URL that the operator listed.
    pub fn listed(url: String, domain: Domain) -> Self {
        Self { url, domain, lead: Lead::Listed, sends: None }
    }
}

/// What became of tasks that were to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enqueued {
    /// Added.
    pub new: u64,
    /// The job had them already.
    pub known: u64,
    /// The job failed or was cancelled and takes none (B49).
    pub refused: u64,
}

/// A task that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    /// Its number.
    pub id: TaskId,
    /// What to fetch.
    pub url: String,
    /// Who led to it.
    pub lead: Lead,
    /// Where redirects led so far.
    pub at_url: Option<String>,
    /// How many redirects that were.
    pub hops: u32,
    /// Retries spent.
    pub retries: u32,
    /// Failures that spent no retry.
    pub forgiven: u32,
    /// It may go from then on.
    pub ready_at: Timestamp,
    /// It scrapes this item of that source.
    pub scrapes: Option<(ItemId, SourceId)>,
    /// Requests that were made for it so far.
    pub attempts: u32,
    /// The last of them.
    pub last: Option<Attempt>,
    /// The page as it was fetched before, when it is fetched again to see whether it changed.
    pub before: Option<Box<Before>>,
    /// What it sends, unless it is a plain GET or a redirect made it one.
    pub sends: Option<Box<Sends>>,
}

/// A page that was fetched before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Before {
    /// The bytes of its body.
    pub bytes: u64,
    /// What the answer said it is.
    pub content_type: Option<String>,
    /// Everything else.
    pub facts: Arc<PageFacts>,
}

/// What is known of a task's last answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageFacts {
    /// Where redirects led, if they did.
    pub final_url: Option<String>,
    /// When the head of the answer came.
    pub fetched_at: Option<Timestamp>,
    /// The SHA-256 of the body.
    pub sha256: Option<[u8; 32]>,
    /// The file that the body is in, below the folder of the job's pages.
    pub file: Option<String>,
    /// The `ETag` of the answer, byte for byte.
    pub etag: Option<Vec<u8>>,
    /// Its `Last-Modified`, byte for byte.
    pub last_modified: Option<Vec<u8>>,
}

/// A lane that a claim brought.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// Which lane.
    pub lane: LaneId,
    /// Of which job.
    pub job: JobId,
    /// On which domain.
    pub domain: Domain,
    /// What became of the domain: taken with this claim, or ours before.
    pub take: Take,
    /// Its first tasks.
    pub tasks: Vec<TaskRow>,
}

/// Up to where a lane was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The time of the last task read.
    pub ready_at: Timestamp,
    /// Its number.
    pub task: TaskId,
}

/// More tasks of a lane are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// Which lane.
    pub lane: LaneId,
    /// Those after this one; from the head without it.
    pub after: Option<Cursor>,
    /// At most so many.
    pub limit: u32,
}

/// What to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Of which job.
    pub job: JobId,
    /// At most so many lanes.
    pub lanes: u32,
    /// And so many tasks of each.
    pub tasks: u32,
}

/// An attempt that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When it was sent.
    pub started_at: Timestamp,
    /// How long it took.
    pub took: Span,
    /// What it came to.
    pub outcome: Outcome,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
}

/// What becomes of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// Which task.
    pub task: TaskId,
    /// Of which job.
    pub job: JobId,
    /// The hold under which it was worked on.
    pub hold: Hold,
    /// The attempts since it was last settled.
    pub attempts: Vec<Attempt>,
    /// What is known of its last answer. Of a task that is not done only where redirects led and when it was answered is
    /// kept, and the page as it was fetched before stays as it is.
    pub facts: Arc<PageFacts>,
    /// What becomes of it.
    pub step: Step,
}

/// The step a task takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Fetched.
    Done {
        /// The status of the last answer.
        status: u16,
        /// The bytes of its body.
        bytes: u64,
        /// The file it is kept in.
        file: Option<String>,
        /// What the answer said it is.
        content_type: Option<String>,
    },
    /// Given up.
    Failed {
        /// Why.
        error: String,
        /// The status of the last answer, if there was one.
        status: Option<u16>,
    },
    /// Not to be fetched.
    Skipped {
        /// Why.
        reason: String,
    },
    /// Tried again.
    Retry {
        /// From when on.
        ready_at: Timestamp,
        /// Retries spent from now on.
        retries: u32,
        /// Failures that spent no retry, from now on.
        forgiven: u32,
        /// Why.
        error: String,
    },
    /// It goes on at another domain.
    Moved {
        /// Whose pace it goes by now.
        domain: Domain,
        /// Where it goes on, unless at its own URL.
        at_url: Option<String>,
        /// Redirects followed so far.
        hops: u32,
        /// Whether what it sends goes along.
        sends: Onward,
    },
}

/// What becomes of the method and body of a task that was redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Onward {
    /// They are sent to the next address too.
    #[default]
    Kept,
    /// From now on it is a plain GET.
    Dropped,
}

/// Whether a settle was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is committed.
    Yes,
    /// The hold is no longer valid, or the task was settled before: nothing was written.
    Fenced,
}

/// What a job has left beside the domains that it gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Tasks on other domains wait.
    Tasks,
    /// None wait, but a list is still being read.
    List,
    /// Nothing.
    Nothing,
}

/// A task as people look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskView {
    /// Its number.
    pub id: TaskId,
    /// What was to be fetched.
    pub url: String,
    /// Where it is in its life.
    pub state: String,
    /// The last status.
    pub status: Option<u16>,
    /// The last error, or why it was skipped.
    pub error: Option<String>,
    /// When it was last settled.
    pub settled_at: Option<Timestamp>,
    /// Requests that were made for it since it was added, retried or refreshed.
    pub attempts: u32,
    /// When the last of them was sent,
    pub started_at: Option<Timestamp>,
    /// how long it took,
    pub took: Option<Span>,
    /// and what it came to.
    pub outcome: Option<Outcome>,
    /// The bytes of its body, if it is done.
    pub bytes: Option<u64>,
    /// What the answer said it is, if it is done.
    pub content_type: Option<String>,
    /// What is known of its last answer; of a task that is not done only where redirects led and when it was answered.
    pub facts: Arc<PageFacts>,
}

/// Which tasks of a job are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Which {
    /// Only those in this state (`waiting`, `done`, `failed`, `skipped`).
    pub state: Option<String>,
    /// Only those that were settled then or later.
    pub settled_since: Option<Timestamp>,
}

/// Tasks and their lanes.
pub trait TaskStore {
    /// Adds tasks to a job; those that it has already are added once only. A task is the same as another when URL,
    /// method and body are. A job that is done takes them too, and is reopened by the first that is new; one that failed or
    /// was cancelled refuses them (B49). The origins of those that the operator listed are remembered for [`Self::lists`].
    fn enqueue(&self, job: JobId, tasks: Vec<NewTask>, now: Timestamp) -> Reply<'_, Enqueued>;

    /// Takes lanes that are due and whose domain is free or ours. Lanes whose domain another process holds are
    /// parked, and the domain is marked as wanted.
    fn claim(&self, holder: HolderId, claim: Claim, now: Timestamp) -> Reply<'_, Vec<Claimed>>;

    /// Reads more tasks of lanes that were claimed.
    fn refill(&self, refills: Vec<Refill>) -> Reply<'_, Vec<(LaneId, Vec<TaskRow>)>>;

    /// Commits what became of tasks, all in one transaction.
    fn settle(&self, holder: HolderId, settles: Vec<Settle>, now: Timestamp) -> Reply<'_, Vec<Settled>>;

    /// Gives lanes back that are not worked on any more, to be looked at again at that time if tasks wait in
    /// them.
    fn park(&self, holder: HolderId, lanes: Vec<(LaneId, Timestamp)>) -> Reply<'_, ()>;

    /// A job gives up on the domain of a lane that this holder serves: the tasks that wait there are skipped for
    /// `reason`, which begins with [`GAVE_UP`], as soon as the lane is claimed again. What the job has left.
    fn give_up(&self, holder: HolderId, lane: LaneId, reason: String) -> Reply<'_, Rest>;

    /// When the first lane of a job that nobody serves is due; `None` when there is none.
    fn next_due(&self, job: JobId) -> Reply<'_, Option<Timestamp>>;

    /// For each of these origins, as [`origin_of`] writes them, whether the operator listed a URL of it in the job. Stays
    /// true for as long as the job is there.
    fn lists(&self, job: JobId, origins: Vec<String>) -> Reply<'_, Vec<bool>>;

    /// Tasks of a job in that state (`waiting`, `done`, `failed`, `skipped`), the last settled first.
    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>>;

    /// The tasks of a job in the order they were added, a page at a time: at most `limit` of those behind `after`. Fewer
    /// than that are the last ones.
    fn page_tasks(
        &self,
        job: JobId,
        which: Which,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Vec<TaskView>>;
}

/// The origin of a normalised URL: scheme, host, and the port where it is not the scheme's own. No user, no password.
pub fn origin_of(url: &str) -> Cow<'_, str> {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |length| start + length);
    match url[start..end].rfind('@') {
        Some(at) => format!("{}{}", &url[..start], &url[start + at + 1..end]).into(),
        None => url[..end].into(),
    }
}

impl Lead {
    /// The word for it in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Listed => "listed",
            Self::Remote => "remote",
        }
    }
}

/// How the reason begins for which tasks are skipped on a domain that their job gave up.
pub const GAVE_UP: &str = "gave up on ";
/// Why tasks are skipped when their job ends.
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

//! Tasks and their lanes: filling, claiming, settling.

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
}

/// What became of tasks that were to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enqueued {
    /// Added.
    pub new: u64,
    /// The job had them already.
    pub known: u64,
    /// The job ended and takes none (B49).
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
    },
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
}

/// Tasks and their lanes.
pub trait TaskStore {
    /// Adds tasks to a job; those that it has already are added once only.
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

    /// Tasks of a job in that state (`waiting`, `done`, `failed`, `skipped`), the last settled first.
    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>>;
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

//! Jobs: named batches of tasks.

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobState, JobStep, TaskId};
use comity_core::time::Timestamp;
use serde_json::Value;

use crate::Reply;
use crate::domains::HolderId;
use crate::tasks::{FORBIDDEN, GAVE_UP, JOB_ENDED, NewTask, TaskView};

/// A job as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The job's id.
    pub id: JobId,
    /// The job's name.
    pub name: String,
    /// The job's current state.
    pub state: JobState,
    /// The job's options, exactly as its creator wrote them.
    pub options: Value,
    /// When the job was created.
    pub created_at: Timestamp,
    /// When the job ended.
    pub ended_at: Option<Timestamp>,
    /// Why the job failed or was cancelled, or why an open job can't finish.
    pub message: Option<String>,
    /// A list of its URLs was not read to the end. The job does not finish until one has been.
    pub unread: bool,
    /// A process that was alive at last check is reading a list into the job.
    pub being_filled: bool,
    /// A process that was alive at last check is working on the job, or reading a list into it.
    pub worked_on: bool,
    /// A worker died before it was certain that the result rows of its settled tasks were written.
    pub abandoned: bool,
    /// Old rows of the job were deleted: its counts include tasks that are no longer stored.
    pub pruned: bool,
    /// The job's progress.
    pub counts: Counts,
}

impl Job {
    /// The state as shown to people and in JSON. A job that is not over and that nobody works on is `stopped`.
    pub fn state_word(&self) -> &'static str {
        match self.state {
            JobState::Running if !self.worked_on => "stopped",
            state => state.as_str(),
        }
    }
}

/// Which tasks wait again when a job is reopened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetryFilter {
    /// Tasks that failed in one of these ways. Empty means everything that failed, except with 404 or 410, plus
    /// everything skipped because the job ended or gave up on a domain. Tasks that robots.txt forbade wait again only if
    /// they are named.
    pub failures: Vec<FailureKind>,
    /// Only URLs that match this glob: `*` matches anything, `?` one character, `[a-z]` one of a set. Without
    /// `failures`, it applies to everything that failed or was skipped because the job ended.
    pub matching: Option<String>,
    /// If set, exactly the tasks whose pages were fetched before this time, also if a later fetch of the page failed or
    /// was skipped; `failures` and `matching` are ignored.
    pub done_before: Option<Timestamp>,
}

/// How a task failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Any failure, or skipped for any reason.
    Any,
    /// The last response had this status.
    Status(u16),
    /// The last response had a status of this class: 5 is 500 to 599.
    Class(u8),
    /// The last attempt had this outcome.
    Outcome(Outcome),
    /// Skipped because the job ended, or because it gave up on the domain.
    Skipped,
    /// Skipped because robots.txt forbade it.
    Robots,
}

/// Up to where result rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMark {
    /// The rows of all tasks settled before this time are written.
    pub settled_before: Timestamp,
    /// The size of the index of rows at that time, in bytes: the rows of tasks settled later come after this. `None` if
    /// it has no index, or an older version did not say.
    pub index_bytes: Option<u64>,
}

/// The result of removing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// The job is gone, or never existed.
    Gone,
    /// A part of the job was removed; call again for the rest.
    More,
    /// Somebody is working on the job: nothing was removed.
    Busy,
}

/// Progress of reading a list of URLs into a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillStep {
    /// Reading has started.
    Started,
    /// The list was read to its end.
    Finished,
    /// Reading stopped before the end of the list.
    Interrupted,
}

/// A group of failed tasks is counted up to this.
pub(crate) const GROUP_COUNTED_MAX: u32 = 5_000;
/// How many of the tasks that were skipped last are read to group them.
pub(crate) const SKIPPED_READ_MAX: u32 = 5_000;
/// At most this many groups of failed tasks.
pub(crate) const GROUPS_MAX: usize = 50;

/// The progress of a job in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All tasks.
    pub tasks: u64,
    /// Tasks that were fetched.
    pub done: u64,
    /// Tasks that were given up.
    pub failed: u64,
    /// Tasks that are not to be fetched.
    pub skipped: u64,
    /// Responses that were rate limited (429).
    pub rate_limited: u64,
    /// Attempts that were followed by a retry.
    pub retries: u64,
}

impl RetryFilter {
    /// The status, if that is all it asks for.
    pub(crate) fn only_status(&self) -> Option<u16> {
        match self.failures[..] {
            [FailureKind::Status(status)] => Some(status),
            _ => None,
        }
    }
}

impl Counted {
    /// For what was counted up to one more than `most`.
    pub(crate) fn up_to(counted: u64, most: u32) -> Self {
        Self { number: counted.min(u64::from(most)), or_more: counted > u64::from(most) }
    }
}

impl FailureReason {
    /// What failed tasks have in common: a status, an outcome, or nothing.
    pub(crate) fn of_failed(reason: &str) -> Self {
        match (reason.parse(), reason.parse()) {
            (Ok(status), _) => Self::Status(status),
            (_, Ok(outcome)) => Self::Outcome(outcome),
            _ => Self::Unknown,
        }
    }

    /// Why a task was skipped, by what it says. Older versions stored `robots` for what robots.txt forbids.
    pub(crate) fn of_skipped(error: Option<&str>) -> Self {
        match error.unwrap_or_default() {
            FORBIDDEN | "robots" => Self::Robots,
            JOB_ENDED => Self::JobEnded,
            error if error.starts_with(GAVE_UP) => Self::GaveUp,
            _ => Self::OtherSkipped,
        }
    }

    /// Selects tasks that failed for this reason, for a [`RetryFilter`]. `None` if there is no such filter.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Status(status) => Some(FailureKind::Status(*status)),
            Self::Outcome(outcome) => Some(FailureKind::Outcome(*outcome)),
            Self::Robots => Some(FailureKind::Robots),
            Self::JobEnded | Self::GaveUp => Some(FailureKind::Skipped),
            Self::Unknown | Self::OtherSkipped => None,
        }
    }
}

impl Counts {
    /// Tasks that are not settled yet.
    pub fn waiting(&self) -> u64 {
        self.tasks.saturating_sub(self.done + self.failed + self.skipped)
    }
}

/// Which jobs to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// Only jobs whose name contains this text; empty means all.
    pub like: String,
    /// Only jobs in this state, as [`Job::state_word`] gives it.
    pub state: Option<String>,
    /// Only jobs older than this one: the last one of the page before.
    pub older_than: Option<JobId>,
    /// At most this many.
    pub limit: u32,
}

/// How many jobs there are, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobTally {
    /// Jobs that somebody works on.
    pub running: u64,
    /// Jobs that are not over, and that nobody works on.
    pub stopped: u64,
    /// Jobs that finished.
    pub done: u64,
    /// Jobs that gave up.
    pub failed: u64,
    /// Jobs that somebody cancelled.
    pub cancelled: u64,
}

/// Tasks of a job that failed or were skipped for the same reason.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureGroup {
    /// The reason.
    pub reason: FailureReason,
    /// How many, as far as counted.
    pub count: Counted,
    /// Some of them, the newest first.
    pub samples: Vec<TaskView>,
}

/// Why tasks failed or were skipped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// Failed, and the last response had this status.
    Status(u16),
    /// Failed without a response; the outcome of the last attempt.
    Outcome(Outcome),
    /// Failed before anything was sent, or an older version did not say how.
    Unknown,
    /// Skipped because robots.txt forbade it.
    Robots,
    /// Skipped because the job ended.
    JobEnded,
    /// Skipped because the job gave up on the domain.
    GaveUp,
    /// Skipped for another reason, which the samples say.
    OtherSkipped,
}

/// A number that may be larger than it was worth counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// How many were counted.
    pub number: u64,
    /// Whether there may be more.
    pub or_more: bool,
}

/// The result of a job's state transition.
#[derive(Debug, Clone, PartialEq)]
pub enum Stepped {
    /// The transition was made.
    Yes(Job),
    /// The transition is not allowed from the current state; the job is unchanged.
    No(Job),
    /// There is no such job.
    Missing,
}

/// Storage of jobs.
pub trait JobStore {
    /// Returns the job called `name`, creating it with `options` if there is none. True if it was created.
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)>;

    /// Creates a job and its first tasks in one transaction, so that nobody ever sees it without them. `None` if a job
    /// called `name` exists already.
    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>>;

    /// The job called `name`.
    fn find_job(&self, name: String) -> Reply<'_, Option<Job>>;

    /// All jobs, newest first.
    fn list_jobs(&self) -> Reply<'_, Vec<Job>>;

    /// Jobs in pages, newest first: at most `limit` that are older than `older_than`.
    fn page_jobs(&self, older_than: Option<JobId>, limit: u32) -> Reply<'_, Vec<Job>>;

    /// Jobs in pages, searched and filtered.
    fn search_jobs(&self, query: JobQuery) -> Reply<'_, Vec<Job>>;

    /// How many jobs there are.
    fn tally_jobs(&self) -> Reply<'_, JobTally>;

    /// Why tasks of a job failed or were skipped, the most frequent reasons first, each with at most `samples` tasks. The
    /// cost does not grow with the number of tasks.
    fn failure_groups(&self, job: JobId, samples: u32) -> Reply<'_, Vec<FailureGroup>>;

    /// How many tasks would wait again if the job were reopened with `filter`, counted up to `most`. Not for filters with
    /// [`RetryFilter::done_before`].
    fn count_retry(&self, job: JobId, filter: RetryFilter, most: u32) -> Reply<'_, Counted>;

    /// Replaces the job's options.
    fn set_options(&self, job: JobId, options: Value) -> Reply<'_, ()>;

    /// Names the files of a job's tasks by their whole path, which starts with `folder`, because the job is about to use
    /// another folder. Looks at the tasks after `after`, and changes at most `limit`; returns where to continue, if there
    /// may be more.
    fn name_files_in_full(
        &self,
        job: JobId,
        folder: String,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Option<TaskId>>;

    /// Records that `holder` reads a list of URLs into the job. A job does not finish while a live process does so, nor
    /// after the last one stopped or died before the end of its list.
    fn note_fill(&self, job: JobId, holder: HolderId, step: FillStep, now: Timestamp) -> Reply<'_, ()>;

    /// Ends or reopens a job. [`JobStep::Finish`] succeeds only if no task is waiting and all lists were read.
    fn step_job(
        &self,
        job: JobId,
        step: JobStep,
        message: Option<String>,
        now: Timestamp,
    ) -> Reply<'_, Stepped>;

    /// Reopens a job that ended or is stopped. The tasks selected by `filter` wait again, a batch at a time (see
    /// [`Self::sweep`]). A job that somebody works on or that has nothing to retry is left as it is, unless `filter`
    /// selects tasks that are done.
    fn reopen_job(&self, job: JobId, filter: RetryFilter) -> Reply<'_, Stepped>;

    /// Whether tasks would wait again if the job were reopened with `filter` and nobody worked on it.
    fn can_retry(&self, job: JobId, filter: RetryFilter) -> Reply<'_, bool>;

    /// Sets why an open job can't finish, or that nothing keeps it from that. A job that has ended keeps its message.
    fn set_message(&self, job: JobId, message: Option<String>) -> Reply<'_, ()>;

    /// Records that `holder` works on the job, and up to where it has written result rows. If another worker died,
    /// returns from where on its rows may be missing; this holder has to write them.
    fn work_on(
        &self,
        job: JobId,
        holder: HolderId,
        written: RowMark,
        now: Timestamp,
    ) -> Reply<'_, Option<RowMark>>;

    /// Records that `holder` has stopped working on the job and has written all its result rows.
    fn leave_job(&self, job: JobId, holder: HolderId) -> Reply<'_, ()>;

    /// Removes a job that nobody works on, deleting at most `limit` tasks per call. A partly removed job is cancelled,
    /// and its id is never reused.
    fn remove_job(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, Removed>;

    /// Brings tasks in line with the state of their job: skips waiting tasks after it ended, and makes those named by
    /// its [`RetryFilter`] wait again after it was reopened. Changes at most `limit` tasks; true if there may be more.
    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool>;
}

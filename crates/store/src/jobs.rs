//! Named batches of tasks.

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobState, JobStep};
use comity_core::time::Timestamp;
use serde_json::Value;

use crate::Reply;
use crate::domains::HolderId;
use crate::tasks::NewTask;

/// A job as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: JobState,
    /// What it runs by, as whoever made it wrote it.
    pub options: Value,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Why it failed or was cancelled.
    pub message: Option<String>,
    /// A list of its tasks was not read to its end: it does not finish before one was.
    pub unread: bool,
    /// Somebody who was alive when last looked at reads a list into it.
    pub filled: bool,
    /// Somebody who was alive when last looked at works on it, or reads a list into it.
    pub worked_on: bool,
    /// Somebody worked on it and died before the rows of what it settled were written for sure.
    pub deserted: bool,
    /// How far it is.
    pub counts: Counts,
}

impl Job {
    /// Where it is in its life, in a word, as people and machines are told: one that is not over but that nobody works on
    /// is `stopped`.
    pub fn state_word(&self) -> &'static str {
        match self.state {
            JobState::Running if !self.worked_on => "stopped",
            state => state.as_str(),
        }
    }
}

/// What waits again when a job is reopened. What robots.txt forbids never does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revival {
    /// Those that failed like one of these; empty: whatever failed but with 404 or 410, and whatever was skipped with the
    /// end of the job or because it gave up a domain.
    pub troubles: Vec<Trouble>,
    /// Only URLs that match this pattern: `*` is anything, `?` a character, `[a-z]` one of several. Without `troubles`,
    /// whatever failed or was skipped with the end of the job.
    pub matching: Option<String>,
    /// Those that are done, too: every one that was settled before then. Nothing else, if there is nothing else.
    pub done_before: Option<Timestamp>,
}

/// How a task failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// In whichever way, or it was skipped with the end of the job.
    Any,
    /// With this status.
    Status(u16),
    /// With a status of this class: 5 is 500 to 599.
    Class(u8),
    /// Its last request came to this.
    Outcome(Outcome),
    /// It was skipped with the end of the job, or because the job gave up its domain.
    Skipped,
}

/// What became of removing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone, or never was.
    Gone,
    /// A part of it is gone; there is more.
    More,
    /// Somebody works on it: nothing was removed.
    Busy,
}

/// How the reading of a list into a job goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filling {
    /// It begins.
    Begun,
    /// It came to the end of the list.
    Ended,
    /// It stopped before.
    Broken,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tasks in all.
    pub tasks: u64,
    /// Fetched.
    pub done: u64,
    /// Given up.
    pub failed: u64,
    /// Not to be fetched.
    pub skipped: u64,
    /// Answers that said "too many requests".
    pub rate_limited: u64,
    /// Attempts that were followed by another.
    pub retries: u64,
}

impl Counts {
    /// Tasks not settled yet.
    pub fn waiting(&self) -> u64 {
        self.tasks.saturating_sub(self.done + self.failed + self.skipped)
    }
}

/// What became of a step of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Stepped {
    /// It took the step.
    Yes(Job),
    /// The step is not legal where it is; it is left as it is (B47).
    No(Job),
    /// There is no such job.
    Missing,
}

/// Named batches of tasks.
pub trait JobStore {
    /// The job called `name`, made with `options` if there is none. True when it was made.
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)>;

    /// A job with its first tasks, made in one piece: nobody finds it without them. `None` when there is one called
    /// `name` already.
    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>>;

    /// The job called `name`.
    fn find_job(&self, name: String) -> Reply<'_, Option<Job>>;

    /// All jobs, the newest first.
    fn list_jobs(&self) -> Reply<'_, Vec<Job>>;

    /// The same, a page at a time: at most `limit` of those that are older than `older_than`.
    fn page_jobs(&self, older_than: Option<JobId>, limit: u32) -> Reply<'_, Vec<Job>>;

    /// Changes what a job runs by.
    fn set_options(&self, job: JobId, options: Value) -> Reply<'_, ()>;

    /// `holder` reads a list into the job. A job does not finish while somebody alive does, nor after the last one
    /// stopped or died before the end of its list.
    fn filling(&self, job: JobId, holder: HolderId, filling: Filling, now: Timestamp) -> Reply<'_, ()>;

    /// A job ends or is reopened. [`JobStep::Finish`] is taken only when no task waits and its lists were read.
    fn step_job(
        &self,
        job: JobId,
        step: JobStep,
        message: Option<String>,
        now: Timestamp,
    ) -> Reply<'_, Stepped>;

    /// A job that ended is reopened, and what `revival` names waits again, by and by (see [`Self::sweep`]). A job that is
    /// running is not reopened, unless only what is done is named: its tasks wait again then. Neither is one of which
    /// nothing matches, when `revival` says what must.
    fn reopen_job(&self, job: JobId, revival: Revival) -> Reply<'_, Stepped>;

    /// `holder` works on the job, and the rows of everything that it settled before `told_at` are written. When another
    /// who worked on it died, from when on rows may be missing: they are this holder's to write then.
    fn work_on(
        &self,
        job: JobId,
        holder: HolderId,
        told_at: Timestamp,
        now: Timestamp,
    ) -> Reply<'_, Option<Timestamp>>;

    /// `holder` does not work on the job any more, and all its rows are written.
    fn leave_job(&self, job: JobId, holder: HolderId) -> Reply<'_, ()>;

    /// Removes a job that nobody works on, with its tasks, at most `limit` of them at once. One that is removed in part
    /// is cancelled, and its number is never given out again.
    fn remove_job(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, Removed>;

    /// After a job ended, its waiting tasks are skipped (B49); after it was reopened, those that its [`Revival`] names
    /// wait again. At most `limit` at once: true when there may be more.
    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool>;
}

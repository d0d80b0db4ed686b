//! Named batches of tasks.

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
    /// How far it is.
    pub counts: Counts,
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

    /// After a job ended, its waiting tasks are skipped (B49); after it was reopened, those that failed or were
    /// skipped with its end wait again. At most `limit` at once: true when there may be more.
    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool>;
}

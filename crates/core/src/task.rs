//! The life of a task and of a job: which states there are, and which steps between them are legal.
//!
//! ```text
//!            claim           send            settle
//!  waiting ────────► held ────────► sent ────────► done | failed | skipped
//!     ▲ ▲            │ │             │
//!     │ └─ postpone ─┘ └─ settle ─►  │   (a task that must not be sent: robots, job ended)
//!     └─────── retry, moved, rescue ─┘
//! ```
//! Only a `retry` spends an attempt's worth of patience; *postpone*, *moved* and *rescue* do not (B42). When a
//! step is due is decided elsewhere ([`crate::retry`], [`crate::guard`], [`crate::dispatch`]).

use std::fmt;

/// A task, as its store numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// A job, as its store numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// In its lane; nobody works on it.
    Waiting,
    /// Claimed by the holder of its domain.
    Held,
    /// An attempt is on the wire.
    Sent,
    /// Fetched.
    Done,
    /// Given up.
    Failed,
    /// Not to be fetched.
    Skipped,
}

/// What can happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStep {
    /// The holder of its domain takes it.
    Claim,
    /// It is not its time yet: back to waiting, nothing spent.
    Postpone,
    /// Its request leaves.
    Send,
    /// The attempt failed and another is allowed: back to waiting, one retry spent or forgiven.
    Retry,
    /// A redirect leads to another domain: back to waiting there.
    Moved,
    /// Its holder died: back to waiting.
    Rescue,
    /// It was fetched.
    Finish,
    /// It is given up.
    Fail,
    /// It is not to be fetched: robots, a job that ended, a source that went.
    Skip,
}

/// A step that is not legal in that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {state} cannot {step}")]
pub struct IllegalTaskStep {
    /// The state it was in.
    pub state: TaskState,
    /// What was asked of it.
    pub step: TaskStep,
}

impl TaskState {
    /// Every state there is.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Held, Self::Sent, Self::Done, Self::Failed, Self::Skipped];

    /// The state after `step`.
    pub fn after(self, step: TaskStep) -> Result<Self, IllegalTaskStep> {
        use {TaskState as S, TaskStep as T};
        match (self, step) {
            (S::Waiting, T::Claim) => Ok(S::Held),
            (S::Held, T::Postpone | T::Rescue) => Ok(S::Waiting),
            (S::Held, T::Send) => Ok(S::Sent),
            (S::Sent, T::Retry | T::Moved | T::Rescue) => Ok(S::Waiting),
            (S::Sent, T::Finish) => Ok(S::Done),
            (S::Held | S::Sent, T::Fail) => Ok(S::Failed),
            (S::Waiting | S::Held | S::Sent, T::Skip) => Ok(S::Skipped),
            _ => Err(IllegalTaskStep { state: self, step }),
        }
    }

    /// Whether nothing can happen to it any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Skipped)
    }

    /// The word for it in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Sent => "sent",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl TaskStep {
    /// Every step there is.
    pub const ALL: [Self; 9] = [
        Self::Claim,
        Self::Postpone,
        Self::Send,
        Self::Retry,
        Self::Moved,
        Self::Rescue,
        Self::Finish,
        Self::Fail,
        Self::Skip,
    ];

    /// The word for it in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "be claimed",
            Self::Postpone => "be postponed",
            Self::Send => "be sent",
            Self::Retry => "be retried",
            Self::Moved => "be moved",
            Self::Rescue => "be rescued",
            Self::Finish => "finish",
            Self::Fail => "fail",
            Self::Skip => "be skipped",
        }
    }
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It takes tasks and works on them.
    Running,
    /// All its tasks are settled.
    Done,
    /// Too many of its tasks failed in a row.
    Failed,
    /// Somebody, or the cancel guard, ended it.
    Cancelled,
}

/// What can happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobStep {
    /// Its last task was settled.
    Finish,
    /// The failure guard ends it.
    Fail,
    /// It is called off.
    Cancel,
    /// `jobs retry`: the only way back for one that failed or was cancelled (B49).
    Reopen,
    /// URLs are added to one that is done.
    Extend,
}

/// A step that is not legal in that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot {step}")]
pub struct IllegalJobStep {
    /// The state it was in.
    pub state: JobState,
    /// What was asked of it.
    pub step: JobStep,
}

impl JobState {
    /// Every state there is.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Failed, Self::Cancelled];

    /// The state after `step`.
    pub fn after(self, step: JobStep) -> Result<Self, IllegalJobStep> {
        match (self, step) {
            (Self::Running, JobStep::Finish) => Ok(Self::Done),
            (Self::Running, JobStep::Fail) => Ok(Self::Failed),
            (Self::Running, JobStep::Cancel) => Ok(Self::Cancelled),
            (Self::Done | Self::Failed | Self::Cancelled, JobStep::Reopen) => Ok(Self::Running),
            (Self::Done, JobStep::Extend) => Ok(Self::Running),
            _ => Err(IllegalJobStep { state: self, step }),
        }
    }

    /// Whether it ended: those of its tasks that wait are skipped, and only one that is done takes more (B49).
    pub fn is_terminal(self) -> bool {
        self != Self::Running
    }

    /// The word for it in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl JobStep {
    /// Every step there is.
    pub const ALL: [Self; 5] = [Self::Finish, Self::Fail, Self::Cancel, Self::Reopen, Self::Extend];

    /// The word for it in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Fail => "fail",
            Self::Cancel => "be cancelled",
            Self::Reopen => "be reopened",
            Self::Extend => "take more",
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for TaskStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for JobStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drawn_steps_of_a_task_are_legal() {
        let legal: Vec<String> = TaskState::ALL
            .into_iter()
            .flat_map(|state| TaskStep::ALL.map(|step| (state, state.after(step).ok())))
            .filter_map(|(from, to)| Some(format!("{from}>{}", to?)))
            .collect();
        assert_eq!(
            legal,
            [
                "waiting>held",
                "waiting>skipped",
                "held>waiting",
                "held>sent",
                "held>waiting",
                "held>failed",
                "held>skipped",
                "sent>waiting",
                "sent>waiting",
                "sent>waiting",
                "sent>done",
                "sent>failed",
                "sent>skipped",
            ]
        );
        let error = TaskState::Done.after(TaskStep::Send).unwrap_err().to_string();
        assert_eq!(error, "a task that is done cannot be sent");
    }

    /// B49
    #[test]
    fn a_job_that_ended_comes_back_only_by_retry_or_by_more_urls_when_it_is_done() {
        for state in JobState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for step in JobStep::ALL {
                let back = step == JobStep::Reopen || step == JobStep::Extend && state == JobState::Done;
                let reopened = back.then_some(JobState::Running);
                assert_eq!(state.after(step).ok(), reopened, "{state} {step}");
            }
        }
        assert_eq!(JobState::Running.after(JobStep::Finish), Ok(JobState::Done));
        let error = JobState::Running.after(JobStep::Reopen).unwrap_err().to_string();
        assert_eq!(error, "a job that is running cannot be reopened");
    }
}

//! The life cycle of tasks and jobs: their states, and which steps are legal in each state.
//!
//! ```text
//!            claim              send            settle
//!  waiting ────────► claimed ────────► sent ────────► done | failed | skipped
//!     ▲ ▲             │   │             │
//!     │ └── postpone ─┘   └─ settle ─►  │   (a task that must not be sent: robots, job ended)
//!     └───────── retry, moved, rescue ──┘
//! ```
//! Only *retry* uses up one of the task's retries; *postpone*, *moved* and *rescue* don't. When a step is due is
//! decided elsewhere ([`crate::retry`], [`crate::guard`], [`crate::dispatch`]).

use std::fmt;

/// The number of a task in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// The number of a job in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// In its lane; nobody works on it.
    Waiting,
    /// Claimed by the holder of its domain.
    Claimed,
    /// An attempt is in flight.
    Sent,
    /// Fetched.
    Done,
    /// Given up.
    Failed,
    /// Won't be fetched.
    Skipped,
}

/// What can happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStep {
    /// The holder of its domain claims it.
    Claim,
    /// It cannot be sent yet: it goes back to waiting, and no retry is used.
    Postpone,
    /// Its request is sent.
    Send,
    /// The attempt failed and another one is allowed: it goes back to waiting, and a retry is used or forgiven.
    Retry,
    /// A redirect leads to another domain: it waits there.
    Moved,
    /// Its holder died: it goes back to waiting.
    Rescue,
    /// It was fetched.
    Finish,
    /// It is given up.
    Fail,
    /// It won't be fetched: robots.txt forbids it, its job ended, or its source was removed.
    Skip,
}

/// A step that isn't legal in the task's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {state} cannot {step}")]
pub struct IllegalTaskStep {
    /// The state of the task.
    pub state: TaskState,
    /// The step that was tried.
    pub step: TaskStep,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Claimed, Self::Sent, Self::Done, Self::Failed, Self::Skipped];

    /// The state after `step`.
    pub fn after(self, step: TaskStep) -> Result<Self, IllegalTaskStep> {
        use {TaskState as S, TaskStep as T};
        match (self, step) {
            (S::Waiting, T::Claim) => Ok(S::Claimed),
            (S::Claimed, T::Postpone | T::Rescue) => Ok(S::Waiting),
            (S::Claimed, T::Send) => Ok(S::Sent),
            (S::Sent, T::Retry | T::Moved | T::Rescue) => Ok(S::Waiting),
            (S::Sent, T::Finish) => Ok(S::Done),
            (S::Claimed | S::Sent, T::Fail) => Ok(S::Failed),
            (S::Waiting | S::Claimed | S::Sent, T::Skip) => Ok(S::Skipped),
            _ => Err(IllegalTaskStep { state: self, step }),
        }
    }

    /// Whether no further step is possible.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Skipped)
    }

    /// Its name in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Claimed => "claimed",
            Self::Sent => "sent",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl TaskStep {
    /// All steps.
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

    /// Its name in messages, after "cannot".
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

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It accepts tasks and works on them.
    Running,
    /// All its tasks are settled.
    Done,
    /// Too many consecutive tasks failed.
    Failed,
    /// It was cancelled by a person or by the cancel guard.
    Cancelled,
}

/// What can happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobStep {
    /// Its last task was settled.
    Finish,
    /// The failure guard ends it.
    Fail,
    /// It is cancelled.
    Cancel,
    /// It is reopened with `jobs retry`, the only way to continue a job that failed or was cancelled.
    Reopen,
    /// URLs are added to a job that is done.
    Extend,
}

/// A step that isn't legal in the job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot {step}")]
pub struct IllegalJobStep {
    /// The state of the job.
    pub state: JobState,
    /// The step that was tried.
    pub step: JobStep,
}

impl JobState {
    /// All states.
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

    /// Whether it has ended: its waiting tasks are skipped, and only a job that is done accepts more tasks.
    pub fn is_terminal(self) -> bool {
        self != Self::Running
    }

    /// Its name in SQL and JSON.
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
    /// All steps.
    pub const ALL: [Self; 5] = [Self::Finish, Self::Fail, Self::Cancel, Self::Reopen, Self::Extend];

    /// Its name in messages, after "cannot".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Fail => "fail",
            Self::Cancel => "be cancelled",
            Self::Reopen => "be reopened",
            Self::Extend => "take more URLs",
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
    fn only_the_steps_in_the_diagram_are_legal() {
        let legal: Vec<String> = TaskState::ALL
            .into_iter()
            .flat_map(|state| TaskStep::ALL.map(|step| (state, state.after(step).ok())))
            .filter_map(|(from, to)| Some(format!("{from}>{}", to?)))
            .collect();
        assert_eq!(
            legal,
            [
                "waiting>claimed",
                "waiting>skipped",
                "claimed>waiting",
                "claimed>sent",
                "claimed>waiting",
                "claimed>failed",
                "claimed>skipped",
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
    fn an_ended_job_continues_only_by_retry_or_if_done_with_more_urls() {
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

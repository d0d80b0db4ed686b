//! What happens to a task after an attempt (B41–B45): done, given up, or waiting for another.
//!
//! When the next attempt may leave is the pace's to say ([`crate::pace::Pace::retry_at`]); nobody sleeps for it.

use crate::outcome::Outcome;
use crate::pace::Standing;
use crate::task::TaskStep;

/// What an attempt means for its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The step the task takes: finish, fail or retry.
    pub step: TaskStep,
    /// Retries spent from now on.
    pub retries: u32,
}

/// Judges an attempt of a task that spent `retries` so far and may spend `retries_max`.
///
/// A failure that says nothing new (B23) is forgiven: it is tried again and spends nothing, unless no second
/// attempt is wanted at all (B45).
pub fn judge(outcome: Outcome, standing: Standing, retries: u32, retries_max: u32) -> Verdict {
    let (step, retries) = match outcome {
        Outcome::Success => (TaskStep::Finish, retries),
        Outcome::Answered => (TaskStep::Fail, retries),
        _ if retries_max == 0 => (TaskStep::Fail, retries),
        _ if standing == Standing::Late => (TaskStep::Retry, retries),
        _ if retries >= retries_max => (TaskStep::Fail, retries),
        _ => (TaskStep::Retry, retries + 1),
    };
    Verdict { step, retries }
}

/// How often a task is tried again when nobody says otherwise.
pub const RETRIES_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(outcome: Outcome, retries_max: u32) -> u32 {
        let mut spent = 0;
        for attempt in 1.. {
            let verdict = judge(outcome, Standing::Fresh, spent, retries_max);
            spent = verdict.retries;
            if verdict.step != TaskStep::Retry {
                return attempt;
            }
        }
        unreachable!()
    }

    /// B41, B43, B45
    #[test]
    fn failures_are_tried_again_up_to_the_limit() {
        for outcome in Outcome::ALL.into_iter().filter(|outcome| outcome.is_penalty()) {
            assert_eq!(attempts(outcome, RETRIES_MAX), 4, "{outcome}");
            assert_eq!(attempts(outcome, 0), 1, "{outcome}");
        }
        assert_eq!(attempts(Outcome::Success, RETRIES_MAX), 1);
        assert_eq!(attempts(Outcome::Answered, RETRIES_MAX), 1);
    }

    /// B23, B45
    #[test]
    fn a_late_failure_spends_no_retry() {
        let late = |retries, max| judge(Outcome::RateLimited, Standing::Late, retries, max);
        assert_eq!(late(3, 3), Verdict { step: TaskStep::Retry, retries: 3 });
        assert_eq!(late(0, 0), Verdict { step: TaskStep::Fail, retries: 0 });
        let again = judge(Outcome::RateLimited, Standing::Repeated, 3, 3);
        assert_eq!(again.step, TaskStep::Fail, "an answer that was recorded before does not go on for ever");
    }

    #[test]
    fn what_was_fetched_is_done_and_what_was_answered_is_not_tried_again() {
        assert_eq!(judge(Outcome::Success, Standing::Late, 2, 3).step, TaskStep::Finish);
        assert_eq!(judge(Outcome::Answered, Standing::Fresh, 0, 3).step, TaskStep::Fail);
    }
}

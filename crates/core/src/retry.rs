//! Whether a task is retried, given up or done after an attempt.
//!
//! When the next attempt may be sent is decided by [`crate::pace::Pace::retry_at`].

use crate::outcome::Outcome;
use crate::pace::Freshness;
use crate::task::TaskStep;

/// How many failed attempts a task has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetriesUsed {
    /// Retries used; the job sets the maximum.
    pub retries: u32,
    /// Failures that used no retry; the same maximum applies.
    pub forgiven: u32,
}

/// What happens to a task after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The next step of the task: finish, fail or retry.
    pub step: TaskStep,
    /// The retries used so far, including this one.
    pub used: RetriesUsed,
}

impl RetriesUsed {
    /// Number of attempts, including the one that is judged now.
    pub const fn attempts(self) -> u32 {
        self.retries.saturating_add(self.forgiven).saturating_add(1)
    }
}

/// Judges an attempt of a task that may be retried `retries_max` times.
///
/// A late 429, whose request started before the latest penalty, is forgiven up to `retries_max` times: the task is
/// retried without using a retry. So a task makes at most `2 * retries_max + 1` attempts, and exactly one if
/// `retries_max` is zero.
pub fn judge(outcome: Outcome, freshness: Freshness, used: RetriesUsed, retries_max: u32) -> Verdict {
    match outcome {
        Outcome::Success => Verdict { step: TaskStep::Finish, used },
        Outcome::Answered => Verdict { step: TaskStep::Fail, used },
        Outcome::RateLimited if freshness == Freshness::Late => judge_forgivable(used, retries_max),
        _ if used.retries >= retries_max => Verdict { step: TaskStep::Fail, used },
        _ => Verdict { step: TaskStep::Retry, used: RetriesUsed { retries: used.retries + 1, ..used } },
    }
}

/// Judges an attempt whose host was unreachable. `in_a_row` is the number of consecutive such attempts on the domain,
/// including this one ([`crate::guard::ReachGuard`]).
///
/// If it exceeds the number of attempts of one task, the host is considered down: the task fails without using its
/// remaining retries, and so do further tasks.
pub fn judge_unreachable(in_a_row: u32, used: RetriesUsed, retries_max: u32) -> Verdict {
    match in_a_row > retries_max.saturating_add(1) || used.retries >= retries_max {
        true => Verdict { step: TaskStep::Fail, used },
        false => Verdict { step: TaskStep::Retry, used: RetriesUsed { retries: used.retries + 1, ..used } },
    }
}

/// Judges an attempt that failed for no fault of the site, such as a request that was recalled in favor of others.
pub fn judge_forgivable(used: RetriesUsed, retries_max: u32) -> Verdict {
    let RetriesUsed { retries, forgiven } = used;
    let (step, used) = match (forgiven < retries_max, retries < retries_max) {
        (true, _) => (TaskStep::Retry, RetriesUsed { forgiven: forgiven + 1, retries }),
        (false, true) => (TaskStep::Retry, RetriesUsed { retries: retries + 1, forgiven }),
        (false, false) => (TaskStep::Fail, used),
    };
    Verdict { step, used }
}

/// The default maximum number of retries per task.
pub const RETRIES_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(outcome: Outcome, freshness: Freshness, retries_max: u32) -> u32 {
        let mut used = RetriesUsed::default();
        for attempt in 1.. {
            assert_eq!(used.attempts(), attempt);
            let verdict = judge(outcome, freshness, used, retries_max);
            used = verdict.used;
            if verdict.step != TaskStep::Retry {
                return attempt;
            }
        }
        unreachable!()
    }

    /// B41, B43, B45
    #[test]
    fn failures_are_retried_up_to_the_limit() {
        for outcome in Outcome::ALL.into_iter().filter(|outcome| outcome.is_penalty()) {
            assert_eq!(attempts(outcome, Freshness::Fresh, RETRIES_MAX), 4, "{outcome}");
            assert_eq!(attempts(outcome, Freshness::Fresh, 0), 1, "{outcome}");
        }
        assert_eq!(attempts(Outcome::Success, Freshness::Fresh, RETRIES_MAX), 1);
        assert_eq!(attempts(Outcome::Answered, Freshness::Fresh, RETRIES_MAX), 1);
    }

    /// B23, B45, B79. Regression: late timeouts of a hanging host were forgiven forever, with 46 attempts for one URL.
    #[test]
    fn only_a_late_429_uses_no_retry_and_only_a_limited_number_of_times() {
        for outcome in Outcome::ALL.into_iter().filter(|outcome| outcome.is_penalty()) {
            let most = if outcome == Outcome::RateLimited { 7 } else { 4 };
            assert_eq!(attempts(outcome, Freshness::Late, RETRIES_MAX), most, "{outcome}");
            assert_eq!(attempts(outcome, Freshness::Late, 0), 1, "{outcome}");
        }
        let late = judge(Outcome::RateLimited, Freshness::Late, RetriesUsed { retries: 3, forgiven: 0 }, 3);
        assert_eq!(late, Verdict { step: TaskStep::Retry, used: RetriesUsed { retries: 3, forgiven: 1 } });
        let again = judge(
            Outcome::RateLimited,
            Freshness::Repeated,
            RetriesUsed { retries: 3, forgiven: 0 },
            RETRIES_MAX,
        );
        assert_eq!(again.step, TaskStep::Fail, "a response that was recorded before is not retried forever");
    }

    proptest::proptest! {
        /// B79: whatever the outcomes and their order.
        #[test]
        fn no_task_makes_more_attempts_than_twice_its_retries_plus_one(
            story in proptest::collection::vec((0..Outcome::ALL.len(), 0..4_usize), 1..100),
            retries_max in 0..6_u32,
        ) {
            let mut used = RetriesUsed::default();
            let mut made = 0;
            for (outcome, freshness) in story {
                made += 1;
                let verdict = match [Freshness::Fresh, Freshness::Late, Freshness::Repeated].get(freshness) {
                    Some(freshness) => judge(Outcome::ALL[outcome], *freshness, used, retries_max),
                    None => judge_forgivable(used, retries_max),
                };
                if verdict.step != TaskStep::Retry {
                    break;
                }
                used = verdict.used;
                proptest::prop_assert!(used.retries <= retries_max && used.forgiven <= retries_max);
                proptest::prop_assert_eq!(used.attempts(), made + 1);
            }
            proptest::prop_assert!(made <= 2 * retries_max + 1, "{} attempts", made);
        }
    }

    /// B43, B45, B79
    #[test]
    fn tasks_of_an_unreachable_host_fail_without_further_retries() {
        let fails = |in_a_row, retries, retries_max| {
            judge_unreachable(in_a_row, RetriesUsed { retries, forgiven: 0 }, retries_max).step
                == TaskStep::Fail
        };
        assert!((1..=4).all(|in_a_row| !fails(in_a_row, 0, 3)), "a short outage may hit four tasks");
        assert!(fails(5, 0, 3) && fails(100, 0, 3));
        assert!(fails(4, 3, 3), "a task without retries left fails anyway");
        assert!(fails(1, 0, 0), "no retries means one attempt");
    }

    #[test]
    fn a_success_is_done_and_other_4xx_are_not_retried() {
        let used = RetriesUsed { retries: 2, forgiven: 1 };
        assert_eq!(judge(Outcome::Success, Freshness::Late, used, 3).step, TaskStep::Finish);
        assert_eq!(
            judge(Outcome::Answered, Freshness::Fresh, RetriesUsed::default(), 3).step,
            TaskStep::Fail
        );
    }
}

//! What happens to a task after an attempt (B41–B45): done, given up, or waiting for another.
//!
//! When the next attempt may leave is the pace's to say ([`crate::pace::Pace::retry_at`]); nobody sleeps for it.

use crate::outcome::Outcome;
use crate::pace::Standing;
use crate::task::TaskStep;

/// What a task has spent on attempts that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Retries, of which it has so many as its job allows.
    pub retries: u32,
    /// Failures that spent no retry, of which it has as many again.
    pub forgiven: u32,
}

/// What an attempt means for its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The step the task takes: finish, fail or retry.
    pub step: TaskStep,
    /// What it has spent from now on.
    pub spent: Spent,
}

impl Spent {
    /// How many attempts that were, with the one that is judged now.
    pub const fn attempts(self) -> u32 {
        self.retries.saturating_add(self.forgiven).saturating_add(1)
    }
}

/// Judges an attempt of a task that may spend `retries_max` retries.
///
/// A 429 that says nothing new (B23) is forgiven up to `retries_max` times: it is tried again and spends no retry. So a
/// task makes at most `2 * retries_max + 1` attempts, whatever overlaps (B79), and exactly one when no second one is
/// wanted at all (B45).
pub fn judge(outcome: Outcome, standing: Standing, spent: Spent, retries_max: u32) -> Verdict {
    match outcome {
        Outcome::Success => Verdict { step: TaskStep::Finish, spent },
        Outcome::Answered => Verdict { step: TaskStep::Fail, spent },
        Outcome::RateLimited if standing == Standing::Late => judge_forgivable(spent, retries_max),
        _ if spent.retries >= retries_max => Verdict { step: TaskStep::Fail, spent },
        _ => Verdict { step: TaskStep::Retry, spent: Spent { retries: spent.retries + 1, ..spent } },
    }
}

/// Judges an attempt that found nobody there; so many in a row did on its domain, this one included
/// ([`crate::guard::ReachGuard`]).
///
/// A host that refused one connection more than a task may make is not there: every retry says the same, and further
/// tasks fail with their first attempt.
pub fn judge_unreachable(in_a_row: u32, spent: Spent, retries_max: u32) -> Verdict {
    match in_a_row > retries_max.saturating_add(1) || spent.retries >= retries_max {
        true => Verdict { step: TaskStep::Fail, spent },
        false => Verdict { step: TaskStep::Retry, spent: Spent { retries: spent.retries + 1, ..spent } },
    }
}

/// Judges an attempt whose failure is not the site's doing, such as one that we gave up to make room for others.
pub fn judge_forgivable(spent: Spent, retries_max: u32) -> Verdict {
    let Spent { retries, forgiven } = spent;
    let (step, spent) = match (forgiven < retries_max, retries < retries_max) {
        (true, _) => (TaskStep::Retry, Spent { forgiven: forgiven + 1, retries }),
        (false, true) => (TaskStep::Retry, Spent { retries: retries + 1, forgiven }),
        (false, false) => (TaskStep::Fail, spent),
    };
    Verdict { step, spent }
}

/// How often a task is tried again when nobody says otherwise.
pub const RETRIES_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(outcome: Outcome, standing: Standing, retries_max: u32) -> u32 {
        let mut spent = Spent::default();
        for attempt in 1.. {
            assert_eq!(spent.attempts(), attempt);
            let verdict = judge(outcome, standing, spent, retries_max);
            spent = verdict.spent;
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
            assert_eq!(attempts(outcome, Standing::Fresh, RETRIES_MAX), 4, "{outcome}");
            assert_eq!(attempts(outcome, Standing::Fresh, 0), 1, "{outcome}");
        }
        assert_eq!(attempts(Outcome::Success, Standing::Fresh, RETRIES_MAX), 1);
        assert_eq!(attempts(Outcome::Answered, Standing::Fresh, RETRIES_MAX), 1);
    }

    /// B23, B45, B79: a hanging host's late time-outs were forgiven for ever, 46 attempts of one URL.
    #[test]
    fn only_a_late_429_spends_no_retry_and_only_so_often() {
        for outcome in Outcome::ALL.into_iter().filter(|outcome| outcome.is_penalty()) {
            let most = if outcome == Outcome::RateLimited { 7 } else { 4 };
            assert_eq!(attempts(outcome, Standing::Late, RETRIES_MAX), most, "{outcome}");
            assert_eq!(attempts(outcome, Standing::Late, 0), 1, "{outcome}");
        }
        let late = judge(Outcome::RateLimited, Standing::Late, Spent { retries: 3, forgiven: 0 }, 3);
        assert_eq!(late, Verdict { step: TaskStep::Retry, spent: Spent { retries: 3, forgiven: 1 } });
        let again =
            judge(Outcome::RateLimited, Standing::Repeated, Spent { retries: 3, forgiven: 0 }, RETRIES_MAX);
        assert_eq!(again.step, TaskStep::Fail, "an answer that was recorded before is not retried for ever");
    }

    proptest::proptest! {
        /// B79: whatever overlaps, in whatever order.
        #[test]
        fn no_task_makes_more_attempts_than_twice_its_retries_and_one(
            story in proptest::collection::vec((0..Outcome::ALL.len(), 0..4_usize), 1..100),
            retries_max in 0..6_u32,
        ) {
            let mut spent = Spent::default();
            let mut made = 0;
            for (outcome, standing) in story {
                made += 1;
                let verdict = match [Standing::Fresh, Standing::Late, Standing::Repeated].get(standing) {
                    Some(standing) => judge(Outcome::ALL[outcome], *standing, spent, retries_max),
                    None => judge_forgivable(spent, retries_max),
                };
                if verdict.step != TaskStep::Retry {
                    break;
                }
                spent = verdict.spent;
                proptest::prop_assert!(spent.retries <= retries_max && spent.forgiven <= retries_max);
                proptest::prop_assert_eq!(spent.attempts(), made + 1);
            }
            proptest::prop_assert!(made <= 2 * retries_max + 1, "{} attempts", made);
        }
    }

    /// B43, B45, B79
    #[test]
    fn a_host_that_is_not_there_fails_every_further_task_at_once() {
        let fails = |in_a_row, retries, retries_max| {
            judge_unreachable(in_a_row, Spent { retries, forgiven: 0 }, retries_max).step == TaskStep::Fail
        };
        assert!(
            (1..=4).all(|in_a_row| !fails(in_a_row, 0, 3)),
            "four tasks may each have met a short outage"
        );
        assert!(fails(5, 0, 3) && fails(100, 0, 3));
        assert!(fails(4, 3, 3), "a task that has spent its retries fails anyway");
        assert!(fails(1, 0, 0), "no retries means one attempt");
    }

    #[test]
    fn what_was_fetched_is_done_and_what_was_answered_is_not_tried_again() {
        let spent = Spent { retries: 2, forgiven: 1 };
        assert_eq!(judge(Outcome::Success, Standing::Late, spent, 3).step, TaskStep::Finish);
        assert_eq!(judge(Outcome::Answered, Standing::Fresh, Spent::default(), 3).step, TaskStep::Fail);
    }
}

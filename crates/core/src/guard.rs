//! Guards against jobs that go wrong: lower concurrency on domains that slow down, giving up domains whose tasks keep
//! failing, and cancelling a job that is rate limited even at the slowest pace.

use crate::outcome::{Outcome, Reach};
use crate::time::{Span, Timestamp};

/// How many tasks of a job may be in flight on a domain: one less for every five seconds that the learned delay adds to
/// the spacing, but at least one.
pub fn concurrency(base: u32, spacing: Span, baseline: Span) -> u32 {
    base.saturating_sub(concurrency_reduction(spacing, baseline)).max(1)
}

/// By how much the learned delay lowers the concurrency of a job on a domain.
pub fn concurrency_reduction(spacing: Span, baseline: Span) -> u32 {
    u32::try_from(spacing.less(baseline).whole_times(SLOWER_BY)).unwrap_or(u32::MAX)
}

/// How a task was settled, as far as the failure guard is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled<'a> {
    /// It was fetched.
    Done,
    /// It failed with this error.
    Failed(&'a str),
    /// The site answered with another 4xx such as 404: the URL is wrong, but the site works.
    Answered,
    /// It was skipped.
    Skipped,
}

/// Counts the consecutive failures of a job on one domain; at the threshold, the job gives up the domain, once.
///
/// Tasks may be settled in a different order than their responses arrived, because some bodies take longer than others.
/// What counts is the order of the responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureGuard {
    /// How many consecutive failures are too many; 0 turns the guard off.
    threshold: u32,
    /// When the failures since the last success were received, in order; never more than the threshold.
    failed_at: Vec<Timestamp>,
    /// When the last success was received.
    done_at: Timestamp,
    tripped: bool,
}

impl FailureGuard {
    /// A guard that trips after `threshold` consecutive failures; 0 turns it off.
    pub fn new(threshold: u32) -> Self {
        Self { threshold, failed_at: Vec::new(), done_at: Timestamp::NEVER, tripped: false }
    }

    /// Counts one settled task, whose response arrived at `answered_at`; returns a message if the job gives up the
    /// domain now.
    pub fn settled(&mut self, settled: Settled<'_>, answered_at: Timestamp) -> Option<String> {
        if self.threshold == 0 || self.tripped {
            return None;
        }
        match settled {
            Settled::Done => {
                self.done_at = self.done_at.max(answered_at);
                self.failed_at.retain(|failed_at| *failed_at > answered_at);
            }
            Settled::Answered | Settled::Skipped => {}
            Settled::Failed(error) if answered_at >= self.done_at => {
                let nth = self.failed_at.partition_point(|failed_at| *failed_at <= answered_at);
                self.failed_at.insert(nth, answered_at);
                if self.streak() >= self.threshold {
                    self.tripped = true;
                    return Some(format!("{} URLs in a row failed; the last error: {error}", self.streak()));
                }
            }
            // The failure is older than a success that was settled before it.
            Settled::Failed(_) => {}
        }
        None
    }

    /// Whether the domain was given up.
    pub fn is_tripped(&self) -> bool {
        self.tripped
    }

    /// Consecutive failures so far.
    pub fn streak(&self) -> u32 {
        u32::try_from(self.failed_at.len()).unwrap_or(u32::MAX)
    }
}

/// Counts consecutive 429s of a job at the slowest pace; at the limit, the job is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelGuard {
    /// How many consecutive 429s cancel the job; 0 turns the guard off.
    limit: u32,
    /// Only requests that started with a spacing of at least this count.
    delay: Span,
    streak: u32,
}

impl CancelGuard {
    /// A guard that trips after `limit` consecutive 429s of requests at least `delay` apart; 0 turns it off.
    pub fn new(limit: u32, delay: Span) -> Self {
        Self { limit, delay, streak: 0 }
    }

    /// Counts one attempt, whose request started with `spacing`; returns a message if the job should be cancelled now.
    pub fn attempted(&mut self, outcome: Outcome, spacing: Span) -> Option<String> {
        if outcome != Outcome::RateLimited || spacing < self.delay {
            self.streak = 0;
            return None;
        }
        self.streak = self.streak.saturating_add(1);
        let trips = self.limit > 0 && self.streak == self.limit;
        trips.then(|| {
            format!(
                "rate limited (429) {} times in a row although requests were at least {} apart",
                self.streak,
                self.delay.prose()
            )
        })
    }
}

/// Counts consecutive attempts of a job on one domain for which the host was unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReachGuard {
    in_a_row: u32,
}

impl ReachGuard {
    /// Counts one attempt, and returns the number of consecutive unreachable ones. Any other result resets the count.
    pub fn attempted(&mut self, reach: Reach) -> u32 {
        self.in_a_row = match reach {
            Reach::Unreachable => self.in_a_row.saturating_add(1),
            Reach::Reached => 0,
        };
        self.in_a_row
    }
}

/// By default, a job gives up a domain after this many consecutive failures.
pub const FAILURE_THRESHOLD: u32 = 20;
/// By default, 429s count toward cancelling a job if requests are at least this far apart.
pub const CANCEL_DELAY: Span = Span::from_secs(60);
/// The default concurrency of a job.
pub const CONCURRENCY: u32 = 16;
/// Each time the spacing grows by this much, the concurrency on the domain is lowered by one.
const SLOWER_BY: Span = Span::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// B40, E9
    #[test]
    fn concurrency_falls_as_a_domain_slows_down() {
        let at = |base, spacing: u64, baseline: u64| {
            concurrency(base, Span::from_millis(spacing), Span::from_millis(baseline))
        };
        assert_eq!(at(16, 5_400, 500), 16);
        assert_eq!(at(16, 5_500, 500), 15);
        assert_eq!(at(16, 10_500, 500), 14);
        assert_eq!(at(16, 60_000, 500), 5);
        assert_eq!(at(4, 60_000, 500), 1);
        assert_eq!(at(16, 10_000, 10_000), 16);
        assert_eq!(concurrency(16, Span::MAX, Span::ZERO), 1);
        assert_eq!(concurrency(0, Span::ZERO, Span::ZERO), 1);
    }

    /// B47
    #[test]
    fn a_domain_is_given_up_once_after_too_many_consecutive_failures() {
        let mut guard = FailureGuard::new(3);
        let mut now = Timestamp::MIN;
        let mut settle = |guard: &mut FailureGuard, settled| {
            now = now + Span::from_secs(1);
            guard.settled(settled, now)
        };
        for settled in [
            Settled::Failed("refused"),
            Settled::Failed("refused"),
            Settled::Done,
            Settled::Failed("refused"),
            Settled::Answered,
            Settled::Skipped,
            Settled::Failed("refused"),
        ] {
            assert_eq!(settle(&mut guard, settled), None);
        }
        assert_eq!(guard.streak(), 2);
        let message = settle(&mut guard, Settled::Failed("timed out after 30s")).unwrap();
        assert_eq!(message, "3 URLs in a row failed; the last error: timed out after 30s");
        assert_eq!(settle(&mut guard, Settled::Failed("refused")), None, "given up once");
        let mut off = FailureGuard::new(0);
        assert!((0..100).all(|_| settle(&mut off, Settled::Failed("refused")).is_none()));
    }

    /// B47: a page with a slow body is settled late, but doesn't interrupt the failures that were received after it.
    #[test]
    fn failures_are_counted_in_the_order_of_responses_not_of_settling() {
        let at = |secs| Timestamp::MIN + Span::from_secs(secs);
        let failed = Settled::Failed("refused");
        let mut guard = FailureGuard::new(3);
        assert_eq!(guard.settled(failed, at(2)), None);
        assert_eq!(guard.settled(failed, at(3)), None);
        assert_eq!(guard.settled(Settled::Done, at(1)), None);
        assert_eq!(guard.streak(), 2, "the success came first");
        assert!(guard.settled(failed, at(4)).is_some());

        let mut guard = FailureGuard::new(3);
        guard.settled(Settled::Done, at(5));
        assert!((1..5).all(|secs| guard.settled(failed, at(secs)).is_none()), "they came before the success");
        assert_eq!((guard.streak(), guard.settled(failed, at(6))), (0, None));
        guard.settled(failed, at(8));
        guard.settled(Settled::Done, at(7));
        assert_eq!(guard.streak(), 1, "one came after the second success");
    }

    #[test]
    fn reaching_a_host_resets_the_count_of_unreachable_attempts() {
        let mut guard = ReachGuard::default();
        let reaches = [Reach::Unreachable, Reach::Unreachable, Reach::Reached, Reach::Unreachable];
        assert_eq!(reaches.map(|reach| guard.attempted(reach)), [1, 2, 0, 1]);
    }

    /// B48
    #[test]
    fn a_job_is_cancelled_if_it_is_rate_limited_at_the_slowest_pace() {
        let (slow, fast) = (Span::from_secs(60), Span::from_millis(59_999));
        let mut guard = CancelGuard::new(2, slow);
        assert_eq!(guard.attempted(Outcome::RateLimited, slow), None);
        assert_eq!(guard.attempted(Outcome::Timeout, slow), None, "another outcome zeroes it");
        assert_eq!(guard.attempted(Outcome::RateLimited, slow), None);
        assert_eq!(guard.attempted(Outcome::RateLimited, fast), None, "a faster pace does not count");
        assert_eq!(guard.attempted(Outcome::RateLimited, slow), None);
        assert!(guard.attempted(Outcome::RateLimited, slow).unwrap().contains("2 times in a row"));
        let mut off = CancelGuard::new(0, slow);
        assert!((0..100).all(|_| off.attempted(Outcome::RateLimited, slow).is_none()));
    }
}

//! What protects a site and a job from a job that goes wrong: fewer tasks at once where a domain slows down
//! (B40), giving up a domain whose tasks keep failing (B47), and the end of a job that is refused at the slowest
//! pace (B48).

use crate::outcome::{Contact, Outcome};
use crate::time::{Span, Timestamp};

/// How many tasks of a job may be in flight on a domain at once: one less for every five seconds that the
/// learned delay adds to the spacing, but one at least (B40).
pub fn concurrency(base: u32, spacing: Span, baseline: Span) -> u32 {
    base.saturating_sub(fewer(spacing, baseline)).max(1)
}

/// By how many tasks the learned delay lowers the concurrency of a job on a domain (B40).
pub fn fewer(spacing: Span, baseline: Span) -> u32 {
    u32::try_from(spacing.less(baseline).whole_times(SLOWER_BY)).unwrap_or(u32::MAX)
}

/// How a task of a job was settled, as the failure guard counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled<'a> {
    /// It was fetched.
    Done,
    /// It failed for this reason.
    Failed(&'a str),
    /// The site answered that it has no such page: the list is stale, the site is fine.
    Answered,
    /// It was not to be fetched.
    Skipped,
}

/// Counts the failures in a row of a job on one domain; at the threshold the job gives the domain up, once (B47).
///
/// Tasks may be settled in another order than their answers came, because one body takes longer than another; what
/// counts is the order of the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureGuard {
    /// How many in a row are too many; 0 is off.
    threshold: u32,
    /// When the failures since the last success were answered, the first of them first; never more than the threshold.
    failed_at: Vec<Timestamp>,
    /// When the last success was answered.
    done_at: Timestamp,
    tripped: bool,
}

impl FailureGuard {
    /// A guard that trips at `threshold` failures in a row; 0 never trips.
    pub fn new(threshold: u32) -> Self {
        Self { threshold, failed_at: Vec::new(), done_at: Timestamp::NEVER, tripped: false }
    }

    /// Counts one settled task, whose answer came at `answered_at`; the message when the domain is given up by it.
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
                    return Some(format!("{} tasks in a row failed; the last error: {error}", self.streak()));
                }
            }
            // It was answered before a success that was settled earlier.
            Settled::Failed(_) => {}
        }
        None
    }

    /// Whether the domain was given up.
    pub fn is_tripped(&self) -> bool {
        self.tripped
    }

    /// Failures in a row so far.
    pub fn streak(&self) -> u32 {
        u32::try_from(self.failed_at.len()).unwrap_or(u32::MAX)
    }
}

/// Counts a job's rate limits in a row at the slowest pace; at the limit the job is cancelled (B48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelGuard {
    /// How many in a row cancel the job; 0 is off.
    limit: u32,
    /// Only requests that started under a spacing this long count.
    delay: Span,
    streak: u32,
}

impl CancelGuard {
    /// A guard that trips at `limit` rate limits in a row of requests spaced by at least `delay`; 0 is off.
    pub fn new(limit: u32, delay: Span) -> Self {
        Self { limit, delay, streak: 0 }
    }

    /// Counts one attempt, whose request started under `spacing`; the message when the job is cancelled by it.
    pub fn attempted(&mut self, outcome: Outcome, spacing: Span) -> Option<String> {
        if outcome != Outcome::RateLimited || spacing < self.delay {
            self.streak = 0;
            return None;
        }
        self.streak = self.streak.saturating_add(1);
        let trips = self.limit > 0 && self.streak == self.limit;
        trips.then(|| {
            format!(
                "rate limited {} times in a row although requests were {} apart or more",
                self.streak, self.delay
            )
        })
    }
}

/// Counts how often in a row a job found nobody there on one domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReachGuard {
    in_a_row: u32,
}

impl ReachGuard {
    /// Counts one attempt; how many in a row found nobody there, this one included. Whatever else is heard starts anew.
    pub fn attempted(&mut self, contact: Contact) -> u32 {
        self.in_a_row = match contact {
            Contact::Refused => self.in_a_row.saturating_add(1),
            Contact::Made => 0,
        };
        self.in_a_row
    }
}

/// How many failures in a row give up a domain when nobody says otherwise.
pub const FAILURE_THRESHOLD: u32 = 20;
/// The spacing from which rate limits count towards cancelling when nobody says otherwise.
pub const CANCEL_DELAY: Span = Span::from_secs(60);
/// Tasks of a job in flight at once when nobody says otherwise.
pub const CONCURRENCY: u32 = 16;
/// This much slower costs one task in flight.
const SLOWER_BY: Span = Span::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// B40, E9
    #[test]
    fn a_slower_domain_gets_fewer_tasks_at_once() {
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
    fn a_domain_is_given_up_once_after_so_many_failures_in_a_row() {
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
        assert_eq!(message, "3 tasks in a row failed; the last error: timed out after 30s");
        assert_eq!(settle(&mut guard, Settled::Failed("refused")), None, "given up once");
        let mut off = FailureGuard::new(0);
        assert!((0..100).all(|_| settle(&mut off, Settled::Failed("refused")).is_none()));
    }

    /// B47: a page whose body took long is settled late, and still does not interrupt the failures that came after it.
    #[test]
    fn the_order_of_the_answers_counts_and_not_that_of_their_settling() {
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
    fn whatever_is_heard_of_a_host_starts_the_count_of_refused_connections_anew() {
        let mut guard = ReachGuard::default();
        let told = [Contact::Refused, Contact::Refused, Contact::Made, Contact::Refused];
        assert_eq!(told.map(|contact| guard.attempted(contact)), [1, 2, 0, 1]);
    }

    /// B48
    #[test]
    fn a_job_is_cancelled_when_the_slowest_pace_is_refused() {
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

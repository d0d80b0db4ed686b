//! What is counted (B73). Processes on one store add up what they count there, so that whoever asks one of them hears
//! of all.

use std::sync::atomic::{AtomicU64, Ordering};

use comity_core::outcome::Outcome;
use comity_core::pace::Standing;
use comity_core::task::JobState;

use super::{Event, TaskEvent};

/// What was counted since the stream began.
#[derive(Debug, Default)]
pub struct Counters {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// Attempts followed by another, by what they came to.
    retries: [AtomicU64; Outcome::ALL.len()],
    /// Permits granted.
    pub granted: AtomicU64,
    /// Tasks fetched.
    pub done: AtomicU64,
    /// Tasks given up.
    pub failed: AtomicU64,
    /// Tasks not to be fetched.
    pub skipped: AtomicU64,
    /// Jobs that were cancelled.
    pub cancelled: AtomicU64,
    /// Times that what was learnt lowered how many tasks of a job may be in flight on a domain.
    pub overridden: AtomicU64,
    /// Times that the store did not work.
    pub store_failed: AtomicU64,
    /// Scrapes put off because their source was scraped too short a time ago.
    pub deferred: AtomicU64,
    /// Bytes of bodies fetched.
    pub bytes: AtomicU64,
    /// Domains handed to other processes.
    pub handed_over: AtomicU64,
}

/// What was counted up to a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Attempts by what they came to, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Attempts followed by another, in the same order.
    pub retries: [u64; Outcome::ALL.len()],
    /// The rest, in the order of [`Counted::NAMES`].
    pub others: [u64; Self::NAMES.len()],
}

impl Counters {
    /// How many attempts came to `outcome`.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// How many attempts that came to `outcome` were followed by another.
    pub fn retries(&self, outcome: Outcome) -> u64 {
        self.retries[outcome as usize].load(Ordering::Relaxed)
    }

    /// All of it as it is now.
    pub fn counted(&self) -> Counted {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counted {
            outcomes: self.outcomes.each_ref().map(load),
            retries: self.retries.each_ref().map(load),
            others: [
                &self.granted,
                &self.done,
                &self.failed,
                &self.skipped,
                &self.cancelled,
                &self.overridden,
                &self.store_failed,
                &self.deferred,
                &self.bytes,
                &self.handed_over,
            ]
            .map(load),
        }
    }

    pub(super) fn hear(&self, event: &Event<'_>) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        match event {
            Event::Granted { .. } => add(&self.granted, 1),
            Event::HandedOver { .. } => add(&self.handed_over, 1),
            Event::Recorded { answer, recorded, .. } if recorded.standing != Standing::Repeated => {
                add(&self.outcomes[answer.outcome as usize], 1)
            }
            Event::JobEnded { state: JobState::Cancelled, .. } => add(&self.cancelled, 1),
            Event::Concurrency { from, to, .. } if to > from => add(&self.overridden, 1),
            Event::StoreFailed { .. } => add(&self.store_failed, 1),
            Event::Task { step, .. } => match step {
                TaskEvent::Done { bytes, .. } => {
                    add(&self.bytes, *bytes);
                    add(&self.done, 1)
                }
                TaskEvent::Failed { .. } => add(&self.failed, 1),
                TaskEvent::Skipped { .. } => add(&self.skipped, 1),
                TaskEvent::Retried { outcome, .. } => add(&self.retries[*outcome as usize], 1),
                TaskEvent::Deferred { .. } => add(&self.deferred, 1),
                TaskEvent::Moved { .. } | TaskEvent::Fenced => 0,
            },
            _ => 0,
        };
    }
}

impl Counted {
    /// The names of what is counted beside outcomes and retries.
    pub const NAMES: [&'static str; 10] = [
        "granted",
        "done",
        "failed",
        "skipped",
        "cancelled",
        "overridden",
        "store_failed",
        "deferred",
        "bytes",
        "handed_over",
    ];

    /// One of [`Self::NAMES`].
    pub fn other(&self, name: &str) -> u64 {
        let nth = Self::NAMES.iter().position(|known| *known == name);
        nth.map_or(0, |nth| self.others[nth])
    }

    /// How many attempts came to `outcome`.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// How many attempts that came to `outcome` were followed by another.
    pub fn retried(&self, outcome: Outcome) -> u64 {
        self.retries[outcome as usize]
    }

    /// What was counted since `before`, by the names a store keeps it under.
    pub(crate) fn since(&self, before: &Self) -> Vec<(String, u64)> {
        let mut added: Vec<(String, u64)> = Vec::new();
        self.each(|name, value| added.push((name, value)));
        let mut nth = 0;
        before.each(|_, value| {
            added[nth].1 = added[nth].1.saturating_sub(value);
            nth += 1;
        });
        added.retain(|(_, count)| *count > 0);
        added
    }

    /// What processes added up in a store.
    pub fn of_store(kept: &[(String, u64)]) -> Self {
        let find =
            |name: String| kept.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
        Self {
            outcomes: Outcome::ALL.map(|outcome| find(format!("outcome.{outcome}"))),
            retries: Outcome::ALL.map(|outcome| find(format!("retry.{outcome}"))),
            others: Self::NAMES.map(|name| find(name.to_owned())),
        }
    }

    fn each(&self, mut tell: impl FnMut(String, u64)) {
        for outcome in Outcome::ALL {
            tell(format!("outcome.{outcome}"), self.outcome(outcome));
        }
        for outcome in Outcome::ALL {
            tell(format!("retry.{outcome}"), self.retried(outcome));
        }
        for (name, value) in Self::NAMES.iter().zip(self.others) {
            tell((*name).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B73
    #[test]
    fn what_is_added_up_in_a_store_comes_back() {
        let counters = Counters::default();
        counters.granted.store(7, Ordering::Relaxed);
        counters.handed_over.store(1, Ordering::Relaxed);
        counters.outcomes[Outcome::RateLimited as usize].store(3, Ordering::Relaxed);
        counters.retries[Outcome::NetworkError as usize].store(2, Ordering::Relaxed);
        let counted = counters.counted();
        let kept = counted.since(&Counted::default());
        assert_eq!(kept.len(), 4);
        assert_eq!(Counted::of_store(&kept), counted);
        assert_eq!(counted.since(&counted), []);
    }
}

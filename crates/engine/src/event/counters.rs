//! Event counters. Processes on one store add up their counts there, so that each of them can report the totals.

use std::sync::atomic::{AtomicU64, Ordering};

use comity_core::outcome::Outcome;
use comity_core::pace::Freshness;
use comity_core::task::JobState;
use comity_store::activity::Traffic;

use super::{Event, TaskEvent};

/// The counters of an event stream, since it was created.
#[derive(Debug, Default)]
pub struct Counters {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// Attempts that were retried, by outcome.
    retries: [AtomicU64; Outcome::ALL.len()],
    /// Permits granted.
    pub granted: AtomicU64,
    /// Tasks fetched.
    pub done: AtomicU64,
    /// Failed tasks.
    pub failed: AtomicU64,
    /// Skipped tasks.
    pub skipped: AtomicU64,
    /// Cancelled jobs.
    pub cancelled: AtomicU64,
    /// How often learning lowered the number of tasks that a job may have in flight on a domain.
    pub overridden: AtomicU64,
    /// How often the store failed.
    pub store_failed: AtomicU64,
    /// Scrapes deferred because their source was scraped too recently.
    pub deferred: AtomicU64,
    /// Fetched bytes of response bodies.
    pub bytes: AtomicU64,
    /// Domains handed to other processes.
    pub handed_over: AtomicU64,
}

/// The values of all counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterValues {
    /// Attempts by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Attempts that were retried, in the same order.
    pub retries: [u64; Outcome::ALL.len()],
    /// All other counters, in the order of [`CounterValues::NAMES`].
    pub others: [u64; Self::NAMES.len()],
}

impl Counters {
    /// The number of attempts with this outcome.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// The number of attempts with this outcome that were retried.
    pub fn retries(&self, outcome: Outcome) -> u64 {
        self.retries[outcome as usize].load(Ordering::Relaxed)
    }

    /// The current values of all counters.
    pub fn values(&self) -> CounterValues {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterValues {
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

    pub(super) fn count(&self, event: &Event<'_>) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        match event {
            Event::Granted { .. } => add(&self.granted, 1),
            Event::HandedOver { .. } => add(&self.handed_over, 1),
            Event::Recorded { answer, recorded, .. } if recorded.freshness != Freshness::Repeated => {
                add(&self.outcomes[answer.outcome as usize], 1)
            }
            Event::JobEnded { state: JobState::Cancelled, .. } => add(&self.cancelled, 1),
            Event::ConcurrencyChanged { from, to, .. } if to > from => add(&self.overridden, 1),
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

impl CounterValues {
    /// The names of all counters except outcomes and retries.
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

    /// The value of one of [`Self::NAMES`]; 0 for an unknown name, on which debug builds panic.
    pub fn other(&self, name: &str) -> u64 {
        let nth = Self::NAMES.iter().position(|known| *known == name);
        debug_assert!(nth.is_some(), "there is no counter {name:?}");
        nth.map_or(0, |nth| self.others[nth])
    }

    /// The number of attempts with this outcome.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// The number of attempts with this outcome that were retried.
    pub fn retried(&self, outcome: Outcome) -> u64 {
        self.retries[outcome as usize]
    }

    /// The increments since `before`, under the names used in a store.
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

    /// The traffic since `before`.
    pub(crate) fn traffic_since(&self, before: &Self) -> Traffic {
        let mut outcomes = self.outcomes;
        outcomes.iter_mut().zip(before.outcomes).for_each(|(now, before)| *now = now.saturating_sub(before));
        let retries = |values: &Self| values.retries.iter().sum::<u64>();
        Traffic {
            outcomes,
            retries: retries(self).saturating_sub(retries(before)),
            bytes: self.other("bytes").saturating_sub(before.other("bytes")),
        }
    }

    /// The totals that processes added up in a store.
    pub fn from_store(kept: &[(String, u64)]) -> Self {
        let find =
            |name: String| kept.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
        Self {
            outcomes: Outcome::ALL.map(|outcome| find(format!("outcome.{outcome}"))),
            retries: Outcome::ALL.map(|outcome| find(format!("retry.{outcome}"))),
            others: Self::NAMES.map(|name| find(name.to_owned())),
        }
    }

    fn each(&self, mut visit: impl FnMut(String, u64)) {
        for outcome in Outcome::ALL {
            visit(format!("outcome.{outcome}"), self.outcome(outcome));
        }
        for outcome in Outcome::ALL {
            visit(format!("retry.{outcome}"), self.retried(outcome));
        }
        for (name, value) in Self::NAMES.iter().zip(self.others) {
            visit((*name).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B73
    #[test]
    fn values_survive_the_round_trip_through_a_store() {
        let counters = Counters::default();
        counters.granted.store(7, Ordering::Relaxed);
        counters.handed_over.store(1, Ordering::Relaxed);
        counters.outcomes[Outcome::RateLimited as usize].store(3, Ordering::Relaxed);
        counters.retries[Outcome::NetworkError as usize].store(2, Ordering::Relaxed);
        let counted = counters.values();
        let kept = counted.since(&CounterValues::default());
        assert_eq!(kept.len(), 4);
        assert_eq!(CounterValues::from_store(&kept), counted);
        assert_eq!(counted.since(&counted), []);
    }
}

//! What a process is doing, for observers: the live view of a command, or another process on the same store.
//!
//! A gate on a store publishes this regularly, including what [`crate::gate::Gate::set_work`] last received, so
//! observers don't need to ask the process itself. How it is displayed is decided elsewhere.

use comity_core::decision::{Limit, Reason};
use comity_core::domain::Domain;
use comity_core::time::Timestamp;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a process is doing.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(default))]
pub struct Status {
    /// The work in progress, if it is a single thing.
    pub work: Option<Work>,
    /// Domains it holds.
    pub domains: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// Callers and tasks in line.
    pub in_line: usize,
    /// The domains that hold the work back, the longest waits first.
    pub held_back: Vec<HeldBack>,
    /// How many more domains hold the work back.
    pub more: usize,
    /// What waits, by reason, the most first. Of very many domains, only some are looked at.
    pub waits: Vec<WaitGroup>,
    /// How many domains have a line. If it is more than those in `waits`, the rest was not looked at.
    pub lines: usize,
    /// How long the last heartbeat took, in milliseconds: how slow the store is. `None` without a store.
    pub store_ms: Option<u64>,
}

/// Domains that wait for the same reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(default))]
pub struct WaitGroup {
    /// The limit that delays them, by its name in JSON.
    pub reason: String,
    /// Where it comes from, such as `server` or `rule`.
    pub origin: String,
    /// How many domains.
    pub sites: u64,
    /// Callers and tasks in line for them.
    pub in_line: u64,
}

/// The progress of a piece of work.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(default))]
pub struct Work {
    /// Its name, such as that of a job.
    pub name: String,
    /// What is counted, such as pages or revisions.
    pub unit: String,
    /// How many are finished, with whatever result.
    pub done: u64,
    /// How many there are in total, as far as known.
    pub all: Option<u64>,
    /// How many of the finished ones failed.
    pub failed: u64,
    /// How many of the finished ones were skipped.
    pub skipped: u64,
    /// Responses that were rate limited (429). Older versions on the same store read it under its older name.
    #[cfg_attr(feature = "serde", serde(rename = "refused"))]
    pub rate_limited: u64,
    /// Attempts that were retried.
    pub retries: u64,
    /// How many have recently been finished per second.
    pub rate: Option<f64>,
    /// The estimated remaining time at the current pace, in milliseconds.
    pub left_ms: Option<u64>,
    /// Whether `left_ms` is an upper bound: a site isn't responding, and may recover at any moment.
    pub left_is_most: bool,
    /// Any other remark.
    pub note: String,
}

/// A domain that holds the work back.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct HeldBack {
    /// The domain.
    pub domain: String,
    /// Where the limit comes from: server, robots, rule, learned, operator, line, store.
    pub origin: String,
    /// The limit, in a few words.
    pub why: String,
    /// Until when it applies, in microseconds since 1970; `None` if unknown.
    pub until_us: Option<i64>,
    /// Callers and tasks in line for this domain.
    pub in_line: usize,
    /// All tasks waiting for this domain, as far as counted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub backlog: Option<u64>,
}

impl Status {
    /// As it is published on a store.
    #[cfg(feature = "serde")]
    pub(crate) fn published(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// There is nobody to publish it to: no kind of store is compiled in.
    #[cfg(not(feature = "serde"))]
    pub(crate) fn published(&self) -> Value {
        Value::Null
    }
}

impl HeldBack {
    pub(crate) fn new(domain: &Domain, in_line: usize, reason: &Reason) -> Self {
        let is_open = matches!(reason.limit, Limit::InFlight { .. } | Limit::StoreUnavailable(_));
        let unknown = reason.until == Timestamp::MAX || is_open;
        let until = Some(reason.until).filter(|_| !unknown);
        Self {
            domain: domain.to_string(),
            origin: reason.origin().to_string(),
            why: reason.brief(),
            until_us: until.map(Timestamp::as_micros),
            in_line,
            backlog: None,
        }
    }

    /// Until when the limit applies, if known.
    pub fn until(&self) -> Option<Timestamp> {
        self.until_us.map(Timestamp::from_micros)
    }
}

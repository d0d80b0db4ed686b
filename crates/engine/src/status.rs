//! What a process is at, for whoever looks on: the live view of a command, or another process on the same store.
//!
//! A gate on a store tells it there now and then, with what [`crate::gate::Gate::set_work`] was given last, so that
//! whoever looks need not ask the process itself. How it is drawn is not known here.

use comity_core::decision::{Limit, Reason};
use comity_core::domain::Domain;
use comity_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What a process is at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// What it works on, if it is one thing.
    pub work: Option<Work>,
    /// Domains it holds.
    pub domains: usize,
    /// Requests on the wire.
    pub in_flight: usize,
    /// Callers and tasks in line.
    pub in_line: usize,
    /// The domains that hold the work back, those that do it longest first.
    pub held_back: Vec<HeldBack>,
    /// How many more there are.
    pub more: usize,
}

/// How far a piece of work is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// What it is, such as the name of a job.
    pub name: String,
    /// What is counted: pages, revisions.
    pub unit: String,
    /// So many are done, whatever came of them,
    pub done: u64,
    /// of so many, as far as is known.
    pub all: Option<u64>,
    /// How many of them were given up,
    pub failed: u64,
    /// or not to be fetched.
    pub skipped: u64,
    /// Answers that said "too many requests".
    pub refused: u64,
    /// Attempts that were followed by another.
    pub retries: u64,
    /// How many are done a second, lately.
    pub rate: Option<f64>,
    /// How long the rest takes at the pace that is kept, in milliseconds.
    pub left_ms: Option<u64>,
    /// That is the longest it can take: a site does not answer, and may again at any moment.
    pub left_is_most: bool,
    /// What else there is to say.
    pub note: String,
}

/// A domain that holds work back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldBack {
    /// Which.
    pub domain: String,
    /// Where the limit came from: server, robots, rule, learned, operator, line, store.
    pub origin: String,
    /// What it is, in a few words.
    pub why: String,
    /// Until when, in microseconds since 1970; none when that is not known.
    pub until_us: Option<i64>,
    /// Callers and tasks in line for it.
    pub in_line: usize,
    /// Tasks that wait for it altogether, as far as was counted.
    #[serde(default)]
    pub backlog: Option<u64>,
}

impl HeldBack {
    pub(crate) fn new(domain: &Domain, in_line: usize, reason: &Reason) -> Self {
        let is_open = matches!(reason.limit, Limit::InFlight { .. } | Limit::StoreAway(_));
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

    /// Until when, as far as is known.
    pub fn until(&self) -> Option<Timestamp> {
        self.until_us.map(Timestamp::from_micros)
    }
}

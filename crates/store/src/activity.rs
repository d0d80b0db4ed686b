//! What happens on domains, for people: how each domain is doing, its history, and the requests of all processes over time.
//!
//! Holders report it in batches, a while after it happened. No decision depends on it, and looking at it takes no domain.

use std::fmt;
use std::str::FromStr;

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};

use crate::Reply;
use crate::domains::{DomainKey, DomainRow, Tenure};

/// What happened during an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When the interval starts.
    pub from: Timestamp,
    /// How long it is. Older intervals are longer.
    pub span: Span,
    /// Requests whose outcome was recorded.
    pub requests: u64,
    /// Those of them that were rate limited (429).
    pub rate_limited: u64,
    /// Those of them that failed in another way: blocked, unavailable, server errors, timeouts, network errors.
    pub failed: u64,
    /// For how long the domain was closed: holds that the server asked for, and backoff. Counted when a hold begins.
    pub held: Span,
    /// The learned delay at the end of the interval.
    pub learned: Span,
}

/// How a domain is doing, as its holder sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainActivity {
    /// The minimum time between request starts.
    pub delay: Span,
    /// The learned delay.
    pub learned: Span,
    /// Until when it is closed: by the server, by backoff, or by an operator. May be in the past.
    pub held_until: Option<Timestamp>,
    /// The limit that delays the next request most, by its name in JSON.
    pub limit: Option<String>,
    /// Successes in a row.
    pub success_streak: u32,
    /// Failures in a row.
    pub error_streak: u32,
    /// The last answer.
    pub last: Option<LastAnswer>,
}

/// The last answer of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastAnswer {
    /// When it was recorded.
    pub at: Timestamp,
    /// Its outcome.
    pub outcome: Outcome,
    /// Its status, if there was a response and its status is known.
    pub status: Option<u16>,
}

/// What a holder reports about a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainReport {
    /// The tenure under which this was seen.
    pub tenure: Tenure,
    /// How it is doing.
    pub activity: DomainActivity,
    /// What happened since the last report. Samples of one interval are added up, also those of several holders. An
    /// interval is [`INTERVAL`] long, and starts at a multiple of that.
    pub samples: Vec<Sample>,
}

/// The results of requests, summed over all domains and processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Recorded requests by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Attempts that were followed by a retry.
    pub retries: u64,
    /// Bytes of response bodies.
    pub bytes: u64,
}

/// The traffic of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrafficPoint {
    /// When the interval starts: a multiple of its length.
    pub from: Timestamp,
    /// What happened in it.
    pub traffic: Traffic,
}

/// Which domains to list, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainQuery {
    /// Only domains whose name contains this text; empty means all.
    pub like: String,
    /// What they are sorted by.
    pub sort: DomainSort,
    /// In which direction.
    pub order: Order,
    /// Where to continue: [`DomainPage::next`] of the page before, for the same order.
    pub after: Option<DomainCursor>,
    /// At most this many.
    pub limit: u32,
}

/// What domains are sorted by. On a tie, by their age.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum DomainSort {
    /// The name.
    #[default]
    Name,
    /// [`DomainActivity::delay`].
    Delay,
    /// The learned delay.
    Learned,
    /// [`DomainActivity::held_until`].
    HeldUntil,
    /// Waiting tasks, as last counted by [`ActivityStore::count_waiting`].
    Waiting,
    /// When it last answered.
    LastAnswer,
}

/// The direction of sorting. What is not known counts as less than everything else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The least first.
    #[default]
    Ascending,
    /// The greatest first.
    Descending,
}

/// A place in a sorted list of domains. Its text can be passed on in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DomainCursor {
    /// After this name.
    Name(String),
    /// After this value, and after this row among those with the same value.
    Value {
        /// The value; `None` if it is not known.
        value: Option<i64>,
        /// The row.
        key: DomainKey,
    },
}

/// Some of the domains that a query found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DomainPage {
    /// The domains.
    pub domains: Vec<ListedDomain>,
    /// Where to continue, if there are more.
    pub next: Option<DomainCursor>,
    /// How many domains there are with such a name on all pages, counted up to [`FOUND_MAX`].
    pub found: u64,
}

/// A domain in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedDomain {
    /// Its row.
    pub row: DomainRow,
    /// The machine of its holder, if the store knows.
    pub machine: Option<String>,
    /// How it was doing according to the last report, and when that was.
    pub reported: Option<(DomainActivity, Timestamp)>,
    /// Its waiting tasks as last counted by [`ActivityStore::count_waiting`]; [`DomainRow::waiting`] is exact, but
    /// doesn't count beyond 1,000.
    pub waiting: u64,
}

/// Storage of what happens on domains.
pub trait ActivityStore {
    /// Reports what happened in this process since its last report: the results of all its requests, and how some domains
    /// are doing. Of a domain that somebody else took meanwhile, only the samples count. Old history is deleted meanwhile.
    fn report_activity(&self, traffic: Traffic, domains: Vec<DomainReport>, now: Timestamp) -> Reply<'_, ()>;

    /// Domains in pages, sorted and searched.
    fn page_domains(&self, query: DomainQuery) -> Reply<'_, DomainPage>;

    /// What happened on a domain, oldest first: [`INTERVAL`]s for the last few hours, longer ones for about a day.
    fn domain_history(&self, domain: Domain) -> Reply<'_, Vec<Sample>>;

    /// The requests of all processes since then, oldest first, in intervals of `every`. Intervals without any are left
    /// out. Goes back for about a day.
    fn traffic(&self, since: Timestamp, every: Span) -> Reply<'_, Vec<TrafficPoint>>;

    /// Counts the waiting tasks of the next `limit` domains after `after` and saves the numbers, which lists are sorted by.
    /// Counts each domain up to [`COUNTED_MAX`]. Returns where to continue; `None` after the last one.
    fn count_waiting(&self, after: DomainKey, limit: u32) -> Reply<'_, Option<DomainKey>>;

    /// How many tasks of all jobs wait for a domain, counted up to `most`.
    fn waiting_for(&self, domain: Domain, most: u32) -> Reply<'_, u64>;
}

/// The shortest interval of a domain's history.
pub const INTERVAL: Span = Span::from_mins(5);
/// The intervals in which traffic is stored.
pub const TRAFFIC_INTERVAL: Span = Span::from_secs(10);
/// How long traffic is kept.
pub const TRAFFIC_KEPT: Span = Span::from_hours(25);
/// How long the history of a domain is kept after its last interval.
pub(crate) const HISTORY_KEPT: Span = Span::from_hours(25);
/// How many old histories are deleted with a report.
pub(crate) const FORGOTTEN_AT_ONCE: u32 = 100;
/// [`DomainPage::found`] is at most this.
pub const FOUND_MAX: u64 = 10_000;
/// If a name matches no more domains than this, they are sorted in memory; otherwise, an index is searched for some of them.
pub(crate) const SORTED_MAX: usize = 2_000;
/// [`ActivityStore::count_waiting`] counts up to this many tasks per domain.
pub const COUNTED_MAX: u64 = 100_000;

impl Traffic {
    /// Recorded requests.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Requests with this outcome.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        for (sum, added) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum += added;
        }
        self.retries += other.retries;
        self.bytes += other.bytes;
    }
}

impl DomainSort {
    /// The column of the activity that has it; `None` for the name.
    pub(crate) fn column(self) -> Option<&'static str> {
        match self {
            Self::Name => None,
            Self::Delay => Some("delay_ms"),
            Self::Learned => Some("learned_ms"),
            Self::HeldUntil => Some("held_until_us"),
            Self::Waiting => Some("waiting"),
            Self::LastAnswer => Some("last_us"),
        }
    }

    /// All orders.
    pub const ALL: [Self; 6] =
        [Self::Name, Self::Delay, Self::Learned, Self::HeldUntil, Self::Waiting, Self::LastAnswer];

    /// Its name, for example in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Delay => "delay",
            Self::Learned => "learned",
            Self::HeldUntil => "held_until",
            Self::Waiting => "waiting",
            Self::LastAnswer => "last_answer",
        }
    }

    /// The order with this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.as_str() == word)
    }
}

impl Order {
    /// The words of SQL for "after" and for the direction.
    pub(crate) fn sql(self) -> (&'static str, &'static str) {
        match self {
            Self::Ascending => (">", "ASC"),
            Self::Descending => ("<", "DESC"),
        }
    }
}

/// A domain that was found by its name, to be sorted: its row, and the value that it is sorted by.
pub(crate) type Found = (DomainKey, Option<i64>);

/// Sorts what was found as the backends sort it, and returns those after `after`.
pub(crate) fn sort_found(mut found: Vec<Found>, order: Order, after: Option<&DomainCursor>) -> Vec<Found> {
    // Domains without a value come last, in either direction.
    let rank = |(key, value): &Found| match (value, order) {
        (Some(value), Order::Ascending) => (false, i128::from(*value), i128::from(key.0)),
        (Some(value), Order::Descending) => (false, -i128::from(*value), -i128::from(key.0)),
        (None, _) => (true, 0, i128::from(key.0)),
    };
    found.sort_unstable_by_key(rank);
    if let Some(DomainCursor::Value { value, key }) = after {
        let last = rank(&(*key, *value));
        found.retain(|one| rank(one) > last);
    }
    found
}

impl fmt::Display for DomainCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "name.{name}"),
            Self::Value { value: Some(value), key } => write!(f, "{value}.{}", key.0),
            Self::Value { value: None, key } => write!(f, ".{}", key.0),
        }
    }
}

/// A text that is not a place in a list of domains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("after = {0:?}: expected the place of an earlier page")]
pub struct UnknownCursor(pub String);

impl FromStr for DomainCursor {
    type Err = UnknownCursor;

    fn from_str(text: &str) -> Result<Self, UnknownCursor> {
        let unknown = || UnknownCursor(text.to_owned());
        let (value, rest) = text.split_once('.').ok_or_else(unknown)?;
        if value == "name" {
            return Ok(Self::Name(rest.to_owned()));
        }
        let value = match value {
            "" => None,
            value => Some(value.parse().map_err(|_| unknown())?),
        };
        Ok(Self::Value { value, key: DomainKey(rest.parse().map_err(|_| unknown())?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_a_url() {
        let value = |value, key| DomainCursor::Value { value, key: DomainKey(key) };
        for cursor in [DomainCursor::Name("a.example:8080".to_owned()), value(Some(-3), 7), value(None, 7)] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for text in ["", "3", "a.b", "1.x", "..", "name"] {
            assert!(text.parse::<DomainCursor>().is_err(), "{text}");
        }
    }
}

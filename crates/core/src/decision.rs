//! The answer to "may I fetch from this domain now?", and why.
//!
//! Reasons are data; the sentences a person reads are made here and nowhere else.

use std::fmt;

use crate::intent::Intent;
use crate::rule::Burst;
use crate::time::{Span, Timestamp};

/// The answer to "may I fetch from this domain now?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Fetch now. The pace has already been charged for this request.
    Proceed(Permit),
    /// Ask again at `until`; asking earlier gets the same answer, unless something is recorded meanwhile.
    Wait {
        /// The first moment at which asking may be answered with proceed.
        until: Timestamp,
        /// What binds until then.
        reason: Reason,
    },
    /// Asking again does not help before somebody acts: an operator closed the domain.
    Refuse(Reason),
}

/// The right to send one request, and what is needed to judge its answer however late it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    pub(crate) started_at: Timestamp,
    pub(crate) spacing: Span,
    pub(crate) id: u32,
    pub(crate) probe: u16,
    pub(crate) intent: Intent,
    /// Whether its request was written to an open connection.
    pub(crate) departed: bool,
}

/// One constraint on the next start: what it is, where it came from, until when it binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// Which limit it is, with its numbers.
    pub limit: Limit,
    /// The first moment at which it no longer binds.
    pub until: Timestamp,
    /// When it was asked about; sentences count from here.
    pub asked_at: Timestamp,
}

/// Where a constraint came from; on a tie the earlier one here is named (B2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The server said so.
    Server,
    /// The site's robots.txt says so.
    Robots,
    /// The configured rule says so.
    Rule,
    /// Learnt from answers.
    Learned,
    /// An operator said so.
    Operator,
    /// Others come first: callers in line, or another process.
    Line,
    /// Nothing may be sent while the store is away.
    Store,
}

/// A limit on the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The server asked to wait with `Retry-After`.
    RetryAfter,
    /// The server said that its quota is used up until the reset.
    QuotaSpent,
    /// What is left of the server's quota, spread evenly until the reset.
    QuotaSpacing(Spacing),
    /// The `Crawl-delay` of robots.txt.
    CrawlDelay(Spacing),
    /// The rule's minimum delay.
    MinDelay(Spacing),
    /// The rule's requests per second.
    Rate(Spacing),
    /// The rule's burst is used up.
    Burst(Burst),
    /// The rule's minimum delay of one intent.
    IntentDelay(Intent, Spacing),
    /// The rule's burst of one intent is used up.
    IntentBurst(Intent, Burst),
    /// The ladder, after so many penalties in a row.
    Backoff {
        /// How many.
        penalties: u32,
    },
    /// The rule's own wait after a 429.
    WaitOn429,
    /// As many requests are on the wire as the rule allows.
    InFlight {
        /// How many the rule allows.
        limit: u32,
    },
    /// As many requests may be on the wire as the rule allows: a permit was given out and has not been recorded.
    Lease {
        /// How many the rule allows.
        limit: u32,
        /// When the permit was given out whose lease ends next.
        since: Timestamp,
    },
    /// The learned delay.
    LearnedDelay(Spacing),
    /// The learned delay, counted from a 429.
    LearnedHold,
    /// An operator paused the domain.
    Paused,
    /// Callers wait in line for the same domain.
    Line {
        /// How many are before.
        ahead: usize,
    },
    /// Another process takes the domain over.
    ChangingHands,
    /// What a server asked for, or an operator set, is being saved: nobody goes before it is.
    Saving,
    /// The store is away: what is fetched now could not be saved.
    StoreAway(Away),
}

/// Why a store cannot be used at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away {
    /// Another program keeps it locked.
    Locked,
    /// Its disk is full.
    Full,
    /// Its file was deleted, moved or replaced, or its volume is not mounted.
    Gone,
    /// It cannot be read or written.
    Unreadable,
}

/// A delay counted from a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spacing {
    /// How long.
    pub delay: Span,
    /// Since which start.
    pub last: Timestamp,
    /// Whether that start is only assumed, because state was lost (B77).
    pub assumed: bool,
}

impl Decision {
    /// Whether the caller may fetch.
    pub fn proceeds(&self) -> bool {
        matches!(self, Self::Proceed(_))
    }

    /// The permit of a caller that may.
    pub fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Proceed(permit) => Some(permit),
            Self::Wait { .. } | Self::Refuse(_) => None,
        }
    }

    /// How long to wait in whole milliseconds, rounded up; 0 when proceeding, at least 1 when not (B1). What holds until
    /// somebody acts is looked at again in a minute.
    pub fn wait_ms(&self, now: Timestamp) -> u64 {
        match self {
            Self::Proceed(_) => 0,
            Self::Wait { until, .. } => until.since(now).as_millis_up().max(1),
            Self::Refuse(reason) => wait_until(reason.until, now).as_millis_up().max(1),
        }
    }

    /// Why the caller waits.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Proceed(_) => None,
            Self::Wait { reason, .. } | Self::Refuse(reason) => Some(reason),
        }
    }
}

impl Permit {
    /// When its request started, as far as is known.
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The spacing that was in force when it started.
    pub fn spacing(&self) -> Span {
        self.spacing
    }

    /// What its request is for.
    pub fn intent(&self) -> Intent {
        self.intent
    }

    /// Its number among the permits of its domain.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Reason {
    /// Where the constraint came from.
    pub fn origin(&self) -> Origin {
        self.limit.origin()
    }

    /// Whether it kept the caller that asked from going.
    pub fn binds(&self) -> bool {
        self.until > self.asked_at
    }

    /// How long it kept the caller that asked, in milliseconds, rounded up. What holds until somebody acts is looked at
    /// again in a minute.
    pub fn wait_ms(&self) -> u64 {
        wait_until(self.until, self.asked_at).as_millis_up()
    }

    /// How much it holds back: for a delay between requests that delay, otherwise what is left of it. Does not change
    /// from one request to the next, so that what is sorted by it stays in its place.
    pub fn weight(&self) -> Span {
        match &self.limit {
            Limit::QuotaSpacing(spacing)
            | Limit::CrawlDelay(spacing)
            | Limit::MinDelay(spacing)
            | Limit::Rate(spacing)
            | Limit::IntentDelay(_, spacing)
            | Limit::LearnedDelay(spacing) => spacing.delay,
            _ => self.until.since(self.asked_at),
        }
    }
}

/// How long it is until then. What holds until somebody acts is looked at again in a minute.
pub(crate) fn wait_until(until: Timestamp, now: Timestamp) -> Span {
    if until == Timestamp::MAX { LOOK_AGAIN } else { until.since(now) }
}

const LOOK_AGAIN: Span = Span::from_secs(60);

impl Limit {
    /// Where such a limit comes from.
    pub fn origin(&self) -> Origin {
        match self {
            Self::RetryAfter | Self::QuotaSpent | Self::QuotaSpacing(_) => Origin::Server,
            Self::CrawlDelay(_) => Origin::Robots,
            Self::MinDelay(_)
            | Self::Rate(_)
            | Self::Burst(_)
            | Self::IntentDelay(..)
            | Self::IntentBurst(..)
            | Self::Backoff { .. }
            | Self::WaitOn429
            | Self::InFlight { .. }
            | Self::Lease { .. } => Origin::Rule,
            Self::LearnedDelay(_) | Self::LearnedHold => Origin::Learned,
            Self::Paused => Origin::Operator,
            Self::Line { .. } | Self::ChangingHands => Origin::Line,
            Self::Saving | Self::StoreAway(_) => Origin::Store,
        }
    }

    /// A word for it, for metrics and short reports.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::RetryAfter => "retry_after",
            Self::QuotaSpent => "quota_spent",
            Self::QuotaSpacing(_) => "quota",
            Self::CrawlDelay(_) => "crawl_delay",
            Self::MinDelay(_) => "min_delay",
            Self::Rate(_) => "requests_per_second",
            Self::Burst(_) => "burst",
            Self::IntentDelay(..) => "intent_min_delay",
            Self::IntentBurst(..) => "intent_burst",
            Self::Backoff { .. } => "backoff",
            Self::WaitOn429 => "wait_on_429",
            Self::InFlight { .. } => "in_flight",
            Self::Lease { .. } => "lease",
            Self::LearnedDelay(_) => "learned",
            Self::LearnedHold => "learned_hold",
            Self::Paused => "paused",
            Self::Line { .. } => "line",
            Self::ChangingHands => "changing_hands",
            Self::Saving => "saving",
            Self::StoreAway(_) => "store_away",
        }
    }
}

impl Origin {
    /// A word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Robots => "robots",
            Self::Rule => "rule",
            Self::Learned => "learned",
            Self::Operator => "operator",
            Self::Line => "line",
            Self::Store => "store",
        }
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locked => "locked by another program",
            Self::Full => "its disk is full",
            Self::Gone => "its file is gone",
            Self::Unreadable => "it cannot be read or written",
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// Every limit in a few words, and as a sentence with its numbers: what one says, the other must.

impl Reason {
    /// What it is in a few words, without the time that is left.
    pub fn brief(&self) -> String {
        match &self.limit {
            Limit::RetryAfter => "the server asked to wait".to_owned(),
            Limit::QuotaSpent => "the server's quota is used up".to_owned(),
            Limit::QuotaSpacing(spacing) => {
                format!("the server's quota allows one per {}", spacing.delay.about())
            }
            Limit::CrawlDelay(spacing) => format!("crawl-delay {} of robots.txt", spacing.delay),
            Limit::MinDelay(spacing) => format!("minimum delay {}", spacing.delay),
            Limit::Rate(spacing) => format!("one request per {}", spacing.delay),
            Limit::Burst(Burst { count, window }) => format!("burst of {count} per {window} used up"),
            Limit::IntentDelay(intent, spacing) => format!("minimum delay {} of {intent}", spacing.delay),
            Limit::IntentBurst(intent, Burst { count, window }) => {
                format!("burst of {count} {intent} per {window} used up")
            }
            Limit::Backoff { penalties: 0 | 1 } => "backing off after a failure".to_owned(),
            Limit::Backoff { penalties } => format!("backing off after {penalties} failures"),
            Limit::WaitOn429 => "waits after a 429, as its rule says".to_owned(),
            Limit::InFlight { limit: 1 } => "a request is on the wire".to_owned(),
            Limit::InFlight { limit } => format!("{limit} requests are on the wire"),
            Limit::Lease { .. } => "a permit has not been recorded; its lease ends".to_owned(),
            Limit::LearnedDelay(spacing) => format!("learned delay {}", spacing.delay),
            Limit::LearnedHold => "waits its learned delay after a 429".to_owned(),
            Limit::Paused => "paused by an operator".to_owned(),
            Limit::Line { .. } => "others come first".to_owned(),
            Limit::ChangingHands => "goes to another process".to_owned(),
            Limit::Saving => "waiting for the store: saving".to_owned(),
            Limit::StoreAway(away) => format!("waiting for the store: {away}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.until.since(self.asked_at).about();
        let since = |spacing: &Spacing| {
            let ago = self.asked_at.since(spacing.last).as_millis_up();
            let may = if spacing.assumed { "may have left " } else { "" };
            format!("{} ms: last request {may}{ago} ms ago", spacing.delay.as_millis_up())
        };
        let reached = |burst: &Burst| {
            let Burst { count, window } = burst;
            match self.binds() {
                true => format!("burst {count} per {window} reached; oldest leaves in {left}"),
                false => format!("burst {count} per {window}"),
            }
        };
        match &self.limit {
            Limit::RetryAfter => write!(f, "the server asked to wait until {}; {left} left", self.until),
            Limit::QuotaSpent => {
                write!(f, "the server's quota is used up until {}; {left} left", self.until)
            }
            Limit::QuotaSpacing(spacing) => write!(f, "the server's quota allows one per {}", since(spacing)),
            Limit::CrawlDelay(spacing) => write!(f, "crawl-delay of robots.txt {}", since(spacing)),
            Limit::MinDelay(spacing) => write!(f, "minimum delay {}", since(spacing)),
            Limit::Rate(spacing) => write!(f, "requests per second: one per {}", since(spacing)),
            Limit::Burst(burst) => f.write_str(&reached(burst)),
            Limit::IntentDelay(intent, spacing) => {
                write!(f, "minimum delay of {intent} {}", since(spacing))
            }
            Limit::IntentBurst(intent, burst) => write!(f, "{intent}: {}", reached(burst)),
            Limit::Backoff { penalties } => {
                match penalties {
                    // A success since then took the ladder down, but ended no hold.
                    0 | 1 => write!(f, "backing off after a failure; {left} left"),
                    _ => write!(f, "backing off after {penalties} failures in a row; {left} left"),
                }
            }
            Limit::WaitOn429 => write!(f, "the rule's wait after a 429; {left} left"),
            Limit::InFlight { limit } => {
                let requests = if *limit == 1 { "request is" } else { "requests are" };
                write!(f, "{limit} {requests} on the wire, which is all that is allowed at once")
            }
            Limit::Lease { limit, since } => {
                let ago = self.asked_at.since(*since).about();
                write!(f, "a permit given out {ago} ago has not been recorded; its lease ends in {left}")?;
                match limit {
                    1 => Ok(()),
                    _ => write!(f, " ({limit} requests are allowed at once)"),
                }
            }
            Limit::LearnedDelay(spacing) => write!(f, "learned delay {}", since(spacing)),
            Limit::LearnedHold => write!(f, "the learned delay after a 429; {left} left"),
            Limit::Paused if self.until == Timestamp::MAX => {
                f.write_str("paused by an operator until resumed")
            }
            Limit::Paused => write!(f, "paused by an operator until {}; {left} left", self.until),
            Limit::Line { ahead } => {
                let callers = if *ahead == 1 { "caller waits" } else { "callers wait" };
                write!(f, "{ahead} {callers} in line before; about {left} left")
            }
            Limit::ChangingHands => write!(f, "another process is taking the domain over; about {left} left"),
            Limit::Saving => write!(f, "what was asked for is being saved; about {left} left"),
            Limit::StoreAway(away) => write!(f, "waiting for the store: {away}"),
        }
    }
}

//! The answer to "may I fetch from this domain now?", and the reason for it.
//!
//! Reasons are data; the text that people read is made here and nowhere else.

use std::fmt;

use crate::intent::Intent;
use crate::rule::Burst;
use crate::time::{Span, Timestamp};

/// The answer to "may I fetch from this domain now?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Fetch now. The pace has already been charged for this request.
    Proceed(Permit),
    /// Ask again at `until`; asking earlier gives the same answer, unless something is recorded meanwhile.
    Wait {
        /// The earliest time at which a request may proceed.
        until: Timestamp,
        /// What delays the request until then.
        reason: Reason,
    },
    /// Asking again doesn't help until somebody acts: an operator paused the domain.
    Refuse(Reason),
}

/// The right to send one request, drawn from the pace of its domain.
///
/// It carries what is needed to judge the response, however late it comes. Other types build on it: the engine's
/// `gate::Permit` is a guard around one of these for requests sent by its own process, [`PermitRef`] refers to one by
/// its number, and the server's `PermitClaims` is the content of the signed token that callers of the HTTP API get.
///
/// [`PermitRef`]: crate::pace::PermitRef
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    pub(crate) started_at: Timestamp,
    pub(crate) spacing: Span,
    pub(crate) id: u32,
    pub(crate) probe: u16,
    pub(crate) intent: Intent,
    /// Whether its request was written to a connection.
    pub(crate) departed: bool,
}

/// One constraint on the next request: which limit it is, and until when it applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The limit, with its numbers.
    pub limit: Limit,
    /// The earliest time at which it allows a request.
    pub until: Timestamp,
    /// When the question was asked; remaining times in messages are relative to this.
    pub asked_at: Timestamp,
}

/// Where a constraint comes from. On a tie, the origin that is listed first here is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The server's response headers.
    Server,
    /// The site's robots.txt.
    Robots,
    /// The configured rule.
    Rule,
    /// Learned from responses.
    Learned,
    /// An operator.
    Operator,
    /// Other callers in line, or another process.
    Line,
    /// The store is unavailable or still saving.
    Store,
}

/// What a learned delay is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// How many refusals.
    pub refusals: u32,
    /// How many requests the site seems to accept at once.
    pub burst: u32,
    /// How many requests until a faster pace is tried, or until the one that is being tried is confirmed.
    pub probe_in: u32,
    /// Whether a faster pace is being tried.
    pub probing: bool,
}

/// A limit on the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The server sent `Retry-After`.
    RetryAfter,
    /// The server's quota is used up until it resets.
    QuotaSpent,
    /// The remaining requests of the server's quota are spread evenly until it resets.
    QuotaSpacing(Spacing),
    /// The `Crawl-delay` of robots.txt.
    CrawlDelay(Spacing),
    /// The rule's minimum delay.
    MinDelay(Spacing),
    /// The rule's `requests_per_second`.
    Rate(Spacing),
    /// The rule's burst is used up.
    Burst(Burst),
    /// The rule's minimum delay for one intent.
    IntentDelay(Intent, Spacing),
    /// The rule's burst for one intent is used up.
    IntentBurst(Intent, Burst),
    /// Backoff after consecutive penalties.
    Backoff {
        /// Number of consecutive penalties.
        penalties: u32,
    },
    /// The rule's own wait after a 429.
    WaitOn429,
    /// The rule's limit on requests in flight is reached.
    InFlight {
        /// How many the rule allows.
        limit: u32,
    },
    /// The rule's limit on requests in flight is reached, and one of them is a lent permit that has not been recorded.
    Lease {
        /// How many the rule allows.
        limit: u32,
        /// When the permit whose lease ends next was given out.
        since: Timestamp,
    },
    /// The learned delay.
    LearnedDelay(Spacing),
    /// The learned delay, with what it is based on.
    LearnedRate(Spacing, Learned),
    /// The learned delay, counted from a 429.
    LearnedHold,
    /// An operator paused the domain.
    Paused,
    /// Other callers wait in line for the same domain.
    Line {
        /// How many of them are ahead.
        ahead: usize,
    },
    /// Another process is taking over the domain.
    ChangingHands,
    /// A server's deadline or an operator's setting is being saved; no request is sent before it is.
    Saving,
    /// The store is unavailable, so results could not be saved.
    StoreUnavailable(Outage),
}

/// Why the store is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Another program has locked it.
    Locked,
    /// The disk is full.
    Full,
    /// The file was deleted, moved or replaced, or its volume isn't mounted.
    Gone,
    /// The file cannot be read or written.
    Unreadable,
}

/// A delay counted from the previous request start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spacing {
    /// Length of the delay.
    pub delay: Span,
    /// The previous start.
    pub last: Timestamp,
    /// Whether that start is only assumed, because state was lost.
    pub assumed: bool,
}

impl Decision {
    /// Whether the caller may fetch now.
    pub fn proceeds(&self) -> bool {
        matches!(self, Self::Proceed(_))
    }

    /// The permit, if the caller may fetch now.
    pub fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Proceed(permit) => Some(permit),
            Self::Wait { .. } | Self::Refuse(_) => None,
        }
    }

    /// How long to wait, in milliseconds rounded up: 0 when proceeding, otherwise at least 1. If the wait lasts until
    /// somebody acts, this is a minute.
    pub fn wait_ms(&self, now: Timestamp) -> u64 {
        match self {
            Self::Proceed(_) => 0,
            Self::Wait { until, .. } => until.since(now).as_millis_up().max(1),
            Self::Refuse(reason) => wait_until(reason.until, now).as_millis_up().max(1),
        }
    }

    /// Why the caller has to wait.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Proceed(_) => None,
            Self::Wait { reason, .. } | Self::Refuse(reason) => Some(reason),
        }
    }
}

impl Permit {
    /// When its request started, as far as known.
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The spacing that applied when it started.
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
    /// Where the constraint comes from.
    pub fn origin(&self) -> Origin {
        self.limit.origin()
    }

    /// Whether it closes the domain for a while, rather than spacing its requests.
    pub fn is_hold(&self) -> bool {
        matches!(
            self.limit,
            Limit::RetryAfter
                | Limit::QuotaSpent
                | Limit::Backoff { .. }
                | Limit::WaitOn429
                | Limit::LearnedHold
                | Limit::Paused
        )
    }

    /// Whether it delays a request that could otherwise be sent at `asked_at`.
    pub fn binds(&self) -> bool {
        self.until > self.asked_at
    }

    /// How long it delays the request, in milliseconds rounded up. If it lasts until somebody acts, this is a minute.
    pub fn wait_ms(&self) -> u64 {
        wait_until(self.until, self.asked_at).as_millis_up()
    }

    /// How severe the constraint is, for sorting: the delay for delays between requests, the remaining time for
    /// everything else. A delay counts in full, so that a sorted list doesn't change with every request.
    pub fn weight(&self) -> Span {
        match &self.limit {
            Limit::QuotaSpacing(spacing)
            | Limit::CrawlDelay(spacing)
            | Limit::MinDelay(spacing)
            | Limit::Rate(spacing)
            | Limit::IntentDelay(_, spacing)
            | Limit::LearnedDelay(spacing)
            | Limit::LearnedRate(spacing, _) => spacing.delay,
            _ => self.until.since(self.asked_at),
        }
    }
}

/// Time from `now` to `until`; a minute if `until` is [`Timestamp::MAX`], which means until somebody acts.
pub(crate) fn wait_until(until: Timestamp, now: Timestamp) -> Span {
    if until == Timestamp::MAX { ASK_AGAIN_AFTER } else { until.since(now) }
}

/// How long to wait before asking again if only a person can end the wait.
const ASK_AGAIN_AFTER: Span = Span::from_secs(60);

impl Learned {
    /// What was learned, for a delay between requests: `4.9 requests/s from 3 refusals, burst about 20, next probe in
    /// 412 requests`.
    fn of(&self, delay: Span) -> String {
        let rate = 1e6 / delay.as_micros().max(1) as f64;
        let rate = if rate < 0.1 {
            format!("{:.1} requests/min", rate * 60.0)
        } else {
            format!("{rate:.1} requests/s")
        };
        let next = match (self.probing, self.probe_in) {
            (true, left) => format!("probing for {left} more requests"),
            (false, left) => format!("next probe in {left} requests"),
        };
        match self.refusals {
            0 => format!("{rate} so far, nothing refused"),
            1 => format!("{rate} from 1 refusal, still searching"),
            count if self.burst > 1 => {
                format!("{rate} from {count} refusals, burst about {}, {next}", self.burst)
            }
            count => format!("{rate} from {count} refusals, {next}"),
        }
    }
}

impl Limit {
    /// Where the limit comes from.
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
            Self::LearnedDelay(_) | Self::LearnedRate(..) | Self::LearnedHold => Origin::Learned,
            Self::Paused => Origin::Operator,
            Self::Line { .. } | Self::ChangingHands => Origin::Line,
            Self::Saving | Self::StoreUnavailable(_) => Origin::Store,
        }
    }

    /// Its name in JSON, metrics and short reports.
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
            Self::LearnedDelay(_) | Self::LearnedRate(..) => "learned",
            Self::LearnedHold => "learned_hold",
            Self::Paused => "paused",
            Self::Line { .. } => "line",
            Self::ChangingHands => "changing_hands",
            Self::Saving => "saving",
            Self::StoreUnavailable(_) => "store_unavailable",
        }
    }
}

impl Origin {
    /// Its name in JSON and reports.
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

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locked => "locked by another program",
            Self::Full => "the disk is full",
            Self::Gone => "the file is gone",
            Self::Unreadable => "the file cannot be read or written",
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// The two texts of each limit, short and complete, have to agree.

impl Reason {
    /// The reason in a few words, without the remaining time.
    pub fn brief(&self) -> String {
        match &self.limit {
            Limit::RetryAfter => "the server asked to wait".to_owned(),
            Limit::QuotaSpent => "the server's quota is used up".to_owned(),
            Limit::QuotaSpacing(spacing) => {
                format!("the server's quota allows one per {}", spacing.delay.countdown())
            }
            Limit::CrawlDelay(spacing) => format!("robots.txt crawl-delay {}", spacing.delay),
            Limit::MinDelay(spacing) => format!("minimum delay {}", spacing.delay),
            Limit::Rate(spacing) => format!("one request per {}", spacing.delay),
            Limit::Burst(Burst { count, window }) => format!("burst of {count} per {window} used up"),
            Limit::IntentDelay(intent, spacing) => format!("minimum delay {} for {intent}", spacing.delay),
            Limit::IntentBurst(intent, Burst { count, window }) => {
                format!("burst of {count} per {window} for {intent} used up")
            }
            Limit::Backoff { penalties: 0 | 1 } => "backing off after a failure".to_owned(),
            Limit::Backoff { penalties } => format!("backing off after {penalties} failures"),
            Limit::WaitOn429 => "waiting after a 429 (wait_on_429)".to_owned(),
            Limit::InFlight { limit: 1 } => "1 request in flight".to_owned(),
            Limit::InFlight { limit } => format!("{limit} requests in flight"),
            Limit::Lease { .. } => "a permit has not been recorded; its lease ends".to_owned(),
            Limit::LearnedDelay(spacing) | Limit::LearnedRate(spacing, _) => {
                format!("learned delay {}", spacing.delay)
            }
            Limit::LearnedHold => "learned delay after a 429".to_owned(),
            Limit::Paused => "paused by an operator".to_owned(),
            Limit::Line { .. } => "others are ahead in line".to_owned(),
            Limit::ChangingHands => "moving to another process".to_owned(),
            Limit::Saving => "waiting for the store: saving".to_owned(),
            Limit::StoreUnavailable(away) => format!("waiting for the store: {away}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.until.since(self.asked_at).countdown();
        let since = |spacing: &Spacing| {
            if spacing.last == Timestamp::NEVER {
                return format!("{} ms: no requests so far", spacing.delay.as_millis_up());
            }
            let ago = self.asked_at.since(spacing.last).as_millis_up();
            let may = if spacing.assumed { "may have been " } else { "" };
            format!("{} ms: last request {may}{ago} ms ago", spacing.delay.as_millis_up())
        };
        let reached = |burst: &Burst| {
            let Burst { count, window } = burst;
            match self.binds() {
                true => format!("burst {count} per {window} reached; next slot in {left}"),
                false => format!("burst {count} per {window}"),
            }
        };
        match &self.limit {
            Limit::RetryAfter => write!(f, "the server asked to wait until {}; {left} left", self.until),
            Limit::QuotaSpent => {
                write!(f, "the server's quota is used up until {}; {left} left", self.until)
            }
            Limit::QuotaSpacing(spacing) => write!(f, "the server's quota allows one per {}", since(spacing)),
            Limit::CrawlDelay(spacing) => write!(f, "robots.txt crawl-delay {}", since(spacing)),
            Limit::MinDelay(spacing) => write!(f, "minimum delay {}", since(spacing)),
            Limit::Rate(spacing) => write!(f, "requests per second: one per {}", since(spacing)),
            Limit::Burst(burst) => f.write_str(&reached(burst)),
            Limit::IntentDelay(intent, spacing) => {
                write!(f, "minimum delay for {intent} {}", since(spacing))
            }
            Limit::IntentBurst(intent, burst) => write!(f, "{intent}: {}", reached(burst)),
            Limit::Backoff { penalties } => {
                match penalties {
                    // Zero means that there was a success since: it resets the count, but doesn't end the hold.
                    0 | 1 => write!(f, "backing off after a failure; {left} left"),
                    _ => write!(f, "backing off after {penalties} failures in a row; {left} left"),
                }
            }
            Limit::WaitOn429 => write!(f, "waiting after a 429 (wait_on_429); {left} left"),
            Limit::InFlight { limit } => {
                let requests = if *limit == 1 { "request" } else { "requests" };
                write!(f, "{limit} {requests} in flight, which is the limit")
            }
            Limit::Lease { limit, since } => {
                let ago = self.asked_at.since(*since).countdown();
                write!(f, "a permit given out {ago} ago has not been recorded; its lease ends in {left}")?;
                match limit {
                    1 => Ok(()),
                    _ => write!(f, " (up to {limit} requests may be in flight)"),
                }
            }
            Limit::LearnedDelay(spacing) => write!(f, "learned delay {}", since(spacing)),
            Limit::LearnedRate(spacing, learned) => {
                write!(f, "learned delay {}; {}", since(spacing), learned.of(spacing.delay))
            }
            Limit::LearnedHold => write!(f, "learned delay after a 429; {left} left"),
            Limit::Paused if self.until == Timestamp::MAX => {
                f.write_str("paused by an operator until resumed")
            }
            Limit::Paused => write!(f, "paused by an operator until {}; {left} left", self.until),
            Limit::Line { ahead } => {
                let callers = if *ahead == 1 { "caller" } else { "callers" };
                write!(f, "{ahead} {callers} ahead in line; about {left} left")
            }
            Limit::ChangingHands => write!(f, "another process is taking over the site; about {left} left"),
            Limit::Saving => {
                write!(f, "waiting for the store: saving a deadline or setting; about {left} left")
            }
            Limit::StoreUnavailable(away) => write!(f, "waiting for the store: {away}"),
        }
    }
}

//! The outcome of an attempt.
//!
//! Attempts are classified by status codes, headers and typed errors, never by the text of a message.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::headers::PacingHints;

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// 2xx, a redirect, or 304.
    Success,
    /// Any other 4xx: the site works, but the request or the URL is wrong.
    Answered,
    /// 429, or rate limited according to headers or an API's error code.
    RateLimited,
    /// 403.
    Blocked,
    /// 503.
    Unavailable,
    /// Any other 5xx, or a status from 600 to 999.
    ServerError,
    /// No response in time.
    Timeout,
    /// The connection failed or broke.
    NetworkError,
}

/// The statuses that a response can have: three digits. The standard defines none above 599, but servers send them.
pub const STATUSES: RangeInclusive<u16> = 100..=999;

/// Why there was no response, by the type of the HTTP client's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportFailure {
    /// Connecting, waiting for the response or reading it took too long.
    TimedOut,
    /// The connection broke, or TLS or the protocol failed.
    Disconnected,
    /// Nothing was sent: the connection was refused, or the DNS lookup failed.
    Unreachable,
}

/// Whether the host could be reached at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reach {
    /// A connection was opened, or it isn't known whether one was.
    #[default]
    Reached,
    /// The connection was refused, or the DNS lookup failed. No request was sent, so retrying soon costs the host
    /// nothing.
    Unreachable,
}

/// The result of an attempt, with or without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The outcome of the attempt.
    pub outcome: Outcome,
    /// What the response headers say about waiting.
    pub hints: PacingHints,
    /// Whether the host could be reached at all.
    pub reach: Reach,
    /// The status of the response, if there was one and it is known. For people: nothing depends on it.
    pub status: Option<u16>,
}

/// A word that isn't an outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "outcome = {0:?}: expected success, answered, rate_limited, blocked, unavailable, server_error, timeout or \
     network_error"
)]
pub struct UnknownOutcome(pub String);

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 8] = [
        Self::Success,
        Self::Answered,
        Self::RateLimited,
        Self::Blocked,
        Self::Unavailable,
        Self::ServerError,
        Self::Timeout,
        Self::NetworkError,
    ];

    /// Its name in logs, metrics and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Answered => "answered",
            Self::RateLimited => "rate_limited",
            Self::Blocked => "blocked",
            Self::Unavailable => "unavailable",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::NetworkError => "network_error",
        }
    }

    /// Whether it counts against the domain: everything but [`Self::Success`] and [`Self::Answered`].
    pub const fn is_penalty(self) -> bool {
        !matches!(self, Self::Success | Self::Answered)
    }

    fn of_status(status: u16, hints: &PacingHints) -> Self {
        match status {
            200..=399 => Self::Success,
            429 => Self::RateLimited,
            // GitHub and others answer 403 when a quota is exhausted, and state the quota in the headers.
            403 | 503 if hints.exhausted_for.is_some() => Self::RateLimited,
            403 => Self::Blocked,
            400..=499 => Self::Answered,
            503 => Self::Unavailable,
            500.. => Self::ServerError,
            0..=199 => Self::NetworkError,
        }
    }
}

impl Answer {
    /// The result of an attempt that got a response.
    pub fn of_status(status: u16, hints: PacingHints) -> Self {
        Self {
            outcome: Outcome::of_status(status, &hints),
            hints,
            reach: Reach::Reached,
            status: Some(status),
        }
    }

    /// The result of an attempt that got no response.
    pub fn of_failure(failure: TransportFailure) -> Self {
        match failure {
            TransportFailure::TimedOut => Outcome::Timeout.into(),
            TransportFailure::Disconnected => Outcome::NetworkError.into(),
            TransportFailure::Unreachable => {
                Self { reach: Reach::Unreachable, ..Outcome::NetworkError.into() }
            }
        }
    }
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, hints: PacingHints::default(), reach: Reach::Reached, status: None }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Outcome {
    type Err = UnknownOutcome;

    fn from_str(word: &str) -> Result<Self, UnknownOutcome> {
        let same = |outcome: &Self| outcome.as_str() == word;
        Self::ALL.into_iter().find(same).ok_or_else(|| UnknownOutcome(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    /// B24, B46
    #[test]
    fn statuses_and_transport_failures_have_the_documented_outcomes() {
        let of = |status| Answer::of_status(status, PacingHints::default()).outcome;
        for (statuses, outcome) in [
            (&[200, 204, 206, 301, 302, 304, 308][..], Outcome::Success),
            (&[400, 401, 404, 408, 410, 451], Outcome::Answered),
            (&[429], Outcome::RateLimited),
            (&[403], Outcome::Blocked),
            (&[503], Outcome::Unavailable),
            (&[500, 502, 504, 599, 999, u16::MAX], Outcome::ServerError),
            (&[0, 100, 199], Outcome::NetworkError),
        ] {
            assert!(statuses.iter().all(|status| of(*status) == outcome), "{outcome}");
        }
        assert_eq!(Answer::of_failure(TransportFailure::TimedOut).outcome, Outcome::Timeout);
        assert_eq!(Answer::of_failure(TransportFailure::Disconnected).outcome, Outcome::NetworkError);
        let unreachable = Answer::of_failure(TransportFailure::Unreachable);
        assert_eq!((unreachable.outcome, unreachable.reach), (Outcome::NetworkError, Reach::Unreachable));
    }

    #[test]
    fn a_403_with_an_exhausted_quota_is_a_rate_limit() {
        let hints = |left: u64| PacingHints {
            exhausted_for: (left == 0).then_some(Span::from_secs(60)),
            ..PacingHints::default()
        };
        assert_eq!(Answer::of_status(403, hints(0)).outcome, Outcome::RateLimited);
        assert_eq!(Answer::of_status(403, hints(1)).outcome, Outcome::Blocked);
        assert_eq!(Answer::of_status(200, hints(0)).outcome, Outcome::Success);
    }

    #[test]
    fn outcome_names_parse_back() {
        assert!(Outcome::ALL.iter().all(|outcome| outcome.as_str().parse() == Ok(*outcome)));
        let error = "Success".parse::<Outcome>().unwrap_err().to_string();
        assert!(error.starts_with("outcome = \"Success\": expected success, answered"), "{error}");
    }
}

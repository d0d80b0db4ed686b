//! What an attempt came to: the closed list of things a fetch can teach (B24).
//!
//! Classification goes by status codes, headers and typed errors, never by words in a message (B46).

use std::fmt;
use std::str::FromStr;

use crate::headers::Told;

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// 2xx, a redirect, or 304.
    Success,
    /// Another 4xx: the site is fine, the address is not.
    Answered,
    /// 429, or told so by headers or an API's error code.
    RateLimited,
    /// 403.
    Blocked,
    /// 503.
    Unavailable,
    /// Another 5xx, or a status that does not exist.
    ServerError,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    NetworkError,
}

/// Why there was no answer, as the HTTP client knows it by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Breakdown {
    /// Connecting, waiting for the answer or reading it took too long.
    TimedOut,
    /// The connection, TLS or the protocol failed, or the connection broke.
    Disconnected,
    /// Nothing was sent: the connection was refused, or the name has no address.
    Unreachable,
}

/// Whether the host was there at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Contact {
    /// A connection was opened, or nobody knows.
    #[default]
    Made,
    /// The connection was refused, or the name has no address: no request left, and asking again soon costs the host
    /// nothing.
    Refused,
}

/// An outcome and what the server said with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What the attempt came to.
    pub outcome: Outcome,
    /// What its headers ask of us.
    pub told: Told,
    /// Whether the host was there at all.
    pub contact: Contact,
}

/// A word that is no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "outcome = {0:?}: expected success, answered, rate_limited, blocked, unavailable, server_error, timeout or \
     network_error"
)]
pub struct UnknownOutcome(pub String);

impl Outcome {
    /// Every outcome there is.
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

    /// The word for it in logs, metrics and JSON.
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

    fn of_status(status: u16, told: &Told) -> Self {
        match status {
            200..=399 => Self::Success,
            429 => Self::RateLimited,
            // GitHub and others refuse with 403 and say in the headers that it is the quota.
            403 | 503 if told.spent.is_some() => Self::RateLimited,
            403 => Self::Blocked,
            400..=499 => Self::Answered,
            503 => Self::Unavailable,
            500.. => Self::ServerError,
            0..=199 => Self::NetworkError,
        }
    }
}

impl Answer {
    /// The answer with this status and these headers.
    pub fn of_status(status: u16, told: Told) -> Self {
        Self { outcome: Outcome::of_status(status, &told), told, contact: Contact::Made }
    }

    /// No answer at all.
    pub fn of_breakdown(breakdown: Breakdown) -> Self {
        match breakdown {
            Breakdown::TimedOut => Outcome::Timeout.into(),
            Breakdown::Disconnected => Outcome::NetworkError.into(),
            Breakdown::Unreachable => Self { contact: Contact::Refused, ..Outcome::NetworkError.into() },
        }
    }
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, told: Told::default(), contact: Contact::Made }
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
    fn statuses_and_breakdowns_are_classified_by_the_table() {
        let of = |status| Answer::of_status(status, Told::default()).outcome;
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
        assert_eq!(Answer::of_breakdown(Breakdown::TimedOut).outcome, Outcome::Timeout);
        assert_eq!(Answer::of_breakdown(Breakdown::Disconnected).outcome, Outcome::NetworkError);
        let unreachable = Answer::of_breakdown(Breakdown::Unreachable);
        assert_eq!((unreachable.outcome, unreachable.contact), (Outcome::NetworkError, Contact::Refused));
    }

    #[test]
    fn a_refusal_that_names_an_empty_quota_is_a_rate_limit() {
        let told = |left: u64| Told { spent: (left == 0).then_some(Span::from_secs(60)), ..Told::default() };
        assert_eq!(Answer::of_status(403, told(0)).outcome, Outcome::RateLimited);
        assert_eq!(Answer::of_status(403, told(1)).outcome, Outcome::Blocked);
        assert_eq!(Answer::of_status(200, told(0)).outcome, Outcome::Success);
    }

    #[test]
    fn words_for_outcomes_go_both_ways() {
        assert!(Outcome::ALL.iter().all(|outcome| outcome.as_str().parse() == Ok(*outcome)));
        let error = "Success".parse::<Outcome>().unwrap_err().to_string();
        assert!(error.starts_with("outcome = \"Success\": expected success, answered"), "{error}");
    }
}

//! What a request came to, and what recording it changed.

use comity::core::domain::Domain;
use comity::core::pace::{self, Standing};
use comity::core::time::Span;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Intent, Object, moment, present, whole};

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
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
    /// Another 5xx.
    ServerError,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    NetworkError,
    /// It was not sent, or its caller gave it up: the wire is free, the slot stays charged, nothing is learnt.
    Abandoned,
}

impl Outcome {
    /// What the core makes of it; nothing of a request that was given up.
    pub(crate) fn known(self) -> Option<comity::core::outcome::Outcome> {
        use comity::core::outcome::Outcome as Known;
        Some(match self {
            Self::Success => Known::Success,
            Self::Answered => Known::Answered,
            Self::RateLimited => Known::RateLimited,
            Self::Blocked => Known::Blocked,
            Self::Unavailable => Known::Unavailable,
            Self::ServerError => Known::ServerError,
            Self::Timeout => Known::Timeout,
            Self::NetworkError => Known::NetworkError,
            Self::Abandoned => return None,
        })
    }
}

/// What a request came to: by its `permit`, or else by its `url` or `domain`; as an `outcome` or as a `status`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The permit that the decision came with.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "permit", max_length = 1000)]
    pub(crate) permit: Option<String>,
    /// The URL that was fetched.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "http-url", max_length = 8192)]
    pub(crate) url: Option<String>,
    /// The domain that was asked.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "host", max_length = 260)]
    pub(crate) domain: Option<String>,
    /// What the request was for; goes without a permit, which knows it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Intent, required = false)]
    pub(crate) intent: Option<Intent>,
    /// What it came to.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Outcome, required = false)]
    pub(crate) outcome: Option<Outcome>,
    /// The status of the answer.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u16, required = false, minimum = 100, maximum = 599)]
    pub(crate) status: Option<u64>,
    /// The answer's `Retry-After`, as it came.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = RetryAfter, required = false)]
    pub(crate) retry_after: Option<RetryAfter>,
    /// The answer's `RateLimit`, as it came.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, max_length = 4096)]
    pub(crate) ratelimit: Option<String>,
    /// Headers of the answer; those that say nothing about waiting are not read.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = std::collections::BTreeMap<String, String>, required = false)]
    pub(crate) headers: Option<std::collections::BTreeMap<String, String>>,
    /// How long the request took, in milliseconds: its start is counted from there.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, maximum = 86400000)]
    pub(crate) latency_ms: Option<u64>,
}

/// Seconds, or the text of the header.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "seconds, or the text of the header")]
pub(crate) enum RetryAfter {
    /// Seconds.
    Seconds(f64),
    /// The text of the header.
    Text(String),
}

/// Many of them at once.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Records {
    /// What is recorded, in this order.
    #[schema(value_type = Vec<Record>, min_items = 1, max_items = 1000)]
    pub(crate) records: Vec<Object<Record>>,
}

/// What recording changed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Recorded {
    /// Whose pace it went to.
    pub(crate) domain: String,
    /// What it counted as.
    pub(crate) outcome: &'static str,
    /// `fresh`: it counted. `late`: the request began before the latest penalty. `repeated`: recorded before, or
    /// unknown; nothing changed. `unheard`, in a batch: it could not be recorded at the moment; tell it again.
    pub(crate) standing: &'static str,
    /// A hold was set or moved, and ends then.
    pub(crate) held_until: Option<String>,
    /// The learned delay, if this changed it.
    pub(crate) adaptive_delay_seconds: Option<f64>,
    /// How long until the next request could leave.
    pub(crate) wait_ms: u64,
}

/// Many of them, in the order they were told.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Recordeds {
    /// One for each.
    pub(crate) results: Vec<Recorded>,
}

impl Recorded {
    /// What recording `outcome` changed; nothing was recorded of a permit that was given back. `wait` is how long until the
    /// next request could leave.
    pub fn of(
        domain: &Domain,
        outcome: &'static str,
        standing: Standing,
        recorded: Option<&pace::Recorded>,
        wait: Span,
    ) -> Self {
        Self {
            domain: domain.to_string(),
            outcome,
            standing: standing.as_str(),
            held_until: moment(recorded.and_then(|recorded| recorded.held_until)),
            adaptive_delay_seconds: recorded.and_then(|recorded| Some(recorded.delay?.to.as_secs_f64())),
            wait_ms: wait.as_millis_up(),
        }
    }

    /// One of many that could not be recorded at the moment.
    pub(crate) fn unheard(domain: &Domain, outcome: &'static str) -> Self {
        Self {
            domain: domain.to_string(),
            outcome,
            standing: "unheard",
            held_until: None,
            adaptive_delay_seconds: None,
            wait_ms: 0,
        }
    }
}

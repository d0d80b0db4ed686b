//! Reporting the outcome of a request, and what that changed.

use comity::core::domain::Domain;
use comity::core::pace::{self, Freshness};
use comity::core::time::Span;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{IntentParam, JsonObject, present, time_text, whole};

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = Outcome)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutcomeParam {
    /// 2xx, a redirect, or 304.
    Success,
    /// Any other 4xx: the site works, but this URL doesn't.
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
    /// The request was not sent, or the caller gave it up. It no longer counts as in flight, its slot is not
    /// refunded, and nothing is learned.
    Abandoned,
}

impl OutcomeParam {
    /// The same outcome in the core; `None` for an abandoned request.
    pub(crate) fn to_core(self) -> Option<comity::core::outcome::Outcome> {
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

/// Reports the outcome of a request. Identify the request by its `permit`, or by its `url` or `domain`. Give the
/// outcome as an `outcome` or as an HTTP `status`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = Record)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordRequest {
    /// The permit from the decision.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "permit", max_length = 1000)]
    pub(crate) permit: Option<String>,
    /// The URL that was fetched.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "http-url", max_length = 8192)]
    pub(crate) url: Option<String>,
    /// The host that was fetched from, with its port unless that is the default port of the scheme.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "host", max_length = 260)]
    pub(crate) domain: Option<String>,
    /// What the request was for. Not allowed together with a permit, which already contains it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = IntentParam, required = false)]
    pub(crate) intent: Option<IntentParam>,
    /// The outcome of the request.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = OutcomeParam, required = false)]
    pub(crate) outcome: Option<OutcomeParam>,
    /// The HTTP status of the response.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u16, required = false, minimum = 100, maximum = 999)]
    pub(crate) status: Option<u64>,
    /// The response's `Retry-After` header, unchanged.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = RetryAfter, required = false)]
    pub(crate) retry_after: Option<RetryAfter>,
    /// The response's `RateLimit` header, unchanged.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, max_length = 4096)]
    pub(crate) ratelimit: Option<String>,
    /// The response's headers. Only those about rate limits and waiting are read.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = std::collections::BTreeMap<String, String>, required = false)]
    pub(crate) headers: Option<std::collections::BTreeMap<String, String>>,
    /// How long the request took, in milliseconds. The pace then counts from when the request really started.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, maximum = 86400000)]
    pub(crate) latency_ms: Option<u64>,
}

/// The value of a `Retry-After` header: a number of seconds, or the header's text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "seconds, or the text of the header")]
pub(crate) enum RetryAfter {
    /// A number of seconds.
    Seconds(f64),
    /// The text of the header: seconds, or an HTTP date.
    Text(String),
}

/// Several reports in one call.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = Records)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordBatchRequest {
    /// The reports. They are recorded in this order.
    #[schema(value_type = Vec<RecordRequest>, min_items = 1, max_items = 1000)]
    pub(crate) records: Vec<JsonObject<RecordRequest>>,
}

/// What recording an outcome changed.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Recorded)]
pub struct RecordResponse {
    /// The site whose pace was updated: a host, or a group of hosts.
    pub(crate) domain: String,
    /// The outcome that was recorded.
    pub(crate) outcome: &'static str,
    /// `fresh`: the outcome counted. `late`: the request started before the latest penalty, so its failure tells
    /// nothing new. `repeated`: the permit was already recorded or is unknown, and nothing changed. `unheard`, only
    /// in a batch: it could not be recorded at the moment; retry it.
    pub(crate) standing: &'static str,
    /// Until when the site is closed because of this; null if it isn't.
    pub(crate) held_until: Option<String>,
    /// The new learned delay in seconds; null if it did not change.
    pub(crate) adaptive_delay_seconds: Option<f64>,
    /// How long until the next request may be sent, in milliseconds.
    pub(crate) wait_ms: u64,
}

/// The results of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Recordeds)]
pub(crate) struct RecordBatchResponse {
    /// One result per report, in the order of the reports.
    pub(crate) results: Vec<RecordResponse>,
}

impl RecordResponse {
    /// The response after recording `outcome`. `recorded` is `None` for a permit that was returned unused. `wait` is
    /// the time until the next request may be sent.
    pub fn of(
        domain: &Domain,
        outcome: &'static str,
        standing: Freshness,
        recorded: Option<&pace::Recorded>,
        wait: Span,
    ) -> Self {
        Self {
            domain: domain.to_string(),
            outcome,
            standing: standing.as_str(),
            held_until: time_text(recorded.and_then(|recorded| recorded.held_until)),
            adaptive_delay_seconds: recorded.and_then(|recorded| Some(recorded.delay?.to.as_secs_f64())),
            wait_ms: wait.as_millis_up(),
        }
    }

    /// The result for a report of a batch that could not be recorded at the moment.
    pub(crate) fn not_recorded(domain: &Domain, outcome: &'static str) -> Self {
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

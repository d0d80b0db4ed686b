//! Asking whether a request may be sent, and the decision.

use comity::core::decision::Reason;
use comity::core::domain::Domain;
use comity::core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{JsonObject, present, time_text, whole};

/// What the request is for. Rules can set separate limits for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[schema(as = Intent)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IntentParam {
    /// A page or a file.
    #[default]
    Fetch,
    /// A search on the site.
    Search,
    /// A call to the site's API.
    Api,
}

impl From<IntentParam> for comity::core::intent::Intent {
    fn from(intent: IntentParam) -> Self {
        match intent {
            IntentParam::Fetch => Self::Fetch,
            IntentParam::Search => Self::Search,
            IntentParam::Api => Self::Api,
        }
    }
}

/// Asks whether a request may be sent now. Give either its `url` or its `domain`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = Ask)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest {
    /// The URL to fetch.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "http-url", example = "https://example.org/page", max_length = 8192)]
    pub(crate) url: Option<String>,
    /// The host to fetch from, with its port unless that is the default port of the scheme.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "host", example = "example.org", max_length = 260)]
    pub(crate) domain: Option<String>,
    /// What the request is for.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = IntentParam, required = false)]
    pub(crate) intent: Option<IntentParam>,
    /// How long the permit counts as in flight if it is not recorded, in milliseconds.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 600000, default = 60000)]
    pub(crate) lease_ms: Option<u64>,
}

/// Asks for a permit, and waits in line for it. Give either a `url` or a `domain`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = Acquire)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireRequest {
    /// The URL to fetch.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "http-url", example = "https://example.org/page", max_length = 8192)]
    pub(crate) url: Option<String>,
    /// The host to fetch from, with its port unless that is the default port of the scheme.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "host", example = "example.org", max_length = 260)]
    pub(crate) domain: Option<String>,
    /// What the request is for.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = IntentParam, required = false)]
    pub(crate) intent: Option<IntentParam>,
    /// How long the permit counts as in flight if it is not recorded, in milliseconds.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 600000, default = 60000)]
    pub(crate) lease_ms: Option<u64>,
    /// The maximum time to wait, in milliseconds. The service may cap it (`serve.max_wait`).
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, default = 30000)]
    pub(crate) max_wait_ms: Option<u64>,
}

/// Several checks in one call.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = Asks)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckBatchRequest {
    /// The checks. They are answered in this order.
    #[schema(value_type = Vec<CheckRequest>, min_items = 1, max_items = 1000)]
    pub(crate) checks: Vec<JsonObject<CheckRequest>>,
}

/// Whether a request may be sent now, or else how long to wait and why.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Decision)]
pub struct DecisionResponse {
    /// Whether the request may be sent now. `check` and `acquire` have then reserved the slot.
    pub(crate) proceed: bool,
    /// How long to wait before asking again, in milliseconds; 0 if the request may be sent.
    pub(crate) wait_ms: u64,
    /// The reason, as a sentence for people.
    pub(crate) reason: String,
    /// The permit, to record the outcome with; null if nothing was reserved.
    pub(crate) permit: Option<String>,
    /// How long the permit counts as in flight if it is not recorded, in milliseconds; null if nothing was reserved.
    pub(crate) lease_ms: Option<u64>,
    /// The site whose pace applies: a host, or a group of hosts.
    pub(crate) domain: String,
    /// What delays the request, in one word such as `min_delay` or `retry_after`; null if nothing does.
    pub(crate) limit: Option<&'static str>,
    /// Where the limit comes from: `server`, `robots`, `rule`, `learned`, `operator`, `line` or `service`.
    pub(crate) origin: Option<&'static str>,
    /// Whether an operator paused the site until further notice. Waiting doesn't help until it is resumed.
    pub(crate) refused: bool,
    /// How long this call waited, in milliseconds.
    pub(crate) waited_ms: u64,
    /// Only from `peek`: when this was known. It is slightly in the past if another process is in charge of the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, format = DateTime)]
    pub(crate) as_of: Option<String>,
}

/// The decisions of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Decisions)]
pub(crate) struct DecisionBatchResponse {
    /// One decision per check, in the order of the checks.
    pub(crate) results: Vec<DecisionResponse>,
}

impl DecisionResponse {
    /// A decision for `domain`: the reason to wait, or else the permit and its lease, if one was granted.
    pub fn of(
        domain: &Domain,
        reason: Option<&Reason>,
        permit: Option<(String, Span)>,
        waited: Span,
    ) -> Self {
        let text = reason.map_or_else(|| "nothing delays this request".to_owned(), Reason::to_string);
        Self {
            proceed: reason.is_none(),
            wait_ms: reason.map_or(0, |reason| reason.wait_ms().max(1)),
            reason: text,
            lease_ms: permit.as_ref().map(|(_, lease)| lease.as_millis_up()),
            permit: permit.map(|(permit, _)| permit),
            domain: domain.to_string(),
            limit: reason.map(|reason| reason.limit.as_str()),
            origin: reason.map(|reason| reason.origin().as_str()),
            refused: reason.is_some_and(|reason| reason.until == Timestamp::MAX),
            waited_ms: waited.as_millis_up(),
            as_of: None,
        }
    }

    /// The same decision, as known at that time.
    pub fn as_of(self, as_of: Option<Timestamp>) -> Self {
        Self { as_of: time_text(as_of), ..self }
    }

    /// No decision, because the service can't make one at the moment.
    pub(crate) fn undecided(domain: &Domain, limit: &'static str, reason: String, waited: Span) -> Self {
        Self {
            proceed: false,
            wait_ms: UNDECIDED_WAIT_MS,
            reason,
            permit: None,
            lease_ms: None,
            domain: domain.to_string(),
            limit: Some(limit),
            origin: Some("service"),
            refused: false,
            waited_ms: waited.as_millis_up(),
            as_of: None,
        }
    }
}

/// When to ask again if the service can't decide at the moment.
const UNDECIDED_WAIT_MS: u64 = 1_000;

//! What is asked before a request leaves, and the decision.

use comity::core::decision::Reason;
use comity::core::domain::Domain;
use comity::core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Object, moment, present, whole};

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Intent {
    /// A page or a file.
    #[default]
    Fetch,
    /// A search on the site.
    Search,
    /// A call of the site's API.
    Api,
}

impl From<Intent> for comity::core::intent::Intent {
    fn from(intent: Intent) -> Self {
        match intent {
            Intent::Fetch => Self::Fetch,
            Intent::Search => Self::Search,
            Intent::Api => Self::Api,
        }
    }
}

/// May a request leave? Named by its `url` or by its `domain`, not by both.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    /// The URL to be fetched.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "http-url", example = "https://example.org/page", max_length = 8192)]
    pub(crate) url: Option<String>,
    /// The domain: a host, with its port when that is not the scheme's own.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "host", example = "example.org", max_length = 260)]
    pub(crate) domain: Option<String>,
    /// What the request is for.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Intent, required = false)]
    pub(crate) intent: Option<Intent>,
    /// How long the permit keeps its place, in milliseconds, when nobody records it.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 600000, default = 60000)]
    pub(crate) lease_ms: Option<u64>,
}

/// The same, waiting in line.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acquire {
    /// The URL to be fetched.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "http-url", example = "https://example.org/page", max_length = 8192)]
    pub(crate) url: Option<String>,
    /// The domain: a host, with its port when that is not the scheme's own.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "host", example = "example.org", max_length = 260)]
    pub(crate) domain: Option<String>,
    /// What the request is for.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Intent, required = false)]
    pub(crate) intent: Option<Intent>,
    /// How long the permit keeps its place, in milliseconds, when nobody records it.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 600000, default = 60000)]
    pub(crate) lease_ms: Option<u64>,
    /// How long to wait at most, in milliseconds; the service may allow less.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, default = 30000)]
    pub(crate) max_wait_ms: Option<u64>,
}

/// Many of them at once.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asks {
    /// What is asked; answered in this order.
    #[schema(value_type = Vec<Ask>, min_items = 1, max_items = 1000)]
    pub(crate) checks: Vec<Object<Ask>>,
}

/// May a request leave now?
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Decision {
    /// Whether it may. If so, the slot is taken.
    pub(crate) proceed: bool,
    /// How long to wait before asking again; 0 when it may leave.
    pub(crate) wait_ms: u64,
    /// Why, for people.
    pub(crate) reason: String,
    /// The right to send it, to record with; null when nothing was reserved.
    pub(crate) permit: Option<String>,
    /// How long the permit keeps its place when nobody records it; null when nothing was reserved.
    pub(crate) lease_ms: Option<u64>,
    /// Whose pace it goes by.
    pub(crate) domain: String,
    /// What it waits for, in a word.
    pub(crate) limit: Option<&'static str>,
    /// Where that comes from: server, robots, rule, learned, operator, line or service.
    pub(crate) origin: Option<&'static str>,
    /// An operator closed the domain: waiting does not help before it is resumed.
    pub(crate) refused: bool,
    /// How long this call waited.
    pub(crate) waited_ms: u64,
    /// Where nothing was reserved: when this was known, which is a moment ago when another process decides for the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, format = DateTime)]
    pub(crate) as_of: Option<String>,
}

/// Many of them, in the order they were asked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Decisions {
    /// One for each.
    pub(crate) results: Vec<Decision>,
}

impl Decision {
    /// A decision for `domain`: what keeps the request from leaving, or else its permit and lease, if one was drawn.
    pub fn of(
        domain: &Domain,
        reason: Option<&Reason>,
        permit: Option<(String, Span)>,
        waited: Span,
    ) -> Self {
        let text =
            reason.map_or_else(|| "nothing keeps a request from leaving".to_owned(), Reason::to_string);
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

    /// The same, as it was known then.
    pub fn as_of(self, as_of: Option<Timestamp>) -> Self {
        Self { as_of: moment(as_of), ..self }
    }

    /// The service itself cannot decide at the moment.
    pub(crate) fn undecided(domain: &Domain, limit: &'static str, reason: String, waited: Span) -> Self {
        Self {
            proceed: false,
            wait_ms: A_MOMENT_MS,
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

/// When to ask a service again that cannot decide at the moment.
const A_MOMENT_MS: u64 = 1_000;

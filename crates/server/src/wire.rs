//! The only types that become JSON, and are made of it. What they mean is decided elsewhere.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

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
pub(crate) struct Decision {
    /// Whether it may. If so, the slot is taken.
    pub(crate) proceed: bool,
    /// How long to wait before asking again; 0 when it may leave.
    pub(crate) wait_ms: u64,
    /// Why, for people.
    pub(crate) reason: String,
    /// The right to send it, to record with; null when nothing was reserved.
    pub(crate) permit: Option<String>,
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
}

/// Many of them, in the order they were asked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Decisions {
    /// One for each.
    pub(crate) results: Vec<Decision>,
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
pub(crate) struct Recorded {
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

/// What is known of a domain.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Domain {
    /// Its name.
    pub(crate) domain: String,
    /// The learned delay; 0 is nothing learnt.
    pub(crate) adaptive_delay_seconds: f64,
    /// The shortest delay that was found safe.
    pub(crate) adaptive_delay_floor_seconds: f64,
    /// Whether answers leave the learned delay as it is.
    pub(crate) pinned: bool,
    /// Whether an operator closed it.
    pub(crate) paused: bool,
    /// Until when; null is until resumed, or not paused.
    pub(crate) paused_until: Option<String>,
    /// Until when its server asked to be left alone.
    pub(crate) server_until: Option<String>,
    /// Who decides for it at the moment.
    pub(crate) holder: Option<String>,
    /// Tasks of jobs that wait for it, counted up to 1,000.
    pub(crate) tasks_waiting: u64,
    /// More, if it is held by this service.
    pub(crate) live: Option<LiveDomain>,
}

/// A domain that is held by this service, as it is now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LiveDomain {
    /// The time between starts.
    pub(crate) spacing_ms: u64,
    /// How long until the next request could leave.
    pub(crate) wait_ms: u64,
    /// Permits neither recorded nor expired.
    pub(crate) in_flight: u64,
    /// Callers and tasks in line.
    pub(crate) waiting: u64,
    /// Failures in a row, as the ladder counts them.
    pub(crate) penalties: u32,
    /// Successes in a row.
    pub(crate) success_streak: u32,
    /// Failures in a row, as learning counts them.
    pub(crate) error_streak: u32,
    /// The latest request.
    pub(crate) last_request: Option<String>,
    /// The latest success.
    pub(crate) last_success: Option<String>,
}

/// Domains, in the order of their names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Domains {
    /// Some of them.
    pub(crate) domains: Vec<Domain>,
    /// Ask with `after` set to this for more; null at the end.
    pub(crate) next: Option<String>,
}

/// What to change of a domain. What is left out stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainChange {
    /// The learned delay.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = f64, required = false, minimum = 0, maximum = 86400)]
    pub(crate) adaptive_delay_seconds: Option<f64>,
    /// The shortest delay that is tried.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = f64, required = false, minimum = 0, maximum = 86400)]
    pub(crate) adaptive_delay_floor_seconds: Option<f64>,
    /// Whether answers leave the learned delay as it is.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = bool, required = false)]
    pub(crate) pinned: Option<bool>,
    /// True closes the domain until it is resumed, or until `paused_until`; false opens it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = bool, required = false)]
    pub(crate) paused: Option<bool>,
    /// Until when it is closed.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = DateTime)]
    pub(crate) paused_until: Option<String>,
}

/// Every constraint on the next request to a domain.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explained {
    /// Whose pace it goes by.
    pub(crate) domain: String,
    /// How long until the next request could leave.
    pub(crate) wait_ms: u64,
    /// The binding one first.
    pub(crate) constraints: Vec<Constraint>,
}

/// A constraint on the next request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Constraint {
    /// What it is, in a word.
    pub(crate) limit: &'static str,
    /// Where it comes from.
    pub(crate) origin: &'static str,
    /// Whether it keeps a request from leaving now.
    pub(crate) binds: bool,
    /// Until when it does, or did; null is until an operator resumes the domain.
    pub(crate) until: Option<String>,
    /// How long that is.
    pub(crate) wait_ms: u64,
    /// The same for people.
    pub(crate) text: String,
}

/// A job to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// Its name.
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub(crate) name: String,
    /// What to fetch.
    #[serde(default)]
    #[schema(required = false, max_items = 10000)]
    pub(crate) urls: Vec<JobUrl>,
}

/// URLs to be added to a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTasks {
    /// What to fetch.
    #[schema(min_items = 1, max_items = 10000)]
    pub(crate) urls: Vec<JobUrl>,
}

/// A URL of a job.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(format = "http-url", max_length = 8192)]
pub(crate) struct JobUrl(pub(crate) String);

/// What became of URLs that were added.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Added {
    /// Added.
    pub(crate) new: u64,
    /// The job had them already.
    pub(crate) known: u64,
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Job {
    /// Its name.
    pub(crate) job: String,
    /// `running`, `done`, `failed` or `cancelled`.
    pub(crate) state: &'static str,
    /// Its URLs.
    pub(crate) tasks: u64,
    /// Fetched.
    pub(crate) fetched: u64,
    /// Given up.
    pub(crate) failed: u64,
    /// Not to be fetched.
    pub(crate) skipped: u64,
    /// Not settled yet.
    pub(crate) waiting: u64,
    /// Answers that said "too many requests".
    pub(crate) rate_limited: u64,
    /// Attempts that were followed by another.
    pub(crate) retries: u64,
    /// When it was made.
    pub(crate) created_at: String,
    /// When it ended.
    pub(crate) ended_at: Option<String>,
    /// Why it failed or was cancelled.
    pub(crate) message: Option<String>,
    /// The command that works on it.
    pub(crate) worked_on_by: String,
    /// Its latest failed and skipped URLs, when one job is shown.
    pub(crate) troubles: Vec<Trouble>,
}

/// A URL that was not fetched.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Trouble {
    /// Which, without user, password and query.
    pub(crate) url: String,
    /// `failed` or `skipped`.
    pub(crate) state: String,
    /// The status of the last answer.
    pub(crate) status: Option<u16>,
    /// Why.
    pub(crate) error: Option<String>,
}

/// Jobs, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Jobs {
    /// Some of them.
    pub(crate) jobs: Vec<Job>,
}

/// A source that is followed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Source {
    /// Its number.
    pub(crate) id: i64,
    /// Its name.
    pub(crate) name: String,
    /// `feed`, `page`, `sitemap` or `urls`.
    pub(crate) kind: &'static str,
    /// Where it is, without user, password and query.
    pub(crate) url: String,
    /// Whether it is asked.
    pub(crate) enabled: bool,
    /// Whether its items are scraped.
    pub(crate) scraping_enabled: bool,
    /// Least seconds between two scrapes; null is the global setting.
    pub(crate) min_scrape_interval: Option<f64>,
    /// How often it is asked, in minutes; null is each run.
    pub(crate) every_minutes: Option<f64>,
    /// When it was last read.
    pub(crate) last_fetch_at: Option<String>,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// Not asked again before.
    pub(crate) retry_at: Option<String>,
}

/// Sources, in the order they were added.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Sources {
    /// Some of them.
    pub(crate) sources: Vec<Source>,
    /// Ask with `after` set to this for more; null at the end.
    pub(crate) next: Option<i64>,
}

/// Whether the service lives, or is ready.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`, or what is wrong.
    pub(crate) status: String,
}

/// Why a request was refused (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Which kind of problem it is.
    pub(crate) r#type: String,
    /// The kind in a few words.
    pub(crate) title: &'static str,
    /// The status of the answer.
    pub(crate) status: u16,
    /// What is wrong with this request.
    pub(crate) detail: String,
    /// The field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// What it held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// What is allowed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allowed: Option<String>,
}

/// An object, and not the list of its values that serde takes for one too.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(fields)).map(Object)
            }
        }

        from.deserialize_map(Fields(std::marker::PhantomData))
    }
}

/// A field that may be left out, but is not null when it is there.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A whole number that may be left out. `120.0` is one, as JSON has it.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let number = serde_json::Number::deserialize(from)?;
    let float =
        || number.as_f64().filter(|float| (0.0..2_f64.powi(63)).contains(float) && float.fract() == 0.0);
    let whole = number.as_u64().or_else(|| float().map(|float| float as u64));
    let whole = whole.filter(|whole| i64::try_from(*whole).is_ok());
    whole
        .map(Some)
        .ok_or_else(|| D::Error::custom(format!("a number, expected a whole number from 0 to {}", i64::MAX)))
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

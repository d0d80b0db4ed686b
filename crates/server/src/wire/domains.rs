//! Domains, which the API's texts call sites: what is known about them, changes to them, and what delays their next
//! request.

use comity::client::KnownRobots;
use comity::core::decision::Reason;
use comity::core::domain;
use comity::core::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{present, time_text};

/// What is known about a site.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Domain)]
pub(crate) struct DomainResponse {
    /// The name of the site: a host, or a group of hosts.
    pub(crate) domain: String,
    /// The learned delay in seconds; 0 if nothing was learned.
    pub(crate) adaptive_delay_seconds: f64,
    /// The lowest learned delay known to be safe, in seconds.
    pub(crate) adaptive_delay_floor_seconds: f64,
    /// Whether the learned delay is pinned, so that responses don't change it.
    pub(crate) pinned: bool,
    /// Whether an operator paused the site.
    pub(crate) paused: bool,
    /// When the pause ends; null if the site is not paused, or paused until it is resumed.
    pub(crate) paused_until: Option<String>,
    /// Until when the server asked not to be sent requests; null if it didn't.
    pub(crate) server_until: Option<String>,
    /// The process in charge of this site; null if there is none.
    pub(crate) holder: Option<String>,
    /// URLs of jobs that wait for this site, counted up to 1,000.
    pub(crate) tasks_waiting: u64,
    /// The current pace, as last published by the holder or left by the previous one; null if the holder did not
    /// publish it.
    pub(crate) live: Option<LiveDomain>,
    /// The time of `live`; null if that is null.
    pub(crate) as_of: Option<String>,
}

/// The current pace of a site.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LiveDomain {
    /// The minimum time between two requests, in milliseconds.
    pub(crate) spacing_ms: u64,
    /// How long until the next request may be sent, in milliseconds.
    pub(crate) wait_ms: u64,
    /// When the next request may be sent; null if the site is paused until it is resumed.
    pub(crate) next_available: Option<String>,
    /// Permits that are neither recorded nor expired.
    pub(crate) in_flight: u64,
    /// Callers and URLs of jobs waiting in line.
    pub(crate) waiting: u64,
    /// Consecutive failures, as counted for backoff.
    pub(crate) penalties: u32,
    /// Consecutive successes.
    pub(crate) success_streak: u32,
    /// How many responses in a row were rate limited (429), as counted for learning.
    pub(crate) error_streak: u32,
    /// When the latest request was sent.
    pub(crate) last_request: Option<String>,
    /// When the latest response came that was not a failure.
    pub(crate) last_success: Option<String>,
}

/// A page of sites, sorted by name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Domains)]
pub(crate) struct DomainListResponse {
    /// The sites of this page.
    pub(crate) domains: Vec<DomainResponse>,
    /// Pass this as `after` to get the next page; null on the last page.
    pub(crate) next: Option<String>,
}

/// Changes to a site. Fields that are left out stay as they are.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainChange {
    /// The learned delay, in seconds.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = f64, required = false, minimum = 0, maximum = 86400)]
    pub(crate) adaptive_delay_seconds: Option<f64>,
    /// The lowest learned delay to try, in seconds.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = f64, required = false, minimum = 0, maximum = 86400)]
    pub(crate) adaptive_delay_floor_seconds: Option<f64>,
    /// Whether to pin the learned delay, so that responses don't change it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = bool, required = false)]
    pub(crate) pinned: Option<bool>,
    /// True pauses the site until it is resumed, or until `paused_until`. False resumes it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = bool, required = false)]
    pub(crate) paused: Option<bool>,
    /// Pauses the site until this time (RFC 3339).
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = DateTime)]
    pub(crate) paused_until: Option<String>,
}

/// Everything that delays, or could delay, the next request to a site.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explained)]
pub struct ExplainResponse {
    /// The site whose pace applies: a host, or a group of hosts.
    pub(crate) domain: String,
    /// How long until the next request may be sent, in milliseconds.
    pub(crate) wait_ms: u64,
    /// All constraints; the one that decides comes first.
    pub(crate) constraints: Vec<ExplainedConstraint>,
    /// When this was known; null if another process is in charge of the site and did not publish it.
    pub(crate) as_of: Option<String>,
    /// What the site's robots.txt says about the URL, as far as the file is known already; null if it isn't, or if no
    /// URL was given. Decisions are about when a request may be sent and don't include this.
    pub(crate) robots: Option<ExplainedRobots>,
}

/// What a robots.txt says about a URL.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RobotsVerdict)]
pub(crate) struct ExplainedRobots {
    /// Whether the URL may be fetched.
    pub(crate) allowed: bool,
    /// When the file was fetched.
    pub(crate) fetched_at: Option<String>,
}

/// One constraint on the next request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Constraint)]
pub(crate) struct ExplainedConstraint {
    /// The constraint, in one word such as `min_delay` or `retry_after`.
    pub(crate) limit: &'static str,
    /// Where it comes from: `server`, `robots`, `rule`, `learned`, `operator`, `line` or `service`.
    pub(crate) origin: &'static str,
    /// Whether it delays a request now.
    pub(crate) binds: bool,
    /// When it ends, or ended; null if the site is paused until it is resumed.
    pub(crate) until: Option<String>,
    /// How long that is from now, in milliseconds.
    pub(crate) wait_ms: u64,
    /// The constraint as a sentence for people.
    pub(crate) text: String,
}

impl ExplainResponse {
    /// Every constraint on the next request to `domain`, as listed by [`comity::gate::Gate::explain`], and when that
    /// was known.
    pub fn of(domain: &domain::Domain, reasons: &[Reason], as_of: Option<Timestamp>) -> Self {
        let wait_ms = reasons.iter().map(Reason::wait_ms).max().unwrap_or(0);
        let constraints = reasons.iter().map(ExplainedConstraint::of).collect();
        Self { domain: domain.to_string(), wait_ms, constraints, as_of: time_text(as_of), robots: None }
    }

    /// Adds what robots.txt says about the URL.
    pub fn with_robots(self, robots: Option<KnownRobots>) -> Self {
        let explained = |robots: KnownRobots| ExplainedRobots {
            allowed: robots.allowed,
            fetched_at: time_text(Some(robots.fetched_at)),
        };
        Self { robots: robots.map(explained), ..self }
    }
}

impl ExplainedConstraint {
    fn of(reason: &Reason) -> Self {
        Self {
            limit: reason.limit.as_str(),
            origin: reason.origin().as_str(),
            binds: reason.binds(),
            until: time_text(Some(reason.until)),
            wait_ms: reason.wait_ms(),
            text: reason.to_string(),
        }
    }
}

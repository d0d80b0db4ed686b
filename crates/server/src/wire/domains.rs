//! What is known of domains, and what keeps them.

use comity::core::decision::Reason;
use comity::core::domain;
use comity::core::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{moment, present};

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
    /// More, as whoever decides for it published it, or as it was left; null when its holder did not show it.
    pub(crate) live: Option<LiveDomain>,
    /// When that was so; null when its holder did not show it.
    pub(crate) as_of: Option<String>,
}

/// A domain, as whoever decides for it published it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LiveDomain {
    /// The time between starts.
    pub(crate) spacing_ms: u64,
    /// How long until the next request could leave.
    pub(crate) wait_ms: u64,
    /// When the next request could leave; null is until an operator resumes the domain.
    pub(crate) next_available: Option<String>,
    /// Permits neither recorded nor expired.
    pub(crate) in_flight: u64,
    /// Callers and tasks in line.
    pub(crate) waiting: u64,
    /// Failures in a row, as the ladder counts them.
    pub(crate) penalties: u32,
    /// Successes in a row.
    pub(crate) success_streak: u32,
    /// Answers "too many requests" in a row, as learning counts them.
    pub(crate) error_streak: u32,
    /// The latest request.
    pub(crate) last_request: Option<String>,
    /// The latest answer that was no failure.
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
pub struct Explained {
    /// Whose pace it goes by.
    pub(crate) domain: String,
    /// How long until the next request could leave.
    pub(crate) wait_ms: u64,
    /// The binding one first.
    pub(crate) constraints: Vec<Constraint>,
    /// When that was known; null when another process decides for the domain and did not show it.
    pub(crate) as_of: Option<String>,
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

impl Explained {
    /// Every constraint on the next request to `domain`, as [`comity::gate::Gate::explain`] lists them, and when that
    /// was known.
    pub fn of(domain: &domain::Domain, reasons: &[Reason], as_of: Option<Timestamp>) -> Self {
        let wait_ms = reasons.iter().map(Reason::wait_ms).max().unwrap_or(0);
        let constraints = reasons.iter().map(Constraint::of).collect();
        Self { domain: domain.to_string(), wait_ms, constraints, as_of: moment(as_of) }
    }
}

impl Constraint {
    fn of(reason: &Reason) -> Self {
        Self {
            limit: reason.limit.as_str(),
            origin: reason.origin().as_str(),
            binds: reason.binds(),
            until: moment(Some(reason.until)),
            wait_ms: reason.wait_ms(),
            text: reason.to_string(),
        }
    }
}

//! Leases of permits: renewing one, and releasing all permits of a domain.

use comity::core::domain::Domain;
use comity::core::time::Span;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::whole;

/// Extends the lease of a permit.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = Renew)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewRequest {
    /// The permit from the decision.
    #[schema(format = "permit", max_length = 1000)]
    pub(crate) permit: String,
    /// The new length of the lease, counted from now, in milliseconds.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 600000, default = 60000)]
    pub(crate) lease_ms: Option<u64>,
}

/// Whether the lease was extended.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Renewed)]
pub(crate) struct RenewResponse {
    /// The site whose pace applies: a host, or a group of hosts.
    pub(crate) domain: String,
    /// False if the permit was already recorded or released, or its lease had ended. Another request may be in flight
    /// in its place then.
    pub(crate) renewed: bool,
    /// How long the permit counts as in flight from now on, in milliseconds; 0 if it was not renewed.
    pub(crate) lease_ms: u64,
}

/// How many permits were released.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Released)]
pub struct ReleaseResponse {
    /// The site they belonged to.
    pub(crate) domain: String,
    /// The number of permits released.
    pub(crate) released: u64,
    /// How long until the next request may be sent, in milliseconds.
    pub(crate) wait_ms: u64,
}

impl ReleaseResponse {
    /// The response after `released` permits of `domain` were released. `wait` is the time until the next request may
    /// be sent.
    pub fn of(domain: &Domain, released: usize, wait: Span) -> Self {
        Self { domain: domain.to_string(), released: released as u64, wait_ms: wait.as_millis_up() }
    }
}

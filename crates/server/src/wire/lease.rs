//! How long permits keep their place.

use comity::core::domain::Domain;
use comity::core::time::Span;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::whole;

/// Which permit shall keep its place for longer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renew {
    /// The permit that the decision came with.
    #[schema(format = "permit", max_length = 1000)]
    pub(crate) permit: String,
    /// How long from now on, in milliseconds.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 600000, default = 60000)]
    pub(crate) lease_ms: Option<u64>,
}

/// Whether a permit keeps its place.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Renewed {
    /// Whose pace it belongs to.
    pub(crate) domain: String,
    /// False when it was recorded or released, or its lease had ended: then its place may be another's.
    pub(crate) renewed: bool,
    /// How long it keeps its place from now on; 0 when it does not.
    pub(crate) lease_ms: u64,
}

/// Permits that an operator released.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Released {
    /// Whose they were.
    pub(crate) domain: String,
    /// How many there were.
    pub(crate) released: u64,
    /// How long until the next request could leave.
    pub(crate) wait_ms: u64,
}

impl Released {
    /// So many permits of `domain` were released; `wait` is how long until the next request could leave.
    pub fn of(domain: &Domain, released: usize, wait: Span) -> Self {
        Self { domain: domain.to_string(), released: released as u64, wait_ms: wait.as_millis_up() }
    }
}

//! Sources.

use serde::Serialize;
use utoipa::ToSchema;

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

//! Sources, read-only.

use serde::Serialize;
use utoipa::ToSchema;

/// A source: a feed, sitemap, page or URL list that is fetched regularly.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Source)]
pub(crate) struct SourceResponse {
    /// The source's id.
    pub(crate) id: i64,
    /// The source's name.
    pub(crate) name: String,
    /// `feed`, `page`, `sitemap` or `urls`.
    pub(crate) kind: &'static str,
    /// The source's URL, without user name, password and query.
    pub(crate) url: String,
    /// Whether the source is fetched.
    pub(crate) enabled: bool,
    /// Whether its items are scraped.
    pub(crate) scraping_enabled: bool,
    /// The minimum time between two scrapes, in seconds; null if the global setting applies.
    pub(crate) min_scrape_interval: Option<f64>,
    /// How often the source is fetched, in minutes; null if it is fetched in every run.
    pub(crate) every_minutes: Option<f64>,
    /// When the source was last fetched.
    pub(crate) last_fetch_at: Option<String>,
    /// Consecutive failures.
    pub(crate) failures: u32,
    /// The source is not fetched again before this time; null if there is no such time.
    pub(crate) retry_at: Option<String>,
}

/// A page of sources, in the order they were added.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sources)]
pub(crate) struct SourceListResponse {
    /// The sources of this page.
    pub(crate) sources: Vec<SourceResponse>,
    /// Pass this as `after` to get the next page; null on the last page.
    pub(crate) next: Option<i64>,
}

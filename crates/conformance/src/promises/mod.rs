//! The promises, one function each, by area.

pub(crate) mod asking;
pub(crate) mod claiming;
pub(crate) mod counts;
pub(crate) mod crowds;
pub(crate) mod fetches;
pub(crate) mod filling;
pub(crate) mod forgetting;
pub(crate) mod holders;
pub(crate) mod holding;
pub(crate) mod items;
pub(crate) mod jobs;
pub(crate) mod lending;
pub(crate) mod overlap_domains;
pub(crate) mod overlap_sources;
pub(crate) mod overlap_tasks;
pub(crate) mod robots;
pub(crate) mod scraped;
pub(crate) mod scraping;
pub(crate) mod secrets;
pub(crate) mod settling;
pub(crate) mod sources;
pub(crate) mod status;
pub(crate) mod stored;
pub(crate) mod time;
pub(crate) mod wiki;

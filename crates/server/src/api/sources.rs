//! Sources, read-only.

use axum::extract::State;
use comity::core::cadence::{Cadence, last_fetch_at};
use comity::core::interval::SourceInterval;
use comity::event::redacted_url;
use comity::store::sources::{Source, SourceId};
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use super::domains::limit;
use super::{Path, Query};
use crate::body::Json;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire::{self, time_text};

/// Which sources to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// List only sources with a higher id: the `next` of the previous page.
    #[param(required = false, nullable = false, value_type = i64, minimum = 0)]
    after: Option<i64>,
    /// The maximum number of sources per page.
    #[param(required = false, nullable = false, value_type = u32, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// List sources, in the order they were added.
#[utoipa::path(get, path = "/v1/sources", operation_id = "list_sources", tag = "sources", params(ListParams), responses((status = 200, description = "A page of sources", body = wire::SourceListResponse)))]
pub(crate) async fn list(
    State(service): State<Service>,
    Query(params): Query<ListParams>,
) -> Result<Json<wire::SourceListResponse>, Problem> {
    let limit = limit(params.limit)? as usize;
    let after = params.after.unwrap_or(0);
    if after < 0 {
        return Err(Problem::field("after", &after.to_string(), "the id of a source"));
    }
    let mut sources = service.state()?.store.list_sources().await?;
    sources.retain(|source| source.id.0 > after);
    let next = sources.get(limit).and_then(|_| sources.get(limit - 1)).map(|source| source.id.0);
    Ok(Json(wire::SourceListResponse { sources: sources.iter().take(limit).map(describe).collect(), next }))
}

/// Show a source.
#[utoipa::path(get, path = "/v1/sources/{id}", operation_id = "show_source", tag = "sources", params(("id" = i64, Path, description = "The source's id", minimum = 1)),
    responses((status = 200, description = "The source", body = wire::SourceResponse)))]
pub(crate) async fn show(
    State(service): State<Service>,
    Path(id): Path<i64>,
) -> Result<Json<wire::SourceResponse>, Problem> {
    let source = service.state()?.store.find_source(SourceId(id)).await?;
    let source = source.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no source {id}")))?;
    Ok(Json(describe(&source)))
}

fn describe(source: &Source) -> wire::SourceResponse {
    let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let cadence = Cadence::of_config(&object(&source.config_json)).ok().flatten();
    let last = last_fetch_at(&object(&source.cursor_json)).ok().flatten();
    wire::SourceResponse {
        id: source.id.0,
        name: source.name.clone(),
        kind: source.kind.as_str(),
        url: Url::parse(&source.url).map_or_else(|_| String::new(), |url| redacted_url(&url)),
        enabled: source.enabled,
        scraping_enabled: source.scraping,
        min_scrape_interval: match source.interval {
            SourceInterval::Default => None,
            SourceInterval::Off => Some(0.0),
            SourceInterval::Every(span) => Some(span.as_secs_f64()),
        },
        every_minutes: cadence.map(|cadence| cadence.every().as_secs_f64() / 60.0),
        last_fetch_at: time_text(last),
        failures: source.failures,
        retry_at: time_text(source.retry_at),
    }
}

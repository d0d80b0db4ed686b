//! Whether it lives, whether it is ready, what it counts, and what can be asked of it.

use std::sync::LazyLock;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;

use crate::body::Json;
use crate::metrics::Reading;
use crate::openapi::openapi;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire;

/// The service lives.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, body = wire::Health)))]
pub(crate) async fn healthz() -> Json<wire::Health> {
    Json(wire::Health { status: "ok".to_owned() })
}

/// The service is ready: it takes requests, and its store works.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200, body = wire::Health)))]
pub(crate) async fn readyz(State(service): State<Service>) -> Result<Json<wire::Health>, Problem> {
    if service.is_stopping() {
        return Err(Problem::new(Kind::Stopping, "the service stops"));
    }
    let live = service.live()?;
    if !live.gate.is_open() {
        return Err(Problem::new(Kind::Store, "nobody is let go at the moment"));
    }
    match tokio::time::timeout(PATIENCE, live.store.version()).await {
        Ok(Ok(_)) => Ok(Json(wire::Health { status: "ok".to_owned() })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Problem::new(Kind::Store, "the store does not answer")),
    }
}

/// Metrics, as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(State(service): State<Service>) -> Response {
    let live = service.live().ok().filter(|live| live.gate.is_open());
    let slowest = live.as_ref().map_or(0, |live| live.config.serve.metrics_domains as usize);
    let survey = match &live {
        Some(live) => tokio::time::timeout(PATIENCE, live.gate.survey_all(slowest)).await.ok(),
        None => None,
    };
    let (mut jobs, mut counts) = (None, None);
    if let Some(live) = &live {
        let asked = async { (live.store.list_jobs().await, live.store.counts().await) };
        if let Ok((Ok(listed), Ok(read))) = tokio::time::timeout(PATIENCE, asked).await {
            (jobs, counts) = (Some(listed), Some(read));
        }
    }
    let reading = Reading { counted: service.metrics().counted(counts.as_deref()), survey, jobs };
    let text = service.metrics().render(&reading);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// What can be asked, as OpenAPI describes it.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "health", security(()), responses((status = 200, content_type = "application/json", body = Object)))]
pub(crate) async fn description() -> Response {
    static DESCRIBED: LazyLock<Bytes> = LazyLock::new(|| openapi().to_string().into());
    ([(CONTENT_TYPE, "application/json")], DESCRIBED.clone()).into_response()
}

const PATIENCE: Duration = Duration::from_secs(2);

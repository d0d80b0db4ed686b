//! Health and readiness checks, metrics, and the API description.

use std::sync::LazyLock;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;

use crate::body::Json;
use crate::metrics::Snapshot;
use crate::openapi::openapi;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire;

/// Check whether the service is alive.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, description = "The service is alive", body = wire::HealthResponse)))]
pub(crate) async fn healthz() -> Json<wire::HealthResponse> {
    Json(wire::HealthResponse { status: "ok".to_owned() })
}

/// Check whether the service is ready: it accepts requests, and its store is available.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200, description = "The service is ready", body = wire::HealthResponse)))]
pub(crate) async fn readyz(State(service): State<Service>) -> Result<Json<wire::HealthResponse>, Problem> {
    if service.is_stopping() {
        return Err(Problem::new(Kind::Stopping, "the service is shutting down"));
    }
    let state = service.state()?;
    if !state.gate.is_open() {
        return Err(Problem::new(Kind::Store, "no request may be sent at the moment"));
    }
    match tokio::time::timeout(STORE_TIMEOUT, state.store.version()).await {
        Ok(Ok(_)) => Ok(Json(wire::HealthResponse { status: "ok".to_owned() })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Problem::new(Kind::Store, "the store did not answer in time")),
    }
}

/// Get metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Metrics in the Prometheus text format", content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(State(service): State<Service>) -> Response {
    let state = service.state().ok().filter(|state| state.gate.is_open());
    let slowest = state.as_ref().map_or(0, |state| state.config.serve.metrics_domains as usize);
    let overview = match &state {
        Some(state) => tokio::time::timeout(STORE_TIMEOUT, state.gate.overview_all(slowest)).await.ok(),
        None => None,
    };
    let (mut jobs, mut counts) = (None, None);
    if let Some(state) = &state {
        let reading = async { (state.store.list_jobs().await, state.store.counts().await) };
        if let Ok((Ok(listed), Ok(read))) = tokio::time::timeout(STORE_TIMEOUT, reading).await {
            (jobs, counts) = (Some(listed), Some(read));
        }
    }
    let snapshot = Snapshot { counters: service.metrics().counters(counts.as_deref()), overview, jobs };
    let text = service.metrics().render(&snapshot);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Get this API description (OpenAPI).
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "health", security(()), responses((status = 200, description = "The API description", content_type = "application/json", body = Object)))]
pub(crate) async fn description() -> Response {
    static DESCRIPTION: LazyLock<Bytes> = LazyLock::new(|| openapi().to_string().into());
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION.clone()).into_response()
}

/// How long to wait for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

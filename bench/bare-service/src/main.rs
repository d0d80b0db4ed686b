//! The baseline of W13: an axum service that reads and writes the JSON of `comity serve` and decides nothing. It has no
//! pace, no store, no permits to check, no metrics and no limits. The cost of Comity is measured against it.
//!
//! Usage: `bench-bare-service`. It listens on a free loopback port and prints it.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

// The same runtime as Comity's.
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let router = Router::new().route("/v1/check", post(check)).route("/v1/record", post(record));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    let without_delay = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(without_delay, router).await?;
    Ok(())
}

async fn check(body: Bytes) -> Response {
    let Ok(Ask { domain }) = serde_json::from_slice(&body) else { return refused() };
    answer(&Decision {
        proceed: true,
        wait_ms: 0,
        reason: "nothing delays this request".to_owned(),
        permit: Some(PERMIT.to_owned()),
        domain,
        limit: None,
        origin: None,
        refused: false,
        waited_ms: 0,
    })
}

async fn record(body: Bytes) -> Response {
    let Ok(Record { permit, status }) = serde_json::from_slice(&body) else { return refused() };
    answer(&Recorded {
        domain: "site-000000.example".to_owned(),
        outcome: if status < 400 { "success" } else { "answered" },
        standing: if permit == PERMIT { "fresh" } else { "repeated" },
        held_until: None,
        adaptive_delay_seconds: None,
        wait_ms: 0,
    })
}

fn answer(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn refused() -> Response {
    StatusCode::UNPROCESSABLE_ENTITY.into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    domain: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    permit: String,
    status: u16,
}

#[derive(Serialize)]
struct Decision {
    proceed: bool,
    wait_ms: u64,
    reason: String,
    permit: Option<String>,
    domain: String,
    limit: Option<&'static str>,
    origin: Option<&'static str>,
    refused: bool,
    waited_ms: u64,
}

#[derive(Serialize)]
struct Recorded {
    domain: String,
    outcome: &'static str,
    standing: &'static str,
    held_until: Option<String>,
    adaptive_delay_seconds: Option<f64>,
    wait_ms: u64,
}

/// As long as one of Comity's permits.
const PERMIT: &str = "p1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

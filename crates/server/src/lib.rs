//! The decision service: programs in any language ask it before they fetch, and report the outcome.
//!
//! It uses the same engine, store, gate and rules as every other command. This crate only speaks HTTP: it makes no
//! decisions of its own and fetches nothing.
//!
//! Modules in reading order:
//!
//! - `wire`: the JSON objects of the API
//! - `problem`, `body`: error responses (RFC 9457); reading JSON with clear errors
//! - `auth`: tokens, roles, and protection against web pages
//! - `audit`: the record of what people change
//! - `permit`: permits as signed text
//! - `idempotency`: idempotency keys
//! - `state`: what requests are served with, a gate on a store
//! - `supervisor`: replaces that state on a reload, and restarts it when its gate fails
//! - `metrics`, `sse`: Prometheus metrics; engine events as server-sent events
//! - `api`: the handlers, one file per kind of resource
//! - `dashboard`: the web pages
//! - `openapi`: the API description
//! - `slow_readers`, `listen`: a timeout for clients that don't read; sockets and their limits
//! - `service`: start, reload and stop

mod api;
mod audit;
mod auth;
mod body;
mod dashboard;
mod idempotency;
mod listen;
mod metrics;
mod openapi;
mod permit;
mod problem;
mod service;
mod slow_readers;
mod sse;
mod state;
mod supervisor;
mod wire;

pub use auth::{TokensError, make_token};
pub use openapi::openapi;
pub use permit::{PERMIT_PREFIX, PermitClaims, PermitSigner, looks_like_permit};
pub use service::{Insecure, Running, ServeError, Service};
pub use wire::{DecisionResponse, ExplainResponse, RecordResponse, ReleaseResponse};

//! The decision service: any program, in any language, asks before it fetches and tells what happened.
//!
//! The same engine, store, gate and rules as every other command; this crate only speaks HTTP. It decides nothing and
//! fetches nothing.
//!
//! Modules in reading order: `wire` (the only types that become JSON), `problem` (how a request is refused), `body`
//! (reading JSON), `auth` (who asks), `permit` (the right to send, as text), `again` (idempotency keys), `live` (a gate on
//! a store), `current` (the one in force; its store may go away and come back), `metrics`, `happenings` (events, for whoever listens), `api` (one file for
//! each kind of thing), `openapi`, `patient`, `listen` (sockets and their limits), `service` (all of it together).

mod again;
mod api;
mod auth;
mod body;
mod current;
mod happenings;
mod listen;
mod live;
mod metrics;
mod openapi;
mod patient;
mod permit;
mod problem;
mod service;
mod wire;

pub use auth::{TokensError, make_token};
pub use openapi::openapi;
pub use permit::{Mint, Permit, is_permit};
pub use service::{Insecure, Running, ServeError, Service};
pub use wire::{Decision, Explained, Recorded, Released};

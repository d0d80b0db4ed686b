//! The decision service as its clients see it: over HTTP, on loopback, in virtual time.
//!
//! - `server`: starts a service for each test, and sends requests to it
//! - `script`: plays a one-line script of calls, and returns the answers as one line
//! - the others: one module per subject

mod script;
mod server;

mod acquire;
mod auth;
mod batch;
mod check;
mod dashboard;
mod domains;
mod domains_max;
mod events;
mod health;
mod idempotency;
mod input;
mod jobs;
mod lease;
mod record;
mod reload;
mod restart;
mod secrets;
mod shared_store;
mod shutdown;
mod sources;
mod store_unavailable;

//! The decision service as programs meet it: over HTTP, on loopback, in virtual time.
//!
//! - `served`: a service of its own for each test, and what is asked of it
//! - `script`: what is asked when, in a line; what was answered, in another
//! - the rest: one module a subject

mod script;
mod served;

mod acquire;
mod again;
mod auth;
mod away;
mod batch;
mod check;
mod domains;
mod events;
mod health;
mod input;
mod jobs;
mod lease;
mod record;
mod reload;
mod restart;
mod room;
mod secrets;
mod shared;
mod sources;
mod stop;

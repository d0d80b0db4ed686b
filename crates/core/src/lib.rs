//! The pacing core of Comity, without I/O.
//!
//! Time goes in, a decision comes out. Nothing here reads a clock, opens a socket, sleeps, draws a random number or
//! touches a disk; every method that depends on time takes `now`. Nothing panics, whatever the input.
//!
//! ```
//! use comity_core::decision::Decision;
//! use comity_core::intent::Intent;
//! use comity_core::outcome::Outcome;
//! use comity_core::pace::{Pace, Terms};
//! use comity_core::rule::Rule;
//! use comity_core::time::{Span, Timestamp};
//!
//! let rule = Rule::default(); // one request per second, one at a time
//! let terms = Terms::from(&rule);
//! let mut pace = Pace::default();
//! let now = Timestamp::from_secs(0);
//!
//! let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, now) else { panic!("the first never waits") };
//! pace.record(terms, &permit, &Outcome::Success.into(), now + Span::from_millis(200));
//!
//! let now = now + Span::from_millis(520);
//! let decision = pace.admit(terms, Intent::Fetch, now);
//! assert_eq!(decision.wait_ms(now), 480);
//! assert_eq!(decision.reason().unwrap().to_string(), "minimum delay 1000 ms: last request 520 ms ago");
//! ```
//!
//! Modules in reading order: [`time`], [`timeline`], [`problem`], [`intent`], [`domain`], [`job_name`]; [`headers`], [`outcome`];
//! [`backoff`], [`rule`]; [`decision`], [`learn`], [`pace`], [`paces`]; [`mod@line`], [`dispatch`]; [`task`],
//! [`retry`], [`guard`]; [`interval`], [`enqueue`], [`cadence`].

// Basic types.
pub mod domain;
pub mod intent;
pub mod job_name;
pub mod problem;
pub mod time;
pub mod timeline;

// Response headers and outcomes.
pub mod headers;
pub mod outcome;

// Configured limits.
pub mod backoff;
pub mod rule;

// State per domain, and the decisions made from it.
pub mod decision;
pub mod learn;
pub mod pace;
pub mod paces;
mod window;

// Queues: who waits for a domain, and who goes next.
mod capacity;
pub mod dispatch;
pub mod line;
mod waiters;

// Tasks and jobs: states, retries, guards.
pub mod guard;
pub mod retry;
pub mod task;

// Sources: when they are fetched and scraped.
pub mod cadence;
pub mod enqueue;
pub mod interval;

//! Polite fetching: decides when the next request to a site may leave, for everything that fetches in this process and
//! in other processes on the same store.
//!
//! - [`limiter::RateLimiter`]: one pace; call `wait` before each request.
//! - [`gate::Gate`]: one line per domain, rules, learning: `acquire`, send, `record`.
//! - [`client::Client`]: an HTTP client that does this automatically, including redirects and robots.txt.
//! - [`layer::PoliteLayer`]: makes your existing client polite: a tower layer and a reqwest middleware.
//! - [`jobs`]: lists of URLs that are fetched to the end, across restarts and together with other processes.
//! - [`pipeline`]: sources to follow, and the pages they link to.
//! - [`wiki`]: archives MediaWiki wikis politely, with their complete history.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use comity::client::Client;
//!
//! let client = Client::new()?; // one request per second per site, robots.txt obeyed
//! let page = client.get("https://example.org/").await?;
//! println!("{} {} bytes", page.status, page.body.len());
//! # Ok(())
//! # }
//! ```
//!
//! Modules in reading order: [`clock`], [`event`], [`redact`]; [`gate`], [`limiter`], [`status`]; [`descriptors`],
//! [`request`], [`transport`], [`address`],
//! [`robots`], [`client`], [`layer`]; [`results`], [`archive`], [`jobs`]; [`connectors`], [`exchange`], [`pipeline`]; [`wiki`]; [`config`].

// Time and events.
pub mod clock;
pub mod event;
pub mod redact;

// Deciding who may send.
pub mod gate;
pub mod limiter;
pub mod status;

// Sending requests.
pub mod address;
mod attempt;
pub mod client;
pub mod descriptors;
pub mod layer;
pub mod request;
pub mod robots;
pub mod transport;

// Jobs: lists of URLs.
pub mod archive;
pub mod jobs;
pub mod results;

// Sources.
pub mod connectors;
pub mod exchange;
pub mod pipeline;

// Wikis.
pub mod wiki;

// Configuration.
pub mod config;
pub mod retention;

/// Locks a mutex, even if its last holder panicked: no lock here is ever released with its data half changed.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub use comity_core as core;
pub use comity_store as store;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the examples of docs/layers.md as tests.
#[cfg(all(doctest, feature = "reqwest"))]
#[doc = include_str!("../../../docs/layers.md")]
struct Layers;

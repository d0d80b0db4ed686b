//! Polite fetching: when the next request to a site may leave, for whatever fetches in this process and beside it.
//!
//! - [`limiter::RateLimiter`]: one pace, waited for before each request.
//! - [`gate::Gate`]: a line for each domain, rules, learning; `acquire`, send, `record`.
//! - [`client::Client`]: an HTTP client that does that by itself, redirects and robots.txt included.
//! - [`layer::PoliteLayer`]: makes a client that you have polite: a tower layer, and a reqwest-middleware.
//! - [`jobs`]: lists of URLs that are fetched to their end, over restarts and beside other processes.
//! - [`pipeline`]: sources that are followed, and the pages they lead to.
//! - [`wiki`]: MediaWiki wikis, asked politely and archived with their whole history.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use comity::client::Client;
//!
//! let client = Client::new()?; // one request a second and site, robots.txt obeyed
//! let page = client.get("https://example.org/").await?;
//! println!("{} {} bytes", page.status, page.body.len());
//! # Ok(())
//! # }
//! ```
//!
//! Modules in reading order: [`clock`], [`event`], [`shown`]; [`gate`], [`limiter`], [`status`]; [`descriptors`], [`request`], [`transport`], [`address`],
//! [`robots`], [`client`], [`layer`]; [`results`], [`archive`], [`jobs`]; [`connectors`], [`exchange`], [`pipeline`]; [`wiki`]; [`config`].

// Time and what happens,
pub mod clock;
pub mod event;
pub mod shown;

// who may send,
pub mod gate;
pub mod limiter;
pub mod status;

// how it is sent,
pub mod address;
mod attempt;
pub mod client;
pub mod descriptors;
pub mod layer;
pub mod request;
pub mod robots;
pub mod transport;

// what becomes of a list of URLs,
pub mod archive;
pub mod jobs;
pub mod results;

// what becomes of sources that are followed,
pub mod connectors;
pub mod exchange;
pub mod pipeline;

// of wikis,
pub mod wiki;

// and what all of it goes by.
pub mod config;
pub mod retention;

/// A lock whose last holder panicked protects what is still as it should be: nothing is left half changed under one.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub use comity_core as core;
pub use comity_store as store;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And so are those of its pages.
#[cfg(all(doctest, feature = "reqwest"))]
#[doc = include_str!("../../../docs/layers.md")]
struct Layers;

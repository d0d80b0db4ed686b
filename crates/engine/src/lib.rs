//! Polite fetching: decides when the next request to a site may leave, for everything that fetches in this process and
//! in other processes on the same store.
//!
//! - [`limiter::RateLimiter`]: one pace; call `wait` before each request.
//! - [`gate::Gate`]: one line per domain, rules, learning: `acquire`, send, `record`.
//! - [`client::Client`]: an HTTP client that does this automatically, including redirects and robots.txt.
//! - [`layer::PoliteLayer`]: makes your existing client polite: a tower layer and a reqwest middleware.
//! - [`jobs`]: lists of URLs that are fetched to the end, across restarts and together with other processes.
//! - [`pipeline`]: sources to follow, and the pages they link to.
//! - [`proxy`]: a forward proxy that paces whatever goes through it.
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
//! # Features
//! `client` and `sqlite` are on by default. Without them, the crate is a [limiter](limiter::RateLimiter), a
//! [gate](gate::Gate) that keeps its state in memory, and [layers](layer::PoliteLayer), with a quarter of the
//! dependencies. `reqwest` adds the reqwest middleware.
//!
//! Modules in reading order: [`clock`], [`event`], [`redact`]; [`gate`], [`limiter`], [`retention`], [`status`]; [`layer`]; [`descriptors`], [`request`],
//! [`transport`], [`address`], [`robots`], [`client`]; [`results`], [`archive`], [`jobs`]; [`connectors`], [`exchange`], [`pipeline`]; [`proxy`]; [`wiki`]; [`config`].

// Much of what the gate offers has no user in the crate without the client.
#![cfg_attr(not(feature = "client"), allow(dead_code, unused_imports))]

// Time and events.
pub mod clock;
pub mod event;
pub mod redact;

// Deciding who may send.
pub mod gate;
pub mod limiter;
pub mod retention;
pub mod status;

// Around a client of your own.
mod head;
pub mod layer;
mod redirect;
mod shortage;

// Sending requests.
#[cfg(feature = "client")]
pub mod address;
#[cfg(feature = "client")]
mod attempt;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
pub mod descriptors;
#[cfg(feature = "client")]
pub mod request;
#[cfg(feature = "client")]
pub mod robots;
#[cfg(feature = "client")]
pub mod transport;

// Jobs: lists of URLs.
#[cfg(feature = "client")]
pub mod archive;
#[cfg(feature = "client")]
pub mod jobs;
#[cfg(feature = "client")]
pub mod results;

// Sources.
#[cfg(feature = "client")]
pub mod connectors;
#[cfg(feature = "client")]
pub mod exchange;
#[cfg(feature = "client")]
pub mod pipeline;

// Any client.
#[cfg(feature = "client")]
pub mod proxy;

// Wikis.
#[cfg(feature = "client")]
pub mod wiki;

// Configuration.
#[cfg(feature = "client")]
pub mod config;

/// Locks a mutex, even if its last holder panicked: no lock here is ever released with its data half changed.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A map for what every request looks up. It hashes with less work than the standard library's, and its seed is random, too.
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
/// Likewise, a set.
pub(crate) type FastSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;

pub use comity_core as core;
pub use comity_store as store;

/// Runs the examples of the README as tests.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the examples of docs/layers.md as tests.
#[cfg(all(doctest, feature = "reqwest"))]
#[doc = include_str!("../../../docs/layers.md")]
struct Layers;

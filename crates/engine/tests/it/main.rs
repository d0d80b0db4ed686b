//! One binary for all integration tests of the engine.

mod archive;
mod attempt;
mod client;
mod clock_skew;
mod damaged_rows;
mod dropped_futures;
mod events;
mod gate;
mod guards;
mod inspecting;
mod jobs;
mod layer;
mod limiter;
mod lost_domains;
mod permits;
mod pipeline;
mod proxy;
mod retention;
mod robots;
mod scraping;
mod shared_store;
mod station;
mod stored_names;
mod support;
mod transport;
mod wiki;

//! One binary for all integration tests of the engine.

mod archive;
mod attempt;
mod cancelled;
mod client;
mod events;
mod forgetting;
mod gate;
mod guards;
mod jobs;
mod layer;
mod limiter;
mod looking;
mod lost;
mod permits;
mod pipeline;
mod robots;
mod scraping;
mod skew;
mod station;
mod support;
mod tenancy;
mod transport;
mod wiki;

//! One binary for all integration tests of the engine.

mod gate;
mod limiter;
mod permits;
mod support;
mod transport;

//! One binary for all integration tests of the engine.

mod transport;

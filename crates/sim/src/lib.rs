//! A deterministic simulator for Comity's core: virtual time, simulated sites, faults, checkers.
//!
//! - [`scenario`]: a small language for examples with one domain: a script in, a line of results out
//! - [`site`]: simulated sites that rate limit, ban, fail and respond slowly
//! - [`world`]: processes, workers and faults around the core's own dispatch; the same seed gives the same run
//! - [`fleet`]: machines around one PostgreSQL, with networks, clocks and servers that fail
//! - [`check`]: checks every promise against the sites' logs, independently of the core
//! - [`shrink`]: reduces a failing world and describes what happened in it
//!
//! Nothing here sleeps or uses the network.

pub mod check;
pub mod fleet;
pub mod scenario;
pub mod shrink;
pub mod site;
pub mod world;

//! A deterministic simulator for Comity's core: virtual time, simulated sites, faults, checkers.
//!
//! - [`scenario`]: a small language for examples with one domain: a script in, a line of results out
//! - [`site`]: simulated sites that rate limit, ban, fail and respond slowly
//! - [`world`]: processes, workers and faults around the core's own dispatch; the same seed gives the same run
//! - [`check`]: checks every promise against the sites' logs, independently of the core
//! - [`learning`]: how well learning rules find hidden limits, compared with the rules of others
//! - [`shrink`]: reduces a failing world and describes what happened in it
//!
//! Nothing here sleeps or uses the network.

pub mod check;
pub mod learning;
pub mod scenario;
pub mod shrink;
pub mod site;
pub mod world;

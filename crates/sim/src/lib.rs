//! A deterministic world in which Comity's core is proven: virtual time, simulated sites, faults, checkers.
//!
//! - [`scenario`]: a short language for examples: a script goes in, a sentence comes out
//! - [`site`]: sites that limit, refuse, ban, break and dawdle
//! - [`world`]: processes, workers and faults around the core's own dispatch; a seed makes one exactly
//! - [`check`]: what must hold, judged by what the sites saw, not by what the core thinks
//! - [`shrink`]: a world that fails, made as small as it can be, and told as a story
//!
//! Nothing here sleeps or touches the network.

pub mod check;
pub mod scenario;
pub mod shrink;
pub mod site;
pub mod world;

//! The pure pacing core of Comity.
//!
//! Time comes in, a decision goes out. Nothing here reads a clock, opens a socket, sleeps, draws a random
//! number or touches a disk; every method that depends on the time takes `now`. In reading order:

pub mod backoff;
pub mod cadence;
pub mod decision;
pub mod dispatch;
pub mod domain;
pub mod enqueue;
pub mod guard;
pub mod headers;
pub mod intent;
pub mod interval;
pub mod learn;
pub mod line;
pub mod outcome;
pub mod pace;
pub mod paces;
pub mod problem;
pub mod retry;
pub mod rule;
pub mod task;
pub mod time;
pub mod window;

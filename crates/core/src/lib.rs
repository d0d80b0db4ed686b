//! The pure pacing core of Comity.
//!
//! Time comes in, a decision goes out. Nothing here reads a clock, opens a socket, sleeps, draws a random
//! number or touches a disk; every method that depends on the time takes `now`. In reading order:

pub mod time;
pub mod problem;
pub mod intent;
pub mod domain;
pub mod backoff;
pub mod headers;
pub mod outcome;
pub mod rule;
pub mod decision;
pub mod learn;
pub mod window;
pub mod pace;
pub mod task;
pub mod retry;
pub mod guard;
pub mod interval;
pub mod enqueue;
pub mod cadence;
pub mod paces;
pub mod line;
pub mod dispatch;

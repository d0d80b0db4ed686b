//! The core, proven in virtual time.

mod behaviours;
mod documents;
mod examples;
mod worlds;

//! The core, proven in virtual time.

mod behaviours;
mod checkers;
mod corners;
mod documents;
mod examples;
mod worlds;

//! Tests of the core in virtual time.

mod behaviours;
mod checkers;
mod edge_cases;
mod examples;
mod fleets;
mod requirements;
mod worlds;

//! Tests of the core in virtual time.

mod behaviours;
mod checkers;
mod edge_cases;
mod examples;
mod learning;
mod requirements;
mod worlds;

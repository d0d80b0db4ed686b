//! What comity-core promises, tested from outside.

mod dispatching;
mod heard;
mod parsing;
mod promises;
mod rules;
mod silence;

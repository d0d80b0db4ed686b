//! The core, proven in virtual time.

mod documents;
mod examples;

//! The promises of comity-core, tested through its public API.

mod dispatching;
mod hanging_hosts;
mod parsing;
mod promises;
mod recording;
mod rules;

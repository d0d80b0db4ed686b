//! Coverage-guided fuzzing of everything that strangers supply. Each target feeds its bytes to a parser and checks what
//! has to hold for any input. If it does not hold, the target panics, and libFuzzer saves the input.
//!
//! `./test fuzz` runs all targets for a short while, starting from the inputs in `seeds`. CONTRIBUTING.md describes how
//! to run one for longer. Nothing here opens a socket or a file.
#![forbid(unsafe_code)]

mod connectors;
mod core;
mod exchange;
mod robots;
mod sealed;

pub use connectors::{dates, feeds, sitemaps};
pub use core::{headers, paces};
pub use exchange::opml;
pub use robots::robots;
pub use sealed::{permits, warc};

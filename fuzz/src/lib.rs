//! Coverage-guided fuzzing of everything that strangers supply: what each target feeds its bytes to, and what has to
//! hold whatever they are. A target panics when it does not; libFuzzer keeps the input then.
//!
//! `./test fuzz` runs all of them for a short while, from the inputs in `seeds`. CONTRIBUTING.md tells how to run one for
//! longer. Nothing here opens a socket or a file.
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

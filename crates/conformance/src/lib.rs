//! The conformance suite for stores: what the traits of [`comity_store`] promise, as tests that a backend imports.
//!
//! It is for people who write a store backend. The doc comments of the traits are the contract. There is one function
//! per promise here, and a backend runs all of them. Its test file implements [`Backend`] and adds one line:
//!
//! ```ignore
//! struct Database { /* … */ }
//!
//! impl comity_conformance::Backend for Database { /* … */ }
//!
//! /// A database of its own for each test.
//! async fn empty() -> Database { /* … */ }
//!
//! comity_conformance::promises!(postgres, crate::empty);
//! ```
//!
//! [`promises!`] expands to one `#[tokio::test]` per promise, so the backend's crate needs tokio with `macros` and
//! `rt-multi-thread`.
//!
//! Time is virtual: `now` is a parameter of the store, so no promise sleeps. Overlap is forced: a [`Pause`] stops the
//! first caller inside its transaction until the second has an answer or is blocked. Promises are about results.
//! Whether the second caller waits, or works around what the first has locked, is up to the backend.
//!
//! Not included are promises of a single backend (files, permissions, schema versions, the clocks of one machine),
//! which that backend's own tests check; performance, which `bench/` measures; and a database to run against.
//!
//! Modules in reading order: [`backend`], [`pause`], [`process`], [`follower`], [`machine`], `list`, `promises`.

pub mod backend;
pub mod follower;
mod list;
pub mod machine;
pub mod pause;
pub mod process;
mod promises;

pub use backend::{Backend, BoxFuture, Opened};
pub use pause::Pause;
pub use process::Process;

/// All promises, as called by the tests of [`promises!`]. A promise that is missing from the list is dead code, which
/// the compiler reports.
#[doc(hidden)]
#[allow(missing_docs, reason = "a promise's name says what it is")]
pub mod listed {
    crate::__each_promise! { __functions }
}

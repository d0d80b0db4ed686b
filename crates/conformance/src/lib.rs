//! The conformance suite for stores: what the traits of [`comity_store`] promise, as tests that a backend imports.
//!
//! It is for whoever writes a store backend. The traits' doc comments are the contract; here is one function per
//! promise of it, and a backend runs all of them. Its test file is a [`Backend`] and one line:
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
//! first caller inside its transaction until the second has answered or waits for it. Promises are about results. Whether
//! the second caller waits, or goes around what the first has locked, is up to the backend.
//!
//! Deliberately not here: what only one backend promises (files, permissions, schema versions, clocks of one machine),
//! which that backend's own tests check; how fast a store is, which `bench/` measures; and any database to run against.
//!
//! Modules in reading order: [`backend`], [`pause`], [`process`], [`following`], [`machine`], `list`, `promises`.

pub mod backend;
pub mod following;
mod list;
pub mod machine;
pub mod pause;
pub mod process;
mod promises;

pub use backend::{Backend, BoxFuture, Opened};
pub use pause::Pause;
pub use process::Process;

/// Every promise, as the tests of [`promises!`] call it. A promise that is missing in the list is dead code, which the
/// compiler reports.
#[doc(hidden)]
#[allow(missing_docs, reason = "a promise's name says what it is")]
pub mod listed {
    crate::__each_promise! { __functions }
}

//! The stores in SQLite keep what every store promises, and what only they promise, one module per subject.

mod aside;
mod away;
mod backend;
mod crash;
mod file;
mod pausing;
mod private;
mod proofs;
mod reading;
mod reopening;
mod sqlite;
mod timeline;

comity_conformance::promises!(memory, crate::backend::memory);
comity_conformance::promises!(sqlite_file, crate::backend::sqlite_file);

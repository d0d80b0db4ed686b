//! The SQLite stores keep the promises of every store, and their own, one module per subject.

mod attempts;
mod backend;
mod crash;
mod file;
mod lock_files;
mod measuring;
mod outage;
mod pausing;
mod permissions;
#[cfg(feature = "postgres")]
mod postgres;
mod reading;
mod reopening;
mod sqlite;
mod timeline;
mod unreadable_rows;

comity_conformance::promises!(memory, crate::backend::memory);
comity_conformance::promises!(sqlite_file, crate::backend::sqlite_file);
#[cfg(feature = "postgres")]
comity_conformance::promises!(postgres_schema, crate::postgres::schema);

//! A database file, and what other programs do to it.

use std::path::{Path, PathBuf};

use comity_conformance::process::{Process, at};
use comity_store::sqlite::Sqlite;
use comity_store::{Store, StoreError};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::backend::opened;

/// A path for a database, in its own folder.
pub(crate) struct TestFile {
    pub(crate) path: PathBuf,
    _folder: Option<TempDir>,
}

impl TestFile {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join("comity.db"), _folder: Some(folder) }
    }

    /// A path in a folder that somebody else created.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, _folder: None }
    }

    pub(crate) fn open(&self) -> Sqlite {
        Sqlite::open(&self.path).unwrap()
    }

    pub(crate) async fn process(&self, name: &str) -> Process {
        Process::with(opened(self.open()), name, at(0)).await
    }

    /// A file next to the database.
    pub(crate) fn beside(&self, ending: &str) -> PathBuf {
        format!("{}{ending}", self.path.display()).into()
    }

    /// The error when opening it.
    pub(crate) fn refusal(&self) -> String {
        match Sqlite::open(&self.path) {
            Err(StoreError::Unavailable { location, what, .. }) if Path::new(&location) == self.path => what,
            other => format!("not refused but {:?}", other.map(|store| store.location())),
        }
    }

    /// Opens it as another program does.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    /// Runs SQL as another program does.
    pub(crate) fn query(&self, sql: &str) {
        self.connect().execute_batch(sql).unwrap();
    }

    pub(crate) fn query_one(&self, sql: &str) -> String {
        let value = self.connect().query_row(sql, [], |row| row.get::<_, rusqlite::types::Value>(0));
        match value.unwrap() {
            rusqlite::types::Value::Integer(number) => number.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Another program that is in the middle of writing, until it is dropped.
    pub(crate) fn lock(&self) -> Connection {
        let connection = self.connect();
        connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
        connection
    }
}

//! A process that is stopped in the middle of a transaction, or cut off from the database there, keeps its locks for a while.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin};
use std::time::Duration;

use comity_conformance::Backend;
use comity_conformance::process::{Process, at};
use comity_store::domains::Take;
use comity_store::{LEASE, StoreError};

use super::server::Server;

/// B74: others go on, and the domains of the stopped process are free once its locks are.
#[tokio::test]
async fn a_holder_that_is_stopped_in_a_transaction_delays_no_heartbeat() {
    let schema = super::schema().await;
    let backend: &dyn Backend = &schema;
    let silent = Process::start(backend, "silent", at(0)).await;
    let heir = Process::start(backend, "heir", at(0)).await;
    silent.taken("a.example", at(0)).await;
    heir.beat(at(0)).await.unwrap();
    let locks = Locks::take(&schema.url, "SELECT 1 FROM holder WHERE name = 'silent' FOR KEY SHARE");
    silent.beat(at(1)).await.unwrap();
    soon(heir.beat(at(1))).await.unwrap();

    soon(heir.beat(at(1) + LEASE)).await.unwrap();
    let take = soon(heir.take("a.example", at(1) + LEASE)).await;
    assert_eq!(take, Take::Held { by: "silent".to_owned() }, "it may be writing");
    locks.free();
    assert!(matches!(heir.take("a.example", at(2) + LEASE).await, Take::Taken(_)));
    assert!(matches!(silent.beat(at(3) + LEASE).await, Err(StoreError::Lost)));
}

/// Limits how long a call may wait for the locks.
async fn soon<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), call).await.expect("no answer while a row is locked")
}

/// A transaction that holds locks until it is told to end.
struct Locks {
    psql: Child,
    input: ChildStdin,
}

impl Locks {
    fn take(url: &str, sql: &str) -> Self {
        let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap();
        let mut psql = Server::shared().psql();
        let mut input = psql.stdin.take().unwrap();
        writeln!(input, "BEGIN; SET LOCAL search_path = {schema}; {sql};").unwrap();
        let mut line = String::new();
        BufReader::new(psql.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "1", "the row is locked");
        Self { psql, input }
    }

    fn free(mut self) {
        writeln!(self.input, "COMMIT;").unwrap();
        drop(self.input);
        assert!(self.psql.wait().unwrap().success());
    }
}

//! The hook that pauses a transaction, in a store opened by several processes.

use comity_conformance::process::at;
use comity_store::domains::Take;

use crate::file::TestFile;

/// Its statements have run, nobody sees them yet, and it has the lock.
#[tokio::test]
async fn a_paused_transaction_is_not_visible_and_holds_the_lock() {
    let file = TestFile::new();
    let (one, other) = (file.process("one").await, file.process("other").await);
    let mut paused = one.pause.next();
    let mut first = std::pin::pin!(one.take("a.example", at(1)));
    tokio::select! {
        biased;
        () = paused.reached() => {}
        take = &mut first => panic!("it was not paused: {take:?}"),
    }
    assert_eq!(other.store.list_domains(String::new(), String::new(), 9).await.unwrap(), []);
    let locked = file.connect();
    locked.busy_timeout(std::time::Duration::ZERO).unwrap();
    assert!(locked.execute_batch("BEGIN IMMEDIATE").is_err(), "another could write");
    paused.resume();
    assert!(matches!(first.await, Take::Taken(_)));
    assert!(other.row("a.example").await.holder.is_some());
}

/// A read is not paused, and neither is the next change.
#[tokio::test]
async fn only_one_change_is_paused() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let mut paused = one.pause.next();
    assert_eq!(one.wanted().await, [], "it changed nothing");
    let opened = one.open_job("first");
    tokio::join!(opened, async {
        paused.reached().await;
        paused.resume();
    });
    one.open_job("second").await;
    assert_eq!(one.store.list_jobs().await.unwrap().len(), 2);
}

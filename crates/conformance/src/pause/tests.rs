//! Tests the hook with the smallest possible store: a number that callers read, increment and write back.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Two callers each increment a number, the second while the first is about to commit.
async fn add_twice(lock: Option<&tokio::sync::Mutex<()>>) -> u32 {
    let (number, pause) = (AtomicU32::new(0), Pause::default());
    let add = async || {
        let _locked = match lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        let read = number.load(Ordering::SeqCst);
        pause.before_commit().await;
        number.store(read + 1, Ordering::SeqCst);
    };
    overlap(&pause, add(), add()).await;
    number.into_inner()
}

#[tokio::test]
async fn without_a_lock_the_overlap_loses_an_update_every_time() {
    for _ in 0..20 {
        assert_eq!(add_twice(None).await, 1);
    }
}

#[tokio::test]
async fn with_a_lock_the_second_caller_waits_and_nothing_is_lost() {
    assert_eq!(add_twice(Some(&tokio::sync::Mutex::default())).await, 2);
}

/// A failing promise must not leave a thread behind.
#[tokio::test]
async fn a_paused_transaction_continues_when_its_promise_has_ended() {
    let pause = Pause::default();
    let hook = pause.clone();
    let mut paused = pause.next();
    let thread = std::thread::spawn(move || hook.before_commit_blocking());
    paused.reached().await;
    drop(paused);
    thread.join().unwrap();
    drop(pause.next());
    pause.before_commit().await;
}

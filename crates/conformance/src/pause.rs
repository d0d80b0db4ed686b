//! The hook that pauses one caller inside its transaction, so that another overlaps with it.
//!
//! A store under test calls it in each transaction that changed something, after the last statement and before the
//! commit. It returns at once unless a promise has asked for a pause.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// Pauses transactions of one store before they commit. Clones are the same hook.
///
/// A store calls [`Pause::before_commit`], or [`Pause::before_commit_blocking`] if it has its own thread.
#[derive(Debug, Clone, Default)]
pub struct Pause(Arc<Mutex<Option<Stop>>>);

/// A requested pause.
#[derive(Debug)]
struct Stop {
    reached: oneshot::Sender<()>,
    resumed: oneshot::Receiver<()>,
}

/// A transaction that is paused, or will be. It continues when this is dropped.
#[derive(Debug)]
pub struct Paused {
    reached: oneshot::Receiver<()>,
    resume: oneshot::Sender<()>,
}

impl Pause {
    /// Pauses the next transaction that changes something, before its commit.
    pub fn next(&self) -> Paused {
        let (reached, is_reached) = oneshot::channel();
        let (resume, resumed) = oneshot::channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Stop { reached, resumed });
        Paused { reached: is_reached, resume }
    }

    /// To be called when a transaction has run its statements and is about to commit.
    pub async fn before_commit(&self) {
        if let Some(resumed) = self.reach() {
            // An error means that nobody waits for it any more.
            let _ = resumed.await;
        }
    }

    /// Like [`Self::before_commit`], for a thread that may block.
    pub fn before_commit_blocking(&self) {
        if let Some(resumed) = self.reach() {
            let _ = resumed.blocking_recv();
        }
    }

    fn reach(&self) -> Option<oneshot::Receiver<()>> {
        let stop = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // If whoever asked for the pause has given up, nothing stops.
        stop.reached.send(()).ok().map(|()| stop.resumed)
    }
}

impl Paused {
    /// Waits until the transaction has paused.
    ///
    /// # Panics
    /// After a minute, because the store never called its hook or changed nothing.
    pub async fn reached(&mut self) {
        let reached = tokio::time::timeout(REACHED, &mut self.reached).await;
        reached
            .expect("no transaction reached its commit within a minute")
            .expect("another pause replaced it");
    }

    /// Lets the transaction commit.
    pub fn resume(self) {
        // If its caller is gone, there is nothing to resume.
        let _ = self.resume.send(());
    }
}

/// Runs `first` up to its commit, then `second` until it has an answer or is blocked, then lets `first` continue.
/// Returns the results of both.
///
/// `first` must call the store that `pause` belongs to. Neither may call a store before it is polled: a store method
/// may send its request as soon as it is called, so calls belong in `async` blocks or functions.
///
/// # Panics
/// If `first` returns without having changed anything.
pub async fn overlap<A, B>(
    pause: &Pause,
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut paused = pause.next();
    tokio::select! {
        biased;
        () = paused.reached() => {}
        _ = &mut first => panic!("the first caller changed nothing, so nothing overlaps with it"),
    }
    let answered = tokio::time::timeout(WAITS, &mut second).await.ok();
    paused.resume();
    match answered {
        Some(answered) => (first.await, answered),
        None => tokio::join!(first, second),
    }
}

/// A transaction reaches its commit within this time, however busy the machine is.
const REACHED: Duration = Duration::from_secs(60);
/// Whoever has no answer by then is considered blocked. A caller that is just slow overlaps less, but no promise fails
/// because of that.
const WAITS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;

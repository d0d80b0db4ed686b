//! The hook that stops one caller inside its transaction, so that another overlaps with it.
//!
//! A store under test calls it in each transaction that changed something, after the last statement and before the
//! commit. It returns at once unless a promise has asked for a stop.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// Stops transactions of one store before their commit. Clones are the same hook.
///
/// A store calls [`Pause::before_commit`], or [`Pause::before_commit_blocking`] on a thread of its own.
#[derive(Debug, Clone, Default)]
pub struct Pause(Arc<Mutex<Option<Stop>>>);

/// A stop that was asked for.
#[derive(Debug)]
struct Stop {
    reached: oneshot::Sender<()>,
    resumed: oneshot::Receiver<()>,
}

/// A transaction that stops, or will. It continues when this is dropped.
#[derive(Debug)]
pub struct Paused {
    reached: oneshot::Receiver<()>,
    resume: oneshot::Sender<()>,
}

impl Pause {
    /// The next transaction that changes something stops before its commit.
    pub fn next(&self) -> Paused {
        let (reached, is_reached) = oneshot::channel();
        let (resume, resumed) = oneshot::channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Stop { reached, resumed });
        Paused { reached: is_reached, resume }
    }

    /// A transaction has run its statements and is about to commit.
    pub async fn before_commit(&self) {
        if let Some(resumed) = self.reach() {
            // An error means that nobody waits for it any more.
            let _ = resumed.await;
        }
    }

    /// The same on a thread that may block.
    pub fn before_commit_blocking(&self) {
        if let Some(resumed) = self.reach() {
            let _ = resumed.blocking_recv();
        }
    }

    fn reach(&self) -> Option<oneshot::Receiver<()>> {
        let stop = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // Whoever asked for the stop may have given up: then nothing stops.
        stop.reached.send(()).ok().map(|()| stop.resumed)
    }
}

impl Paused {
    /// Waits until the transaction has stopped.
    ///
    /// # Panics
    /// After a minute: the store never called its hook, or nothing was changed.
    pub async fn reached(&mut self) {
        let reached = tokio::time::timeout(REACHED, &mut self.reached).await;
        reached
            .expect("no transaction came to its commit within a minute")
            .expect("another stop took its place");
    }

    /// Lets the transaction commit.
    pub fn resume(self) {
        // It is gone when its caller is; then there is nothing to resume.
        let _ = self.resume.send(());
    }
}

/// Runs `first` up to its commit, then `second` until it has answered or waits, then lets `first` go. What both returned.
///
/// `first` is what the store of `pause` is asked. Both must ask only when they are polled: a method of a store may send
/// its request when it is called, so calls belong into `async` blocks or functions.
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

/// A transaction comes to its commit within this time, however busy the machine is.
const REACHED: Duration = Duration::from_secs(60);
/// Whoever has not answered by then waits. One that is slower than this overlaps less, and no promise fails for it.
const WAITS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;

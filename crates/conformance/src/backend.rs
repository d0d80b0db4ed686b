//! What a backend tells the promises about itself: how a process opens its store, and how one dies.

use std::pin::Pin;
use std::sync::Arc;

use comity_core::time::Timestamp;
use comity_store::Store;
use comity_store::machine::{Machine, ThisMachine};

use crate::pause::Pause;
use crate::process::Process;

/// What the methods of a [`Backend`] return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A database of one backend: empty at first, and shared by all processes of one promise.
pub trait Backend: Send + Sync {
    /// Opens the store as one more process does, on that machine. Where all processes share one connection, they share
    /// its machine too.
    fn open_on(&self, machine: Arc<dyn Machine>) -> BoxFuture<'_, Opened>;

    /// Ends a process in the middle of whatever it does: nothing is released, and nothing is written about its end.
    ///
    /// Promises are about what others find once a death is noticed. Where that takes until the end of a lease, or where
    /// processes share a connection, deregistering the holder without releasing anything leaves the same behind.
    fn kill(&self, process: Process, now: Timestamp) -> BoxFuture<'_, ()>;
}

impl dyn Backend + '_ {
    /// Opens the store as one more process on this machine.
    pub async fn open(&self) -> Opened {
        self.open_on(Arc::new(ThisMachine)).await
    }

    /// The store alone, for whoever never pauses.
    pub async fn store(&self) -> Arc<dyn Store> {
        self.open().await.store
    }
}

/// A store as a process opened it.
#[derive(Clone)]
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Stops transactions of that store, which must call it: see [`Pause`].
    pub pause: Pause,
}

impl Opened {
    /// A store that nobody pauses.
    pub fn without_pause(store: Arc<dyn Store>) -> Self {
        Self { store, pause: Pause::default() }
    }
}

//! What a backend provides to the promises: how a process opens its store, and how one dies.

use std::pin::Pin;
use std::sync::Arc;

use comity_core::time::Timestamp;
use comity_store::Store;
use comity_store::machine::{Machine, ThisMachine};

use crate::pause::Pause;
use crate::process::Process;

/// The return type of the methods of a [`Backend`].
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A database of one backend: empty at first, and shared by all processes of one promise.
pub trait Backend: Send + Sync {
    /// Opens the store as another process on that machine. If all processes share one connection, they share its
    /// machine too.
    fn open_on(&self, machine: Arc<dyn Machine>) -> BoxFuture<'_, Opened>;

    /// Kills a process in the middle of whatever it is doing: it releases nothing and records nothing about its end.
    ///
    /// Promises are about what other processes find once the death is noticed. If that takes until the lease ends, or
    /// if processes share a connection, deregistering the holder without releasing anything has the same effect.
    fn kill(&self, process: Process, now: Timestamp) -> BoxFuture<'_, ()>;
}

impl dyn Backend + '_ {
    /// Opens the store as another process on this machine.
    pub async fn open(&self) -> Opened {
        self.open_on(Arc::new(ThisMachine)).await
    }

    /// Opens the store, without its pause.
    pub async fn store(&self) -> Arc<dyn Store> {
        self.open().await.store
    }
}

/// A store opened by a process.
#[derive(Clone)]
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Pauses the transactions of this store, which has to call it: see [`Pause`].
    pub pause: Pause,
}

impl Opened {
    /// A store that is never paused.
    pub fn without_pause(store: Arc<dyn Store>) -> Self {
        Self { store, pause: Pause::default() }
    }
}

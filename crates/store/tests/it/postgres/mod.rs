//! The PostgreSQL store, as opened by the conformance suite.

mod copy;
mod globs;
mod old_transactions;
mod opening;
mod quiet;
mod replaced_server;
mod server;
mod stopped_holders;
mod tasks;
mod time;
mod views;

use std::sync::Arc;

use comity_conformance::{Backend, BoxFuture, Opened, Pause, Process};
use comity_core::time::Timestamp;
use comity_store::machine::Machine;
use comity_store::postgres::Postgres;

use server::Server;

/// A schema that each process opens for itself.
pub(crate) struct Schema {
    url: String,
}

pub(crate) async fn schema() -> Schema {
    let url = tokio::task::spawn_blocking(|| Server::shared().fresh_url()).await.unwrap();
    Schema { url }
}

impl Backend for Schema {
    fn open_on(&self, machine: Arc<dyn Machine>) -> BoxFuture<'_, Opened> {
        Box::pin(async {
            let pause = Pause::default();
            let hook = pause.clone();
            let store = Postgres::open_for_tests(&self.url, machine, move || hook.before_commit_blocking());
            Opened { store: Arc::new(store.unwrap()), pause }
        })
    }

    fn kill(&self, process: Process, now: Timestamp) -> BoxFuture<'_, ()> {
        // Its death is noticed when its lease has ended; this has the same effect.
        Box::pin(async move { process.store.deregister(process.holder, now).await.unwrap() })
    }
}

//! The reader thread, which serves lists, lookups and exports. It has its own read-only connection, so that readers
//! neither wait for the writer nor block it. It sees everything that was committed before the query was sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::open_store::OpenStore;
use super::writer::{CLOSE_TIMEOUT, Cache, Tx};
use crate::{Reply, StoreError};

/// A query that sends its own answer. It is called without a transaction if there is no connection. Returns whether the
/// database could be read.
type Query = Box<dyn FnOnce(Option<&mut Tx<'_>>) -> Readable + Send>;

/// The result of a query.
pub(super) enum ReadResult<T, F> {
    Found(T),
    /// The database cannot be read right now; here is the query again.
    Unavailable(F),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readable {
    Yes,
    No,
}

/// The reader thread.
#[derive(Debug)]
pub(super) struct Reader {
    sender: Option<Sender<Query>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
    open_store: Arc<OpenStore>,
}

impl Reader {
    pub(super) fn start(open_store: Arc<OpenStore>) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        let used = open_store.clone();
        let thread = std::thread::Builder::new().name("comity-read".to_owned()).spawn(move || {
            let _ends = ends;
            run(&used, &receiver);
        })?;
        Ok(Self { sender: Some(sender), thread: Some(thread), ended: Mutex::new(ended), open_store })
    }

    /// Runs a query on the latest committed state.
    pub(super) fn run<T: Send + 'static, F>(&self, mut query: F) -> Reply<'static, ReadResult<T, F>>
    where
        F: FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel::<Result<ReadResult<T, F>, StoreError>>();
        let location = self.open_store.location.clone();
        let query: Query = Box::new(move |tx| {
            // Nobody is waiting for the answer any more.
            if sender.is_closed() {
                return Readable::Yes;
            }
            let seen = tx.map(|tx| query(tx).map_err(|error| location.error(&error)));
            let (answer, readable) = match seen {
                None => (Ok(ReadResult::Unavailable(query)), Readable::No),
                Some(Err(error)) if error.outage().is_some() => {
                    (Ok(ReadResult::Unavailable(query)), Readable::No)
                }
                Some(seen) => (seen.map(ReadResult::Found), Readable::Yes),
            };
            let _ = sender.send(answer);
            readable
        });
        self.sender.as_ref().map(|sender| sender.send(query));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }
}

impl Drop for Reader {
    /// The reader closes its connection first: the writer goes last, because SQLite's last connection cleans up and has
    /// to be able to write.
    fn drop(&mut self) {
        self.sender = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(CLOSE_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn run(open_store: &OpenStore, receiver: &Receiver<Query>) {
    let mut cache = Cache::default();
    for query in receiver {
        let readable = match open_store.reading() {
            Ok(reading) => match &*reading {
                Some(connection) => run_query(connection, &mut cache, query),
                None => query(None),
            },
            Err(_) => query(None),
        };
        if readable == Readable::No {
            // It is reopened for the next query.
            open_store.close_reading();
        }
    }
    open_store.close_reading();
}

fn run_query(connection: &Connection, cache: &mut Cache, query: Query) -> Readable {
    // A query sees one state of the database throughout.
    let begun = connection.execute_batch("BEGIN").is_ok();
    // A query that panics drops its answer, and the thread continues for everybody else.
    let mut tx = Tx { sql: connection, cache };
    let seen = catch_unwind(AssertUnwindSafe(|| query(Some(&mut tx))));
    if begun {
        let _ = connection.execute_batch("ROLLBACK");
    }
    seen.unwrap_or(Readable::Yes)
}

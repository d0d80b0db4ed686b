//! The thread that reads for people: lists, single rows, exports. It has a connection of its own that cannot write, so that
//! nobody who looks waits for those who work, nor holds them up. It sees everything that was committed before it was asked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::in_use::InUse;
use super::writer::{LAST, Memory, Tx};
use crate::{Reply, StoreError};

/// One look; it answers whoever asked. Without a connection it is given back. Whether the database could be read.
type Look = Box<dyn FnOnce(Option<&mut Tx<'_>>) -> Readable + Send>;

/// What became of a look.
pub(super) enum Looked<T, F> {
    Seen(T),
    /// The database cannot be read at the moment; the look comes back.
    Away(F),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readable {
    Yes,
    No,
}

/// The thread that reads.
#[derive(Debug)]
pub(super) struct Reader {
    sender: Option<Sender<Look>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
    in_use: Arc<InUse>,
}

impl Reader {
    pub(super) fn start(in_use: Arc<InUse>) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        let used = in_use.clone();
        let thread = std::thread::Builder::new().name("comity-read".to_owned()).spawn(move || {
            let _ends = ends;
            run(&used, &receiver);
        })?;
        Ok(Self { sender: Some(sender), thread: Some(thread), ended: Mutex::new(ended), in_use })
    }

    /// Looks at the database as it was committed last.
    pub(super) fn run<T: Send + 'static, F>(&self, mut look: F) -> Reply<'static, Looked<T, F>>
    where
        F: FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel::<Result<Looked<T, F>, StoreError>>();
        let place = self.in_use.place.clone();
        let look: Look = Box::new(move |tx| {
            // Whoever does not wait any more need not be answered.
            if sender.is_closed() {
                return Readable::Yes;
            }
            let seen = tx.map(|tx| look(tx).map_err(|error| place.error(&error)));
            let (answer, readable) = match seen {
                None => (Ok(Looked::Away(look)), Readable::No),
                Some(Err(error)) if error.away().is_some() => (Ok(Looked::Away(look)), Readable::No),
                Some(seen) => (seen.map(Looked::Seen), Readable::Yes),
            };
            let _ = sender.send(answer);
            readable
        });
        self.sender.as_ref().map(|sender| sender.send(look));
        Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Closed)) })
    }
}

impl Drop for Reader {
    /// Its connection is closed first: the last one to go, who may write, tidies up.
    fn drop(&mut self) {
        self.sender = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(LAST) != Err(RecvTimeoutError::Timeout) {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn run(in_use: &InUse, receiver: &Receiver<Look>) {
    let mut memory = Memory::default();
    for look in receiver {
        let readable = match in_use.reading() {
            Ok(reading) => match &*reading {
                Some(connection) => see(connection, &mut memory, look),
                None => look(None),
            },
            Err(_) => look(None),
        };
        if readable == Readable::No {
            // Opened again for the next one.
            in_use.close_reading();
        }
    }
    in_use.close_reading();
}

fn see(connection: &Connection, memory: &mut Memory, look: Look) -> Readable {
    // One state of the database for all that one look reads.
    let begun = connection.execute_batch("BEGIN").is_ok();
    // One that panics drops its answer, and the thread goes on for everybody else.
    let mut tx = Tx { sql: connection, memory };
    let seen = catch_unwind(AssertUnwindSafe(|| look(Some(&mut tx))));
    if begun {
        let _ = connection.execute_batch("ROLLBACK");
    }
    seen.unwrap_or(Readable::Yes)
}

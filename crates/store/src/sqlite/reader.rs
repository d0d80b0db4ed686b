//! The thread that reads for people: lists, single rows, exports. It has a connection of its own that cannot write, so that
//! nobody who looks waits for those who work, nor holds them up. It sees everything that was committed before it was asked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::place::Place;
use super::writer::{LAST, Memory, Tx};
use crate::{Reply, StoreError};

/// One look; it answers whoever asked.
type Look = Box<dyn FnOnce(&mut Tx<'_>) + Send>;

/// The thread that reads.
#[derive(Debug)]
pub(super) struct Reader {
    sender: Option<Sender<Look>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
    place: Place,
}

impl Reader {
    pub(super) fn start(connection: Connection, place: Place) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let (ends, ended) = channel();
        let thread = std::thread::Builder::new().name("comity-read".to_owned()).spawn(move || {
            let _ends = ends;
            run(&connection, &receiver);
        })?;
        Ok(Self { sender: Some(sender), thread: Some(thread), ended: Mutex::new(ended), place })
    }

    /// Looks at the database as it was committed last.
    pub(super) fn run<T: Send + 'static>(
        &self,
        mut look: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'static, T> {
        let (sender, receiver) = oneshot::channel::<Result<T, StoreError>>();
        let place = self.place.clone();
        let look: Look = Box::new(move |tx| {
            // Whoever does not wait any more need not be answered.
            if !sender.is_closed() {
                let _ = sender.send(look(tx).map_err(|error| place.error(&error)));
            }
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

fn run(connection: &Connection, receiver: &Receiver<Look>) {
    let mut memory = Memory::default();
    for look in receiver {
        // One state of the database for all that one look reads.
        let begun = connection.execute_batch("BEGIN").is_ok();
        // One that panics drops its answer, and the thread goes on for everybody else.
        let mut tx = Tx { sql: connection, memory: &mut memory };
        let _ = catch_unwind(AssertUnwindSafe(|| look(&mut tx)));
        if begun {
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
}

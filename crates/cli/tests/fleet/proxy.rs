//! A TCP proxy between a machine and a database, for what a network can do to single messages: hold them back, in one
//! direction or both, delay them, or lose the answer to what was already carried out.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::machines::Way;

/// What becomes of a connection that has sent a certain statement.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// The connections on which this text was sent.
    pub(crate) sent: &'static str,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Every answer takes this much longer.
    Late(Duration),
    /// The connection breaks before the statement gets through.
    Broken,
    /// The next COMMIT gets through, and its answer does not: the connection breaks instead. Once.
    CommitUnheard,
}

#[derive(Default)]
struct Shared {
    up: AtomicBool,
    down: AtomicBool,
    fault: Mutex<Option<Fault>>,
    /// How often the fault struck.
    struck: Mutex<usize>,
    over: AtomicBool,
}

/// A proxy that listens until it is dropped.
pub(crate) struct Proxy {
    address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A proxy on `host` in front of the port `to` there.
    pub(crate) fn start(host: &str, to: u16) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (shared, server) = (Arc::new(Shared::default()), format!("{host}:{to}"));
        let proxy = Self { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) {
                    carry(&shared, client, server);
                }
            }
        });
        proxy
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Holds everything back.
    pub(crate) fn hold(&self, way: Way) {
        self.shared.up.store(way.up(), Ordering::SeqCst);
        self.shared.down.store(way.down(), Ordering::SeqCst);
    }

    pub(crate) fn let_through(&self) {
        self.shared.up.store(false, Ordering::SeqCst);
        self.shared.down.store(false, Ordering::SeqCst);
    }

    /// From now on, connections have this fault, or none.
    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        *lock(&self.shared.fault) = fault;
    }

    /// How often a fault struck.
    pub(crate) fn struck(&self) -> usize {
        *lock(&self.shared.struck)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.let_through();
        let _ = TcpStream::connect(&self.address);
    }
}

/// Carries what both sides of a connection send, each on a thread.
fn carry(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let connection = Arc::new(Connection::default());
    let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (up, both) = (shared.clone(), connection.clone());
    std::thread::spawn(move || {
        pump(ends.0, ends.1, |bytes| {
            wait_while(&up, &up.up);
            both.sends(&up, bytes)
        });
    });
    let down = shared.clone();
    std::thread::spawn(move || {
        pump(server, client, |_| {
            wait_while(&down, &down.down);
            connection.hears(&down)
        });
    });
}

/// What is known of one connection.
#[derive(Default)]
struct Connection {
    /// What was sent, the last part of it.
    tail: Mutex<Vec<u8>>,
    /// It has sent the statement of the fault.
    marked: AtomicBool,
    /// The answer to what was sent last must not be heard.
    deaf: AtomicBool,
}

impl Connection {
    /// Whether the client's bytes go on to the server.
    fn sends(&self, shared: &Shared, bytes: &[u8]) -> bool {
        let fault = lock(&shared.fault).clone();
        let mut tail = lock(&self.tail);
        tail.extend_from_slice(bytes);
        let Some(fault) = fault else {
            let spare = tail.len().saturating_sub(KEPT);
            tail.drain(..spare);
            self.marked.store(false, Ordering::SeqCst);
            return true;
        };
        let has = |text: &[u8], part: &str| text.windows(part.len()).any(|window| window == part.as_bytes());
        if has(&tail, fault.sent) {
            self.marked.store(true, Ordering::SeqCst);
            tail.clear();
            if fault.what == What::Broken {
                *lock(&shared.struck) += 1;
                return false;
            }
        }
        if fault.what == What::CommitUnheard && self.marked.load(Ordering::SeqCst) && has(bytes, "COMMIT") {
            self.deaf.store(true, Ordering::SeqCst);
            *lock(&shared.fault) = None;
            *lock(&shared.struck) += 1;
        }
        let spare = tail.len().saturating_sub(KEPT);
        tail.drain(..spare);
        true
    }

    /// Whether the server's bytes go on to the client.
    fn hears(&self, shared: &Shared) -> bool {
        if self.deaf.load(Ordering::SeqCst) {
            return false;
        }
        let fault = lock(&shared.fault).clone();
        if let Some(Fault { what: What::Late(by), .. }) = fault
            && self.marked.load(Ordering::SeqCst)
        {
            *lock(&shared.struck) += 1;
            std::thread::sleep(by);
        }
        true
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut goes_on: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !goes_on(&buffer[..read]) || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn wait_while(shared: &Shared, held: &AtomicBool) {
    while held.load(Ordering::SeqCst) && !shared.over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much of what a client sent is kept, in case a statement comes in two parts.
const KEPT: usize = 200;

//! A server that writes exactly the bytes a test gives it, and keeps the requests it receives.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

/// How to reply to a request.
pub(crate) enum Reply {
    /// Write these bytes, and keep the connection open.
    Send(Vec<u8>),
    /// Write these bytes, and close the connection.
    Close(Vec<u8>),
    /// Write these bytes, and reset the connection.
    Reset(Vec<u8>),
    /// Write these bytes, then nothing for a while.
    Stall(Vec<u8>),
    /// Write the first bytes, then this many others, and keep the connection open.
    Long(Vec<u8>, u64),
}

/// A server that runs until it is dropped.
pub(crate) struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// The reply to a path, and to how many requests for it came before.
type Replying = dyn Fn(&str, usize) -> Reply + Send + Sync;

struct Shared {
    reply: Box<Replying>,
    /// The path and the head of each request.
    asked: Mutex<Vec<(String, String)>>,
    over: AtomicBool,
}

impl Wire {
    /// Answers with what `reply` returns for the path and the number of earlier requests for it.
    pub(crate) fn start(reply: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            reply: Box::new(reply),
            asked: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let wire = Self { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                std::thread::spawn(move || serve(&shared, stream));
            }
        });
        wire
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    /// The heads of the requests for a path.
    pub(crate) fn asked(&self, path: &str) -> Vec<String> {
        let asked = self.shared.asked.lock().unwrap();
        asked.iter().filter(|(asked, _)| asked == path).map(|(_, head)| head.clone()).collect()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wake the listener, so that it ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !reader.read_line(&mut head).is_ok_and(|read| read > 0) {
                return;
            }
        }
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let before = {
            let mut asked = shared.asked.lock().unwrap();
            asked.push((path.clone(), head));
            asked.iter().filter(|(asked, _)| *asked == path).count() - 1
        };
        let written = match (shared.reply)(&path, before) {
            Reply::Send(octets) => stream.write_all(&octets),
            Reply::Close(octets) => return drop(stream.write_all(&octets)),
            Reply::Reset(octets) => {
                stream.write_all(&octets).unwrap();
                // Let the client read everything before the connection is reset.
                std::thread::sleep(Duration::from_millis(50));
                let at_once = linger { l_onoff: 1, l_linger: 0 };
                setsockopt(&stream, sockopt::Linger, &at_once).unwrap();
                return;
            }
            Reply::Stall(octets) => {
                stream.write_all(&octets).unwrap();
                std::thread::sleep(Duration::from_secs(60));
                return;
            }
            Reply::Long(head, mut left) => stream.write_all(&head).and_then(|()| {
                let mut random = fastrand::Rng::with_seed(7);
                let part: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
                while left > 0 {
                    let count = left.min(part.len() as u64);
                    stream.write_all(&part[..count as usize])?;
                    left -= count;
                }
                Ok(())
            }),
        };
        if written.is_err() {
            return;
        }
    }
}

/// A page with its length.
pub(crate) fn page(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A page in chunks of `size` bytes.
pub(crate) fn chunked(headers: &str, body: impl AsRef<[u8]>, size: usize) -> Vec<u8> {
    let mut octets = format!("HTTP/1.1 200 OK\r\n{headers}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in body.as_ref().chunks(size) {
        octets.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        octets.extend_from_slice(chunk);
        octets.extend_from_slice(b"\r\n");
    }
    octets.extend_from_slice(b"0\r\n\r\n");
    octets
}

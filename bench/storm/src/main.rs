//! A site that nginx cannot express: it allows ten requests, then answers 429 with `Retry-After: 5` until five seconds
//! have passed, then allows ten again. W1 and W3 fetch from it and are judged by its log.
//!
//! The rules are in [`site`]; HTTP, threads and the log are here. There is no TLS, no chunked body and no pipelining:
//! one thread per connection, one request after the other, kept alive until the client closes.
//!
//! Usage: `bench-storm LOG`. The first line on standard output is the port; it serves 127.0.0.1 until it is killed.
//!
//! LOG has one line per request, written once the response was handed to the kernel, with times in UTC microseconds:
//! `start done status deadline early path`. `start` is when the request arrived, `done` when its response was complete,
//! `deadline` the latest time an earlier response asked to wait for (0: none), and `early` is 1 if `start` is before
//! it.

mod site;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use site::{Answer, RETRY_AFTER_SECONDS, Site};

struct Shared {
    site: Mutex<Site>,
    log: Mutex<File>,
}

fn main() -> io::Result<()> {
    let Some(log) = std::env::args_os().nth(1) else {
        eprintln!("usage: bench-storm LOG");
        std::process::exit(2);
    };
    let shared = Arc::new(Shared { site: Mutex::new(Site::default()), log: Mutex::new(File::create(log)?) });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let (stream, shared) = (stream?, Arc::clone(&shared));
        // If a client disconnects in the middle, only its connection ends.
        std::thread::spawn(move || serve(stream, &shared));
    }
    Ok(())
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some((path, start)) = read_request(&mut stream)? {
        let counted = path != "/robots.txt";
        let (answer, deadline) = if counted {
            shared.site.lock().unwrap_or_else(PoisonError::into_inner).request(start)
        } else {
            (Answer::Page, 0)
        };
        let status = respond(&mut stream, answer, counted)?;
        let done = now();
        let early = u8::from(start < deadline);
        let line = format!("{start} {done} {status} {deadline} {early} {path}\n");
        shared.log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?;
    }
    Ok(())
}

/// The path of the next request and when its first bytes arrived; `None` when the client has closed.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<(String, u64)>> {
    let (mut head, mut start) = (Vec::new(), 0);
    let mut part = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut part)?;
        if read == 0 || head.len() > HEAD_BYTES_MAX {
            return Ok(None);
        }
        if head.is_empty() {
            start = now();
        }
        head.extend_from_slice(&part[..read]);
    }
    let line = String::from_utf8_lossy(&head);
    let path = line.split_ascii_whitespace().nth(1).unwrap_or("/").to_owned();
    Ok(Some((path, start)))
}

fn respond(stream: &mut TcpStream, answer: Answer, counted: bool) -> io::Result<u16> {
    let (status, line, extra) = match answer {
        Answer::Page => (200, "200 OK", String::new()),
        Answer::Refused => (429, "429 Too Many Requests", format!("Retry-After: {RETRY_AFTER_SECONDS}\r\n")),
    };
    let body = match (answer, counted) {
        (Answer::Page, true) => "x".repeat(BODY_BYTES),
        (Answer::Page, false) => "User-agent: *\nAllow: /\n".to_owned(),
        (Answer::Refused, _) => "too many requests\n".to_owned(),
    };
    let head = format!(
        "HTTP/1.1 {line}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{extra}\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())?;
    Ok(status)
}

/// UTC microseconds, from the same clock that the driver uses for its kills.
#[allow(clippy::disallowed_methods, reason = "a server's log is made of the real time")]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The size of a page, as in the other workloads.
const BODY_BYTES: usize = 1024;
const HEAD_BYTES_MAX: usize = 64 * 1024;

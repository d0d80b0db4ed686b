//! A small scripted site for what nginx can't do. It logs when each request started.

use std::io::{self, BufRead, BufReader, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::log::{Hit, now_us, wait_until};

/// A request.
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a str,
    /// Its headers, one line per header.
    pub(crate) headers: &'a str,
    /// The number of requests before this one.
    pub(crate) before: usize,
    /// When it arrived, in microseconds since 1970.
    #[allow(dead_code, reason = "only sites of the other test binary ask")]
    pub(crate) start: i64,
}

/// A response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
    /// How long the response takes.
    pub(crate) after: Duration,
    /// What the response waits for after that.
    pub(crate) held: Option<Held>,
}

/// Holds responses until it is released, so that a request is in flight for as long as a test wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held(Arc<AtomicBool>);

impl Held {
    pub(crate) fn release(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn wait(&self, over: &AtomicBool) {
        while !self.0.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Answer {
    pub(crate) fn page(path: &str) -> Self {
        Self { status: 200, body: format!("page {path}\n"), ..Self::default() }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    pub(crate) fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    pub(crate) fn held(self, held: &Held) -> Self {
        Self { held: Some(held.clone()), ..self }
    }
}

/// A site that listens until it is dropped.
pub(crate) struct Site {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    answer: Box<dyn Fn(&Asked<'_>) -> Answer + Send + Sync>,
    log: Mutex<Vec<Hit>>,
    over: AtomicBool,
}

impl Site {
    pub(crate) fn start(answer: impl Fn(&Asked<'_>) -> Answer + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1", answer)
    }

    pub(crate) fn on(host: &str, answer: impl Fn(&Asked<'_>) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        // Connections inherit the option, so that data that arrives before they are accepted has a time too.
        setsockopt(&listener, sockopt::ReceiveTimestampns, &true).unwrap();
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            log: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let site = Self { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for (connection, stream) in (1..).zip(listener.incoming()) {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                stream.map(|stream| std::thread::spawn(move || serve(&shared, stream, connection))).ok();
            }
        });
        site
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    /// The log so far, in the order of starts.
    pub(crate) fn log(&self) -> Vec<Hit> {
        let mut log = self.shared.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        log.sort_by_key(|hit| hit.start);
        log
    }

    /// Waits for `count` requests.
    pub(crate) fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} requests"), || self.log().len() >= count);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wake the listener, so that it ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream, connection: u64) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(Stamped { stream: stream.try_clone().unwrap(), arrived: 0 });
    loop {
        // A request starts with its first byte.
        if !reader.fill_buf().is_ok_and(|buffer| !buffer.is_empty()) {
            return;
        }
        let start = reader.get_ref().arrived;
        let Some(Head { path, headers, is_last }) = read_head(&mut reader) else { return };
        let (nth, answer) = {
            let mut log = shared.log.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = (shared.answer)(&Asked { path: &path, headers: &headers, before: log.len(), start });
            let hit =
                Hit { start, answered: i64::MAX, done: i64::MAX, path, status: answer.status, connection };
            log.push(hit);
            (log.len() - 1, answer)
        };
        std::thread::sleep(answer.after);
        if let Some(held) = &answer.held {
            held.wait(&shared.over);
        }
        let note = |note: &dyn Fn(&mut Hit)| {
            note(&mut shared.log.lock().unwrap_or_else(PoisonError::into_inner)[nth]);
        };
        note(&|hit| hit.answered = now_us());
        let Answer { status, headers, body, .. } = answer;
        let text = format!(
            "HTTP/1.1 {status} Told\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
        note(&|hit| hit.done = now_us());
        // A client that asked for it reads until the connection is closed.
        if is_last {
            return;
        }
    }
}

struct Head {
    path: String,
    headers: String,
    is_last: bool,
}

/// Reads the head of a request.
fn read_head(reader: &mut impl BufRead) -> Option<Head> {
    let (mut is_last, mut headers) = (false, String::new());
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            return first.split(' ').nth(1).map(|path| Head { path: path.to_owned(), headers, is_last });
        }
        is_last |= line.trim_end().eq_ignore_ascii_case("connection: close");
        headers += &line;
    }
}

/// A connection that knows when its data arrived, by the kernel's clock: a thread that has to wait for a core would log
/// starts that are too late.
struct Stamped {
    stream: TcpStream,
    /// Microseconds since 1970.
    arrived: i64,
}

impl Read for Stamped {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = nix::cmsg_space!(TimeSpec);
        let mut slices = [IoSliceMut::new(buffer)];
        let socket = self.stream.as_raw_fd();
        let received = recvmsg::<()>(socket, &mut slices, Some(&mut space), MsgFlags::empty())?;
        if received.bytes > 0 {
            let stamp = received.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
                _ => None,
            });
            // The kernel starts timestamping a moment after the first socket asks for it.
            self.arrived =
                stamp.map_or_else(now_us, |stamp| stamp.tv_sec() * 1_000_000 + stamp.tv_nsec() / 1_000);
        }
        Ok(received.bytes)
    }
}

//! Shared by the tests of gate, client and jobs: configurations as text, manual clocks, and sites that log their
//! requests.

use std::collections::HashMap;
use std::future::Future;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity::clock::{Clock, ClockControl};
use comity::config::{Config, Sources};
use comity::event::{Event, Events, Listener};
use comity::gate::Gate;
use comity_core::domain::Domain;
use comity_core::headers::PacingHints;
use comity_core::outcome::{Answer, Outcome};
use comity_core::time::{Span, Timestamp};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(crate) fn config(toml: &str) -> Config {
    Config::load(Sources { file: Some(("test.toml", toml)), ..Sources::default() }).unwrap()
}

/// A gate on a manual clock that starts at 0.
pub(crate) fn manual_gate(toml: &str) -> (Gate, ClockControl) {
    let (clock, control) = Clock::manual(Timestamp::from_secs(0));
    (Gate::new(config(toml).rules().clone(), clock, Events::new()), control)
}

/// A port that refuses connections while this exists. A port that was just released could soon belong to another test.
pub(crate) struct ClosedPort {
    // Bound but not listening: nobody else gets the port, and the kernel refuses connections.
    socket: TcpSocket,
}

impl ClosedPort {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self { socket }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address().port()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }
}

pub(crate) fn domain(name: &str) -> Domain {
    Domain::parse(name).unwrap()
}

/// The time `millis` milliseconds after the start of a clock at 0.
pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

pub(crate) fn success() -> Answer {
    Outcome::Success.into()
}

/// A 429 with a Retry-After of `span`.
pub(crate) fn retry_after(span: Span) -> Answer {
    Answer::of_status(429, PacingHints::retry_after(span))
}

/// How many requests wait for `host`.
pub(crate) fn waiting(gate: &Gate, host: &Domain) -> usize {
    gate.domain_status(host).map_or(0, |live| live.waiting)
}

/// Waits until `is_so` returns true; panics if that takes too long.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let becomes = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(what, becomes).await;
}

/// Awaits something that must not take long; panics if it does.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, future).await;
    ended.unwrap_or_else(|_| panic!("{what} did not end"))
}

/// Nothing takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Counts the heartbeats of a gate, because a manual clock must not run ahead of them.
#[derive(Default)]
pub(crate) struct Heartbeats(AtomicUsize);

impl Heartbeats {
    pub(crate) fn of(gate: &Gate) -> Arc<Self> {
        let heartbeats = Arc::new(Self::default());
        gate.events().listen(heartbeats.clone());
        heartbeats
    }

    /// Advances the clock by enough for a heartbeat to be due, and waits for it.
    pub(crate) async fn advance(&self, control: &ClockControl, span: Span) {
        assert!(
            (Span::from_secs(2)..Span::from_secs(8)).contains(&span),
            "a heartbeat must be due, but the lease must not have ended"
        );
        let before = self.0.load(Ordering::Relaxed);
        control.advance(span);
        eventually("a heartbeat", || self.0.load(Ordering::Relaxed) > before).await;
    }
}

impl Listener for Heartbeats {
    fn on_event(&self, event: &Event<'_>) {
        if matches!(event, Event::Heartbeat { .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Gives requests that must not be granted the time to be granted wrongly.
pub(crate) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(15)).await;
}

/// A site on all loopback addresses that answers as the test says.
pub(crate) struct Site {
    pub(crate) port: u16,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    asked: Vec<Asked>,
    times: HashMap<(String, String), usize>,
    in_flight: HashMap<String, usize>,
    most: HashMap<String, usize>,
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// The address it was sent to, without the port.
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) at: Timestamp,
    /// How many times the same URL was requested before.
    pub(crate) before: usize,
}

impl Asked {
    /// The value of a header, with each byte as one character.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// A URL on another address of the same site.
    pub(crate) fn url_on(&self, nth: u8, path: &str) -> String {
        let port = self.header("host").and_then(|host| host.split(':').nth(1)).unwrap_or("80");
        format!("http://127.0.0.{nth}:{port}{path}")
    }
}

/// A response, and how long it takes.
pub(crate) struct Reply {
    status: u16,
    headers: Vec<u8>,
    body: Vec<u8>,
    after: Duration,
    missing: usize,
}

pub(crate) fn reply(status: u16) -> Reply {
    Reply { status, headers: Vec::new(), body: b"a page".to_vec(), after: Duration::ZERO, missing: 0 }
}

impl Reply {
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.raw_header(name, value.as_bytes())
    }

    /// A header whose value isn't text.
    pub(crate) fn raw_header(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn after(mut self, millis: u64) -> Self {
        self.after = Duration::from_millis(millis);
        self
    }

    /// Closes the connection before the announced end of the body.
    pub(crate) fn cut(mut self) -> Self {
        self.missing = 100;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let length = self.body.len() + self.missing;
        let head = format!("HTTP/1.1 {} whatever\r\ncontent-length: {length}\r\n", self.status);
        [head.as_bytes(), &self.headers, b"\r\n", &self.body].concat()
    }
}

impl Site {
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        // Connections inherit this option, so that data that arrives before `accept` has a timestamp too.
        setsockopt(&listener, sockopt::ReceiveTimestampns, &true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Log::default()));
        let (shared, answer) = (log.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (shared.clone(), answer.clone());
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    talk(Heads { stream, bytes: Vec::new(), arrived: None }, &log, &*answer).await;
                });
            }
        });
        Self { port, log }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.url_on(1, path)
    }

    /// A URL on another address, which is another domain.
    pub(crate) fn url_on(&self, nth: u8, path: &str) -> String {
        format!("http://127.0.0.{nth}:{}{path}", self.port)
    }

    pub(crate) fn domain(&self, nth: u8) -> Domain {
        domain(&format!("127.0.0.{nth}:{}", self.port))
    }

    /// The requests so far, in order.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.log.lock().unwrap().asked.clone()
    }

    /// The requests for one path, in order.
    pub(crate) fn asked_for(&self, path: &str) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.path == path).collect()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.path).collect()
    }

    /// The most requests to one address at the same time.
    pub(crate) fn most_in_flight(&self, nth: u8) -> usize {
        self.log.lock().unwrap().most.get(&format!("127.0.0.{nth}")).copied().unwrap_or(0)
    }

    /// The most requests at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.log.lock().unwrap().most.get("").copied().unwrap_or(0)
    }

    /// The time between requests to one address.
    pub(crate) fn gaps(&self, nth: u8) -> Vec<Span> {
        let host = format!("127.0.0.{nth}");
        let times: Vec<_> = self.asked().into_iter().filter(|asked| asked.host == host).collect();
        times.windows(2).map(|two| two[1].at.since(two[0].at)).collect()
    }
}

async fn talk(mut heads: Heads, log: &Mutex<Log>, answer: &(dyn Fn(&Asked) -> Reply + Send + Sync)) {
    while let Some((head, at)) = heads.next().await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let host = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        let host = host.split(':').next().unwrap_or_default().to_owned();
        let asked = log.lock().unwrap().note(host.clone(), path, head, at);
        let reply = answer(&asked);
        tokio::time::sleep(reply.after).await;
        *log.lock().unwrap().in_flight.get_mut(&host).unwrap() -= 1;
        if heads.stream.write_all(&reply.bytes()).await.is_err() || reply.missing > 0 {
            return;
        }
    }
}

impl Log {
    fn note(&mut self, host: String, path: String, head: String, at: Timestamp) -> Asked {
        let times = self.times.entry((host.clone(), path.clone())).or_default();
        let asked = Asked { host: host.clone(), path, head, at, before: *times };
        *times += 1;
        self.asked.push(asked.clone());
        *self.in_flight.entry(host.clone()).or_default() += 1;
        let all = self.in_flight.values().sum();
        let now = self.in_flight[&host];
        for (whose, now) in [(host, now), (String::new(), all)] {
            let most = self.most.entry(whose).or_default();
            *most = (*most).max(now);
        }
        asked
    }
}

/// Request headers on a connection, each with its arrival time from the kernel: a task that has to wait for the CPU
/// would note the wrong time.
struct Heads {
    stream: TcpStream,
    bytes: Vec<u8>,
    arrived: Option<Timestamp>,
}

impl Heads {
    async fn next(&mut self) -> Option<(String, Timestamp)> {
        if self.bytes.is_empty() {
            self.read().await?;
        }
        let arrived = self.arrived?;
        loop {
            if let Some(end) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.bytes.drain(..end + 4).collect();
                // One character per byte, so that values that aren't text can be compared too.
                return Some((head.into_iter().map(char::from).collect(), arrived));
            }
            self.read().await?;
        }
    }

    /// Reads more; `None` at the end.
    async fn read(&mut self) -> Option<()> {
        let socket = self.stream.as_raw_fd();
        let receive = || {
            let (mut buffer, mut space) = ([0; 4_096], nix::cmsg_space!(TimeSpec));
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let received = recvmsg::<()>(socket, &mut slices, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
            let stamp = received.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
                _ => None,
            });
            let count = received.bytes;
            Ok((buffer[..count].to_vec(), stamp))
        };
        let (bytes, stamp) = self.stream.async_io(Interest::READABLE, receive).await.ok()?;
        // The kernel starts timestamping a moment after the first socket asks for it.
        let at =
            stamp.map(|stamp| Timestamp::from_micros(stamp.tv_sec() * 1_000_000 + stamp.tv_nsec() / 1_000));
        self.arrived = Some(at.unwrap_or_else(|| Clock::new().now()));
        self.bytes.extend_from_slice(&bytes);
        (!bytes.is_empty()).then_some(())
    }
}

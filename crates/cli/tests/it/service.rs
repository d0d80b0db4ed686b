//! `comity serve` as a process, and requests to it over plain sockets, so that tests see what is on the wire.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::comity::{Done, Running, World};
use crate::log::wait_until;

/// A service that runs until it is dropped.
pub(crate) struct Service {
    pub(crate) running: Running,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// Starts it in `world`, on a free port.
    pub(crate) fn start(world: &World) -> Self {
        Self::begin(world, world.start(&["--json", "serve", "--listen", "127.0.0.1:0"]))
    }

    /// Waits until it prints its address.
    pub(crate) fn begin(world: &World, mut running: Running) -> Self {
        let mut address = None;
        wait_until("it prints its address", || {
            assert!(!running.is_over(), "{}: {}", world.path("").display(), running.said());
            let shown = running.shown();
            let object = shown.lines().next().filter(|_| shown.ends_with('\n'));
            let object = object.and_then(|line| serde_json::from_str::<Value>(line).ok());
            address = object
                .map(|object| object["listening"].as_str().unwrap()["http://".len()..].parse().unwrap());
            address.is_some()
        });
        Self { running, address: address.unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        post(self.address, path, body).expect(200)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        ask(self.address, "GET", path, "", "").unwrap().expect(200)
    }

    /// One of its metrics.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = ask(self.address, "GET", "/metrics", "", "").unwrap().body;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// A number from its `/proc/PID/status`, in kB.
    pub(crate) fn memory_kb(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.running.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The CPU time it has used so far.
    pub(crate) fn worked(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.running.id())).unwrap();
        let after_name = &text[text.rfind(')').unwrap() + 2..];
        let ticks: u64 =
            after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        // On Linux, a tick is always a hundredth of a second.
        Duration::from_millis(ticks * 10)
    }

    /// Stops it with SIGTERM.
    pub(crate) fn stop(self) -> Done {
        self.running.signal("TERM");
        self.running.wait()
    }
}

/// A response of the service.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answered {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.body);
        self.json()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Parses what was read from a connection that was then closed.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, head: head.to_owned(), body: body.to_owned() })
    }
}

#[track_caller]
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answered {
    ask(address, "POST", path, "Content-Type: application/json\r\n", &body.to_string()).unwrap()
}

/// Sends one request on its own connection; `headers` are whole lines.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<Answered> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = if method == "POST" || !body.is_empty() {
        format!("Content-Length: {}\r\n", body.len())
    } else {
        String::new()
    };
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{length}{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    Answered::read(&answer).ok_or_else(|| std::io::Error::other(format!("no answer: {answer:?}")))
}

const PATIENCE: Duration = Duration::from_secs(300);

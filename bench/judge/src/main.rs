//! A server for W4 that knows when each request arrived, however busy it is itself: the kernel stamps the data when it
//! receives it (`SO_TIMESTAMPNS`). A server that notes the time when it gets around to reading, as nginx does, logs a gap
//! that is too short whenever it reads one request late and the next one in time.
//!
//! It serves every address of loopback on one port, with one thread, and answers every request with the same page. There
//! is no TLS, no body in requests and no pipelining.
//!
//! Usage: `bench-judge LOG`. The first line on standard output is the port; it serves until it is killed.
//!
//! LOG has one line per request: `arrived read host path`, with times in UTC microseconds: when the kernel received the
//! request, and when this program read it. It is complete whenever nothing is being served.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IoSliceMut, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

fn main() -> io::Result<()> {
    let Some(log) = std::env::args_os().nth(1) else {
        eprintln!("usage: bench-judge LOG");
        std::process::exit(2);
    };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    listener.set_nonblocking(true)?;
    // Connections inherit the option, so that data that arrives before they are accepted has a time too.
    setsockopt(&listener, sockopt::ReceiveTimestampns, &true)?;
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::MAXCONN)?;
    println!("{}", listener.local_addr()?.port());
    Server::new(listener, File::create(log)?)?.run()
}

struct Server {
    listener: TcpListener,
    epoll: Epoll,
    open: HashMap<u64, Connection>,
    log: BufWriter<File>,
    page: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    /// What has arrived of the next request.
    head: Vec<u8>,
    /// When the first part of it arrived.
    arrived: u64,
}

impl Server {
    fn new(listener: TcpListener, log: File) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let mut page =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {PAGE_BYTES}\r\n\r\n");
        page.push_str(&"x".repeat(PAGE_BYTES));
        let log = BufWriter::with_capacity(1 << 16, log);
        Ok(Self { listener, epoll, open: HashMap::new(), log, page: page.into_bytes() })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        loop {
            // Nothing is being served: the log may be read.
            let mut ready = self.epoll.wait(&mut events, EpollTimeout::ZERO)?;
            if ready == 0 {
                self.log.flush()?;
                ready = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                    Err(nix::errno::Errno::EINTR) => 0,
                    ready => ready?,
                };
            }
            for event in &events[..ready] {
                match event.data() {
                    LISTENER => self.accept()?,
                    number => self.serve(number)?,
                }
            }
        }
    }

    /// Accepts what is waiting, up to a limit, so that open connections are read in between.
    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTED_AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client is gone already, or all descriptors are in use: the others are served first.
                Err(_) => return Ok(()),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let number = stream.as_raw_fd() as u64;
            self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
            self.open.insert(number, Connection { stream, head: Vec::new(), arrived: 0 });
        }
        Ok(())
    }

    /// Reads what has arrived, and answers a complete request.
    fn serve(&mut self, number: u64) -> io::Result<()> {
        let Some(connection) = self.open.get_mut(&number) else { return Ok(()) };
        match connection.read() {
            Ok(Read::Part) => {}
            Ok(Read::Request) => {
                let (host, path) = connection.target();
                writeln!(self.log, "{} {} {host} {path}", connection.arrived, now())?;
                connection.head.clear();
                // The page fits into the socket's buffer: the client has read the one before.
                if !matches!(connection.stream.write(&self.page), Ok(sent) if sent == self.page.len()) {
                    self.open.remove(&number);
                }
            }
            Ok(Read::End) | Err(_) => drop(self.open.remove(&number)),
        }
        Ok(())
    }
}

enum Read {
    Part,
    Request,
    End,
}

impl Connection {
    fn read(&mut self) -> io::Result<Read> {
        let mut space = nix::cmsg_space!(TimeSpec);
        let mut part = [0; 4096];
        let mut slices = [IoSliceMut::new(&mut part)];
        let socket = self.stream.as_raw_fd();
        let received = match recvmsg::<()>(socket, &mut slices, Some(&mut space), MsgFlags::empty()) {
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(Read::Part),
            received => received?,
        };
        let bytes = received.bytes;
        if bytes == 0 {
            return Ok(Read::End);
        }
        if self.head.is_empty() {
            let stamp = received.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
                _ => None,
            });
            // The kernel starts timestamping a moment after the first socket asks for it.
            self.arrived = stamp
                .map_or_else(now, |stamp| stamp.tv_sec() as u64 * 1_000_000 + stamp.tv_nsec() as u64 / 1_000);
        }
        self.head.extend_from_slice(&part[..bytes]);
        if self.head.len() > HEAD_BYTES_MAX {
            return Ok(Read::End);
        }
        Ok(if self.head.ends_with(b"\r\n\r\n") { Read::Request } else { Read::Part })
    }

    /// The host that was asked for, and the path.
    fn target(&self) -> (&str, &str) {
        let head = std::str::from_utf8(&self.head).unwrap_or_default();
        let path = head.split(' ').nth(1).unwrap_or("-");
        let named = |line: &&str| line.get(..5).is_some_and(|name| name.eq_ignore_ascii_case("host:"));
        let host = head.lines().find(named).map_or("-", |line| line[5..].trim());
        (host, path)
    }
}

#[allow(clippy::disallowed_methods, reason = "a server's log is made of the real time")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// The event of the listener; no connection has this number.
const LISTENER: u64 = u64::MAX;
const PAGE_BYTES: usize = 1024;
const HEAD_BYTES_MAX: usize = 16 << 10;
const ACCEPTED_AT_ONCE: usize = 64;

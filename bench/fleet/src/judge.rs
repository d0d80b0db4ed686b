//! Writes down when the kernel received each datagram.

use std::fs::File;
use std::io::{BufWriter, IoSliceMut, Read, Write};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::Outcome;

pub(crate) fn run(log: &str) -> Outcome<()> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    // What this process is too slow to read waits here. Only root may ask for more than the system's limit.
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
    }
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    #[expect(clippy::disallowed_methods, reason = "a benchmark's errors end it")]
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", socket.local_addr()?.port())?;
    stdout.flush()?;
    let ends = Arc::new(AtomicBool::new(false));
    let told = ends.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::SeqCst);
    });
    let mut log = BufWriter::with_capacity(1 << 20, File::create(log)?);
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut datagram = [0; DATAGRAM];
    loop {
        let mut parts = [IoSliceMut::new(&mut datagram)];
        match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty()) {
            Ok(received) => {
                let times = received.cmsgs()?.find_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(at) => Some(at),
                    _ => None,
                });
                let bytes = received.bytes;
                let at = times.map_or(0, |at| at.tv_sec() * 1_000_000 + at.tv_nsec() / 1_000);
                if let (DATAGRAM, [a, b, c, d, process]) = (bytes, datagram) {
                    writeln!(log, "{at} {} {process}", u32::from_be_bytes([a, b, c, d]))?;
                }
            }
            // Nothing has arrived for a while.
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) if ends.load(Ordering::SeqCst) => break,
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(log.flush()?)
}

/// The number of the site in network order, and the number of the process.
const DATAGRAM: usize = 5;
const BUFFER: usize = 64 << 20;

//! The bytes of a client's connection: a client that is silent at the start, or stops reading, is disconnected; and a
//! request with both `Content-Length` and `Transfer-Encoding` is noticed, because hyper hides one of them. What such a
//! request means is ambiguous, so another proxy could see another request in it (RFC 9112, section 6.3).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

pub(super) struct ClientStream<T> {
    stream: T,
    timeout: Duration,
    /// Runs until the first byte arrives.
    opening: Option<Pin<Box<Sleep>>>,
    /// Runs while a write is blocked.
    writing: Option<Pin<Box<Sleep>>>,
    tracker: Tracker,
    framing: Framing,
}

/// What was noticed about the requests on a connection.
#[derive(Clone, Default)]
pub(super) struct Framing(Arc<AtomicBool>);

impl Framing {
    /// Whether a request had two lengths.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T> ClientStream<T> {
    pub(super) fn new(stream: T, timeout: Duration) -> Self {
        let opening = Some(Box::pin(sleep(timeout)));
        Self {
            stream,
            timeout,
            opening,
            writing: None,
            tracker: Tracker::default(),
            framing: Framing::default(),
        }
    }

    pub(super) fn framing(&self) -> Framing {
        self.framing.clone()
    }

    fn timed<V>(&mut self, polled: Poll<io::Result<V>>, cx: &mut Context<'_>) -> Poll<io::Result<V>> {
        if polled.is_ready() {
            self.writing = None;
            return polled;
        }
        let timeout = self.timeout;
        let timer = self.writing.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ClientStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_ready() {
            this.opening = None;
            if this.tracker.read(&buffer.filled()[before..]) {
                this.framing.0.store(true, Ordering::Relaxed);
            }
            return read;
        }
        if let Some(opening) = &mut this.opening {
            ready!(opening.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ClientStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.timed(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.timed(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Follows the heads of HTTP/1.1 requests on a connection, up to the first one after which no other may follow: a request
/// with `Transfer-Encoding` is the last one of its connection (`service` sees to that), and so is one that switches to
/// another protocol.
#[derive(Default)]
struct Tracker {
    line: Vec<u8>,
    /// How much of a body is left.
    body: u64,
    in_head: bool,
    length: u64,
    has_length: bool,
    has_encoding: bool,
    is_last: bool,
    is_over: bool,
}

impl Tracker {
    /// Reads what has arrived; true if a request has two lengths.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() && !self.is_over {
            if self.body > 0 {
                let skipped = bytes.len().min(usize::try_from(self.body).unwrap_or(usize::MAX));
                self.body -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            let end = memchr::memchr(b'\n', bytes);
            let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            // Only the beginning of a line matters.
            let room = LINE_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                if self.take_line(line.trim_ascii_end()) {
                    self.is_over = true;
                    return true;
                }
            }
        }
        false
    }

    fn take_line(&mut self, line: &[u8]) -> bool {
        if line.is_empty() {
            if self.in_head {
                self.body = self.length;
                self.is_over = self.is_last || self.has_encoding;
                let (is_over, body) = (self.is_over, self.body);
                *self = Self { is_over, body, ..Self::default() };
            }
            return false;
        }
        if !self.in_head {
            self.in_head = true;
            self.is_last = line.starts_with(b"CONNECT ") || line.starts_with(b"PRI ");
            return false;
        }
        let Some(colon) = memchr::memchr(b':', line) else { return false };
        let name = &line[..colon];
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = line[colon + 1..].trim_ascii();
            self.length =
                std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0);
            self.has_length = true;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.has_encoding = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.is_last = true;
        }
        self.has_length && self.has_encoding
    }
}

/// How much of a line is kept.
const LINE_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ambiguous(bytes: &[u8]) -> bool {
        let whole = Tracker::default().read(bytes);
        let mut tracker = Tracker::default();
        let split = bytes.chunks(1).fold(false, |found, byte| found | tracker.read(byte));
        assert_eq!(whole, split, "however the bytes arrive");
        whole
    }

    #[test]
    fn a_request_with_two_lengths_is_noticed_wherever_it_is() {
        for (text, expected) in [
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", true),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n", true),
            ("GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length:0\n\n", true),
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\na:\r\n\nPOST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: x\r\n\r\n",
                true,
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 28\r\n\r\nTransfer-Encoding: chunked\r\nGET / HTTP/1.1\r\n\r\n",
                false,
            ),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\n\r\nContent-Length: 12\r\n", false),
            ("CONNECT a:443 HTTP/1.1\r\n\r\nx\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n", false),
        ] {
            assert_eq!(is_ambiguous(text.as_bytes()), expected, "{text}");
        }
    }
}

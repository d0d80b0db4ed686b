//! What passes on an HTTP/1.1 connection while one exchange is under way, told byte by byte to whoever wants to
//! keep it: header lines in the order and case they came in, chunks with their framing, bodies as they are encoded.
//!
//! What is made of it is decided elsewhere; here nothing is parsed and nothing is kept.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Sees what passes on a connection during one exchange.
///
/// It is called on the connection's own task, and may be called after its exchange is over: a connection that is
/// given up reads on until it notices.
pub trait Witness: Send + Sync {
    /// The request is about to be written, to the server at this address if no proxy is in between. What was seen
    /// before belongs to a connection that was closed before anything was written.
    fn begin(&self, server: Option<IpAddr>);
    /// These bytes were written.
    fn sent(&self, bytes: &[u8]);
    /// These bytes were read.
    fn received(&self, bytes: &[u8]);
}

/// Who sees what passes on a connection at the moment.
pub(super) struct Tape {
    server: Option<IpAddr>,
    witness: Mutex<Option<Arc<dyn Witness>>>,
}

impl Tape {
    pub(super) fn new(server: Option<IpAddr>) -> Self {
        Self { server, witness: Mutex::default() }
    }

    /// An exchange begins.
    pub(super) fn start(&self, witness: &Arc<dyn Witness>) {
        witness.begin(self.server);
        *self.lock() = Some(witness.clone());
    }

    /// The exchange is over.
    pub(super) fn stop(&self) {
        *self.lock() = None;
    }

    fn tell(&self, tell: impl FnOnce(&dyn Witness)) {
        if let Some(witness) = &*self.lock() {
            tell(&**witness);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Witness>>> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream whose bytes are seen, if somebody wants to.
pub(super) struct Taped<T> {
    stream: T,
    tape: Option<Arc<Tape>>,
}

impl<T> Taped<T> {
    pub(super) fn new(stream: T, tape: Option<Arc<Tape>>) -> Self {
        Self { stream, tape }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Taped<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let (Some(tape), Poll::Ready(Ok(()))) = (&self.tape, &read)
            && let Some(bytes) = buffer.filled().get(before..).filter(|bytes| !bytes.is_empty())
        {
            tape.tell(|witness| witness.received(bytes));
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Taped<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let (Some(tape), Poll::Ready(Ok(count))) = (&self.tape, &written) {
            tape.tell(|witness| witness.sent(&bytes[..*count]));
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if let (Some(tape), Poll::Ready(Ok(count))) = (&self.tape, &written) {
            let mut left = *count;
            tape.tell(|witness| {
                for slice in slices {
                    let taken = slice.len().min(left);
                    witness.sent(&slice[..taken]);
                    left -= taken;
                }
            });
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! The stream of a connection, on which is noticed when something is written, what passes, and how much comes.
//!
//! What is made of that is known to [`super::stamp`], [`super::tape`] and [`super::meter`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::line::Line;
use super::meter::Meter;
use super::origin::Route;
use super::slots::Slot;
use super::stamp::Stamp;
use super::tape::Tape;

/// A stream that is watched. It does not keep the route: that ends with whoever uses the connection.
pub(super) struct Noticed<T> {
    stream: T,
    stamp: Arc<Stamp>,
    tape: Option<Arc<Tape>>,
    meter: Arc<Meter>,
    _line: Open,
    /// Free again when the stream is closed. Dropped after it.
    _slot: Slot,
}

/// Dropped after the stream.
struct Open(Line);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.cut();
    }
}

impl<T> Noticed<T> {
    pub(super) fn new(stream: T, route: &Route, slot: Slot) -> Self {
        let (stamp, tape, meter) = (route.stamp.clone(), route.tape.clone(), route.meter.clone());
        Self { stream, stamp, tape, meter, _line: Open(route.line()), _slot: slot }
    }

    fn wrote(&self, slices: &[io::IoSlice<'_>], count: usize) {
        self.stamp.set();
        let Some(tape) = &self.tape else { return };
        let mut left = count;
        for slice in slices {
            let taken = slice.len().min(left);
            tape.sent(&slice[..taken]);
            left -= taken;
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Noticed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        if let Some(tape) = &self.tape {
            tape.received(read);
        }
        Poll::Ready(self.meter.arrived(read.len()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Noticed<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.wrote(&[io::IoSlice::new(bytes)], count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.wrote(slices, count);
        Poll::Ready(Ok(count))
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

//! Wraps the stream of a connection to observe when something is written, which bytes pass, and how many arrive.
//!
//! The observations go to [`super::last_write`], [`super::tap`] and [`super::noise`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::close_signal::CloseSignal;
use super::last_write::LastWrite;
use super::noise::NoiseMeter;
use super::origin::Route;
use super::slots::Slot;
use super::tap::Tap;

/// An observed stream. It doesn't hold the route, which must end with the users of the connection.
pub(super) struct InstrumentedStream<T> {
    stream: T,
    last_write: Arc<LastWrite>,
    tap: Option<Arc<Tap>>,
    noise: Arc<NoiseMeter>,
    _open: CloseOnDrop,
    /// Freed when the stream is closed. Dropped after it.
    _slot: Slot,
}

/// Signals the end of the connection. Dropped after the stream.
struct CloseOnDrop(CloseSignal);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.closed_now();
    }
}

impl<T> InstrumentedStream<T> {
    pub(super) fn new(stream: T, route: &Route, slot: Slot) -> Self {
        let (last_write, tap, noise) = (route.last_write.clone(), route.tap.clone(), route.noise.clone());
        Self { stream, last_write, tap, noise, _open: CloseOnDrop(route.close_signal()), _slot: slot }
    }

    fn wrote(&self, slices: &[io::IoSlice<'_>], count: usize) {
        self.last_write.set();
        let Some(tap) = &self.tap else { return };
        let mut left = count;
        for slice in slices {
            let taken = slice.len().min(left);
            tap.sent(&slice[..taken]);
            left -= taken;
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for InstrumentedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        if let Some(tap) = &self.tap {
            tap.received(read);
        }
        Poll::Ready(self.noise.arrived(read.len()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for InstrumentedStream<T> {
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

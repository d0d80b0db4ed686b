//! A write timeout for connections: a client that reads nothing of its response for too long is disconnected.
//! Timeouts for reading requests are set in `listen`.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Sleep, sleep};

/// A connection whose writes time out.
pub(crate) struct WriteTimeout<T> {
    io: T,
    timeout: Duration,
    /// The timer, which runs while a write is blocked.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeout<T> {
    pub(crate) fn new(io: T, timeout: Duration) -> Self {
        Self { io, timeout, timer: None }
    }

    /// Passes on the result of a write, or an error once it has been blocked for too long.
    fn timed<V>(&mut self, polled: Poll<Result<V>>, context: &mut Context<'_>) -> Poll<Result<V>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client stopped reading the response")))
    }
}

impl<T: Read + Unpin> Read for WriteTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for WriteTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        self.timed(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.timed(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(context);
        self.timed(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(context);
        self.timed(polled, context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    async fn write(io: &mut WriteTimeout<TokioIo<tokio::io::DuplexStream>>, bytes: &[u8]) -> Result<usize> {
        poll_fn(|context| Pin::new(&mut *io).poll_write(context, bytes)).await
    }

    /// A client that sent requests and read no response could keep its connection open forever.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let (ours, _theirs) = duplex(4);
        let mut io = WriteTimeout::new(TokioIo::new(ours), TIMEOUT);
        assert_eq!(write(&mut io, b"full").await.unwrap(), 4);
        let began = Instant::now();
        assert_eq!(write(&mut io, b"more").await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_stays_connected() {
        let (ours, mut theirs) = duplex(4);
        let mut io = WriteTimeout::new(TokioIo::new(ours), TIMEOUT);
        let reading = tokio::spawn(async move {
            for _ in 0..20 {
                sleep(TIMEOUT - Duration::from_secs(1)).await;
                theirs.read_u8().await.unwrap();
            }
        });
        let mut written = 0;
        while written < 20 {
            written += write(&mut io, b"x").await.unwrap();
        }
        reading.await.unwrap();
    }
}

//! A connection that is not waited for for ever: who takes nothing of what is written to it within a time is given up.
//! Reading has limits of its own, in `listen`.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Sleep, sleep};

/// A connection with a limit on how long a write may wait.
pub(crate) struct Patient<T> {
    io: T,
    patience: Duration,
    /// Runs while a write waits.
    until: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    pub(crate) fn new(io: T, patience: Duration) -> Self {
        Self { io, patience, until: None }
    }

    /// What came of a write; an error when it has waited for too long.
    fn timed<V>(&mut self, polled: Poll<Result<V>>, context: &mut Context<'_>) -> Poll<Result<V>> {
        if polled.is_ready() {
            self.until = None;
            return polled;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(until.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "nobody takes what is written")))
    }
}

impl<T: Read + Unpin> Read for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for Patient<T> {
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

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn write(io: &mut Patient<TokioIo<tokio::io::DuplexStream>>, bytes: &[u8]) -> Result<usize> {
        poll_fn(|context| Pin::new(&mut *io).poll_write(context, bytes)).await
    }

    /// Answers could wait for ever for somebody who asked and read nothing, one connection each.
    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up() {
        let (ours, _theirs) = duplex(4);
        let mut io = Patient::new(TokioIo::new(ours), PATIENCE);
        assert_eq!(write(&mut io, b"full").await.unwrap(), 4);
        let began = Instant::now();
        assert_eq!(write(&mut io, b"more").await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_little_now_and_then_is_not() {
        let (ours, mut theirs) = duplex(4);
        let mut io = Patient::new(TokioIo::new(ours), PATIENCE);
        let reading = tokio::spawn(async move {
            for _ in 0..20 {
                sleep(PATIENCE - Duration::from_secs(1)).await;
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

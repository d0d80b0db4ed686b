//! Reads response bodies chunk by chunk: decoded, and within limits of size and time.
//!
//! A body over its limit is an error, unless the reader wants only its beginning: then it ends there. An HTTP/1.1
//! connection goes back to the pool when its body has been read to the end; dropping the body before that closes the
//! connection.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::coding::{Coding, Decoder, Opening};
use super::connection::Connection;
use super::error::{Phase, TransportError};
use super::pool::ConnectionPool;

/// A response body.
pub struct Body {
    source: Source,
    coding: Coding,
    decoded: u64,
    /// Ends the body after this many decoded bytes.
    cut: Option<u64>,
    until: Instant,
}

/// The body as sent, before its `Content-Encoding` is decoded.
pub(super) struct Wire {
    incoming: Incoming,
    /// Bytes that have arrived but have not been read by the decoder.
    arrived: Bytes,
    count: u64,
    body_max: u64,
    /// Whether to ignore the announced length, because only the beginning is wanted.
    cut: bool,
    /// The connection, until the end of the body.
    connection: Option<Connection>,
    pool: Arc<ConnectionPool>,
}

enum Source {
    Plain(Wire),
    /// Encoded, but nothing has been read yet that shows how exactly.
    Unopened(Wire),
    Coded(Box<Decoder>),
    /// Read to the end, or given up.
    Over {
        wire_bytes: u64,
    },
}

impl Body {
    pub(super) fn new(wire: Wire, coding: Coding, until: Instant) -> Self {
        let source = if coding == Coding::Identity { Source::Plain(wire) } else { Source::Unopened(wire) };
        Self { source, coding, decoded: 0, cut: None, until }
    }

    /// Ends the body after this many decoded bytes. The rest is not read, and is no error however large it is. Must be
    /// called before reading.
    pub(crate) fn cut_at(&mut self, bytes: u64) {
        self.cut = Some(bytes);
        if let Source::Plain(wire) | Source::Unopened(wire) = &mut self.source {
            // A body that decodes to nothing must end as well.
            (wire.cut, wire.body_max) = (true, bytes.saturating_mul(2));
        }
    }

    /// The next decoded bytes; `None` at the end and after an error. Cancel safe.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, TransportError>> {
        // Let other tasks run, even if the body arrives as fast as it is read or decodes to far more than was sent.
        tokio::task::consume_budget().await;
        if self.cut.is_some_and(|cut| self.decoded >= cut) {
            self.give_up();
        }
        let next = timeout_at(self.until, self.source.next(self.coding)).await;
        let next = next.unwrap_or(Err(TransportError::TimedOut(Phase::Total)));
        let next = next.and_then(|chunk| self.counted(chunk));
        if !matches!(next, Ok(Some(_))) {
            self.give_up();
        }
        next.transpose()
    }

    /// Stops reading. The connection is closed if there was more.
    pub(crate) fn give_up(&mut self) {
        self.source = Source::Over { wire_bytes: self.wire_bytes() };
    }

    /// How many bytes have been received so far, before decoding.
    pub fn wire_bytes(&self) -> u64 {
        match &self.source {
            Source::Plain(wire) | Source::Unopened(wire) => wire.count,
            Source::Coded(decoder) => decoder.wire().count,
            Source::Over { wire_bytes } => *wire_bytes,
        }
    }

    /// How many decoded bytes have been returned so far.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded
    }

    /// Which encoding is decoded.
    pub fn coding(&self) -> Coding {
        self.coding
    }

    fn counted(&mut self, chunk: Option<Bytes>) -> Result<Option<Bytes>, TransportError> {
        let Some(mut chunk) = chunk else { return Ok(None) };
        if let Some(cut) = self.cut {
            chunk.truncate(usize::try_from(cut - self.decoded).unwrap_or(usize::MAX));
        }
        self.decoded += chunk.len() as u64;
        match &self.source {
            Source::Coded(decoder) if self.decoded > decoder.wire().body_max => {
                Err(decoder.wire().too_large())
            }
            _ => Ok(Some(chunk)),
        }
    }
}

impl Source {
    async fn next(&mut self, coding: Coding) -> Result<Option<Bytes>, TransportError> {
        loop {
            match self {
                Self::Over { .. } => return Ok(None),
                Self::Plain(wire) => return wire.chunk().await,
                Self::Coded(decoder) => return decode(decoder, coding).await,
                Self::Unopened(wire) => {
                    let arrived = wire.fill_buf().await.map_err(|error| cause(error, coding))?;
                    // 304, 204 and empty responses may name an encoding although there is nothing to decode.
                    let Some(first) = arrived.first().copied() else { return Ok(None) };
                    let decoder = coding.decoder(first).map_err(|error| cause(error, coding))?;
                    self.open(decoder);
                }
            }
        }
    }

    fn open(&mut self, decoder: Option<Opening>) {
        *self = match (mem::replace(self, Self::Over { wire_bytes: 0 }), decoder) {
            (Self::Unopened(wire), Some(decoder)) => Self::Coded(Box::new(decoder(wire))),
            (Self::Unopened(wire), None) => Self::Plain(wire),
            (other, _) => other,
        };
    }
}

async fn decode(decoder: &mut Decoder, coding: Coding) -> Result<Option<Bytes>, TransportError> {
    let mut chunk = BytesMut::with_capacity(CHUNK);
    if decoder.read(&mut chunk).await.map_err(|error| cause(error, coding))? > 0 {
        return Ok(Some(chunk.freeze()));
    }
    // The encoded data may end before the body, but the connection is free only at the end of the body.
    while decoder.wire_mut().chunk().await?.is_some() {}
    Ok(None)
}

/// The transport error that made the decoder fail, or else the decoder's own error.
fn cause(error: io::Error, coding: Coding) -> TransportError {
    match error.downcast::<TransportError>() {
        Ok(error) => error,
        Err(source) => TransportError::Decode { coding, source },
    }
}

impl Wire {
    pub(super) fn new(
        incoming: Incoming,
        connection: Connection,
        pool: Arc<ConnectionPool>,
        body_max: u64,
    ) -> Self {
        let connection = Some(connection);
        let mut wire =
            Self { incoming, arrived: Bytes::new(), count: 0, body_max, cut: false, connection, pool };
        if wire.incoming.is_end_stream() {
            wire.finish();
        }
        wire
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, TransportError> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, TransportError>> {
        for _ in 0..EMPTY_MAX {
            if self.connection.is_none() {
                return Poll::Ready(Ok(None));
            }
            // Refuse a body that announces too much before reading any of it.
            let announced = if self.cut { 0 } else { self.incoming.size_hint().lower() };
            if self.count.saturating_add(announced) > self.body_max {
                return Poll::Ready(Err(self.too_large()));
            }
            let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
            let Some(frame) = frame.transpose().map_err(|error| self.broken(error))? else {
                self.finish();
                continue;
            };
            // Ignore trailers.
            let Ok(chunk) = frame.into_data() else { continue };
            self.count += chunk.len() as u64;
            if let Some(connection) = &self.connection {
                connection.route.noise.handed_out(chunk.len());
            }
            if self.count > self.body_max {
                return Poll::Ready(Err(self.too_large()));
            }
            if self.incoming.is_end_stream() {
                self.finish();
            }
            if !chunk.is_empty() {
                return Poll::Ready(Ok(Some(chunk)));
            }
        }
        // Empty frames count toward no limit but the timeout, so let it be checked in between.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take() {
            if let Some(tap) = &connection.route.tap {
                tap.stop();
            }
            self.pool.put(connection);
        }
    }

    fn broken(&self, error: hyper::Error) -> TransportError {
        match &self.connection {
            Some(connection) if connection.route.noise.is_overrun() => TransportError::Noise,
            _ => TransportError::of_exchange(error),
        }
    }

    fn too_large(&self) -> TransportError {
        TransportError::BodyTooLarge { body_max: self.body_max }
    }
}

impl AsyncBufRead for Wire {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let wire = self.get_mut();
        if wire.arrived.is_empty() {
            wire.arrived = ready!(wire.poll_chunk(cx)).map_err(io::Error::other)?.unwrap_or_default();
        }
        Poll::Ready(Ok(&wire.arrived))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.get_mut().arrived.advance(amount);
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let arrived = ready!(self.as_mut().poll_fill_buf(cx))?;
        let amount = arrived.len().min(into.remaining());
        into.put_slice(&arrived[..amount]);
        self.consume(amount);
        Poll::Ready(Ok(()))
    }
}

/// How many empty frames are read at a time.
const EMPTY_MAX: usize = 32;
/// How many bytes are decoded at a time.
const CHUNK: usize = 32 << 10;

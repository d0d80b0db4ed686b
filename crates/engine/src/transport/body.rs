//! A body as it is read: chunk by chunk, decoded, within limits of size and time.
//!
//! A body over its limit is an error, unless whoever reads it wants its beginning only: then it ends there.
//! An HTTP/1.1 connection goes back to the pool when its body was read to the end; a body dropped before that
//! takes the connection with it.

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
use super::pool::Pool;

/// The body of an answer.
pub struct Body {
    source: Source,
    coding: Coding,
    decoded: u64,
    /// It ends here, whatever comes after.
    cut: Option<u64>,
    until: Instant,
}

/// What the connection delivers, before anything is undone but HTTP's own framing.
pub(super) struct Wire {
    incoming: Incoming,
    /// Bytes that have arrived and that the decoder has not taken.
    arrived: Bytes,
    count: u64,
    body_max: u64,
    /// What the answer announces is no reason to refuse it.
    cut: bool,
    /// Held until the end of the body.
    connection: Option<Connection>,
    pool: Arc<Pool>,
}

enum Source {
    Plain(Wire),
    /// Encoded, but nothing has been read that shows how.
    Unopened(Wire),
    Coded(Box<Decoder>),
    /// Read to its end, or given up.
    Over {
        wire_bytes: u64,
    },
}

impl Body {
    pub(super) fn new(wire: Wire, coding: Coding, until: Instant) -> Self {
        let source = if coding == Coding::Identity { Source::Plain(wire) } else { Source::Unopened(wire) };
        Self { source, coding, decoded: 0, cut: None, until }
    }

    /// Of a body that nothing was read of: ends it after so many bytes, decoded. What lies beyond is not read, and
    /// is no error however much of it there is.
    pub(crate) fn cut_at(&mut self, bytes: u64) {
        self.cut = Some(bytes);
        if let Source::Plain(wire) | Source::Unopened(wire) = &mut self.source {
            // What decodes to nothing must end too.
            (wire.cut, wire.body_max) = (true, bytes.saturating_mul(2));
        }
    }

    /// The next bytes, decoded; none at the end and after an error. May be cancelled and called again.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, TransportError>> {
        // A body that comes as fast as it is read, or grows out of very little, leaves a turn to the others.
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

    /// Reads no more of it; its connection is closed if there was more.
    pub(crate) fn give_up(&mut self) {
        self.source = Source::Over { wire_bytes: self.wire_bytes() };
    }

    /// How many bytes came over the wire so far.
    pub fn wire_bytes(&self) -> u64 {
        match &self.source {
            Source::Plain(wire) | Source::Unopened(wire) => wire.count,
            Source::Coded(decoder) => decoder.wire().count,
            Source::Over { wire_bytes } => *wire_bytes,
        }
    }

    /// How many bytes were handed out so far.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded
    }

    /// Which encoding is undone.
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
                    // 304, 204 and plainly empty answers name an encoding and have nothing to decode.
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
    // The encoded part may end before the body does, and only the body's end frees the connection.
    while decoder.wire_mut().chunk().await?.is_some() {}
    Ok(None)
}

/// The error of the wire, if it was that which failed below a decoder; otherwise the decoder's own.
fn cause(error: io::Error, coding: Coding) -> TransportError {
    match error.downcast::<TransportError>() {
        Ok(error) => error,
        Err(source) => TransportError::Decode { coding, source },
    }
}

impl Wire {
    pub(super) fn new(incoming: Incoming, connection: Connection, pool: Arc<Pool>, body_max: u64) -> Self {
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
            // Refuses a body that announces too much before reading any of it.
            let announced = if self.cut { 0 } else { self.incoming.size_hint().lower() };
            if self.count.saturating_add(announced) > self.body_max {
                return Poll::Ready(Err(self.too_large()));
            }
            let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
            let Some(frame) = frame.transpose().map_err(|error| self.broken(error))? else {
                self.finish();
                continue;
            };
            // Trailers are of no interest.
            let Ok(chunk) = frame.into_data() else { continue };
            self.count += chunk.len() as u64;
            if let Some(connection) = &self.connection {
                connection.route.meter.handed_out(chunk.len());
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
        // Frames without anything in them count for no limit but that of time, which is looked at in between.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take() {
            if let Some(tape) = &connection.route.tape {
                tape.stop();
            }
            self.pool.put(connection);
        }
    }

    fn broken(&self, error: hyper::Error) -> TransportError {
        match &self.connection {
            Some(connection) if connection.route.meter.is_overrun() => TransportError::Noise,
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

/// How many frames with nothing in them are read at a time.
const EMPTY_MAX: usize = 32;
/// How much is decoded at a time.
const CHUNK: usize = 32 << 10;

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
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::coding::{CODINGS_MAX, Coding, Codings, Decoder, Opening};
use super::connection::Connection;
use super::error::{Phase, TransportError};
use super::pool::ConnectionPool;

/// A response body.
pub struct Body {
    source: Source,
    codings: Codings,
    decoded: u64,
    /// Ends the body after this many decoded bytes.
    cut: Option<u64>,
    until: Instant,
    /// How long nothing may arrive, for a body that is passed on.
    silence: Option<Duration>,
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
    /// Where it goes then; `None` if the server closes it.
    pool: Option<Arc<ConnectionPool>>,
}

/// What a decoder reads: the body as sent, or what the decoder of the encoding above it returns.
pub(super) enum Input {
    Wire(Wire),
    Layer(Box<Layer>),
}

/// An encoding with another one below it.
pub(super) struct Layer {
    decoder: BufReader<Decoder>,
    /// How many decoded bytes were read from it.
    count: u64,
    /// How many more of them before other tasks run.
    budget: usize,
}

enum Source {
    Plain(Wire),
    /// Encoded, but nothing has been read yet that shows how exactly. The first `left` encodings have no decoder yet.
    Unopened {
        input: Input,
        left: usize,
    },
    Coded(Box<Decoder>),
    /// Read to the end, or given up.
    Over {
        wire_bytes: u64,
    },
}

impl Body {
    pub(super) fn new(wire: Wire, codings: Codings, until: Instant) -> Self {
        let source = match codings.0.len() {
            0 => Source::Plain(wire),
            left => Source::Unopened { input: Input::Wire(wire), left },
        };
        Self { source, codings, decoded: 0, cut: None, until, silence: None }
    }

    /// Ends the body after this many decoded bytes. The rest is not read, and is no error however large it is. Must be
    /// called before reading.
    pub(crate) fn cut_at(&mut self, bytes: u64) {
        self.cut = Some(bytes);
        let wire = match &mut self.source {
            Source::Plain(wire) => wire,
            Source::Unopened { input, .. } => input.wire_mut(),
            Source::Coded(_) | Source::Over { .. } => return,
        };
        // A body that decodes to nothing must end as well.
        (wire.cut, wire.body_max) = (true, bytes.saturating_mul(2));
    }

    /// Passes the body on as sent: not decoded, without a limit on its size, and for as long as some of it arrives
    /// within each `silence`. Must be called before reading.
    pub(crate) fn relay(&mut self, silence: Duration) {
        let source = mem::replace(&mut self.source, Source::Over { wire_bytes: 0 });
        self.source = match source {
            Source::Plain(wire) | Source::Unopened { input: Input::Wire(wire), .. } => {
                Source::Plain(Wire { body_max: u64::MAX, ..wire })
            }
            other => other,
        };
        self.silence = Some(silence);
    }

    /// The next decoded bytes; `None` at the end and after an error. Cancel safe.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, TransportError>> {
        // Let other tasks run, even if the body arrives as fast as it is read or decodes to far more than was sent.
        tokio::task::consume_budget().await;
        if self.cut.is_some_and(|cut| self.decoded >= cut) {
            self.give_up();
        }
        let until = self.silence.map_or(self.until, |silence| Instant::now() + silence);
        let next = timeout_at(until, self.source.next(&self.codings)).await;
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
            Source::Plain(wire) => wire.count,
            Source::Unopened { input, .. } => input.wire().count,
            Source::Coded(decoder) => decoder.wire().count,
            Source::Over { wire_bytes } => *wire_bytes,
        }
    }

    /// How many decoded bytes have been returned so far.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded
    }

    /// The encodings that are decoded, in the order they were applied.
    pub fn codings(&self) -> &[Coding] {
        &self.codings.0
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
    async fn next(&mut self, codings: &Codings) -> Result<Option<Bytes>, TransportError> {
        let wrong = |error| cause(error, codings);
        loop {
            match self {
                Self::Over { .. } => return Ok(None),
                Self::Plain(wire) => return wire.chunk().await,
                Self::Coded(decoder) => {
                    let mut chunk = BytesMut::with_capacity(CHUNK);
                    if decoder.read_buf(&mut chunk).await.map_err(wrong)? > 0 {
                        return Ok(Some(chunk.freeze()));
                    }
                    return decoder.wire_mut().drain().await;
                }
                Self::Unopened { input, left } => {
                    let first = input.fill_buf().await.map_err(wrong)?.first().copied();
                    // 304, 204 and empty responses may name an encoding although there is nothing to decode.
                    let Some(first) = first else { return input.wire_mut().drain().await };
                    let decoder = codings.layer(*left)?.decoder(first).map_err(wrong)?;
                    self.open(decoder);
                }
            }
        }
    }

    fn open(&mut self, decoder: Opening) {
        *self = match mem::replace(self, Self::Over { wire_bytes: 0 }) {
            Self::Unopened { input, left: 0 | 1 } => Self::Coded(Box::new(decoder(input))),
            Self::Unopened { input, left } => {
                let decoder = BufReader::with_capacity(CHUNK, decoder(input));
                let layer = Layer { decoder, count: 0, budget: AT_ONCE };
                Self::Unopened { input: Input::Layer(Box::new(layer)), left: left - 1 }
            }
            other => other,
        };
    }
}

impl Codings {
    /// The last of the first `left` encodings, which is decoded next.
    fn layer(&self, left: usize) -> Result<Coding, TransportError> {
        match self.0.get(left.wrapping_sub(1)) {
            Some(coding) if self.0.len() <= CODINGS_MAX => Ok(*coding),
            _ => {
                let first = self.0.iter().take(CODINGS_MAX).copied().collect();
                Err(TransportError::TooManyCodings { count: self.0.len(), codings: Self(first) })
            }
        }
    }
}

/// The transport error that made the decoder fail, or else the decoder's own error.
fn cause(error: io::Error, codings: &Codings) -> TransportError {
    match error.downcast::<TransportError>() {
        Ok(error) => error,
        Err(source) => TransportError::Decode { codings: codings.clone(), source },
    }
}

impl Wire {
    pub(super) fn new(
        incoming: Incoming,
        connection: Connection,
        pool: Option<Arc<ConnectionPool>>,
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

    /// Reads the rest: encoded data may end before the body, but the connection is free only at the end of the body.
    async fn drain(&mut self) -> Result<Option<Bytes>, TransportError> {
        while self.chunk().await?.is_some() {}
        Ok(None)
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

    /// The bytes that have arrived; none at the end of the body.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.arrived.is_empty() {
            self.arrived = ready!(self.poll_chunk(cx)).map_err(io::Error::other)?.unwrap_or_default();
        }
        Poll::Ready(Ok(&self.arrived))
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take() {
            if let Some(tap) = &connection.route.tap {
                tap.stop();
            }
            if let Some(pool) = &self.pool {
                pool.put(connection);
            }
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

impl Input {
    pub(super) fn wire(&self) -> &Wire {
        match self {
            Self::Wire(wire) => wire,
            Self::Layer(layer) => layer.decoder.get_ref().wire(),
        }
    }

    pub(super) fn wire_mut(&mut self) -> &mut Wire {
        match self {
            Self::Wire(wire) => wire,
            Self::Layer(layer) => layer.decoder.get_mut().wire_mut(),
        }
    }
}

impl AsyncBufRead for Input {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        match self.get_mut() {
            Self::Wire(wire) => wire.poll_fill(cx),
            Self::Layer(layer) => {
                // What is below may decode to nothing, however much this is.
                let wire = layer.decoder.get_ref().wire();
                if layer.count > wire.body_max {
                    return Poll::Ready(Err(io::Error::other(wire.too_large())));
                }
                if layer.budget == 0 {
                    layer.budget = AT_ONCE;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Pin::new(&mut layer.decoder).poll_fill_buf(cx)
            }
        }
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        match self.get_mut() {
            Self::Wire(wire) => wire.arrived.advance(amount),
            Self::Layer(layer) => {
                layer.count += amount as u64;
                layer.budget = layer.budget.saturating_sub(amount);
                Pin::new(&mut layer.decoder).consume(amount);
            }
        }
    }
}

impl AsyncRead for Input {
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
/// How many bytes of a layer are decoded before other tasks run.
const AT_ONCE: usize = 1 << 20;
/// How many bytes are decoded at a time.
const CHUNK: usize = 32 << 10;

//! Where response bodies go.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use comity_core::outcome::Answer;
use hyper::upgrade::OnUpgrade;

use super::Head;

/// Takes a response body.
pub(crate) trait Sink: Send {
    /// Why it could not.
    type Error: Send;

    /// Called when the headers have arrived. Returns how much of the body is wanted.
    fn begin(&mut self, head: &Head) -> impl Future<Output = Result<Wanted, Self::Error>> + Send;

    /// Takes the connection of a relayed request whose server switched to another protocol.
    fn switched(&mut self, _connection: OnUpgrade) {}

    /// Waits until the sink can take another chunk.
    fn ready(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Takes the next chunk of the body.
    fn chunk(&mut self, chunk: Bytes) -> Result<(), Self::Error>;

    /// Called when as much of the body as was wanted has arrived.
    fn complete(&mut self) {}

    /// Called when the body has been read. Returns the final verdict, for protocols that report errors in the body.
    fn judge(&mut self, _head: &Head, answer: Answer) -> Answer {
        answer
    }
}

/// How much of a body is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it; more than `max` bytes are an error.
    Whole { max: u64 },
    /// At most this many bytes; the rest is ignored.
    Cut(u64),
    /// None of it.
    Nothing,
    /// All of it, passed on as it was sent, however long it is and takes, but not after a silence of this length.
    Relayed(Duration),
}

/// Collects a body in memory.
pub(crate) struct Collect {
    pub(crate) body: BytesMut,
    wanted: Wanted,
    /// How much is wanted of any response that isn't a success.
    unless_success: Wanted,
}

impl Collect {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self { body: BytesMut::new(), wanted, unless_success: wanted }
    }

    /// Wants this much of any response that isn't a success.
    pub(crate) fn unless_success(self, unless_success: Wanted) -> Self {
        Self { unless_success, ..self }
    }
}

impl Sink for Collect {
    type Error = std::convert::Infallible;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, Self::Error> {
        Ok(if (200..300).contains(&head.status) { self.wanted } else { self.unless_success })
    }

    fn chunk(&mut self, chunk: Bytes) -> Result<(), Self::Error> {
        self.body.extend_from_slice(&chunk);
        Ok(())
    }
}

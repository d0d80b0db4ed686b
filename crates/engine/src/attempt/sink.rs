//! Where the bodies of answers go.

use bytes::{Bytes, BytesMut};
use comity_core::outcome::Answer;

use super::Head;

/// Takes the body of an answer.
pub(crate) trait Sink: Send {
    /// Why it cannot take it.
    type Error: Send;

    /// A head came; what of its body is wanted.
    fn begin(&mut self, head: &Head) -> impl Future<Output = Result<Wanted, Self::Error>> + Send;

    /// Some more of the body.
    fn piece(&mut self, piece: Bytes) -> Result<(), Self::Error>;

    /// The body is there: what the answer is after all, where that stands in it.
    fn judge(&mut self, _head: &Head, answer: Answer) -> Answer {
        answer
    }
}

/// How much of a body is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it; more than `max` bytes are an error.
    Whole { max: u64 },
    /// So many bytes of it at most.
    Cut(u64),
    /// None of it.
    Nothing,
}

/// Keeps a body in memory.
pub(crate) struct Collect {
    pub(crate) body: BytesMut,
    wanted: Wanted,
    /// What is wanted of anything but a success.
    otherwise: Wanted,
}

impl Collect {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self { body: BytesMut::new(), wanted, otherwise: wanted }
    }

    /// The same, but of anything that is no success this much.
    pub(crate) fn otherwise(self, otherwise: Wanted) -> Self {
        Self { otherwise, ..self }
    }
}

impl Sink for Collect {
    type Error = std::convert::Infallible;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, Self::Error> {
        Ok(if (200..300).contains(&head.status) { self.wanted } else { self.otherwise })
    }

    fn piece(&mut self, piece: Bytes) -> Result<(), Self::Error> {
        self.body.extend_from_slice(&piece);
        Ok(())
    }
}

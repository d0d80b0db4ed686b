//! Relayed requests: sent as another program wrote them, with a body that is streamed from that program.
//!
//! Nothing of ours is added, not even a user agent. Which headers may pass is decided in `crate::proxy`.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;

use crate::lock;

/// How a relayed request differs from our own. Only the proxy makes one.
pub struct Relay {
    /// The target as the program wrote it: a parsed URL may spell it differently.
    pub(crate) target: PathAndQuery,
    /// The body, if it isn't empty.
    pub(crate) body: Option<StreamedBody>,
    /// Whether the program wants to switch to another protocol. Such requests use HTTP/1.1.
    pub(crate) upgrades: bool,
}

/// A request body that arrives while it is sent. Clones share it: it can be sent once.
#[derive(Clone)]
pub(crate) struct StreamedBody(Arc<Mutex<State>>);

struct State {
    body: UnsyncBoxBody<Bytes, BoxError>,
    failed: bool,
}

/// What a request carries.
pub(super) enum Outbound {
    Whole(Full<Bytes>),
    Streamed(StreamedBody),
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl StreamedBody {
    pub(crate) fn new(body: UnsyncBoxBody<Bytes, BoxError>) -> Self {
        Self(Arc::new(Mutex::new(State { body, failed: false })))
    }

    /// Whether it ended before it was complete.
    pub(crate) fn failed(&self) -> bool {
        lock(&self.0).failed
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let streamed = match self.get_mut() {
            Self::Whole(whole) => return Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
            Self::Streamed(streamed) => streamed,
        };
        let mut state = lock(&streamed.0);
        loop {
            let frame = ready!(Pin::new(&mut state.body).poll_frame(cx));
            state.failed |= matches!(frame, Some(Err(_)));
            match frame {
                // Trailers are dropped, as a proxy may do.
                Some(Ok(frame)) if frame.is_trailers() => {}
                frame => return Poll::Ready(frame),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Streamed(streamed) => lock(&streamed.0).body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Streamed(streamed) => lock(&streamed.0).body.size_hint(),
        }
    }
}

impl From<Bytes> for Outbound {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes.into())
    }
}

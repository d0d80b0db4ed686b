//! The body of an answer: its request is on the wire until it ends (B78).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use comity_core::outcome::Answer;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::{BoxError, breakdown};
use crate::gate::Permit;

/// A request on the wire. It is recorded when its body ended or is dropped: who drops a body was answered, and wants no
/// more of it. One that nobody reads counts for a while only: code that keeps an answer and asks the same site again
/// would wait for itself.
#[derive(Debug)]
pub(super) struct OnWire(Option<Watched>);

#[derive(Debug)]
struct Watched {
    request: Arc<Sent>,
    watch: AbortHandle,
}

/// A request, and what its answer is if nothing happens to it any more.
#[derive(Debug)]
struct Sent {
    open: Mutex<Option<(Permit, Answer)>>,
    /// How often its body was asked for more.
    polled: AtomicU64,
}

impl OnWire {
    pub(super) fn new(permit: Permit, answer: Answer) -> Self {
        let request = Arc::new(Sent { open: Mutex::new(Some((permit, answer))), polled: AtomicU64::new(0) });
        let watch = tokio::spawn(watch(Arc::downgrade(&request))).abort_handle();
        Self(Some(Watched { request, watch }))
    }

    /// One that was recorded already.
    pub(super) fn ended() -> Self {
        Self(None)
    }

    fn polled(&self) {
        if let Some(watched) = &self.0 {
            watched.request.polled.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(&mut self) {
        self.end_as(|answer| answer);
    }

    fn end_as(&mut self, what: impl FnOnce(Answer) -> Answer) {
        if let Some(watched) = self.0.take() {
            watched.watch.abort();
            watched.request.record(what);
        }
    }

    fn breaks(&mut self, error: &BoxError) {
        self.end_as(|answer| match breakdown(&**error) {
            Some(breakdown) => Answer { told: answer.told, ..Answer::of_breakdown(breakdown) },
            None => answer,
        });
    }
}

impl Sent {
    fn record(&self, what: impl FnOnce(Answer) -> Answer) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((permit, answer)) = open {
            permit.record(&what(answer));
        }
    }
}

/// Records a request whose body nobody reads.
async fn watch(request: Weak<Sent>) {
    let mut before = None;
    loop {
        let Some(request) = request.upgrade() else { return };
        let polled = request.polled.load(Ordering::Relaxed);
        if before.replace(polled) == Some(polled) {
            return request.record(|answer| answer);
        }
        drop(request);
        sleep(UNREAD).await;
    }
}

impl Drop for OnWire {
    fn drop(&mut self) {
        self.end();
    }
}

pin_project_lite::pin_project! {
    /// A body whose request is on the wire until it was read to its end, broke, or is dropped.
    #[derive(Debug)]
    pub struct OnWireBody<B> {
        #[pin]
        body: B,
        on_wire: OnWire,
    }
}

impl<B: Body> OnWireBody<B> {
    pub(super) fn new(body: B, mut on_wire: OnWire) -> Self {
        if body.is_end_stream() {
            on_wire.end();
        }
        Self { body, on_wire }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for OnWireBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        this.on_wire.polled();
        let frame = ready!(this.body.as_mut().poll_frame(context)).map(|frame| frame.map_err(Into::into));
        match &frame {
            Some(Ok(_)) if !this.body.is_end_stream() => {}
            Some(Err(error)) => this.on_wire.breaks(error),
            Some(Ok(_)) | None => this.on_wire.end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that nobody asked for more for this long is not read.
const UNREAD: Duration = Duration::from_secs(5);

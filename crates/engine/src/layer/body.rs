//! Response bodies: a request is in flight until its body ends.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use comity_core::outcome::Answer;
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::{BoxError, failure_of};
use crate::gate::Permit;

/// A request in flight. It is recorded when its body has ended or is dropped: a caller that drops a body got its
/// response and doesn't need the rest. A body that nobody reads counts only for a while, because otherwise code that
/// holds one response while requesting another from the same site would wait for itself.
#[derive(Debug)]
pub(super) struct InFlight(Option<Watched>);

#[derive(Debug)]
struct Watched {
    request: Arc<Sent>,
    watch: AbortHandle,
}

/// A request that was sent, and what to record if nothing else happens.
#[derive(Debug)]
struct Sent {
    open: Mutex<Option<(Permit, Answer)>>,
    /// How often its body was polled.
    polled: AtomicU64,
}

impl InFlight {
    pub(super) fn new(permit: Permit, answer: Answer) -> Self {
        let request = Arc::new(Sent { open: Mutex::new(Some((permit, answer))), polled: AtomicU64::new(0) });
        let watch = tokio::spawn(watch(Arc::downgrade(&request))).abort_handle();
        Self(Some(Watched { request, watch }))
    }

    /// A request that has already been recorded.
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
        self.end_as(|answer| match failure_of(&**error) {
            Some(failure) => Answer { hints: answer.hints, ..Answer::of_failure(failure) },
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

/// Records a request whose body nobody has read for a while.
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

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end();
    }
}

pin_project_lite::pin_project! {
    /// A body whose request is in flight until the body has been read to its end, has failed, or is dropped.
    #[derive(Debug)]
    pub struct InFlightBody<B> {
        #[pin]
        body: B,
        in_flight: InFlight,
    }
}

impl<B: Body> InFlightBody<B> {
    pub(super) fn new(body: B, mut in_flight: InFlight) -> Self {
        if body.is_end_stream() {
            in_flight.end();
        }
        Self { body, in_flight }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        this.in_flight.polled();
        let frame = ready!(this.body.as_mut().poll_frame(context)).map(|frame| frame.map_err(Into::into));
        match &frame {
            Some(Ok(_)) if !this.body.is_end_stream() => {}
            Some(Err(error)) => this.in_flight.breaks(error),
            Some(Ok(_)) | None => this.in_flight.end(),
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

/// A body that has not been polled for this long counts as unread.
const UNREAD: Duration = Duration::from_secs(5);

//! An open connection, for one request at a time (HTTP/1.1) or many (HTTP/2).
//!
//! Idle connections are in [`super::pool`].

use std::sync::Arc;

use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};

use tokio::time::Instant;

use super::close_signal::CloseSignal;
use super::origin::{Message, Route};
use super::relay::Outbound;

/// An open connection. Dropping it closes an HTTP/1.1 connection; an HTTP/2 connection closes with its last stream.
pub(super) struct Connection {
    pub(super) sender: Sender,
    pub(super) route: Arc<Route>,
}

pub(super) enum Sender {
    One(http1::SendRequest<Outbound>),
    Many(http2::SendRequest<Outbound>),
}

/// Why there is no response.
pub(super) enum Unanswered {
    /// No byte of the request was written.
    Unsent(hyper::Error),
    /// Some of the request may have been written.
    Lost(hyper::Error),
}

impl Connection {
    /// Waits until a request can be written; false if the connection is closed.
    pub(super) async fn is_usable(&mut self) -> bool {
        match &mut self.sender {
            Sender::One(sender) => sender.ready().await.is_ok(),
            Sender::Many(sender) => sender.ready().await.is_ok(),
        }
    }

    /// Signals when the connection is closed; `None` for a shared one.
    pub(super) fn close_signal(&self) -> Option<CloseSignal> {
        matches!(self.sender, Sender::One(_)).then(|| self.route.close_signal())
    }

    /// When the last request was written; `None` on a shared connection.
    pub(super) fn written_at(&self) -> Option<Instant> {
        matches!(self.sender, Sender::One(_)).then(|| self.route.last_write.last())
    }

    /// Writes a request and waits for the response headers.
    pub(super) async fn exchange(&mut self, message: Message) -> Result<Response<Incoming>, Unanswered> {
        let answer = match &mut self.sender {
            Sender::One(sender) => sender.try_send_request(message).await,
            Sender::Many(sender) => sender.try_send_request(message).await,
        };
        answer.map_err(|mut error| match error.take_message() {
            Some(_) => Unanswered::Unsent(error.into_error()),
            None => Unanswered::Lost(error.into_error()),
        })
    }
}

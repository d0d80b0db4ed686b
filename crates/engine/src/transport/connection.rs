//! An open connection, for one request at a time (HTTP/1.1) or many (HTTP/2).
//!
//! Connections at rest live in [`super::pool`].

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};

use tokio::time::Instant;

use super::line::Line;
use super::origin::{Message, Route};

/// An open connection. Dropping it ends an HTTP/1.1 connection, and an HTTP/2 one with its last stream.
pub(super) struct Connection {
    pub(super) sender: Sender,
    pub(super) route: Arc<Route>,
}

pub(super) enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Many(http2::SendRequest<Full<Bytes>>),
}

/// Why there is no response.
pub(super) enum Unanswered {
    /// Not a byte of the request was written.
    Unsent(hyper::Error),
    /// Some of it may have been.
    Lost(hyper::Error),
}

impl Connection {
    /// Waits until a request can be written; false if the connection has ended.
    pub(super) async fn is_usable(&mut self) -> bool {
        match &mut self.sender {
            Sender::One(sender) => sender.ready().await.is_ok(),
            Sender::Many(sender) => sender.ready().await.is_ok(),
        }
    }

    /// Tells when it is closed; none for one that others may use.
    pub(super) fn line(&self) -> Option<Line> {
        matches!(self.sender, Sender::One(_)).then(|| self.route.line())
    }

    /// When the last request was written, if no other can have been meanwhile.
    pub(super) fn written_at(&self) -> Option<Instant> {
        matches!(self.sender, Sender::One(_)).then(|| self.route.stamp.last())
    }

    /// Writes a request and waits for the head of its answer.
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

//! The proxy's own responses: problem details (RFC 9457) with the reason, and bodies that are passed on.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use comity_core::time::Span;
use http::header::{CONTENT_TYPE, PROXY_AUTHENTICATE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use crate::transport::{Refusal, TransportError};

/// The body of a response to a client.
pub(super) enum ProxyBody {
    Whole(Full<Bytes>),
    Relayed(Relayed),
}

/// A body that arrives from a site. Dropping it tells the exchange that the client is gone.
pub(super) struct Relayed {
    pub(super) chunks: mpsc::Receiver<Chunk>,
    pub(super) _gone: DropGuard,
}

/// A part of such a body. A body without [`Chunk::End`] was cut off.
pub(super) enum Chunk {
    Part(Bytes),
    End,
}

/// Why the proxy answers itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) detail: String,
    /// When to try again.
    pub(super) retry_after: Option<Span>,
    /// What delays the request.
    pub(super) reason: Option<String>,
}

pub(super) type Answer = Response<ProxyBody>;

impl Refused {
    pub(super) fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), retry_after: None, reason: None }
    }

    /// The answer to a request whose site could not be reached, or must not be.
    pub(super) fn of_transport(error: &TransportError) -> Self {
        let detail = error.to_string();
        match error {
            TransportError::Refused { refusal: Refusal::NotPublic(address), host } => {
                let detail = format!(
                    "{host} is not public ({address}): the proxy is not a way into private networks; allow it with \
                     http.allow_private"
                );
                Self::new(StatusCode::FORBIDDEN, "blocked-address", detail)
            }
            TransportError::Refused { .. } => Self::new(StatusCode::FORBIDDEN, "blocked-address", detail),
            TransportError::TimedOut(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", detail),
            TransportError::UnsupportedScheme(_) | TransportError::Unsendable { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
            }
            TransportError::Tls { .. } => Self::new(StatusCode::BAD_GATEWAY, "tls", detail),
            _ => Self::new(StatusCode::BAD_GATEWAY, "unreachable", detail),
        }
    }

    pub(super) fn answer(self) -> Answer {
        let title = self.status.canonical_reason().unwrap_or_default();
        let body = json!({
            "type": format!("urn:comity:problem:{}", self.kind),
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = Response::new(ProxyBody::whole(format!("{body}\n").into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(span) = self.retry_after {
            headers.insert(RETRY_AFTER, span.as_secs_up().max(1).into());
        }
        if self.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            headers.insert(PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"comity\""));
        }
        let reason = self.reason.as_deref().unwrap_or(&self.detail);
        headers.insert(REASON, header_text(reason));
        response
    }
}

/// A text as a header.
pub(super) fn header_text(text: &str) -> HeaderValue {
    let plain: String =
        text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect();
    HeaderValue::try_from(plain).unwrap_or(HeaderValue::from_static("?"))
}

impl ProxyBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
    }

    pub(super) fn empty() -> Self {
        Self::whole(Bytes::new())
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
            Self::Relayed(relayed) => relayed.chunks.poll_recv(cx).map(|chunk| match chunk {
                Some(Chunk::Part(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(Chunk::End) => None,
                // The client must not take it for complete.
                None => Some(Err(std::io::ErrorKind::UnexpectedEof.into())),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Relayed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Relayed(_) => SizeHint::default(),
        }
    }
}

/// How long the request waited in line, in milliseconds.
pub(super) const WAITED: HeaderName = HeaderName::from_static("comity-waited");
/// Why it waited, or why the proxy answered itself.
pub(super) const REASON: HeaderName = HeaderName::from_static("comity-reason");

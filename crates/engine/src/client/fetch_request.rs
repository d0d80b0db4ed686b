//! The options of a request to the client.

use bytes::Bytes;
use comity_core::time::Span;
use comity_store::tasks::Lead;
use http::{HeaderName, HeaderValue, Method};
use tokio::sync::watch;
use url::Url;

use crate::redact;
use crate::transport;

/// A request to the client, with its options.
#[derive(Clone)]
pub struct FetchRequest {
    /// The URL.
    pub url: Url,
    /// Where the URL comes from.
    pub lead: Lead,
    /// The `Accept` header.
    pub accept: Option<HeaderValue>,
    /// The method.
    pub method: Method,
    /// The body. After a redirect it is sent to the same host only.
    pub body: Bytes,
    /// Additional headers. They are sent to the host of `url` only, and never from https to http. The headers
    /// configured for the site are added to them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Headers that make the request conditional, and the URL whose response provided them: they are sent to no other
    /// URL.
    pub conditions: Option<(Url, Vec<(HeaderName, HeaderValue)>)>,
    /// The maximum size of the body; a larger one is an error.
    pub body_max: Option<u64>,
    /// The maximum number of retries.
    pub retries_max: u32,
    /// Gives up if the domain is held (by its server, a backoff or an operator) for longer than this; [`Span::MAX`]
    /// waits however long it takes.
    pub patience: Span,
    /// Gives up waiting when this becomes true. A request in flight is finished.
    pub stop: Option<watch::Receiver<bool>>,
}

impl FetchRequest {
    /// A plain GET of `url` without retries, which waits however long it takes.
    pub fn new(url: Url, lead: Lead) -> Self {
        Self {
            url,
            lead,
            accept: None,
            method: Method::GET,
            body: Bytes::new(),
            headers: Vec::new(),
            conditions: None,
            body_max: None,
            retries_max: 0,
            patience: Span::MAX,
            stop: None,
        }
    }

    /// Waits until `stop` becomes true.
    pub(super) async fn stopped(&self) {
        if let Some(mut stop) = self.stop.clone()
            && stop.wait_for(|stop| *stop).await.is_ok()
        {
            return;
        }
        // Without a sender nobody can stop it any more.
        std::future::pending().await
    }

    /// The headers of a request for `url`. With `own`, includes the caller's additional headers.
    pub(super) fn headers_for(&self, url: &Url, own: bool) -> Vec<(HeaderName, HeaderValue)> {
        let conditions = self.conditions.as_ref().filter(|(told_by, _)| told_by == url);
        let conditions = conditions.map_or(&[][..], |(_, headers)| headers);
        let own = if own { &self.headers[..] } else { &[] };
        own.iter().chain(conditions).cloned().collect()
    }

    pub(super) fn hop<'a>(&'a self, url: &'a Url, lead: Lead, sends: bool) -> transport::Request<'a> {
        let plain = transport::Request::new(url, lead);
        let (method, body) = match sends && (self.method != Method::GET || !self.body.is_empty()) {
            true => (Some(&self.method), Some(&self.body)),
            false => (None, None),
        };
        transport::Request { accept: self.accept.as_ref(), method, body, ..plain }
    }
}

/// Omits headers and body, which may contain secrets.
impl std::fmt::Debug for FetchRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = redact::url(&self.url);
        f.debug_struct("FetchRequest")
            .field("method", &self.method)
            .field("url", &url)
            .finish_non_exhaustive()
    }
}

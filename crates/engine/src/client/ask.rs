//! What a client is asked for, and how.

use bytes::Bytes;
use comity_core::time::Span;
use comity_store::tasks::Lead;
use http::{HeaderName, HeaderValue, Method};
use tokio::sync::watch;
use url::Url;

use crate::shown;
use crate::transport;

/// What to ask for, and how.
#[derive(Clone)]
pub struct Ask {
    /// What to ask for.
    pub url: Url,
    /// Who led to it.
    pub lead: Lead,
    /// The media types wanted.
    pub accept: Option<HeaderValue>,
    /// The method, where it is no GET.
    pub method: Method,
    /// What is sent with it. After a redirect it goes on to the same host only.
    pub body: Bytes,
    /// Further headers. They stay with the host of `url`, and do not go down from https to http; those of a site's
    /// section in the configuration are added to them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Headers that make the request conditional, and the address they were told by: no other is asked with them.
    pub conditions: Option<(Url, Vec<(HeaderName, HeaderValue)>)>,
    /// A larger body is an error.
    pub body_max: Option<u64>,
    /// How often a failure is tried again.
    pub retries_max: u32,
    /// Gives up when the domain is held back (by its server, a backoff, an operator) for longer than this;
    /// [`Span::MAX`] waits however long that takes.
    pub patience: Span,
    /// Gives up waiting when this becomes true; what is on the wire is finished.
    pub stop: Option<watch::Receiver<bool>>,
}

impl Ask {
    /// A plain question for `url`, asked once, however long it takes.
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

    /// Comes when nobody wants it any more.
    pub(super) async fn stopped(&self) {
        if let Some(mut stop) = self.stop.clone()
            && stop.wait_for(|stop| *stop).await.is_ok()
        {
            return;
        }
        // Nobody may be there any more to stop it: then it is not.
        std::future::pending().await
    }

    /// The headers of a request for `url`, which gets its own only if they are meant for it.
    pub(super) fn headers_for(&self, url: &Url, own: bool) -> Vec<(HeaderName, HeaderValue)> {
        let conditions = self.conditions.as_ref().filter(|(told_by, _)| told_by == url);
        let conditions = conditions.map_or(&[][..], |(_, headers)| headers);
        let own = if own { &self.headers[..] } else { &[] };
        own.iter().chain(conditions).cloned().collect()
    }

    pub(super) fn request<'a>(&'a self, url: &'a Url, lead: Lead, sends: bool) -> transport::Request<'a> {
        let plain = transport::Request::new(url, lead);
        let (method, body) = match sends && (self.method != Method::GET || !self.body.is_empty()) {
            true => (Some(&self.method), Some(&self.body)),
            false => (None, None),
        };
        transport::Request { accept: self.accept.as_ref(), method, body, ..plain }
    }
}

/// Without its headers and its body, which may be secrets.
impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = shown::url(&self.url);
        f.debug_struct("Ask").field("method", &self.method).field("url", &url).finish_non_exhaustive()
    }
}

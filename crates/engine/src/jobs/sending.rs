//! What a task sends when it is no plain GET.

use bytes::Bytes;
use comity_store::tasks::Sends;
use http::{HeaderName, HeaderValue, Method};

use crate::transport::Request;

/// A method, a body and headers, ready to be sent.
pub(super) struct Sending {
    pub(super) method: Method,
    body: Bytes,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Sending {
    /// What the store keeps of it. What cannot be sent was refused when the task was added.
    pub(super) fn of(sends: &Sends) -> Self {
        let header = |(name, value): &(String, String)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::from_str(value).ok()?))
        };
        Self {
            method: Method::from_bytes(sends.method.as_bytes()).unwrap_or(Method::GET),
            body: Bytes::from(sends.body.clone()),
            headers: sends.headers.iter().filter_map(header).collect(),
        }
    }

    /// Whether only its headers are its own.
    pub(super) fn is_plain(&self) -> bool {
        self.method == Method::GET && self.body.is_empty()
    }

    /// The request with its method and body; its headers are those of the request already.
    pub(super) fn request<'a>(&'a self, plain: Request<'a>) -> Request<'a> {
        Request { method: Some(&self.method), body: Some(&self.body), ..plain }
    }
}

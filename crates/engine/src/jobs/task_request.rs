//! What a task sends if it isn't a plain GET.

use bytes::Bytes;
use comity_store::tasks::RequestParts;
use http::{HeaderName, HeaderValue, Method};

use crate::transport::Request;

/// A method, a body and headers, ready to send.
pub(super) struct TaskRequest {
    pub(super) method: Method,
    body: Bytes,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl TaskRequest {
    /// Converts the stored form. Anything invalid was refused when the task was added.
    pub(super) fn of(sends: &RequestParts) -> Self {
        let header = |(name, value): &(String, String)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::from_str(value).ok()?))
        };
        Self {
            method: Method::from_bytes(sends.method.as_bytes()).unwrap_or(Method::GET),
            body: Bytes::from(sends.body.clone()),
            headers: sends.headers.iter().filter_map(header).collect(),
        }
    }

    /// Whether it is a GET without a body, with its own headers only.
    pub(super) fn is_plain(&self) -> bool {
        self.method == Method::GET && self.body.is_empty()
    }

    /// Adds its method and body to a request that already has its headers.
    pub(super) fn request<'a>(&'a self, plain: Request<'a>) -> Request<'a> {
        Request { method: Some(&self.method), body: Some(&self.body), ..plain }
    }
}

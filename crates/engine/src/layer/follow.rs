//! Redirects, hop by hop: where one leads, and which parts of the request are sent along. Sending is done in `tower`
//! and `reqwest`.

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE,
    COOKIE, EXPECT, HOST, PROXY_AUTHORIZATION, REFERER, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode};
use url::Url;

use super::{LayerError, PoliteLayer};
use crate::event::redacted_url;
use crate::redirect::{Redirect, next_hop};

/// Makes a client polite and follows redirects: [`PoliteLayer::following`].
///
/// Methods change as in browsers: after 301, 302 and 303 a POST becomes a GET; after 307 and 308 it is sent again.
/// Credentials (`Authorization`, `Cookie`) stay with their origin and are never sent from https to http. If a request
/// cannot be sent a second time, its redirect is passed on to the caller.
#[derive(Debug, Clone)]
pub struct FollowingLayer {
    pub(super) polite: PoliteLayer,
    pub(super) max: u32,
}

/// The next request after a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) url: Url,
    pub(super) method: Method,
    /// Whether the body is sent again.
    pub(super) keeps_body: bool,
    same_origin: bool,
}

impl FollowingLayer {
    /// The next request, if the response is a redirect. An error if its target is invalid or there were too many
    /// redirects.
    pub(super) fn hop(
        &self,
        hops: u32,
        url: &Url,
        method: &Method,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<Option<Hop>, LayerError> {
        let mut next = match next_hop(url, status.as_u16(), headers) {
            None => return Ok(None),
            Some(Redirect::Invalid) => return Err(LayerError::BadRedirect { url: redacted_url(url) }),
            Some(Redirect::To(next)) => next,
        };
        // Ignore user and password from a remote server.
        let _ = (next.set_username(""), next.set_password(None));
        let posted = *method == Method::POST;
        let read = *method == Method::GET || *method == Method::HEAD;
        let to_get = match status.as_u16() {
            303 => !read,
            301 | 302 => posted,
            _ => false,
        };
        let looped = next == *url && !to_get;
        if hops >= self.max || looped {
            return Err(LayerError::Redirects { url: redacted_url(url), max: self.max });
        }
        let method = if to_get { Method::GET } else { method.clone() };
        let same_origin = next.origin() == url.origin();
        Ok(Some(Hop { url: next, method, keeps_body: !to_get, same_origin }))
    }
}

impl Hop {
    /// Removes the headers that must not be sent to the new target.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        if !self.keeps_body {
            let body = [CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE];
            body.into_iter().chain([EXPECT, TRANSFER_ENCODING]).for_each(|name| drop(headers.remove(name)));
        }
        if !self.same_origin {
            let own = [AUTHORIZATION, COOKIE, HOST, PROXY_AUTHORIZATION, REFERER];
            own.into_iter().for_each(|name| drop(headers.remove(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_core::rule::RuleTable;
    use http::HeaderValue;
    use http::header::LOCATION;

    use super::*;
    use crate::clock::Clock;
    use crate::event::Events;
    use crate::gate::Gate;

    fn hop(from: &str, method: Method, status: u16, to: &str) -> Result<Option<Hop>, LayerError> {
        let gate = Gate::new(Arc::new(RuleTable::default()), Clock::new(), Events::new());
        let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_str(to).unwrap())]);
        let status = StatusCode::from_u16(status).unwrap();
        PoliteLayer::new(gate).following(3).hop(0, &Url::parse(from).unwrap(), &method, status, &headers)
    }

    #[test]
    fn methods_change_as_in_browsers() {
        for (status, before, after) in [
            (301, Method::POST, Method::GET),
            (302, Method::POST, Method::GET),
            (303, Method::POST, Method::GET),
            (303, Method::PUT, Method::GET),
            (301, Method::PUT, Method::PUT),
            (307, Method::POST, Method::POST),
            (308, Method::POST, Method::POST),
            (303, Method::HEAD, Method::HEAD),
            (302, Method::GET, Method::GET),
        ] {
            let hop = hop("http://a.example/", before.clone(), status, "/b").unwrap().unwrap();
            assert_eq!((hop.method, hop.keeps_body), (after.clone(), before == after), "{status} {before}");
        }
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        for (from, to, stay) in [
            ("https://a.example/", "/b", true),
            ("https://a.example/", "https://a.example:443/b", true),
            ("https://a.example/", "http://a.example/b", false),
            ("http://a.example/", "https://a.example/b", false),
            ("https://a.example/", "https://b.example/", false),
            ("https://a.example/", "https://a.example:8443/", false),
            ("https://a.example/", "https://me:secret@a.example/b", true),
        ] {
            let hop = hop(from, Method::POST, 303, to).unwrap().unwrap();
            let value = || HeaderValue::from_static("x");
            let names = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, CONTENT_TYPE, HOST];
            let mut headers: HeaderMap = names.into_iter().map(|name| (name, value())).collect();
            hop.strip(&mut headers);
            assert_eq!(headers.len(), if stay { 4 } else { 0 }, "{to}: {headers:?}");
            assert_eq!((hop.url.username(), hop.url.password()), ("", None));
        }
    }

    #[test]
    fn invalid_and_circular_redirects_are_errors() {
        let of = |method, status, to| hop("http://a.example/", method, status, to);
        assert!(matches!(of(Method::GET, 302, "file:///etc/passwd"), Err(LayerError::BadRedirect { .. })));
        assert!(matches!(of(Method::GET, 302, "/"), Err(LayerError::Redirects { .. })));
        assert!(of(Method::POST, 303, "/").unwrap().is_some(), "a form that leads back to its page");
        assert_eq!(of(Method::GET, 200, "/b").unwrap(), None);
    }
}

//! The reqwest kind: a [`Middleware`] for a client that neither follows redirects nor retries on its own.

use ::reqwest::{Body, Request, Response, ResponseBuilderExt};
use http::Extensions;
use reqwest_middleware::{Error, Middleware, Next, Result};
use url::Url;

use super::{FollowingLayer, Granted, InFlightBody, LayerError, PoliteLayer, record_failure};
use crate::event::redacted_url;

#[async_trait::async_trait]
impl Middleware for PoliteLayer {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let url = request.url().clone();
        let granted = wait_for_turn(self, &url).await.map_err(Error::middleware)?;
        let response = match next.run(request, extensions).await {
            Ok(response) => response,
            Err(error) => {
                match &error {
                    Error::Reqwest(error) => record_failure(granted, error),
                    Error::Middleware(error) => record_failure(granted, error.as_ref()),
                }
                return Err(error);
            }
        };
        let in_flight = self.answered(granted, response.status(), response.headers());
        let at = response.url().clone();
        if !is_same(&url, &at) {
            drop(in_flight);
            return Err(Error::middleware(self.followed(&url, &at, &response).await));
        }
        let (parts, body) = http::Response::<Body>::from(response).into_parts();
        let body = Body::wrap(InFlightBody::new(body, in_flight));
        let mut whole = http::Response::builder().url(at).body(body).map_err(Error::middleware)?;
        *whole.status_mut() = parts.status;
        *whole.version_mut() = parts.version;
        *whole.headers_mut() = parts.headers;
        whole.extensions_mut().extend(parts.extensions);
        Ok(whole.into())
    }
}

#[async_trait::async_trait]
impl Middleware for FollowingLayer {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        for hops in 0.. {
            let resend = request.try_clone();
            let (url, method) = (request.url().clone(), request.method().clone());
            let bare = (request.headers().clone(), request.version(), request.timeout().copied());
            let response = self.polite.handle(request, extensions, next.clone()).await?;
            let hop = self.hop(hops, &url, &method, response.status(), response.headers());
            let Some(hop) = hop.map_err(Error::middleware)? else { return Ok(response) };
            let mut next_request = match resend {
                Some(resend) => resend,
                // A streamed body cannot be sent again.
                None if hop.keeps_body => return Ok(response),
                None => {
                    let mut bodiless = Request::new(hop.method.clone(), hop.url.clone());
                    (*bodiless.headers_mut(), *bodiless.version_mut(), *bodiless.timeout_mut()) = bare;
                    bodiless
                }
            };
            hop.strip(next_request.headers_mut());
            if !hop.keeps_body {
                *next_request.body_mut() = None;
            }
            *next_request.url_mut() = hop.url;
            *next_request.method_mut() = hop.method;
            request = next_request;
        }
        unreachable!("hops are limited")
    }
}

impl PoliteLayer {
    /// The client followed a redirect on its own. All we can do is charge the request to where it went and report it.
    async fn followed(&self, from: &Url, to: &Url, response: &Response) -> LayerError {
        if let Ok(host) = self.host(to) {
            let answer = comity_core::outcome::Answer::of_status(
                response.status().as_u16(),
                crate::head::pacing_hints(response.headers(), self.gate.clock().now()),
            );
            if let Err(error) = self.gate.record_unasked(&host, self.intent, &answer).await {
                return error.into();
            }
        }
        LayerError::Followed { from: redacted_url(from), to: redacted_url(to) }
    }
}

/// Waits until a request to `url` may be sent.
async fn wait_for_turn(layer: &PoliteLayer, url: &Url) -> std::result::Result<Granted, LayerError> {
    let host = layer.host(url)?;
    let since = layer.gate.clock().now();
    loop {
        let mut granted = layer.acquire(&host, since).await?;
        if granted.depart().await {
            return Ok(granted);
        }
    }
}

/// Whether the response came from the requested URL, ignoring fragment, user and password.
fn is_same(asked: &Url, answered: &Url) -> bool {
    let bare = |url: &Url| {
        let mut url = url.clone();
        url.set_fragment(None);
        let _ = (url.set_username(""), url.set_password(None));
        url
    };
    bare(asked) == bare(answered)
}

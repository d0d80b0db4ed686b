//! The reqwest kind: a [`Middleware`] for a client that follows no redirects and tries nothing again by itself.

use ::reqwest::{Body, Request, Response, ResponseBuilderExt};
use http::Extensions;
use reqwest_middleware::{Error, Middleware, Next, Result};
use url::Url;

use super::{FollowingLayer, LayerError, OnWireBody, PoliteLayer, Turn, broken};
use crate::event::shown;

#[async_trait::async_trait]
impl Middleware for PoliteLayer {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let url = request.url().clone();
        let turn = turn(self, &url).await.map_err(Error::middleware)?;
        let response = match next.run(request, extensions).await {
            Ok(response) => response,
            Err(error) => {
                match &error {
                    Error::Reqwest(error) => broken(turn, error),
                    Error::Middleware(error) => broken(turn, error.as_ref()),
                }
                return Err(error);
            }
        };
        let on_wire = self.answered(turn, response.status(), response.headers());
        let at = response.url().clone();
        if !is_same(&url, &at) {
            drop(on_wire);
            return Err(Error::middleware(self.followed(&url, &at, &response).await));
        }
        let (parts, body) = http::Response::<Body>::from(response).into_parts();
        let body = Body::wrap(OnWireBody::new(body, on_wire));
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
            let again = request.try_clone();
            let (url, method) = (request.url().clone(), request.method().clone());
            let bare = (request.headers().clone(), request.version(), request.timeout().copied());
            let response = self.polite.handle(request, extensions, next.clone()).await?;
            let hop = self.hop(hops, &url, &method, response.status(), response.headers());
            let Some(hop) = hop.map_err(Error::middleware)? else { return Ok(response) };
            let mut goes_on = match again {
                Some(again) => again,
                // A body that was streamed cannot be sent again.
                None if hop.keeps_body => return Ok(response),
                None => {
                    let mut bodiless = Request::new(hop.method.clone(), hop.url.clone());
                    (*bodiless.headers_mut(), *bodiless.version_mut(), *bodiless.timeout_mut()) = bare;
                    bodiless
                }
            };
            hop.strip(goes_on.headers_mut());
            if !hop.keeps_body {
                *goes_on.body_mut() = None;
            }
            *goes_on.url_mut() = hop.url;
            *goes_on.method_mut() = hop.method;
            request = goes_on;
        }
        unreachable!("hops are limited")
    }
}

impl PoliteLayer {
    /// The client went somewhere by itself. Nothing can be done about that but to count it where it went, and to say so.
    async fn followed(&self, from: &Url, to: &Url, response: &Response) -> LayerError {
        if let Ok(host) = self.host(to) {
            let answer = comity_core::outcome::Answer::of_status(
                response.status().as_u16(),
                crate::attempt::told(response.headers(), self.gate.clock().now()),
            );
            if let Err(error) = self.gate.record_unasked(&host, self.intent, &answer).await {
                return error.into();
            }
        }
        LayerError::Followed { from: shown(from), to: shown(to) }
    }
}

/// Waits until a request to `url` may be sent.
async fn turn(layer: &PoliteLayer, url: &Url) -> std::result::Result<Turn, LayerError> {
    let host = layer.host(url)?;
    let since = layer.gate.clock().now();
    loop {
        let mut turn = layer.granted(&host, since).await?;
        if turn.departs().await {
            return Ok(turn);
        }
    }
}

/// Whether an answer came from where it was asked for; fragment, user and password are not part of that.
fn is_same(asked: &Url, answered: &Url) -> bool {
    let bare = |url: &Url| {
        let mut url = url.clone();
        url.set_fragment(None);
        let _ = (url.set_username(""), url.set_password(None));
        url
    };
    bare(asked) == bare(answered)
}

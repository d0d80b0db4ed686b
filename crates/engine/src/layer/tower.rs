//! The tower kind: a [`Layer`] for any service that turns requests into responses.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response, Uri};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;
use url::Url;

use super::{BoxError, FollowingLayer, Granted, InFlightBody, LayerError, PoliteLayer, record_failure};
use crate::event::redacted_text;

/// A service made polite by [`PoliteLayer`].
#[derive(Debug, Clone)]
pub struct Polite<S> {
    inner: S,
    layer: PoliteLayer,
}

/// A service made polite by [`FollowingLayer`], which also follows redirects.
#[derive(Debug, Clone)]
pub struct Following<S> {
    inner: Polite<S>,
    layer: FollowingLayer,
}

impl<S> Layer<S> for PoliteLayer {
    type Service = Polite<S>;

    fn layer(&self, inner: S) -> Polite<S> {
        Polite { inner, layer: self.clone() }
    }
}

impl<S> Layer<S> for FollowingLayer {
    type Service = Following<S>;

    fn layer(&self, inner: S) -> Following<S> {
        Following { inner: self.polite.layer(inner), layer: self.clone() }
    }
}

/// The future of a service call.
type Promise<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

impl<S, B, R> Service<Request<B>> for Polite<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
    R: Body,
{
    type Response = Response<InFlightBody<R>>;
    type Error = BoxError;
    type Future = Promise<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Readiness of the inner service is awaited only when the request's turn has come. Capacity reserved for a
        // request that still waits for its domain would be missing for others.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { mut inner, layer } = self.clone();
        Box::pin(async move {
            let url = url(request.uri())?;
            let granted = wait_for_turn(&layer, &mut inner, &url).await?;
            let response = match inner.call(request).await {
                Ok(response) => response,
                Err(error) => {
                    let error = error.into();
                    record_failure(granted, &*error);
                    return Err(error);
                }
            };
            let in_flight = layer.answered(granted, response.status(), response.headers());
            Ok(response.map(|body| InFlightBody::new(body, in_flight)))
        })
    }
}

impl<S, B, R> Service<Request<B>> for Following<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Clone + Default + Send + 'static,
    R: Body + Send,
{
    type Response = Response<InFlightBody<R>>;
    type Error = BoxError;
    type Future = Promise<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Request<B>>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Self { mut inner, layer } = self.clone();
        Box::pin(async move {
            for hops in 0.. {
                let mut next_request = request.clone();
                let response = inner.call(request).await?;
                let at = url(next_request.uri())?;
                let hop =
                    layer.hop(hops, &at, next_request.method(), response.status(), response.headers())?;
                let Some(hop) = hop else { return Ok(response) };
                hop.strip(next_request.headers_mut());
                let wrong = |_| LayerError::Url { url: redacted_text(hop.url.as_str()) };
                *next_request.uri_mut() = Uri::try_from(hop.url.as_str()).map_err(wrong)?;
                *next_request.method_mut() = hop.method;
                if !hop.keeps_body {
                    mem::take(next_request.body_mut());
                }
                request = next_request;
            }
            unreachable!("hops are limited")
        })
    }
}

/// Waits until a request to `url` may be sent and `inner` is ready for it.
async fn wait_for_turn<S, R>(layer: &PoliteLayer, inner: &mut S, url: &Url) -> Result<Granted, BoxError>
where
    S: Service<R, Error: Into<BoxError>>,
{
    let host = layer.host(url)?;
    let since = layer.gate.clock().now();
    loop {
        let mut granted = layer.acquire(&host, since).await?;
        std::future::poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
        if granted.depart().await {
            return Ok(granted);
        }
    }
}

fn url(uri: &Uri) -> Result<Url, LayerError> {
    // A bare path, as servers see it, has no host to wait for.
    Url::parse(&uri.to_string()).map_err(|_| LayerError::Url { url: redacted_text(uri.path()) })
}

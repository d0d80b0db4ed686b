//! The tower kind: a [`Layer`] around any service that takes requests and gives responses.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response, Uri};
use hyper::body::Body;
use tower_layer::Layer;
use tower_service::Service;
use url::Url;

use super::{BoxError, FollowingLayer, LayerError, OnWireBody, PoliteLayer, Turn, broken};
use crate::event::shown_text;

/// A service made polite by [`PoliteLayer`].
#[derive(Debug, Clone)]
pub struct Polite<S> {
    inner: S,
    layer: PoliteLayer,
}

/// A polite service that follows redirects, by [`FollowingLayer`].
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

/// What a service promises.
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
    type Response = Response<OnWireBody<R>>;
    type Error = BoxError;
    type Future = Promise<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The service below is asked when the turn of a request has come: what it keeps ready for one that waits for
        // its domain would be missing for others.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { mut inner, layer } = self.clone();
        Box::pin(async move {
            let url = url(request.uri())?;
            let turn = turn(&layer, &mut inner, &url).await?;
            let response = match inner.call(request).await {
                Ok(response) => response,
                Err(error) => {
                    let error = error.into();
                    broken(turn, &*error);
                    return Err(error);
                }
            };
            let on_wire = layer.answered(turn, response.status(), response.headers());
            Ok(response.map(|body| OnWireBody::new(body, on_wire)))
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
    type Response = Response<OnWireBody<R>>;
    type Error = BoxError;
    type Future = Promise<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Request<B>>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Self { mut inner, layer } = self.clone();
        Box::pin(async move {
            for hops in 0.. {
                let mut again = request.clone();
                let response = inner.call(request).await?;
                let at = url(again.uri())?;
                let hop = layer.hop(hops, &at, again.method(), response.status(), response.headers())?;
                let Some(hop) = hop else { return Ok(response) };
                hop.strip(again.headers_mut());
                let wrong = |_| LayerError::Url { url: shown_text(hop.url.as_str()) };
                *again.uri_mut() = Uri::try_from(hop.url.as_str()).map_err(wrong)?;
                *again.method_mut() = hop.method;
                if !hop.keeps_body {
                    mem::take(again.body_mut());
                }
                request = again;
            }
            unreachable!("hops are limited")
        })
    }
}

/// Waits until a request to `url` may be sent, and `inner` takes it.
async fn turn<S, R>(layer: &PoliteLayer, inner: &mut S, url: &Url) -> Result<Turn, BoxError>
where
    S: Service<R, Error: Into<BoxError>>,
{
    let host = layer.host(url)?;
    let since = layer.gate.clock().now();
    loop {
        let mut turn = layer.granted(&host, since).await?;
        std::future::poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
        if turn.departs().await {
            return Ok(turn);
        }
    }
}

fn url(uri: &Uri) -> Result<Url, LayerError> {
    // A path alone, as servers see it, has no host to be polite to.
    Url::parse(&uri.to_string()).map_err(|_| LayerError::Url { url: shown_text(uri.path()) })
}

//! Tunnels through an HTTP proxy with CONNECT.
//!
//! TLS inside the tunnel is set up in [`super::dial`].

use http::header::{HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::error::TransportError;
use super::origin::{Message, Origin};
use super::proxy::Proxy;
use super::relay::Outbound;

/// Asks the proxy at the other end of `stream` for a tunnel to `origin`.
pub(super) async fn tunnel<T>(
    stream: T,
    proxy: &Proxy,
    origin: &Origin,
    user_agent: &HeaderValue,
    http1: &http1::Builder,
) -> Result<T, TransportError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        http1.handshake::<_, Outbound>(TokioIo::new(stream)).await.map_err(TransportError::of_exchange)?;
    tokio::spawn(connection.with_upgrades());
    let message = message(proxy, origin, user_agent)?;
    let response = sender.send_request(message).await.map_err(TransportError::of_exchange)?;
    let status = response.status();
    let refused = || TransportError::ProxyRefused { proxy: proxy.to_string(), status: status.as_u16() };
    if !status.is_success() {
        return Err(refused());
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(TransportError::of_exchange)?;
    match upgraded.downcast::<TokioIo<T>>() {
        // In TLS the client speaks first, so bytes that have already arrived are not from the server.
        Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io.into_inner()),
        _ => Err(refused()),
    }
}

fn message(proxy: &Proxy, origin: &Origin, user_agent: &HeaderValue) -> Result<Message, TransportError> {
    let target = format!("{}:{}", origin.host, origin.port);
    let wrong = |source| TransportError::Unsendable { host: origin.host.clone(), source };
    let host = HeaderValue::try_from(&target).map_err(|error| wrong(error.into()))?;
    let mut message = Message::new(bytes::Bytes::new().into());
    *message.method_mut() = Method::CONNECT;
    *message.uri_mut() = Uri::try_from(target).map_err(|error| wrong(error.into()))?;
    message.headers_mut().insert(HOST, host);
    message.headers_mut().insert(USER_AGENT, user_agent.clone());
    if let Some(value) = proxy.authorization() {
        message.headers_mut().insert(PROXY_AUTHORIZATION, value);
    }
    Ok(message)
}

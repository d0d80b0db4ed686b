//! Options for single sites that differ from the transport's settings: user agent, timeouts, proxy, and whether the
//! certificate is verified. Headers and cookies of a request are decided in `crate::request`.

use std::sync::Arc;

use comity_core::time::Span;
use http::HeaderValue;

use super::proxy::Proxy;

/// How requests to one site are sent. Unset options inherit from the transport's settings.
#[derive(Debug, Clone, Default)]
pub struct SiteOptions {
    /// The `User-Agent` header.
    pub user_agent: Option<HeaderValue>,
    /// The timeout for DNS lookup, connection, proxy and TLS handshake together.
    pub connect_timeout: Option<Span>,
    /// The timeout from sending the request to the response headers.
    pub first_byte_timeout: Option<Span>,
    /// The timeout from sending the request to the end of the body.
    pub total_timeout: Option<Span>,
    /// The proxy to use.
    pub proxy: Via,
    /// Whether the certificate is verified.
    pub verify: Verify,
}

/// The proxy that a request uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Via {
    /// The one in the transport's settings, if any.
    #[default]
    Settings,
    /// None, whatever the settings say.
    Direct,
    /// This one.
    Proxy(Arc<Proxy>),
}

/// Whether a server's certificate is verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Verify {
    /// It must be signed by a trusted authority.
    #[default]
    Certificate,
    /// It is not verified at all.
    Nothing,
}

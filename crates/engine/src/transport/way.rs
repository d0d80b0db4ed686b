//! How a single site is asked, where that differs from what goes for all: its own user agent, timeouts, proxy, and
//! whether its certificate is checked. What headers and cookies a request has is decided in `crate::request`.

use std::sync::Arc;

use comity_core::time::Span;
use http::HeaderValue;

use super::proxy::Proxy;

/// How requests to one site are sent. What is not set here is as the transport's settings say.
#[derive(Debug, Clone, Default)]
pub struct Way {
    /// What we call ourselves there.
    pub user_agent: Option<HeaderValue>,
    /// For name, connection, proxy and TLS together.
    pub connect_timeout: Option<Span>,
    /// From the request to the answer's head.
    pub first_byte_timeout: Option<Span>,
    /// From the request to the end of the body.
    pub total_timeout: Option<Span>,
    /// Through which proxy.
    pub proxy: Via,
    /// Whether its certificate is checked.
    pub verify: Verify,
}

/// Through which proxy a request goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Via {
    /// The one that the transport's settings name, if any.
    #[default]
    Settings,
    /// None, whatever the settings say.
    Direct,
    /// This one.
    Proxy(Arc<Proxy>),
}

/// Whether a server has to prove who it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Verify {
    /// By a certificate that somebody we trust signed.
    #[default]
    Certificate,
    /// Not at all: whoever answers is taken for it.
    Nothing,
}

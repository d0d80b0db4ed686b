//! Transport errors, by type.
//!
//! Messages may contain a host and a limit, but never user info, a path, a query or a header value. What an error means
//! for a domain's pace is decided in `comity_core`; whether to retry, by the caller.

use std::net::IpAddr;
use std::{fmt, io};

use comity_core::outcome::TransportFailure;

use super::coding::CODINGS_MAX;
use super::noise::NOISE_MAX;
use super::tls;

/// Why there is no response, or an incomplete one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The DNS lookup failed.
    #[error("DNS lookup failed for {host}")]
    Resolve {
        /// The host.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No address of the host accepted a connection.
    #[error("{}", not_connected(host, source))]
    Connect {
        /// The host or proxy, with its port unless that is 80 or 443.
        host: String,
        /// The error for the last address tried.
        source: io::Error,
    },
    /// This process ran out of file descriptors, or this machine out of local ports. Nothing was sent to the site: try
    /// again later, and don't hold it against the site.
    #[error("out of file descriptors or local ports")]
    Exhausted {
        /// The system's error, if there was one.
        source: Option<io::Error>,
    },
    /// The TLS handshake failed, because of an invalid certificate or incompatible versions.
    #[error("{}", not_secured(host, source))]
    Tls {
        /// The host.
        host: String,
        /// The TLS error.
        source: io::Error,
    },
    /// The connection closed before the response was complete.
    #[error("connection closed before the response was complete")]
    Broken(#[source] hyper::Error),
    /// The response is not valid HTTP.
    #[error("the response is not valid HTTP")]
    Protocol(#[source] hyper::Error),
    /// The server sent too much that isn't part of a response.
    #[error("the server sent {} MiB that are not part of a response", NOISE_MAX >> 20)]
    Noise,
    /// The server switched protocols (101) without being asked.
    #[error("the server switched protocols without being asked")]
    Switched,
    /// The program whose request was relayed did not send all of its body.
    #[error("the request's body ended early")]
    Abandoned,
    /// A phase of the request timed out.
    #[error("timed out {0}")]
    TimedOut(Phase),
    /// The request was recalled before its timeout: no response for a while, and other sites were waiting.
    #[error("no response for a while, and other sites were waiting")]
    GivenUp,
    /// The response headers exceed a limit, in bytes or in lines, or announce a body that cannot exist.
    #[error(
        "the response headers are larger than the limit (http.header_max), have more than {HEADER_LINES_MAX} lines, or \
         announce an impossible length"
    )]
    HeadersTooLarge,
    /// The body exceeds the limit, as sent or as decoded.
    #[error("the body is larger than the limit of {body_max} bytes")]
    BodyTooLarge {
        /// The limit.
        body_max: u64,
    },
    /// The body is encoded more often than we decode.
    #[error("the body is encoded {count} times ({codings}, …); at most {CODINGS_MAX} encodings are decoded")]
    TooManyCodings {
        /// How often.
        count: usize,
        /// The first of the encodings.
        codings: super::Codings,
    },
    /// The body could not be decoded according to its `Content-Encoding`.
    #[error("could not decode the body as {codings}")]
    Decode {
        /// The encodings.
        codings: super::Codings,
        /// The decoder's error.
        source: io::Error,
    },
    /// The address is blocked.
    #[error("{}", refused(host, *refusal))]
    Refused {
        /// The host.
        host: String,
        /// Why.
        refusal: Refusal,
    },
    /// Neither `http` nor `https`.
    #[error("scheme {0:?}: expected http or https")]
    UnsupportedScheme(String),
    /// The URL can't be written as a request line.
    #[error("{host}: the URL cannot be written as an HTTP request")]
    Unsendable {
        /// The host.
        host: String,
        /// What is wrong with the URL.
        source: http::Error,
    },
    /// An HTTP proxy refused the connection.
    #[error("proxy {proxy}: answered CONNECT with {status}")]
    ProxyRefused {
        /// The proxy's host and port.
        proxy: String,
        /// The status of its response.
        status: u16,
    },
    /// A SOCKS5 proxy refused the connection.
    #[error("proxy {proxy}: {what}")]
    Socks {
        /// The proxy's host and port.
        proxy: String,
        /// Why.
        what: &'static str,
    },
    /// A variable or file that the request options of the site refer to is missing.
    #[error("{0}")]
    Options(String),
    /// The transport's settings are invalid.
    #[error("{0}")]
    Settings(String),
}

/// Why [`super::Transport::send`] returned no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError<E> {
    /// `depart` returned an error. Nothing was written, and the connection is kept.
    #[error("withheld at departure")]
    Withheld(E),
    /// The request failed.
    #[error(transparent)]
    Failed(#[from] TransportError),
}

/// The phase that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// DNS lookup, connection, proxy and TLS handshake.
    Connect,
    /// From sending the request to the response headers.
    FirstByte,
    /// From sending the request to the end of the body.
    Total,
}

/// Why an address is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A remote response led to this address, which is not public.
    NotPublic(IpAddr),
    /// It is a cloud metadata endpoint.
    Metadata,
}

impl TransportError {
    /// What the error means for a domain's pace.
    pub fn failure(&self) -> TransportFailure {
        match self {
            Self::TimedOut(_) | Self::GivenUp => TransportFailure::TimedOut,
            Self::Resolve { source, .. } | Self::Connect { source, .. } | Self::Tls { source, .. }
                if source.kind() == io::ErrorKind::TimedOut =>
            {
                TransportFailure::TimedOut
            }
            // Whatever the resolver reports, no request was sent.
            Self::Resolve { .. } => TransportFailure::Unreachable,
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                TransportFailure::Unreachable
            }
            _ => TransportFailure::Disconnected,
        }
    }

    /// Whether the problem is on our side: nothing was sent to the site, so no retry is used up and nothing is
    /// recorded.
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Exhausted { .. })
    }

    /// Whether the server may have received the request.
    pub fn may_have_arrived(&self) -> bool {
        !matches!(
            self,
            Self::Resolve { .. }
                | Self::Connect { .. }
                | Self::Exhausted { .. }
                | Self::Tls { .. }
                | Self::TimedOut(Phase::Connect)
                | Self::Refused { .. }
                | Self::UnsupportedScheme(_)
                | Self::Unsendable { .. }
                | Self::ProxyRefused { .. }
                | Self::Socks { .. }
                | Self::Options(_)
                | Self::Settings(_)
        )
    }

    /// Whether a retry can't help.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::Abandoned
                | Self::UnsupportedScheme(_)
                | Self::Unsendable { .. }
                | Self::BodyTooLarge { .. }
                | Self::TooManyCodings { .. }
                | Self::Options(_)
                | Self::Settings(_)
        )
    }

    /// The same error, when it was the proxy that could not be reached.
    pub(super) fn of_proxy(mut self) -> Self {
        if let Self::Resolve { host, .. } | Self::Connect { host, .. } | Self::Tls { host, .. } = &mut self {
            host.insert_str(0, PROXY);
        }
        self
    }

    /// Converts an error from hyper.
    pub(super) fn of_exchange(error: hyper::Error) -> Self {
        if error.is_parse_too_large() {
            Self::HeadersTooLarge
        } else if error.is_parse() {
            Self::Protocol(error)
        } else {
            Self::Broken(error)
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting",
            Self::FirstByte => "waiting for the response",
            Self::Total => "reading the response",
        })
    }
}

/// The message for a failed connection, in the words people search for.
fn not_connected(host: &str, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {host}"),
        io::ErrorKind::HostUnreachable => format!("no route to {host}"),
        io::ErrorKind::NetworkUnreachable => format!("network unreachable, connecting to {host}"),
        io::ErrorKind::TimedOut => format!("timed out connecting to {host}"),
        _ => format!("could not connect to {host}"),
    }
}

/// The message for a failed TLS handshake. A certificate that isn't valid now won't be valid at the next attempt either, so
/// the message says what to do if the host can be trusted anyway.
fn not_secured(host: &str, cause: &io::Error) -> String {
    let why = tls::handshake_failure(cause);
    let remedy = match tls::is_invalid_certificate(cause) && !host.starts_with(PROXY) {
        true => format!(" (to accept it anyway: comity fetch --insecure {host})"),
        false => String::new(),
    };
    format!("{host}: TLS handshake failed: {why}{remedy}")
}

fn refused(host: &str, refusal: Refusal) -> String {
    let (what, address) = match refusal {
        Refusal::NotPublic(address) => ("private address", address.to_string()),
        Refusal::Metadata => ("cloud metadata endpoint", host.to_owned()),
    };
    let of = if address == host.trim_matches(['[', ']']) { String::new() } else { format!(" (of {host})") };
    match refusal {
        Refusal::NotPublic(_) => {
            format!("blocked redirect or link to {what} {address}{of}; allow it with http.allow_private")
        }
        Refusal::Metadata => format!("blocked {what} {address}; allow it with http.allow_private"),
    }
}

/// The maximum number of header lines over HTTP/1.1. HTTP/2 has no such limit: it counts 32 bytes more for each line.
pub(super) const HEADER_LINES_MAX: usize = 1_000;
/// Precedes the name of a proxy in a message.
const PROXY: &str = "proxy ";

//! What can go wrong between a request and the end of its answer, by type (B46).
//!
//! A text here may name a host and a limit; it never holds user info, a path, a query or a header's value (B75).
//! What an error means for a domain's pace is decided in `comity_core`; whether to try again, by the caller.

use std::net::IpAddr;
use std::{fmt, io};

use comity_core::outcome::Breakdown;

use super::meter::NOISE_MAX;
use super::tls;

/// Why there is no answer, or no whole one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The host's name did not lead to an address.
    #[error("DNS lookup failed for {host}")]
    Resolve {
        /// The host.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// None of the host's addresses took the connection.
    #[error("{}", not_connected(host, source))]
    Connect {
        /// The host, or the proxy's, with its port unless that is the usual one.
        host: String,
        /// What the last address tried said.
        source: io::Error,
    },
    /// This process has no file descriptor, or this machine no port, for another connection. The site was not asked:
    /// ask again later, and hold nothing against it.
    #[error("no file descriptor or port was free for a connection")]
    Exhausted {
        /// What the system said, if it was asked.
        source: Option<io::Error>,
    },
    /// The connection could not be secured: a certificate that does not hold, or no common version.
    #[error("{host}: TLS handshake failed: {}", tls::why_not(source))]
    Tls {
        /// The host.
        host: String,
        /// What TLS said.
        source: io::Error,
    },
    /// The connection ended before the answer did.
    #[error("the connection broke")]
    Broken(#[source] hyper::Error),
    /// What came back is not valid HTTP.
    #[error("the answer is not valid HTTP")]
    Protocol(#[source] hyper::Error),
    /// The server said more that is no part of an answer than anybody listens to.
    #[error("the server sent {} MiB that are no answer", NOISE_MAX >> 20)]
    Noise,
    /// The server switched to a protocol nobody asked for.
    #[error("the server switched protocols unasked")]
    Switched,
    /// A phase took too long.
    #[error("timed out {0}")]
    TimedOut(Phase),
    /// Nothing was heard for a while, and other sites were waiting: given up before its time was over.
    #[error("no answer for a while, and other sites were waiting")]
    GivenUp,
    /// The answer's head is larger than we read.
    #[error("the answer's headers are larger than the limit")]
    HeadersTooLarge,
    /// The answer's body is larger than we read, as sent or as decoded.
    #[error("the body is larger than the limit of {body_max} bytes")]
    BodyTooLarge {
        /// The limit.
        body_max: u64,
    },
    /// The body is not what its `Content-Encoding` says.
    #[error("the body cannot be decoded as {coding}")]
    Decode {
        /// The encoding it claims.
        coding: super::Coding,
        /// What the decoder said.
        source: io::Error,
    },
    /// We do not go there (B76).
    #[error("{}", refused(host, *refusal))]
    Refused {
        /// The host.
        host: String,
        /// Why not.
        refusal: Refusal,
    },
    /// Neither `http` nor `https`.
    #[error("scheme {0:?}: expected http or https")]
    UnsupportedScheme(String),
    /// The address cannot be written as a request line.
    #[error("{host}: the address cannot be written as an HTTP request")]
    Unsendable {
        /// The host.
        host: String,
        /// What is wrong with it.
        source: http::Error,
    },
    /// The proxy did not let us through.
    #[error("proxy {proxy}: answered CONNECT with {status}")]
    ProxyRefused {
        /// The proxy's host and port.
        proxy: String,
        /// Its status.
        status: u16,
    },
    /// A SOCKS5 proxy did not let us through.
    #[error("proxy {proxy}: {what}")]
    Socks {
        /// The proxy's host and port.
        proxy: String,
        /// What it said.
        what: &'static str,
    },
    /// The transport's own settings do not work.
    #[error("{0}")]
    Settings(String),
}

/// Why [`super::Transport::send`] gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError<E> {
    /// `depart` said not now; nothing was written, the connection is kept for later.
    #[error("withheld at departure")]
    Withheld(E),
    /// Something broke.
    #[error(transparent)]
    Failed(#[from] TransportError),
}

/// What was under way when the time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Name, connection, proxy and TLS together.
    Connect,
    /// From the request to the answer's head.
    FirstByte,
    /// From the request to the end of the body.
    Total,
}

/// Why an address is not gone to (B76).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A remote answer led to this address, which is not public.
    NotPublic(IpAddr),
    /// A cloud's metadata endpoint.
    Metadata,
}

impl TransportError {
    /// What it is to the pace of a domain.
    pub fn breakdown(&self) -> Breakdown {
        match self {
            Self::TimedOut(_) | Self::GivenUp => Breakdown::TimedOut,
            Self::Resolve { source, .. } | Self::Connect { source, .. } | Self::Tls { source, .. }
                if source.kind() == io::ErrorKind::TimedOut =>
            {
                Breakdown::TimedOut
            }
            // Whatever a resolver says, no request left.
            Self::Resolve { .. } => Breakdown::Unreachable,
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Breakdown::Unreachable
            }
            _ => Breakdown::Disconnected,
        }
    }

    /// Whether it is our own trouble: nothing was asked of the site, so no retry is spent and nothing is recorded.
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
                | Self::Settings(_)
        )
    }

    /// Whether trying the same again cannot help.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::UnsupportedScheme(_)
                | Self::Unsendable { .. }
                | Self::BodyTooLarge { .. }
                | Self::HeadersTooLarge
                | Self::Settings(_)
        )
    }

    /// What hyper reports about an exchange, by its predicates.
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
            Self::FirstByte => "waiting for the answer",
            Self::Total => "reading the answer",
        })
    }
}

/// Why there is no connection, in the words people search for.
fn not_connected(host: &str, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {host}"),
        io::ErrorKind::HostUnreachable => format!("no route to {host}"),
        io::ErrorKind::NetworkUnreachable => format!("network unreachable, connecting to {host}"),
        io::ErrorKind::TimedOut => format!("timed out connecting to {host}"),
        _ => format!("could not connect to {host}"),
    }
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

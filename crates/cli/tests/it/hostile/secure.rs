//! Sites with invalid certificates or broken TLS.

use std::time::Duration;

use tokio::time::sleep;

use super::http1::saying;
use super::servers::{Certificate, Peer, Speech, talk};
use super::{Planned, failed, fetched};

pub(super) fn sites() -> Vec<Planned> {
    let wrong = |why| failed(why, "network_error");
    let good = Certificate::GOOD;
    let certified = |name: &str, certificate, outcome| {
        let page = saying(name, outcome, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        Planned { speech: Speech::Tls(certificate), ..page }
    };
    vec![
        certified("a certificate that holds", good, fetched(2)),
        certified(
            "expired",
            Certificate { years: (2000, 2001), ..good },
            wrong("127.0.0.1: TLS handshake failed: the certificate has expired"),
        ),
        certified(
            "not valid yet",
            Certificate { years: (2900, 3000), ..good },
            wrong("127.0.0.1: TLS handshake failed: the certificate is not valid yet"),
        ),
        certified(
            "another name",
            Certificate { name: "example.org", ..good },
            wrong("127.0.0.1: TLS handshake failed: the certificate is for a different host name"),
        ),
        certified(
            "signed by itself",
            Certificate { signed: false, ..good },
            wrong("127.0.0.1: TLS handshake failed: the certificate is not signed by a trusted authority"),
        ),
        certified(
            "an authority's own",
            Certificate { authority: true, ..good },
            wrong(
                "127.0.0.1: TLS handshake failed: the certificate is that of an authority (CA:TRUE), which is not accepted as \
                 the server's own",
            ),
        ),
        raw(
            "no TLS",
            wrong("127.0.0.1: TLS handshake failed: the server doesn't speak TLS on this port"),
            async |mut peer| {
                peer.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
                peer.linger().await;
            },
        ),
        raw(
            "noise for a handshake",
            wrong("127.0.0.1: TLS handshake failed: the server doesn't speak TLS on this port"),
            async |mut peer| {
                while peer.write([0xff; 1_024]).await {}
            },
        ),
        raw(
            "an alert",
            wrong("127.0.0.1: TLS handshake failed: the server rejected it (TLS alert)"),
            async |mut peer| {
                peer.write(b"\x15\x03\x03\x00\x02\x02\x28").await;
                peer.linger().await;
            },
        ),
        raw(
            "gone in the handshake",
            wrong("127.0.0.1: TLS handshake failed: the connection closed during the handshake"),
            async |mut peer: Peer| {
                sleep(Duration::from_millis(20)).await;
                peer.write("").await;
            },
        ),
        raw("a handshake that drips", failed("timed out connecting", "timeout"), async |mut peer: Peer| {
            // The head of a record, whose rest never comes.
            peer.write(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb").await;
            while peer.write([0]).await {
                sleep(Duration::from_millis(20)).await;
            }
        }),
    ]
}

/// A host that gets a TLS handshake, and runs `talk` instead.
fn raw<F: Future<Output = ()> + Send + 'static>(
    name: &str,
    outcome: super::Outcome,
    rest: impl Fn(Peer) -> F + Send + Sync + 'static,
) -> Planned {
    Planned { name: name.to_owned(), speech: Speech::Feigned, talk: talk(rest), outcome }
}

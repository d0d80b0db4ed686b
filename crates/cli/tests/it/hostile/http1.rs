//! Sites that violate HTTP/1.1, or follow it with bad intent.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use super::servers::{Peer, Speech, talk};
use super::{Outcome, Planned, failed, fetched};

/// Sites whose responses never end, or are too large.
pub(super) fn endless() -> Vec<Planned> {
    let too_large = failed("the body is larger than the limit of 67108864 bytes", "answered");
    let headers = failed("the response headers are larger than the limit (http.header_max)", "network_error");
    let body_late = failed("timed out reading the response", "timeout");
    let head_late = failed("timed out waiting for the response", "timeout");
    let noise = Outcome::Noise;
    vec![
        plain("endless body", too_large, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\n\r\n").await;
            while peer.write([b'x'; 16 << 10]).await {}
        }),
        plain("endless chunks", too_large, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            let chunk = [b"4000\r\n", &[b'x'; 0x4000][..], b"\r\n"].concat();
            while peer.write(&chunk).await {}
        }),
        plain("a terabyte, it says", too_large, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ncontent-length: 1099511627776\r\n\r\n").await;
            while peer.write([b'x'; 16 << 10]).await {}
        }),
        plain("endless headers", headers, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\n").await;
            while peer.write("header: value\r\n".repeat(100)).await {}
        }),
        plain("one header without end", headers, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\nheader: ").await;
            while peer.write([b'x'; 4 << 10]).await {}
        }),
        plain("ten thousand headers", headers, async |mut peer| {
            peer.write(format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(10_000))).await;
            peer.linger().await;
        }),
        plain("slow drip of a body", body_late, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n").await;
            while peer.write("x").await {
                sleep(Duration::from_millis(50)).await;
            }
        }),
        plain("slow drip of a head", head_late, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\nheader: ").await;
            while peer.write("x").await {
                sleep(Duration::from_millis(50)).await;
            }
        }),
        plain("silence", head_late, async |mut peer| peer.linger().await),
        plain("a flood of 100s", noise, async |mut peer| {
            while peer.write("HTTP/1.1 100 Continue\r\n\r\n".repeat(100)).await {}
        }),
        plain("a flood of hints", noise, async |mut peer| {
            let hints = format!("HTTP/1.1 103 Early Hints\r\n{}\r\n", "link: </a>\r\n".repeat(20));
            while peer.write(&hints).await {}
        }),
        plain("a slow flood of 100s", head_late, async |mut peer| {
            while peer.write("HTTP/1.1 100 Continue\r\n\r\n").await {
                sleep(Duration::from_millis(20)).await;
            }
        }),
    ]
}

/// Sites whose responses are invalid.
pub(super) fn broken() -> Vec<Planned> {
    let broke = failed("connection closed before the response was complete", "network_error");
    let invalid = failed("the response is not valid HTTP", "network_error");
    let chunked = |rest: &'static str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{rest}");
    let length = |length: &str| format!("HTTP/1.1 200 OK\r\n{length}\r\n\r\nshort");
    let endless_trailers = async |mut peer: Peer| {
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n").await;
        while peer.write("trailer: x\r\n".repeat(100)).await {}
    };
    let endless_extension = async |mut peer: Peer| {
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;").await;
        while peer.write([b'e'; 4 << 10]).await {}
    };
    vec![
        saying("too little", broke, length("content-length: 10")),
        saying("more than it says", fetched(3), length("content-length: 3")),
        saying("two lengths", invalid, length("content-length: 5\r\ncontent-length: 6")),
        saying("a negative length", invalid, length("content-length: -5")),
        saying("a length beyond all numbers", invalid, length("content-length: 99999999999999999999999")),
        saying("a chunk of no size", broke, chunked("zz\r\nhello\r\n0\r\n\r\n")),
        saying("a chunk of any size", broke, chunked("FFFFFFFFFFFFFFFFFF\r\nhello\r\n")),
        saying("a chunk without an end", broke, chunked("5\r\nhello world\r\n0\r\n\r\n")),
        saying("the last chunk is missing", broke, chunked("5\r\nhello\r\n")),
        plain("endless trailers", broke, endless_trailers),
        plain("an endless extension of a chunk", broke, endless_extension),
        plain("a reset in the body", broke, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nsome").await;
            sleep(Duration::from_millis(50)).await;
            peer.reset();
        }),
        plain("a reset in the head", broke, async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ncont").await;
            sleep(Duration::from_millis(50)).await;
            peer.reset();
        }),
        plain("gone at once", broke, async |mut peer| {
            let _ = peer.stream.shutdown().await;
        }),
        saying("another protocol", invalid, "220 ESMTP ready\r\n\r\n"),
        saying("another version", invalid, "HTTP/9.9 200 OK\r\n\r\n"),
        saying("noise", invalid, [0xff; 64]),
        saying(
            "switched protocols",
            failed("the server switched protocols without being asked", "network_error"),
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        ),
    ]
}

/// Sites with a nonsensical Retry-After or RateLimit header (B21, B27) on the first response.
pub(super) fn waits() -> Vec<Planned> {
    let digits = "9".repeat(60_000);
    let words = [
        ("-5", "negative"),
        ("0", "nothing"),
        ("99999999999999999999", "the age of the universe"),
        (&digits, "60,000 digits"),
        ("1e999", "an exponent"),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "long ago"),
        ("Fri, 31 Dec 9999 23:59:59 GMT", "the end of days"),
        ("NaN", "not a number"),
        ("soon\u{9b}31m", "a word"),
        ("1\0", "a NUL"),
        ("1, 2, 3; \"", "a list"),
    ];
    let mut sites: Vec<Planned> = words
        .into_iter()
        .map(|(value, name)| once_refused(&format!("retry-after {name}"), &format!("retry-after: {value}")))
        .collect();
    sites.push(once_refused("a hundred of them", &"retry-after: 99999999\r\nretry-after: x\r\n".repeat(40)));
    let quotas = [
        "ratelimit: \"default\";r=-1;t=99999999999999999999",
        "ratelimit: r=0, t=\u{9b}\r\nratelimit-policy: ((((((((",
        "ratelimit-remaining: 0\r\nratelimit-reset: 1e999",
        "x-ratelimit-remaining: -1\r\nx-ratelimit-reset: 99999999999999999999999",
        "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: -1\r\nx-ratelimit-limit: NaN",
        "ratelimit-remaining: 340282366920938463463374607431768211456\r\nratelimit-reset: 0",
    ];
    sites.extend(quotas.into_iter().enumerate().map(|(nth, quota)| {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{quota}\r\n\r\nok");
        saying(&format!("quota {nth}"), fetched(2), answer)
    }));
    sites
}

fn once_refused(name: &str, header: &str) -> Planned {
    let refusal = format!("HTTP/1.1 429 Slow down\r\ncontent-length: 0\r\n{}\r\n\r\n", header.trim_end());
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    plain(name, fetched(2), move |mut peer: Peer| {
        let first = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        let answer =
            if first { refusal.clone() } else { "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned() };
        async move {
            peer.write(answer).await;
        }
    })
}

/// Sites with control characters in their headers.
pub(super) fn words() -> Vec<Planned> {
    let page =
        |headers: &str| [b"HTTP/1.1 200 ", headers.as_bytes(), b"\r\ncontent-length: 2\r\n\r\nok"].concat();
    let moved = |to: &str| format!("HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: {to}\r\n\r\n");
    let astray = failed("redirected to something that isn't a valid http or https URL", "answered");
    vec![
        saying("a reason in colour", fetched(2), page("O\u{9b}31mK \u{202e}gnp.exe\r\nx: y")),
        saying(
            "a colored content type",
            fetched(2),
            page("OK\r\ncontent-type: text/\u{1b}[2Jhtml; charset=\u{9b}2J"),
        ),
        saying(
            "a colored name",
            fetched(2),
            page("OK\r\nx-\u{1b}[2J: y\r\nserver: \u{1b}]0;mine\u{7}\u{202e}"),
        ),
        saying("to another scheme in colour", astray, moved("evil:\u{9b}31m\u{202e}/x")),
        saying("to colour", failed("status 404", "answered"), moved("/missing\u{9b}2J\u{202e}?x=\u{9b}")),
        saying(
            "a colored encoding",
            fetched(2),
            page("OK\r\ncontent-encoding: \u{9b}31m\r\netag: \"\u{202e}\"\r\nset-cookie: a=\u{85}"),
        ),
    ]
}

/// A plain HTTP site that reads a request, and then runs `talk`.
pub(super) fn plain<F: Future<Output = ()> + Send + 'static>(
    name: &str,
    outcome: super::Outcome,
    rest: impl Fn(Peer) -> F + Send + Sync + Clone + 'static,
) -> Planned {
    let talk = talk(move |mut peer: Peer| {
        let rest = rest.clone();
        async move {
            match peer.request().await.as_deref() {
                Some(path) if path.starts_with("/missing") => {
                    peer.write("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
                }
                Some(_) => rest(peer).await,
                None => {}
            }
        }
    });
    Planned { name: name.to_owned(), speech: Speech::Plain, talk, outcome }
}

/// A site that sends this in response to every request, and closes the connection.
pub(super) fn saying(name: &str, outcome: super::Outcome, answer: impl Into<Vec<u8>>) -> Planned {
    let answer: Vec<u8> = answer.into();
    plain(name, outcome, move |mut peer: Peer| {
        let answer = answer.clone();
        async move {
            peer.write(answer).await;
        }
    })
}

//! Limits: nothing a server sends, or doesn't send, costs more than the settings allow.

use std::time::Duration;

use async_compression::tokio::write::{BrotliEncoder, DeflateEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
use comity::transport::{Coding, Lead, Phase, Settings, Transport, TransportError};
use comity_core::outcome::TransportFailure;
use comity_core::time::Span;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use super::servers::{Server, answer};
use super::{fetch, get, read, settings, transport};

macro_rules! encode {
    ($encoder:ident, $plain:expr) => {{
        let mut encoder = $encoder::new(Vec::new());
        encoder.write_all($plain).await.unwrap();
        encoder.shutdown().await.unwrap();
        encoder.into_inner()
    }};
}

async fn encoded(plain: &[u8]) -> Vec<(&'static str, Coding, Vec<u8>)> {
    vec![
        ("gzip", Coding::Gzip, encode!(GzipEncoder, plain)),
        ("br", Coding::Brotli, encode!(BrotliEncoder, plain)),
        ("zstd", Coding::Zstd, encode!(ZstdEncoder, plain)),
        ("deflate", Coding::Deflate, encode!(ZlibEncoder, plain)),
        ("deflate", Coding::Deflate, encode!(DeflateEncoder, plain)),
    ]
}

fn is_too_large(error: &TransportError) -> bool {
    matches!(error, TransportError::BodyTooLarge { .. }) && error.is_final()
}

#[tokio::test]
async fn encodings_are_decoded_and_both_sizes_counted() {
    let plain = b"courtesy between strangers ".repeat(10_000);
    for (name, coding, body) in encoded(&plain).await {
        let wire = body.len() as u64;
        let server = Server::answering(answer(&format!("content-encoding: {name}\r\n"), &body)).await;
        let transport = transport();
        for _ in 0..2 {
            let mut sent = get(&transport, &server.url("/"), Lead::Listed).await.unwrap();
            let mut whole = Vec::new();
            while let Some(chunk) = sent.body.chunk().await {
                whole.extend_from_slice(&chunk.unwrap());
            }
            assert!(whole == plain, "{name}");
            assert_eq!((sent.body.wire_bytes(), sent.body.codings()), (wire, &[coding][..]));
            assert!(sent.body.chunk().await.is_none());
        }
        assert_eq!(server.ports()[0], server.ports()[1], "{name}: the connection is kept");
    }
}

/// What was compressed twice used to be saved as it was sent.
#[tokio::test]
async fn encodings_on_top_of_each_other_are_decoded() {
    let plain = b"courtesy between strangers ".repeat(10_000);
    let gzip = encode!(GzipEncoder, &plain);
    let two = encode!(GzipEncoder, &gzip);
    let zlib = encode!(ZlibEncoder, &encode!(BrotliEncoder, &gzip));
    for (value, body) in [
        ("gzip, gzip", &two),
        ("x-gzip\r\ncontent-encoding: identity\r\ncontent-encoding: gzip", &two),
        ("gzip, br, deflate", &zlib),
        ("utf-8, gzip", &gzip),
    ] {
        let server = Server::answering(answer(&format!("content-encoding: {value}\r\n"), body)).await;
        let transport = transport();
        for _ in 0..2 {
            assert!(fetch(&transport, &server.url("/")).await.unwrap() == plain, "{value}");
        }
        assert_eq!(server.ports()[0], server.ports()[1], "{value}: the connection is kept");
    }
    let once = Server::answering(answer("content-encoding: gzip, gzip\r\n", &gzip)).await;
    let error = fetch(&transport(), &once.url("/")).await.unwrap_err();
    assert_eq!(error.to_string(), "could not decode the body as gzip, gzip");
    let four = Server::answering(answer("content-encoding: gzip, gzip, br, gzip\r\n", &two)).await;
    let sent = get(&transport(), &four.url("/"), Lead::Listed).await.unwrap();
    let error = read(sent).await.unwrap_err();
    let expected = "the body is encoded 4 times (gzip, gzip, br, …); at most 3 encodings are decoded";
    assert_eq!((error.to_string().as_str(), error.is_final()), (expected, true));
}

/// The limit applies to each layer: a small one may be huge below, and nothing at the bottom.
#[tokio::test]
async fn a_bomb_below_another_encoding_is_refused_early() {
    let transport = Transport::new(Settings { body_max: 1 << 20, ..settings() }).unwrap();
    let zeros = encode!(GzipEncoder, &encode!(GzipEncoder, &vec![0; 64 << 20]));
    let nothing = encode!(GzipEncoder, &encode!(GzipEncoder, b"").repeat(3 << 20));
    for bomb in [zeros, nothing] {
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        let server = Server::answering(answer("content-encoding: gzip, gzip\r\n", &bomb)).await;
        let mut sent = get(&transport, &server.url("/"), Lead::Listed).await.unwrap();
        let error = loop {
            match sent.body.chunk().await.unwrap() {
                Ok(chunk) => assert!(chunk.len() <= 64 << 10),
                Err(error) => break error,
            }
        };
        assert!(is_too_large(&error), "{error}");
        assert!(sent.body.decoded_bytes() <= (1 << 20) + (64 << 10));
    }
}

#[tokio::test]
async fn an_unknown_encoding_is_passed_through_and_a_wrong_one_is_an_error() {
    let server = Server::answering(answer("content-encoding: rot13\r\n", b"uryyb")).await;
    assert_eq!(fetch(&transport(), &server.url("/")).await.unwrap(), b"uryyb");
    for name in ["gzip", "br", "zstd", "deflate"] {
        let server = Server::answering(answer(&format!("content-encoding: {name}\r\n"), &[255; 64])).await;
        let error = fetch(&transport(), &server.url("/")).await.unwrap_err();
        assert!(matches!(error, TransportError::Decode { .. }) && !error.is_final(), "{name}: {error}");
    }
    let whole = encode!(GzipEncoder, b"cut off");
    let server = Server::answering(answer("content-encoding: gzip\r\n", &whole[..whole.len() - 9])).await;
    assert!(matches!(fetch(&transport(), &server.url("/")).await, Err(TransportError::Decode { .. })));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_announced_or_not() {
    let transport = Transport::new(Settings { body_max: 1_000, ..settings() }).unwrap();
    let fits = Server::answering(answer("", &[b'x'; 1_000])).await;
    assert_eq!(fetch(&transport, &fits.url("/")).await.unwrap().len(), 1_000);
    let announced = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n").await;
    let sent = get(&transport, &announced.url("/"), Lead::Listed).await.unwrap();
    assert_eq!(sent.status, 200, "the headers arrive before the body is refused");
    assert!(is_too_large(&read(sent).await.unwrap_err()));
    let endless = Server::start(async |mut peer| {
        peer.request().await;
        peer.write(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while peer.stream.write_all(&[b'x'; 512]).await.is_ok() {}
    })
    .await;
    assert!(is_too_large(&fetch(&transport, &endless.url("/")).await.unwrap_err()));
}

#[tokio::test]
async fn a_decompression_bomb_is_refused_early() {
    let transport = Transport::new(Settings { body_max: 1 << 20, ..settings() }).unwrap();
    for (name, _, bomb) in encoded(&vec![0; 64 << 20]).await {
        assert!(bomb.len() < 1 << 20);
        let server = Server::answering(answer(&format!("content-encoding: {name}\r\n"), &bomb)).await;
        let mut sent = get(&transport, &server.url("/"), Lead::Listed).await.unwrap();
        let error = loop {
            match sent.body.chunk().await.unwrap() {
                Ok(chunk) => assert!(chunk.len() <= 64 << 10),
                Err(error) => break error,
            }
        };
        assert!(is_too_large(&error), "{name}: {error}");
        assert!(sent.body.decoded_bytes() <= (1 << 20) + (64 << 10), "{name}");
    }
}

#[tokio::test]
async fn headers_over_the_limit_are_refused_even_if_they_never_end() {
    let fits = Server::answering(answer(&format!("x: {}\r\n", "y".repeat(60_000)), b"")).await;
    fetch(&transport(), &fits.url("/")).await.unwrap();
    let large = Server::answering(answer(&format!("x: {}\r\n", "y".repeat(70_000)), b"")).await;
    let many = Server::answering(answer(&"x: y\r\n".repeat(5_000), b"")).await;
    let endless = Server::start(async |mut peer| {
        peer.request().await;
        peer.write(b"HTTP/1.1 200 OK\r\n").await;
        while peer.stream.write_all(b"header: value\r\n").await.is_ok() {}
    })
    .await;
    for server in [large, many, endless] {
        let error = fetch(&transport(), &server.url("/")).await.unwrap_err();
        assert!(matches!(error, TransportError::HeadersTooLarge) && !error.is_final(), "{error}");
    }
}

/// More than 100 lines used to be unreadable, however small they were.
#[tokio::test]
async fn a_thousand_header_lines_are_read_and_no_more() {
    for (lines, readable) in [(101, true), (150, true), (1_000, true), (1_001, false)] {
        // `answer` adds one.
        let others: String = (2..lines).map(|nth| format!("x-{nth}: y\r\n")).collect();
        let server = Server::answering(answer(&format!("{others}retry-after: 20\r\n"), b"")).await;
        match get(&transport(), &server.url("/"), Lead::Listed).await {
            Ok(sent) => {
                assert!(readable, "{lines}");
                assert_eq!(
                    (sent.headers.len(), &sent.headers["retry-after"]),
                    (lines, &"20".parse().unwrap())
                );
            }
            Err(error) => {
                assert!(!readable && matches!(error, TransportError::HeadersTooLarge), "{lines}: {error}");
                assert!(
                    error.to_string().contains("(http.header_max), have more than 1000 lines"),
                    "{error}"
                );
            }
        }
    }
}

/// RFC 9112, section 5.2. The rest of such a header used to be ignored.
#[tokio::test]
async fn a_folded_header_line_is_one_line() {
    let folded = "retry-after:\r\n 8\r\nx: a\r\n\tb \r\n  c\r\nlast: d\r\n";
    let server = Server::answering(answer(folded, b"body")).await;
    let sent = get(&transport(), &server.url("/"), Lead::Listed).await.unwrap();
    let of = |name: &str| sent.headers[name].to_str().unwrap();
    assert_eq!((of("retry-after"), of("last"), sent.headers.len()), ("8", "d", 4));
    assert_eq!(of("x").split_whitespace().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(read(sent).await.unwrap(), b"body");
}

#[tokio::test]
async fn each_phase_has_its_timeout() {
    let timed_out = |error: TransportError| match error {
        TransportError::TimedOut(phase) => {
            assert_eq!(error.failure(), TransportFailure::TimedOut);
            phase
        }
        other => panic!("{other}"),
    };
    let silent = Server::start(async |mut peer| {
        peer.request().await;
        std::future::pending().await
    })
    .await;
    let short = Span::from_millis(400);
    let by = |settings: Settings| Transport::new(settings).unwrap();
    let secure = silent.url("/").replace("http:", "https:");
    let hurried = by(Settings { connect_timeout: short, ..settings() });
    assert_eq!(timed_out(fetch(&hurried, &secure).await.unwrap_err()), Phase::Connect);
    let hurried = by(Settings { first_byte_timeout: short, ..settings() });
    assert_eq!(timed_out(fetch(&hurried, &silent.url("/")).await.unwrap_err()), Phase::FirstByte);
    let dripping = Server::start(async |mut peer| {
        peer.request().await;
        peer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n").await;
        while peer.stream.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let hurried = by(Settings { total_timeout: Span::from_secs(2), ..settings() });
    assert_eq!(timed_out(fetch(&hurried, &dripping.url("/")).await.unwrap_err()), Phase::Total);
}

#[tokio::test]
async fn a_flood_of_interim_responses_ends_soon_and_a_trickle_times_out() {
    let hurried = Transport::new(Settings { first_byte_timeout: Span::from_millis(400), ..settings() });
    for (pause, transport) in [(Duration::ZERO, transport()), (Duration::from_millis(5), hurried.unwrap())] {
        let flood = Server::start(move |mut peer| async move {
            peer.request().await;
            while peer.stream.write_all(&b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(50)).await.is_ok() {
                if pause > Duration::ZERO {
                    sleep(pause).await;
                }
            }
        })
        .await;
        let error = fetch(&transport, &flood.url("/")).await.unwrap_err();
        match pause.is_zero() {
            true => assert!(matches!(error, TransportError::Noise) && !error.is_final(), "{error}"),
            false => assert!(matches!(error, TransportError::TimedOut(Phase::FirstByte)), "{error}"),
        }
    }
}

/// Members, frames and blocks that decode to nothing count with their encoded size.
#[tokio::test]
async fn data_that_decodes_to_nothing_counts_toward_the_limit() {
    let transport = Transport::new(Settings { body_max: 1 << 20, ..settings() }).unwrap();
    let skipped = [&b"\x50\x2a\x4d\x18"[..], &1_000_u32.to_le_bytes(), &[0; 1_000]].concat();
    for (coding, nothing) in [("gzip", encode!(GzipEncoder, b"")), ("zstd", skipped)] {
        let nothing = std::sync::Arc::new(nothing.repeat(100));
        let endless = Server::start(move |mut peer| {
            let nothing = nothing.clone();
            async move {
                peer.request().await;
                peer.write(format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\n\r\n").as_bytes()).await;
                while peer.stream.write_all(&nothing).await.is_ok() {}
            }
        })
        .await;
        let error = fetch(&transport, &endless.url("/")).await.unwrap_err();
        assert!(is_too_large(&error), "{coding}: {error}");
    }
}

/// A frame that claims to need 2 GiB for decoding is not decoded.
#[tokio::test]
async fn compression_windows_larger_than_http_allows_are_refused() {
    for (coding, body) in
        [("zstd", &b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"[..]), ("br", &[0x11, 0x1e, 0, 0])]
    {
        let server = Server::answering(answer(&format!("content-encoding: {coding}\r\n"), body)).await;
        let error = fetch(&transport(), &server.url("/")).await.unwrap_err();
        assert!(matches!(error, TransportError::Decode { .. }), "{coding}: {error}");
    }
}

#[tokio::test]
async fn broken_responses_have_typed_errors() {
    type Expected = fn(&TransportError) -> bool;
    let broken: Expected = |error| matches!(error, TransportError::Broken(_));
    let protocol: Expected = |error| matches!(error, TransportError::Protocol(_));
    let cases: [(&str, Expected); 7] = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", broken),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", broken),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello", broken),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", protocol),
        ("SMTP ready\r\n\r\n", protocol),
        ("HTTP/1.1 200", broken),
        ("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", |error| {
            matches!(error, TransportError::Switched)
        }),
    ];
    for (text, expected) in cases {
        let server = Server::answering_once(text).await;
        let error = fetch(&transport(), &server.url("/")).await.unwrap_err();
        assert!(expected(&error), "{text:?}: {error:?}");
        assert_eq!((error.failure(), error.is_final()), (TransportFailure::Disconnected, false));
    }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_body_is_an_error() {
    let server = Server::start(async |mut peer| {
        peer.request().await;
        peer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\nsome").await;
        sleep(Duration::from_millis(50)).await;
        peer.stream.set_zero_linger().unwrap();
    })
    .await;
    let error = fetch(&transport(), &server.url("/")).await.unwrap_err();
    assert!(matches!(error, TransportError::Broken(_)), "{error:?}");
}

#[tokio::test]
async fn unsolicited_bytes_close_the_connection() {
    let mut double = answer("", b"one");
    double.extend(answer("", b"smuggled"));
    let server = Server::answering(double).await;
    let transport = transport();
    for _ in 0..3 {
        assert_eq!(fetch(&transport, &server.url("/")).await.unwrap(), b"one");
    }
    assert_eq!(server.heads().len(), 3);
}

#[tokio::test]
async fn refused_connections_and_unknown_names_have_typed_errors() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    drop(server);
    let error = fetch(&transport(), &url).await.unwrap_err();
    assert!(matches!(error, TransportError::Connect { .. }) && !error.is_final(), "{error}");
    let error = fetch(&transport(), "http://name.invalid/").await.unwrap_err();
    assert!(
        matches!(error, TransportError::Resolve { .. } | TransportError::TimedOut(Phase::Connect)),
        "{error}"
    );
    let error = fetch(&transport(), "ftp://example.org/").await.unwrap_err();
    assert!(matches!(error, TransportError::UnsupportedScheme(_)) && error.is_final(), "{error}");
}

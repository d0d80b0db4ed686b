//! Decompression bombs and invalid encodings.

use std::io::Write;

use super::http1::{plain, saying};
use super::servers::Peer;
use super::{Planned, failed};

/// Sites whose pages are small on the wire and huge when decoded.
pub(super) fn sites() -> Vec<Planned> {
    let too_large = failed("the body is larger than the limit of 67108864 bytes", "answered");
    let layered = failed(
        "the body is encoded 4 times (gzip, gzip, gzip, …); at most 3 encodings are decoded",
        "answered",
    );
    let [gzip_wrong, br_wrong, zstd_wrong] = [
        "could not decode the body as gzip",
        "could not decode the body as br",
        "could not decode the body as zstd",
    ]
    .map(|error| failed(error, "network_error"));
    let answer = |coding: &str, body: &[u8]| {
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ncontent-length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    vec![
        endless("a gzip bomb", "gzip", gzip(&ZEROS), too_large),
        endless("a zstd bomb", "zstd", zstd::encode_all(&ZEROS[..], 3).unwrap(), too_large),
        saying("a brotli bomb", too_large, answer("br", &brotli())),
        // The first bytes of a frame ask for a window of 2 GiB.
        saying("a zstd window", zstd_wrong, answer("zstd", b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")),
        // The header of a window of up to 1 GiB.
        saying("a brotli window", br_wrong, answer("br", &[0x11, 0x1e, 0, 0, 0, 0])),
        saying("gzip in gzip in gzip in gzip", layered, answer("gzip, gzip, gzip, gzip", &gzip(b"whole"))),
        saying("a bomb in a gzip", too_large, answer("gzip, gzip", &gzip(&gzip(&ZEROS).repeat(128)))),
        saying("noise as gzip", gzip_wrong, answer("gzip", &[0xff; 64])),
        saying("half of a gzip", gzip_wrong, answer("gzip", &gzip(b"whole")[..12])),
    ]
}

/// The same gzip member again and again; each is decoded to a megabyte.
fn endless(name: &str, coding: &'static str, member: Vec<u8>, outcome: super::Outcome) -> Planned {
    plain(name, outcome, move |mut peer: Peer| {
        let member = member.clone();
        async move {
            peer.write(format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\n\r\n")).await;
            while peer.write(&member).await {}
        }
    })
}

pub(super) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// 128 MiB in a few kilobytes.
fn brotli() -> Vec<u8> {
    let mut encoder = brotli::CompressorWriter::new(Vec::new(), 64 << 10, 1, 22);
    (0..128).for_each(|_| encoder.write_all(&ZEROS).unwrap());
    encoder.into_inner()
}

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

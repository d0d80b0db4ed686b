//! Decodes a body's `Content-Encoding`.
//!
//! One layer of a known encoding is decoded. Anything else is passed through as [`Coding::Identity`]. Limits on size
//! and time are enforced in [`super::body`].

use std::fmt;
use std::io;

use async_compression::tokio::bufread::{
    BrotliDecoder, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder,
};
use async_compression::zstd::DParameter;
use bytes::BytesMut;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use tokio::io::AsyncReadExt;

use super::body::Wire;

/// The encoding of a body, as far as it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Not encoded, or in a way that is passed through.
    Identity,
    /// `gzip`
    Gzip,
    /// `br`
    Brotli,
    /// `zstd`
    Zstd,
    /// `deflate`, with or without a zlib header. We never ask for it, but some servers send it.
    Deflate,
}

/// Creates a decoder that reads from a body.
pub(super) type Opening = fn(Wire) -> Decoder;

/// A decoder with the body it reads from.
pub(super) enum Decoder {
    Gzip(GzipDecoder<Wire>),
    Brotli(BrotliDecoder<Wire>),
    Zstd(ZstdDecoder<Wire>),
    Zlib(ZlibDecoder<Wire>),
    Deflate(DeflateDecoder<Wire>),
}

impl Coding {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let words = values.flat_map(|value| value.split(',')).map(str::trim);
        let mut words = words.filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("identity"));
        match (words.next(), words.next()) {
            (Some(word), None) => Self::named(word),
            _ => Self::Identity,
        }
    }

    /// The decoder for a body that starts with the byte `first`; `None` for [`Coding::Identity`].
    pub(super) fn decoder(self, first: u8) -> io::Result<Option<Opening>> {
        Ok(Some(match self {
            Self::Identity => return Ok(None),
            Self::Gzip => Decoder::gzip,
            // The decoder would reserve up to 1 GiB for this; RFC 7932 defines no such window.
            Self::Brotli if first & 0x7f == BROTLI_LARGE_WINDOW => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Self::Brotli => |wire| Decoder::Brotli(BrotliDecoder::new(wire)),
            Self::Zstd => Decoder::zstd,
            // RFC 9110 means the zlib format; old servers send it without the zlib header.
            Self::Deflate if first & 0x0f == 8 => |wire| Decoder::Zlib(ZlibDecoder::new(wire)),
            Self::Deflate => |wire| Decoder::Deflate(DeflateDecoder::new(wire)),
        }))
    }

    fn named(word: &str) -> Self {
        match word.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Self::Gzip,
            "br" => Self::Brotli,
            "zstd" => Self::Zstd,
            "deflate" => Self::Deflate,
            _ => Self::Identity,
        }
    }
}

impl Decoder {
    fn gzip(wire: Wire) -> Self {
        let mut decoder = GzipDecoder::new(wire);
        decoder.multiple_members(true);
        Self::Gzip(decoder)
    }

    fn zstd(wire: Wire) -> Self {
        let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
        let mut decoder = ZstdDecoder::with_params(wire, &[window]);
        decoder.multiple_members(true);
        Self::Zstd(decoder)
    }

    /// Decodes some bytes into `chunk`; returns 0 at the end.
    pub(super) async fn read(&mut self, chunk: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read_buf(chunk).await,
            Self::Brotli(decoder) => decoder.read_buf(chunk).await,
            Self::Zstd(decoder) => decoder.read_buf(chunk).await,
            Self::Zlib(decoder) => decoder.read_buf(chunk).await,
            Self::Deflate(decoder) => decoder.read_buf(chunk).await,
        }
    }

    pub(super) fn wire(&self) -> &Wire {
        match self {
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Brotli(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
            Self::Zlib(decoder) => decoder.get_ref(),
            Self::Deflate(decoder) => decoder.get_ref(),
        }
    }

    pub(super) fn wire_mut(&mut self) -> &mut Wire {
        match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Brotli(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.get_mut(),
            Self::Zlib(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Deflate => "deflate",
        })
    }
}

/// The first byte of a brotli stream with a window of more than 16 MiB.
const BROTLI_LARGE_WINDOW: u8 = 0x11;
/// RFC 9659 limits zstd windows to 8 MiB in HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_known_encoding_is_decoded_and_anything_else_is_passed_through() {
        let of = |value: &'static str| {
            Coding::of(&HeaderMap::from_iter([(CONTENT_ENCODING, http::HeaderValue::from_static(value))]))
        };
        assert_eq!(of("GZIP"), Coding::Gzip);
        assert_eq!(of("identity, br"), Coding::Brotli);
        for left in ["", "identity", "gzip, gzip", "utf-8", "compress"] {
            assert_eq!(of(left), Coding::Identity, "{left}");
        }
    }

    #[test]
    fn brotli_windows_larger_than_the_standard_allows_are_refused() {
        assert!(Coding::Brotli.decoder(0x11).is_err() && Coding::Brotli.decoder(0x91).is_err());
        assert!(Coding::Brotli.decoder(0x1b).is_ok_and(|decoder| decoder.is_some()));
    }
}

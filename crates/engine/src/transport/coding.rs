//! Decodes a body's `Content-Encoding`.
//!
//! Known encodings are decoded, up to [`CODINGS_MAX`] on top of each other. What is below an unknown one is passed
//! through. Limits on size and time are enforced in [`super::body`].

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_compression::tokio::bufread::{
    BrotliDecoder, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder,
};
use async_compression::zstd::DParameter;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use tokio::io::{AsyncRead, ReadBuf};

use super::body::{Input, Wire};

/// The encodings of a body that are decoded, in the order they were applied. Empty if the body is passed through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Codings(pub(super) Vec<Coding>);

/// An encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`
    Gzip,
    /// `br`
    Brotli,
    /// `zstd`
    Zstd,
    /// `deflate`, with or without a zlib header. We never ask for it, but some servers send it.
    Deflate,
}

/// Creates a decoder that reads from `Input`.
pub(super) type Opening = fn(Input) -> Decoder;

/// A decoder with what it reads from.
pub(super) enum Decoder {
    Gzip(GzipDecoder<Input>),
    Brotli(BrotliDecoder<Input>),
    Zstd(ZstdDecoder<Input>),
    Zlib(ZlibDecoder<Input>),
    Deflate(DeflateDecoder<Input>),
}

impl Codings {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let words = values.flat_map(|value| value.split(',')).map(str::trim);
        let words = words.filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("identity"));
        let mut known: Vec<Coding> = Vec::new();
        for word in words {
            match Coding::named(word) {
                Some(coding) => known.push(coding),
                // Nobody can decode what is below it.
                None => known.clear(),
            }
        }
        Self(known)
    }
}

impl Coding {
    /// The decoder for data that starts with the byte `first`.
    pub(super) fn decoder(self, first: u8) -> io::Result<Opening> {
        Ok(match self {
            Self::Gzip => Decoder::gzip,
            // The decoder would reserve up to 1 GiB for this; RFC 7932 defines no such window.
            Self::Brotli if first & 0x7f == BROTLI_LARGE_WINDOW => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Self::Brotli => |input| Decoder::Brotli(BrotliDecoder::new(input)),
            Self::Zstd => Decoder::zstd,
            // RFC 9110 means the zlib format; old servers send it without the zlib header.
            Self::Deflate if first & 0x0f == 8 => |input| Decoder::Zlib(ZlibDecoder::new(input)),
            Self::Deflate => |input| Decoder::Deflate(DeflateDecoder::new(input)),
        })
    }

    fn named(word: &str) -> Option<Self> {
        Some(match word.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Self::Gzip,
            "br" => Self::Brotli,
            "zstd" => Self::Zstd,
            "deflate" => Self::Deflate,
            _ => return None,
        })
    }
}

impl Decoder {
    fn gzip(input: Input) -> Self {
        let mut decoder = GzipDecoder::new(input);
        decoder.multiple_members(true);
        Self::Gzip(decoder)
    }

    fn zstd(input: Input) -> Self {
        let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
        let mut decoder = ZstdDecoder::with_params(input, &[window]);
        decoder.multiple_members(true);
        Self::Zstd(decoder)
    }

    /// The body as sent, below all layers.
    pub(super) fn wire(&self) -> &Wire {
        let input = match self {
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Brotli(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
            Self::Zlib(decoder) => decoder.get_ref(),
            Self::Deflate(decoder) => decoder.get_ref(),
        };
        input.wire()
    }

    pub(super) fn wire_mut(&mut self) -> &mut Wire {
        let input = match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Brotli(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.get_mut(),
            Self::Zlib(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
        };
        input.wire_mut()
    }
}

impl AsyncRead for Decoder {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Gzip(decoder) => Pin::new(decoder).poll_read(cx, into),
            Self::Brotli(decoder) => Pin::new(decoder).poll_read(cx, into),
            Self::Zstd(decoder) => Pin::new(decoder).poll_read(cx, into),
            Self::Zlib(decoder) => Pin::new(decoder).poll_read(cx, into),
            Self::Deflate(decoder) => Pin::new(decoder).poll_read(cx, into),
        }
    }
}

/// As in the header.
impl fmt::Display for Codings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, coding) in self.0.iter().enumerate() {
            write!(f, "{}{coding}", if nth > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Deflate => "deflate",
        })
    }
}

/// How many encodings are decoded on top of each other. Nobody needs two, but some servers compress twice by mistake.
pub const CODINGS_MAX: usize = 3;
/// The first byte of a brotli stream with a window of more than 16 MiB.
const BROTLI_LARGE_WINDOW: u8 = 0x11;
/// RFC 9659 limits zstd windows to 8 MiB in HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_encodings_are_decoded_and_anything_else_is_passed_through() {
        use Coding::{Brotli, Gzip, Zstd};
        let of = |value: &'static str| {
            Codings::of(&HeaderMap::from_iter([(CONTENT_ENCODING, http::HeaderValue::from_static(value))])).0
        };
        assert_eq!(of("GZIP"), [Gzip]);
        assert_eq!(of("identity, br"), [Brotli]);
        assert_eq!(of("gzip, x-gzip ,, zstd"), [Gzip, Gzip, Zstd]);
        assert_eq!(of("utf-8, gzip"), [Gzip]);
        assert_eq!(of("br, compress, zstd, gzip"), [Zstd, Gzip], "what is above an unknown one is decoded");
        for left in ["", "identity", "utf-8", "compress", "gzip, rot13"] {
            assert_eq!(of(left), [], "{left}");
        }
        assert_eq!(Codings(vec![Gzip, Brotli]).to_string(), "gzip, br");
    }

    #[test]
    fn brotli_windows_larger_than_the_standard_allows_are_refused() {
        assert!(Coding::Brotli.decoder(0x11).is_err() && Coding::Brotli.decoder(0x91).is_err());
        assert!(Coding::Brotli.decoder(0x1b).is_ok());
    }
}

//! Decodes lists to UTF-8 while they are read: UTF-16, as Windows programs save it, and gzip.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use encoding_rs::{Decoder, DecoderResult, UTF_16BE, UTF_16LE};
use flate2::bufread::GzDecoder;

/// A list as UTF-8, whether it is in UTF-8, in UTF-16, or compressed with gzip. What it is shows at its first bytes,
/// which are read with the first call.
pub fn decoded(list: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
    Box::new(Decoded::Unknown(Some(list)))
}

/// The first bytes of a list, and the rest.
type Whole = Chain<Cursor<Vec<u8>>, Box<dyn Read + Send>>;

enum Decoded {
    /// Nothing was read yet. `None` only while the first bytes are read.
    Unknown(Option<Box<dyn Read + Send>>),
    Known(Box<dyn Read + Send>),
}

impl Read for Decoded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Self::Unknown(list) = self {
            let Some(mut list) = list.take() else { return Ok(0) };
            let mut start = Vec::with_capacity(2);
            list.as_mut().take(2).read_to_end(&mut start)?;
            let whole = Cursor::new(start.clone()).chain(list);
            *self = Self::Known(match start[..] {
                [0x1f, 0x8b] => decoded(Box::new(Members::Next(BufReader::new(whole)))),
                // A byte order mark, or the first letter of a URL or comment.
                [0xff, 0xfe] | [b'!'..=b'~', 0] => Box::new(Utf16::new(whole, UTF_16LE.new_decoder())),
                [0xfe, 0xff] | [0, b'!'..=b'~'] => Box::new(Utf16::new(whole, UTF_16BE.new_decoder())),
                _ => Box::new(whole),
            });
        }
        match self {
            Self::Known(list) => list.read(buffer),
            Self::Unknown(_) => Ok(0),
        }
    }
}

/// Decompresses gzip, which may consist of several members. Zeros after a member are padding, as on tapes.
enum Members {
    Next(BufReader<Whole>),
    In(GzDecoder<BufReader<Whole>>),
    Over,
}

impl Read for Members {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            *self = match std::mem::replace(self, Self::Over) {
                Self::Over => return Ok(0),
                Self::Next(mut list) => match padding(&mut list)? {
                    Padding::Over => Self::Over,
                    Padding::Before => Self::In(GzDecoder::new(list)),
                },
                Self::In(mut member) => match member.read(buffer)? {
                    0 if !buffer.is_empty() => Self::Next(member.into_inner()),
                    count => {
                        *self = Self::In(member);
                        return Ok(count);
                    }
                },
            };
        }
    }
}

/// What comes after padding.
enum Padding {
    /// Another member.
    Before,
    /// Nothing.
    Over,
}

/// Skips zeros.
fn padding(list: &mut impl BufRead) -> io::Result<Padding> {
    loop {
        let bytes = list.fill_buf()?;
        if bytes.is_empty() {
            return Ok(Padding::Over);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let is_more = zeros < bytes.len();
        list.consume(zeros);
        if is_more {
            return Ok(Padding::Before);
        }
    }
}

/// Decodes UTF-16. What isn't UTF-16 becomes a byte that isn't UTF-8, so that it costs only its line.
struct Utf16 {
    list: Whole,
    decoder: Decoder,
    /// What was read and is not decoded yet.
    encoded: Vec<u8>,
    /// What is decoded and was not returned yet.
    text: Cursor<Vec<u8>>,
    state: State,
}

/// Whether there is more to decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The list has ended.
    Over,
}

impl Utf16 {
    fn new(list: Whole, decoder: Decoder) -> Self {
        Self { list, decoder, encoded: Vec::new(), text: Cursor::default(), state: State::Open }
    }

    /// Decodes the next part.
    fn decode_more(&mut self) -> io::Result<()> {
        self.encoded.resize(PART, 0);
        let count = self.list.read(&mut self.encoded)?;
        let is_over = count == 0;
        // Two bytes of UTF-16 are at most three of UTF-8; a few may be left over from the last part.
        let (mut part, mut text, mut room) = (&self.encoded[..count], Vec::new(), vec![0; PART * 2]);
        loop {
            let (result, read, written) =
                self.decoder.decode_to_utf8_without_replacement(part, &mut room, is_over);
            part = &part[read..];
            text.extend_from_slice(&room[..written]);
            match result {
                DecoderResult::InputEmpty => break,
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(..) => text.push(NOT_UTF8),
            }
        }
        self.state = if is_over { State::Over } else { State::Open };
        self.text = Cursor::new(text);
        Ok(())
    }
}

impl Read for Utf16 {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.text.read(buffer)?;
            match self.state {
                _ if count > 0 || buffer.is_empty() => return Ok(count),
                State::Open => self.decode_more()?,
                State::Over => return Ok(0),
            }
        }
    }
}

/// A byte that UTF-8 never contains.
const NOT_UTF8: u8 = 0xff;
/// How many bytes are decoded at once.
const PART: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Returns one byte per call, as a slow pipe might.
    struct Slow(Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    fn text_of(bytes: &[u8]) -> io::Result<String> {
        let (mut fast, mut slow) = (String::new(), String::new());
        let read = decoded(Box::new(Cursor::new(bytes.to_vec()))).read_to_string(&mut fast);
        let slowly = decoded(Box::new(Slow(Cursor::new(bytes.to_vec())))).read_to_string(&mut slow);
        assert_eq!((slowly.is_ok(), &slow), (read.is_ok(), &fast));
        read.map(|_| fast)
    }

    fn utf16(text: &str, to_bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(to_bytes).collect()
    }

    #[test]
    fn lists_in_utf16_and_gzip_are_read_as_utf8() {
        let long: String = (0..50_000).map(|nth| format!("https://a.example/ü/{nth}/😀\n")).collect();
        for text in ["", "h", "ht", "https://a.example/ü\n# 😀\n", &long] {
            assert_eq!(text_of(text.as_bytes()).unwrap(), text);
            let marked = format!("\u{feff}{text}");
            assert_eq!(
                text_of(&utf16(&marked, u16::to_le_bytes)).unwrap().trim_start_matches('\u{feff}'),
                text
            );
            assert_eq!(
                text_of(&utf16(&marked, u16::to_be_bytes)).unwrap().trim_start_matches('\u{feff}'),
                text
            );
            assert_eq!(text_of(&utf16(text, u16::to_le_bytes)).unwrap(), text, "without a byte order mark");
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(text.as_bytes()).unwrap();
            assert_eq!(text_of(&gzip.finish().unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn what_is_not_utf16_costs_only_its_line() {
        let lines = |bytes: &[u8]| {
            let mut text = Vec::new();
            decoded(Box::new(Cursor::new(bytes.to_vec()))).read_to_end(&mut text).unwrap();
            text
        };
        let lone = [
            &[0xff, 0xfe][..],
            &utf16("a\n", u16::to_le_bytes),
            &[0, 0xd8],
            &utf16("b\nc\n", u16::to_le_bytes),
        ];
        assert_eq!(lines(&lone.concat()), b"a\n\xffb\nc\n");
        let half = [&[0xff, 0xfe][..], &utf16("a\n", u16::to_le_bytes), b"b"].concat();
        assert_eq!(lines(&half), b"a\n\xff");
    }

    #[test]
    fn gzip_may_be_padded_and_contain_utf16() {
        let gzip = |bytes: &[u8]| {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(bytes).unwrap();
            gzip.finish().unwrap()
        };
        let padded = [gzip(b"a\n"), vec![0; 700], gzip(b"b\n"), vec![0; 70_000]].concat();
        assert_eq!(text_of(&padded).unwrap(), "a\nb\n");
        assert_eq!(
            text_of(&gzip(&utf16("https://a.example/\n", u16::to_le_bytes))).unwrap(),
            "https://a.example/\n"
        );
        assert!(text_of(&[gzip(b"a\n"), b"rubbish".to_vec()].concat()).is_err());
        assert!(text_of(&[0x1f, 0x8b, 8, 0, 1, 2, 3]).is_err());
    }
}

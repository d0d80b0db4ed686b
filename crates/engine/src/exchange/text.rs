//! From the bytes of a list to its text, and from places in the text to lines.
//!
//! What the text means is for the forms to say. Bytes that fit no encoding are replaced, never refused.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::shown;

/// The text of a list, without its byte order mark, and what was wrong with its bytes.
pub(super) fn decode(bytes: &[u8]) -> (Cow<'_, str>, Option<String>) {
    let label = label(bytes);
    let declared = label.and_then(Encoding::for_label_no_replacement);
    let encoding = match (declared, bytes) {
        (_, [b'<', 0, ..]) => UTF_16LE,
        (_, [0, b'<', ..]) => UTF_16BE,
        // A declaration that could be read byte by byte is not in UTF-16, whatever it says.
        (Some(encoding), _) if encoding != UTF_16LE && encoding != UTF_16BE => encoding,
        _ => UTF_8,
    };
    let (text, encoding, replaced) = encoding.decode(bytes);
    let problem = match label {
        _ if replaced => {
            Some(format!("bytes that are not {} were replaced, save it as UTF-8", encoding.name()))
        }
        Some(label) if declared.is_none() => {
            let label = shown::text(&String::from_utf8_lossy(label));
            Some(format!("encoding {label:?} is not known, it was read as {}", encoding.name()))
        }
        _ => None,
    };
    (text, problem)
}

/// The encoding that an XML declaration names.
fn label(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = bytes.trim_ascii_start();
    let start = &bytes[..bytes.len().min(DECLARATION_MAX)];
    let declaration = &start[..memchr::memmem::find(start, b"?>")?];
    let inside = declaration.strip_prefix(b"<?xml")?;
    let at = memchr::memmem::find(inside, b"encoding")? + b"encoding".len();
    let mut parts = inside[at..].split(|byte| matches!(byte, b'"' | b'\''));
    parts.next().filter(|equals| equals.trim_ascii() == b"=")?;
    parts.next()
}

/// What lines of `text` end with: a carriage return only where there is nothing else, as old Macs wrote it.
pub(super) fn line_end(text: &str) -> char {
    let old = memchr::memchr(b'\n', text.as_bytes()).is_none() && text.contains('\r');
    if old { '\r' } else { '\n' }
}

/// Tells the lines of places in a text; reading on is cheap, so places are to be asked for in order.
pub(super) struct Lines<'a> {
    text: &'a [u8],
    end: u8,
    at: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), end: line_end(text) as u8, at: 0, line: 1 }
    }

    /// The line of the byte at `offset`; a place before the last one asked for is on that one's line.
    pub(super) fn line_at(&mut self, offset: usize) -> u64 {
        let offset = offset.clamp(self.at, self.text.len());
        self.line += memchr::memchr_iter(self.end, &self.text[self.at..offset]).count() as u64;
        self.at = offset;
        self.line
    }

    /// The line of the first byte from `offset` on that ends no line.
    pub(super) fn line_from(&mut self, offset: usize) -> u64 {
        let rest = self.text.get(offset..).unwrap_or_default();
        let blank = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        self.line_at(offset + blank)
    }
}

/// Longer declarations than this are none.
const DECLARATION_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_declarations_tell_the_encoding() {
        let utf_16 = |mark: &[u8], turn: fn(u16) -> [u8; 2]| {
            let units = "<é/>".encode_utf16().flat_map(turn);
            mark.iter().copied().chain(units).collect::<Vec<u8>>()
        };
        for bytes in [
            "<é/>".as_bytes().to_vec(),
            "\u{feff}<é/>".as_bytes().to_vec(),
            utf_16(b"\xff\xfe", u16::to_le_bytes),
            utf_16(b"\xfe\xff", u16::to_be_bytes),
            utf_16(b"", u16::to_le_bytes),
            utf_16(b"", u16::to_be_bytes),
        ] {
            assert_eq!(decode(&bytes), ("<é/>".into(), None), "{bytes:?}");
        }
        for (declared, bytes) in [
            ("ISO-8859-1", &b"\xe9"[..]),
            ("iso-8859-2", b"\xe9"),
            ("KOI8-R", b"\xc0"),
            ("utf-16", "é".as_bytes()),
        ] {
            let start = format!("<?xml version='1.0' encoding = '{declared}' ?>");
            let bytes = [start.as_bytes(), bytes].concat();
            let (text, problem) = decode(&bytes);
            let wanted = if declared == "KOI8-R" { "ю" } else { "é" };
            assert_eq!((text.strip_prefix(&start), problem), (Some(wanted), None), "{declared}");
        }
    }

    #[test]
    fn what_is_in_no_known_encoding_is_read_as_far_as_it_goes() {
        let (text, problem) = decode(b"a\xffb");
        assert_eq!(text, "a\u{fffd}b");
        assert_eq!(problem.as_deref(), Some("bytes that are not UTF-8 were replaced, save it as UTF-8"));
        let (_, problem) = decode(b"<?xml encoding=\"klingon\"?>");
        assert_eq!(problem.as_deref(), Some("encoding \"klingon\" is not known, it was read as UTF-8"));
    }

    #[test]
    fn lines_are_counted_however_they_end() {
        for text in ["a\nb\n\nc", "a\r\nb\r\n\r\nc", "a\rb\r\rc"] {
            let mut lines = Lines::new(text);
            let places = ["a", "b", "c"].map(|mark| lines.line_at(text.find(mark).unwrap()));
            assert_eq!(places, [1, 2, 4], "{text:?}");
            assert_eq!(lines.line_at(usize::MAX), 4);
        }
        assert_eq!(Lines::new("\n\r\n\na").line_from(1), 4);
        assert_eq!(Lines::new("a").line_from(9), 1);
    }
}

//! Decodes the bytes of a list to text, and finds the line numbers of positions in it.
//!
//! Invalid bytes are replaced, never rejected.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::redact;

/// The text of a list without its byte order mark, and a problem if its bytes were invalid.
pub(super) fn decode(bytes: &[u8]) -> (Cow<'_, str>, Option<String>) {
    let label = label(bytes);
    let declared = label.and_then(Encoding::for_label_no_replacement);
    let encoding = match (declared, bytes) {
        (_, [b'<', 0, ..]) => UTF_16LE,
        (_, [0, b'<', ..]) => UTF_16BE,
        // A declaration that is readable as single bytes isn't in UTF-16, even if it claims to be.
        (Some(encoding), _) if encoding != UTF_16LE && encoding != UTF_16BE => encoding,
        _ => UTF_8,
    };
    let (text, encoding, replaced) = encoding.decode(bytes);
    let problem = match label {
        _ if replaced => {
            Some(format!("invalid {} bytes were replaced; save the file as UTF-8", encoding.name()))
        }
        Some(label) if declared.is_none() => {
            let label = redact::text(&String::from_utf8_lossy(label));
            Some(format!("unknown encoding {label:?}; the list was read as {}", encoding.name()))
        }
        _ => None,
    };
    (text, problem)
}

/// The encoding named in the XML declaration.
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

/// The line terminator of `text`: a carriage return if there are no line feeds, as on old Macs.
pub(super) fn line_end(text: &str) -> char {
    let old = memchr::memchr(b'\n', text.as_bytes()).is_none() && text.contains('\r');
    if old { '\r' } else { '\n' }
}

/// Finds the line numbers of positions in a text. Positions must be passed in ascending order, which makes it cheap.
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

    /// The line of the byte at `offset`. For a position before the previous one, it is the previous line.
    pub(super) fn line_at(&mut self, offset: usize) -> u64 {
        let offset = offset.clamp(self.at, self.text.len());
        self.line += memchr::memchr_iter(self.end, &self.text[self.at..offset]).count() as u64;
        self.at = offset;
        self.line
    }

    /// The line of the first byte from `offset` on that isn't a line terminator.
    pub(super) fn line_from(&mut self, offset: usize) -> u64 {
        let rest = self.text.get(offset..).unwrap_or_default();
        let blank = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        self.line_at(offset + blank)
    }
}

/// The maximum length of an XML declaration.
const DECLARATION_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_detected_by_bom_and_declaration() {
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
    fn invalid_bytes_and_unknown_encodings_are_reported() {
        let (text, problem) = decode(b"a\xffb");
        assert_eq!(text, "a\u{fffd}b");
        assert_eq!(problem.as_deref(), Some("invalid UTF-8 bytes were replaced; save the file as UTF-8"));
        let (_, problem) = decode(b"<?xml encoding=\"klingon\"?>");
        assert_eq!(problem.as_deref(), Some("unknown encoding \"klingon\"; the list was read as UTF-8"));
    }

    #[test]
    fn lines_are_counted_with_every_line_terminator() {
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

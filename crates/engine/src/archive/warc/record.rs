//! Writes records: a header and a block. Each record is a separate gzip member, so that readers can start at any of
//! them.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Read, Write};

use comity_core::time::Timestamp;
use flate2::Compression;
use flate2::write::GzEncoder;
use ring::rand::{SecureRandom, SystemRandom};

/// The id of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(u128);

impl Id {
    /// A unique id.
    pub(super) fn random() -> io::Result<Self> {
        let mut octets = [0; 16];
        SystemRandom::new().fill(&mut octets).map_err(|_| io::Error::other("no random numbers available"))?;
        // Version 4, variant 10: RFC 9562.
        Ok(Self(u128::from_be_bytes(octets) & !(0xf << 76 | 0b11 << 62) | 4 << 76 | 0b10 << 62))
    }

    /// Parses the format written by [`fmt::Display`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("<urn:uuid:")?.strip_suffix('>')?.replace('-', "");
        u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map(Self)
    }
}

impl Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let (one, two, three) = (&digits[..8], &digits[8..12], &digits[12..16]);
        write!(f, "<urn:uuid:{one}-{two}-{three}-{}-{}>", &digits[16..20], &digits[20..])
    }
}

/// The header of a record, except for its length.
pub(super) struct Header(String);

impl Header {
    pub(super) fn new(kind: &str, id: Id, at: Timestamp) -> Self {
        let mut header = Self(String::with_capacity(1_024));
        header.0.push_str("WARC/1.1\r\n");
        header.add("WARC-Type", kind);
        header.add("WARC-Record-ID", id);
        header.add("WARC-Date", at);
        header
    }

    /// Adds a field. Values never contain line breaks: they are created here, or are URLs.
    pub(super) fn add(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, "{name}: {value}\r\n");
    }

    /// Adds a field if there is a value.
    pub(super) fn add_some(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// Writes the record with this block.
    pub(super) fn pack(mut self, length: u64, block: &mut dyn Read, into: &mut impl Write) -> io::Result<()> {
        self.add("Content-Length", length);
        let mut member = GzEncoder::new(into, LEVEL);
        member.write_all(self.0.as_bytes())?;
        member.write_all(b"\r\n")?;
        let copied = io::copy(block, &mut member)?;
        if copied != length {
            return Err(io::Error::other("a body changed while it was written"));
        }
        member.write_all(b"\r\n\r\n")?;
        member.finish()?;
        Ok(())
    }
}

/// Most pages are already compressed, and the rest is text, so a higher level would save little.
const LEVEL: Compression = Compression::new(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let (one, other) = (Id::random().unwrap(), Id::random().unwrap());
        assert_ne!(one, other);
        for id in [one, other] {
            let text = id.to_string();
            assert_eq!((text.len(), Id::parse(&text)), (47, Some(id)), "{text}");
            assert!(
                text[24..].starts_with('4') && matches!(text.as_bytes()[29], b'8' | b'9' | b'a' | b'b'),
                "{text}"
            );
        }
        assert_eq!(Id::parse("<urn:uuid:1>"), None);
    }

    #[test]
    fn a_record_is_one_gzip_member_that_ends_with_two_blank_lines() {
        let mut packed = Vec::new();
        let header = Header::new("response", Id(0), Timestamp::from_secs(0));
        header.pack(4, &mut &b"body"[..], &mut packed).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        let id = "<urn:uuid:00000000-0000-0000-0000-000000000000>";
        assert_eq!(
            text,
            format!(
                "WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: {id}\r\nWARC-Date: 1970-01-01T00:00:00Z\r\n\
                     Content-Length: 4\r\n\r\nbody\r\n\r\n"
            )
        );
    }
}

//! Follows chunked transfer encoding as it passes, to find the payload and the end of the message. The recorded bytes
//! are not changed.

/// The state of the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    /// In the length of a chunk, with the value so far.
    Length(u64),
    /// In the rest of the line after the length.
    Extension(u64),
    /// In a chunk, with this many bytes left.
    Chunk(u64),
    /// In the line break after a chunk.
    ChunkEnd,
    /// In a line after the last chunk, with this many bytes so far.
    Trailer(u64),
    /// At the end of the message.
    Done,
    /// The encoding is invalid.
    Invalid,
}

impl Chunks {
    pub(super) const START: Self = Self::Length(0);

    /// Reads more bytes, calls `payload` with the parts that are payload, and returns how many bytes belong to the
    /// message.
    pub(super) fn read(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> usize {
        let mut at = 0;
        while at < bytes.len() && *self != Self::Done {
            if let Self::Chunk(left) = self {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
                payload(&bytes[at..at + taken]);
                at += taken;
                *left -= taken as u64;
                if *left == 0 {
                    *self = Self::ChunkEnd;
                }
                continue;
            }
            *self = self.after(bytes[at]);
            at += 1;
        }
        at
    }

    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Length(length), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                match length.checked_mul(16) {
                    Some(length) => Self::Length(length + digit),
                    None => Self::Invalid,
                }
            }
            (Self::Length(length) | Self::Extension(length), b'\n') => match length {
                0 => Self::Trailer(0),
                length => Self::Chunk(length),
            },
            (Self::Length(length), b';' | b' ' | b'\t' | b'\r') => Self::Extension(length),
            (Self::Extension(length), _) => Self::Extension(length),
            (Self::ChunkEnd, b'\r') => Self::ChunkEnd,
            (Self::ChunkEnd, b'\n') => Self::START,
            (Self::Trailer(0), b'\n') => Self::Done,
            (Self::Trailer(_), b'\n') => Self::Trailer(0),
            (Self::Trailer(len), b'\r') => Self::Trailer(len),
            (Self::Trailer(len), _) => Self::Trailer(len + 1),
            (Self::Done, _) => Self::Done,
            _ => Self::Invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The payload, how many bytes belong to the message, and the final state; checks that it is the same in pieces of
    /// any size.
    fn read(text: &str) -> (String, usize, Chunks) {
        let all = read_in(text, text.len().max(1));
        for size in 1..5 {
            assert_eq!(read_in(text, size), all, "{text:?} in pieces of {size}");
        }
        all
    }

    fn read_in(text: &str, size: usize) -> (String, usize, Chunks) {
        let (mut chunks, mut payload, mut taken) = (Chunks::START, Vec::new(), 0);
        for piece in text.as_bytes().chunks(size) {
            taken += chunks.read(piece, |part| payload.extend_from_slice(part));
        }
        (String::from_utf8(payload).unwrap(), taken, chunks)
    }

    #[test]
    fn the_payload_is_extracted() {
        let plain = "3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(read(plain), ("abc0123456789".to_owned(), plain.len(), Chunks::Done));
        assert_eq!(read(&format!("{plain}HTTP/1.1 200")).1, plain.len());
        let trailers = "1 \nx\n0\r\nA: b\r\nC: d\r\n\r\n";
        assert_eq!(read(trailers), ("x".to_owned(), trailers.len(), Chunks::Done));
        assert_eq!(read("5\r\nabc"), ("abc".to_owned(), 6, Chunks::Chunk(2)));
    }

    #[test]
    fn invalid_encoding_is_detected() {
        for text in ["<html>", "3\r\nabcd\r\n", "fffffffffffffffff\r\n"] {
            let (_, taken, chunks) = read(text);
            assert_eq!((taken, chunks), (text.len(), Chunks::Invalid), "{text:?}");
        }
    }
}

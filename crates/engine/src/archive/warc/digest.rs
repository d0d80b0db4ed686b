//! SHA-1 in base 32, the conventional form of digests in web archives. It is used to find identical payloads, not for
//! security.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN};

/// A digest: `sha1:` and 32 characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; SHA1_OUTPUT_LEN]);

/// Calculates a digest.
#[derive(Clone)]
pub(super) struct Digester(Context);

impl Digester {
    pub(super) fn new() -> Self {
        Self(Context::new(&SHA1_FOR_LEGACY_USE_ONLY))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> Digest {
        let mut octets = [0; SHA1_OUTPUT_LEN];
        octets.copy_from_slice(self.0.finish().as_ref());
        Digest(octets)
    }
}

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut digester = Digester::new();
        digester.update(bytes);
        digester.finish()
    }

    /// Parses the format written by [`fmt::Display`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("sha1:").filter(|text| text.len() == 32)?;
        let mut octets = [0; SHA1_OUTPUT_LEN];
        for (five, part) in octets.chunks_mut(5).zip(text.as_bytes().chunks(8)) {
            let mut bits = 0_u64;
            for letter in part {
                bits = bits << 5 | ALPHABET.iter().position(|known| known == letter)? as u64;
            }
            five.copy_from_slice(&bits.to_be_bytes()[3..]);
        }
        Some(Self(octets))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha1:")?;
        // 20 bytes are four groups of 40 bits, each of which is eight letters.
        for five in self.0.chunks(5) {
            let bits = five.iter().fold(0_u64, |bits, octet| bits << 8 | u64::from(*octet));
            for nth in (0..8).rev() {
                let letter = ALPHABET[(bits >> (5 * nth) & 31) as usize];
                write!(f, "{}", letter as char)?;
            }
        }
        Ok(())
    }
}

/// RFC 4648.
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_the_conventional_format() {
        assert_eq!(Digest::of(b"").to_string(), "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ");
        assert_eq!(Digest::of(b"abc").to_string(), "sha1:VGMT4NSHA2AWVOR6EVYXQUGCNSONBWE5");
        for bytes in [&b""[..], b"abc", &[255; 1_000]] {
            let digest = Digest::of(bytes);
            assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        }
        assert_eq!(Digest::parse("sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBY1"), None);
        assert_eq!(Digest::parse("sha256:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"), None);
    }
}

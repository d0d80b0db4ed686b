//! The right to send, as text that nobody can make up: who holds it can record with it, at any process on the same
//! store, before and after a restart.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity::core::domain::Domain;
use comity::core::intent::Intent;
use comity::core::time::Timestamp;
use comity::store::{Store, StoreError};
use ring::hmac;

use crate::auth;

/// What a permit says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The host that was asked for.
    pub host: Domain,
    /// Its number among the permits of its domain.
    pub id: u32,
    /// What its request is for.
    pub intent: Intent,
    /// When it was granted.
    pub granted_at: Timestamp,
}

/// What makes permits and knows them again.
pub struct Mint(hmac::Key);

impl Mint {
    /// The one that everybody on `store` shares.
    pub async fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let secret = store.secret("permits".to_owned(), auth::random().to_vec()).await?;
        Ok(Self::new(&secret))
    }

    fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The permit as text.
    pub fn write(&self, permit: &Permit) -> String {
        let mut bytes = Vec::with_capacity(HEAD + permit.host.as_str().len() + SEAL);
        bytes.extend(permit.id.to_be_bytes());
        bytes.extend(permit.granted_at.as_micros().to_be_bytes());
        bytes.push(permit.intent.index() as u8);
        bytes.extend(permit.host.as_str().as_bytes());
        self.seal(bytes)
    }

    /// Bytes as text, with their seal.
    fn seal(&self, mut bytes: Vec<u8>) -> String {
        let seal = hmac::sign(&self.0, &bytes);
        bytes.extend(&seal.as_ref()[..SEAL]);
        let mut text = String::with_capacity(PREFIX.len() + bytes.len().div_ceil(3) * 4);
        text.push_str(PREFIX);
        URL_SAFE_NO_PAD.encode_string(&bytes, &mut text);
        text
    }

    /// The permit that a text is; `None` when it was not made here.
    pub fn read(&self, text: &str) -> Option<Permit> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        let (said, seal) = bytes.split_at_checked(bytes.len().checked_sub(SEAL)?)?;
        let right = hmac::sign(&self.0, said);
        // All bytes are looked at, so that the time this takes tells nothing.
        let differs = right.as_ref().iter().zip(seal).fold(0, |sum, (a, b)| sum | (a ^ b));
        if differs != 0 {
            return None;
        }
        let (head, host) = said.split_at_checked(HEAD)?;
        let id = u32::from_be_bytes(head[..4].try_into().ok()?);
        let micros = i64::from_be_bytes(head[4..12].try_into().ok()?);
        let intent = Intent::ALL.into_iter().find(|intent| intent.index() == usize::from(head[12]))?;
        let host = Domain::parse(std::str::from_utf8(host).ok()?).ok()?;
        Some(Permit { host, id, intent, granted_at: Timestamp::from_micros(micros) })
    }
}

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
impl Mint {
    /// One that nobody shares.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self::new(secret)
    }

    /// Any bytes, sealed as if they were a permit.
    pub fn sealed(&self, bytes: &[u8]) -> String {
        self.seal(bytes.to_vec())
    }
}

/// Whether a text is meant as a permit, and not as the name of a host.
pub fn is_permit(text: &str) -> bool {
    let least = (HEAD + 1 + SEAL) * 4 / 3;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.strip_prefix(PREFIX).is_some_and(|sealed| sealed.len() >= least && sealed.bytes().all(fits))
}

const PREFIX: &str = "p1.";
/// Number, time, intent.
const HEAD: usize = 4 + 8 + 1;
const SEAL: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_known_again_and_cannot_be_made_up() {
        let mint = Mint::new(b"secret");
        for host in ["example.org", "127.0.0.1:8080", "[::1]:1", "group:press"] {
            let host = Domain::parse(host).unwrap();
            let permit =
                Permit { host, id: u32::MAX, intent: Intent::Search, granted_at: Timestamp::from_secs(7) };
            let text = mint.write(&permit);
            assert_eq!(mint.read(&text), Some(permit));
            assert!(is_permit(&text), "{text}");
            assert_eq!(Mint::new(b"other").read(&text), None);
            for at in PREFIX.len()..text.len() - 1 {
                let mut forged = text.clone().into_bytes();
                forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
                assert_eq!(mint.read(std::str::from_utf8(&forged).unwrap()), None, "{at}");
            }
        }
        for text in
            ["", "p1.", "p1.AAAA", "p2.AAAAAAAAAAAAAAAAAAAAAAAAAAAA", "p1.é", "p1.AA==", &"p1.A".repeat(999)]
        {
            assert_eq!(mint.read(text), None, "{text}");
        }
        for host in ["p1.example.org", "p1.fr", "p1.", "p1.localhost:8080"] {
            assert!(!is_permit(host), "{host}");
        }
    }
}

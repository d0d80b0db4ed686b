//! Permits as signed text that can't be forged. Whoever has one can record with it, at any process on the same store,
//! also after a restart. Whether the permit is still open is not decided here, but by the gate that holds its domain.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity::core::domain::Domain;
use comity::core::intent::Intent;
use comity::core::time::Timestamp;
use comity::store::{Store, StoreError};
use ring::hmac;

use crate::auth;

/// What the text of a permit contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermitClaims {
    /// The host that was asked for.
    pub host: Domain,
    /// The permit's number within its domain.
    pub id: u32,
    /// What the request is for.
    pub intent: Intent,
    /// When the permit was granted.
    pub granted_at: Timestamp,
}

/// Signs permits, and verifies permits it has signed.
pub struct PermitSigner(hmac::Key);

impl PermitSigner {
    /// The signer shared by all processes on `store`. Its key is kept in the store, and created on first use.
    pub async fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let secret = store.secret("permits".to_owned(), auth::random().to_vec()).await?;
        Ok(Self::new(&secret))
    }

    fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The permit as signed text.
    pub fn sign(&self, permit: &PermitClaims) -> String {
        let mut bytes = Vec::with_capacity(HEAD + permit.host.as_str().len() + SIGNATURE);
        bytes.extend(permit.id.to_be_bytes());
        bytes.extend(permit.granted_at.as_micros().to_be_bytes());
        bytes.push(permit.intent.index() as u8);
        bytes.extend(permit.host.as_str().as_bytes());
        self.seal(bytes)
    }

    /// Appends the signature and encodes the result as text.
    fn seal(&self, mut bytes: Vec<u8>) -> String {
        let signature = hmac::sign(&self.0, &bytes);
        bytes.extend(&signature.as_ref()[..SIGNATURE]);
        let mut text = String::with_capacity(PERMIT_PREFIX.len() + bytes.len().div_ceil(3) * 4);
        text.push_str(PERMIT_PREFIX);
        URL_SAFE_NO_PAD.encode_string(&bytes, &mut text);
        text
    }

    /// Reads a permit. `None` if the text was not signed with this store's key.
    pub fn verify(&self, text: &str) -> Option<PermitClaims> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PERMIT_PREFIX)?).ok()?;
        let (claims, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
        let expected = hmac::sign(&self.0, claims);
        // A constant-time comparison: how long it takes reveals nothing about the signature.
        let differs = expected.as_ref().iter().zip(signature).fold(0, |sum, (a, b)| sum | (a ^ b));
        if differs != 0 {
            return None;
        }
        let (head, host) = claims.split_at_checked(HEAD)?;
        let id = u32::from_be_bytes(head[..4].try_into().ok()?);
        let micros = i64::from_be_bytes(head[4..12].try_into().ok()?);
        let intent = Intent::ALL.into_iter().find(|intent| intent.index() == usize::from(head[12]))?;
        let host = Domain::parse(std::str::from_utf8(host).ok()?).ok()?;
        Some(PermitClaims { host, id, intent, granted_at: Timestamp::from_micros(micros) })
    }
}

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
impl PermitSigner {
    /// A signer with this key.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self::new(secret)
    }

    /// Signs any bytes, as if they were a permit.
    pub fn sealed(&self, bytes: &[u8]) -> String {
        self.seal(bytes.to_vec())
    }
}

/// Whether a text has the form of a permit rather than that of a host name. The signature is not verified.
pub fn looks_like_permit(text: &str) -> bool {
    let length_min = (HEAD + 1 + SIGNATURE) * 4 / 3;
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.strip_prefix(PERMIT_PREFIX)
        .is_some_and(|encoded| encoded.len() >= length_min && encoded.bytes().all(is_base64))
}

/// How permits start.
pub const PERMIT_PREFIX: &str = "p1.";
/// Bytes before the host: the permit's number, its time and its intent.
const HEAD: usize = 4 + 8 + 1;
/// Bytes of the signature, which is truncated.
const SIGNATURE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_permit_is_verified_and_a_forged_one_is_rejected() {
        let signer = PermitSigner::new(b"secret");
        for host in ["example.org", "127.0.0.1:8080", "[::1]:1", "group:press"] {
            let host = Domain::parse(host).unwrap();
            let permit = PermitClaims {
                host,
                id: u32::MAX,
                intent: Intent::Search,
                granted_at: Timestamp::from_secs(7),
            };
            let text = signer.sign(&permit);
            assert_eq!(signer.verify(&text), Some(permit));
            assert!(looks_like_permit(&text), "{text}");
            assert_eq!(PermitSigner::new(b"other").verify(&text), None);
            for at in PERMIT_PREFIX.len()..text.len() - 1 {
                let mut forged = text.clone().into_bytes();
                forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
                assert_eq!(signer.verify(std::str::from_utf8(&forged).unwrap()), None, "{at}");
            }
        }
        for text in
            ["", "p1.", "p1.AAAA", "p2.AAAAAAAAAAAAAAAAAAAAAAAAAAAA", "p1.é", "p1.AA==", &"p1.A".repeat(999)]
        {
            assert_eq!(signer.verify(text), None, "{text}");
        }
        for host in ["p1.example.org", "p1.fr", "p1.", "p1.localhost:8080"] {
            assert!(!looks_like_permit(host), "{host}");
        }
    }
}

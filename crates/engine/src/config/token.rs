//! Bearer tokens of the service, stored as hashes, and their roles.

use std::fmt;

use ring::digest::{SHA256, digest};

/// What the owner of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Read the state, and change nothing.
    View,
    /// Ask for permits, report outcomes, and read the state.
    Use,
    /// Everything.
    Admin,
}

/// The hash of a bearer token, and its role.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// What the owner of the token may do.
    pub role: Role,
    hash: [u8; 32],
}

impl Role {
    /// The name of the role.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Use => "use",
            Self::Admin => "admin",
        }
    }

    /// The role with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::View, Self::Use, Self::Admin].into_iter().find(|role| role.as_str() == name)
    }
}

impl Token {
    /// Hashes a plain token.
    pub fn of(role: Role, plain: &str) -> Self {
        Self { role, hash: hash(plain) }
    }

    /// Parses `ROLE:sha256:HEX`.
    pub fn parse_hashed(text: &str) -> Option<Self> {
        let (role, rest) = text.trim().split_once(':')?;
        let digits = rest.strip_prefix(HASHED)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 64 {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(Self { role: Role::parse(role)?, hash })
    }

    /// Parses `ROLE:sha256:HEX`, or `ROLE:TOKEN` with a plain token.
    pub fn parse(text: &str) -> Option<Self> {
        let (role, rest) = text.trim().split_once(':')?;
        if rest.starts_with(HASHED) {
            return Self::parse_hashed(text);
        }
        let fits = rest.len() >= PLAIN_MIN && rest.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then_some(Self::of(Role::parse(role)?, rest))
    }

    /// Whether `plain` is this token.
    pub fn matches(&self, plain: &str) -> bool {
        // Only hashes are compared, so the time it takes reveals nothing about the token.
        self.hash == hash(plain)
    }

    /// A number that identifies the token.
    pub fn fingerprint(&self) -> u64 {
        self.hash[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The token as a configuration contains it: `ROLE:sha256:HEX`.
    pub fn line(&self) -> String {
        let digits: String = self.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{HASHED}{digits}", self.role.as_str())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.role.as_str())
    }
}

fn hash(plain: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, plain.as_bytes()).as_ref());
    hash
}

const HASHED: &str = "sha256:";
/// Shorter tokens can be guessed.
pub(super) const PLAIN_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// B75
    #[test]
    fn a_token_is_stored_as_its_hash() {
        let token = Token::parse("use:correct-horse-battery").unwrap();
        assert!(token.matches("correct-horse-battery") && !token.matches("correct-horse-batterz"));
        assert_eq!(Token::parse_hashed(&token.line()), Some(token));
        assert_eq!(format!("{token:?}"), "Token(use)");
        let known = Token::of(Role::Admin, "abc").line();
        assert_eq!(known, "admin:sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn invalid_tokens_are_rejected() {
        for text in ["", "use", "use:", "use:short", "root:correct-horse-battery", "use:sha256:12", "use:a b"]
        {
            assert_eq!(Token::parse(text), None, "{text}");
        }
        assert_eq!(Token::parse_hashed("use:correct-horse-battery"), None);
    }
}

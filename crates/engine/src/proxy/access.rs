//! Who may use the proxy: programs that know a token, or without tokens every program on this machine. What protects the
//! gateway from web pages is in `gateway`.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::HeaderMap;
use http::header::PROXY_AUTHORIZATION;

use crate::config::Token;

pub(super) struct Access {
    tokens: Vec<Token>,
}

impl Access {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens }
    }

    /// Whether there are no tokens.
    pub(super) fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether a request with these headers may use the proxy.
    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let given = || headers.get(PROXY_AUTHORIZATION).and_then(|value| token(value.to_str().ok()?));
        self.is_open() || given().is_some_and(|given| self.tokens.iter().any(|token| token.matches(&given)))
    }
}

/// The token in a header: a bearer token, or the password of Basic authorization, whatever the user.
fn token(value: &str) -> Option<String> {
    let (scheme, rest) = value.trim().split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(BASE64_STANDARD.decode(rest.trim()).ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::config::Role;

    #[test]
    fn a_token_is_a_password_or_a_bearer_token() {
        let access = Access::new(vec![Token::of(Role::Use, "correct-horse-battery")]);
        let allows = |value: String| {
            access
                .allows(&HeaderMap::from_iter([(PROXY_AUTHORIZATION, HeaderValue::try_from(value).unwrap())]))
        };
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        assert!(allows(basic("anybody:correct-horse-battery")));
        assert!(allows("bearer correct-horse-battery".to_owned()));
        for wrong in
            [basic("correct-horse-battery:"), basic("a:b"), "Digest x".to_owned(), "Basic".to_owned()]
        {
            assert!(!allows(wrong));
        }
        assert!(!access.allows(&HeaderMap::new()));
        assert!(Access::new(Vec::new()).allows(&HeaderMap::new()));
    }
}

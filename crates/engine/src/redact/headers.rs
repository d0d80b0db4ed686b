//! Credentials in HTTP headers: which names carry them, and user info in values that contain URLs. The WARC archive and the
//! rows of results follow the same rules.

/// Whether a header may carry credentials, judging by its name; in doubt it counts as secret.
pub(crate) fn is_secret_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // `x-ratelimit-remaining-tokens` counts tokens.
    !name.contains("ratelimit") && NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Text with URLs somewhere in it: `//user:password@host` becomes `//host`, everything else stays as it is.
pub(crate) fn without_user_info(text: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, b"//") {
        let (before, authority) = rest.split_at(at + 2);
        kept.extend_from_slice(before);
        let ends = |byte: &u8| matches!(byte, b'/' | b'\\' | b'?' | b'#' | b'"' | b'<' | b'>' | 0..=b' ');
        let end = authority.iter().position(ends).unwrap_or(authority.len());
        // Two slashes in the middle of a path don't start a URL.
        let begins = at.checked_sub(1).is_none_or(|before| !is_in_path(rest[before]));
        let host = memchr::memrchr(b'@', &authority[..end]).filter(|_| begins).map_or(0, |at| at + 1);
        rest = &authority[host..];
    }
    kept.extend_from_slice(rest);
    kept
}

fn is_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'.' | b'_' | b'~' | b'%' | b'@')
}

/// A header whose name contains one of these carries credentials.
const NAME_PARTS: [&str; 9] = [
    "cookie",
    "authorization",
    "authentication-info",
    "token",
    "secret",
    "password",
    "api-key",
    "apikey",
    "session",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// B75, B86
    #[test]
    fn passwords_are_removed_wherever_a_value_contains_a_url() {
        for (value, expected) in [
            ("http://u:p@a.example/", "http://a.example/"),
            (
                "<http://u:p@a.example/next>; rel=next, <//v@b.example>",
                "<http://a.example/next>; rel=next, <//b.example>",
            ),
            ("5; url=http://u:p@a.example/", "5; url=http://a.example/"),
            ("mail me@a.example, or //a.example/x@y", "mail me@a.example, or //a.example/x@y"),
            ("/a//b@c", "/a//b@c"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(without_user_info(value.as_bytes())).unwrap(), expected);
        }
    }

    #[test]
    fn names_that_suggest_credentials_are_secret() {
        for name in ["Set-Cookie", "X-Api-Key", "proxy-authorization", "x-csrf-token", "Authentication-Info"]
        {
            assert!(is_secret_header(name), "{name}");
        }
        for name in ["etag", "content-type", "link", "www-authenticate", "x-ratelimit-remaining-tokens"] {
            assert!(!is_secret_header(name), "{name}");
        }
    }
}

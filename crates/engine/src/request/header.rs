//! Checks headers that people set: which ones are refused, and which are never secret.

use http::{HeaderName, HeaderValue};

/// Splits `Name: value`. The value may contain references, so only the name is checked.
pub fn split(line: &str) -> Result<(HeaderName, &str), String> {
    let Some((text, value)) = line.split_once(':') else {
        return Err("expected \"Name: value\"".to_owned());
    };
    Ok((name(text.trim())?, value.trim()))
}

/// Parses the name of a header that people may set; the error says why it can't be set.
pub fn name(text: &str) -> Result<HeaderName, String> {
    let lower = text.to_ascii_lowercase();
    if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == lower) {
        return Err((*why).to_owned());
    }
    let name = HeaderName::try_from(&lower).ok().filter(|_| text.len() <= NAME_MAX);
    name.ok_or_else(|| "expected a header name such as Accept-Language".to_owned())
}

/// Parses a header value; the error says why it is invalid, without repeating it.
pub fn value(text: &str) -> Result<HeaderValue, &'static str> {
    if text.contains(['\r', '\n']) {
        return Err("a line break in a value would start another header");
    }
    if text.is_empty() {
        return Err("the value is empty; the shell expands ${…} inside double quotes, so use single quotes");
    }
    if text.len() > VALUE_MAX {
        return Err("the value is longer than 16 KiB");
    }
    HeaderValue::from_str(text).map_err(|_| "control characters are not allowed in a header")
}

/// The names of the headers whose values are never secret.
pub fn harmless() -> &'static [&'static str] {
    &HARMLESS
}

/// Whether the value of this header is never secret, so that it may be stored, shown and sent anywhere.
pub fn is_harmless(name: &HeaderName) -> bool {
    HARMLESS.contains(&name.as_str())
}

/// Headers that can't be set, and why: they are managed per connection, or derived from something else.
const REFUSED: [(&str, &str); 14] = [
    ("host", "Host is derived from the URL"),
    ("content-length", "Content-Length is derived from the body"),
    ("transfer-encoding", "Transfer-Encoding is derived from the body"),
    ("connection", "Connection applies to a single connection, which Comity manages"),
    ("keep-alive", "Keep-Alive applies to a single connection, which Comity manages"),
    ("proxy-connection", "Proxy-Connection applies to a single connection, which Comity manages"),
    ("te", "TE applies to a single connection, which Comity manages"),
    ("trailer", "Trailer applies to a single connection, which Comity manages"),
    ("upgrade", "Upgrade applies to a single connection, which Comity manages"),
    ("http2-settings", "HTTP2-Settings applies to a single connection, which Comity manages"),
    ("expect", "Expect is not supported: bodies are sent at once"),
    ("proxy-authorization", "it is for a proxy: put the user and password into the URL of the proxy"),
    ("proxy-authenticate", "only proxies send Proxy-Authenticate"),
    ("set-cookie", "only servers send Set-Cookie; use Cookie instead"),
];

/// Headers whose values are never secret.
const HARMLESS: [&str; 25] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-language",
    "content-type",
    "dnt",
    "from",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "upgrade-insecure-requests",
    "user-agent",
    "x-requested-with",
];
const NAME_MAX: usize = 200;
const VALUE_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_into_name_and_value() {
        let (name, value) = split("X-Api-Key:  a:b ").unwrap();
        assert_eq!((name.as_str(), value), ("x-api-key", "a:b"));
        for wrong in ["X-Api-Key", ": x", "a b: x", "é: x", "a\r\nb: x"] {
            assert!(split(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn headers_managed_by_comity_are_refused_with_the_reason() {
        assert_eq!(name("HOST").unwrap_err(), "Host is derived from the URL");
        for refused in ["Connection", "Transfer-Encoding", "Content-Length", "TE", "Upgrade", "Keep-Alive"] {
            assert!(name(refused).unwrap_err().starts_with(refused), "{refused}");
        }
        for wrong in ["a\r\nHost: evil", "a\nb", "\u{0}", ""] {
            assert!(value(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(value("Grüße").unwrap().as_bytes(), "Grüße".as_bytes());
    }

    /// B75
    #[test]
    fn headers_that_may_be_secret_are_not_harmless() {
        for secret in ["authorization", "cookie", "x-api-key", "x-auth-token", "anything"] {
            assert!(!is_harmless(&name(secret).unwrap()), "{secret}");
        }
        assert!(HARMLESS.iter().all(|harmless| is_harmless(&name(harmless).unwrap())));
    }
}

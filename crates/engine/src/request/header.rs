//! Headers that people give: which are refused, and which are no secret.

use http::{HeaderName, HeaderValue};

/// Reads `Name: value`. The value may hold references, so only its name is checked.
pub fn split(line: &str) -> Result<(HeaderName, &str), String> {
    let Some((text, value)) = line.split_once(':') else {
        return Err("expected \"Name: value\"".to_owned());
    };
    Ok((name(text.trim())?, value.trim()))
}

/// The name of a header that people may set; the error says why not.
pub fn name(text: &str) -> Result<HeaderName, String> {
    let lower = text.to_ascii_lowercase();
    if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == lower) {
        return Err((*why).to_owned());
    }
    let name = HeaderName::try_from(&lower).ok().filter(|_| text.len() <= NAME_MAX);
    name.ok_or_else(|| "expected the name of a header, such as Accept-Language".to_owned())
}

/// A value that can be sent; the error says why not, without repeating it.
pub fn value(text: &str) -> Result<HeaderValue, &'static str> {
    if text.contains(['\r', '\n']) {
        return Err("a line break in a value would begin another header");
    }
    if text.is_empty() {
        return Err("it is empty; in double quotes the shell replaces ${…} itself, so use single quotes");
    }
    if text.len() > VALUE_MAX {
        return Err("a value may have 16 KiB at most");
    }
    HeaderValue::from_str(text).map_err(|_| "control characters cannot be sent in a header")
}

/// The names of the headers whose values are known to be no secrets.
pub fn harmless() -> &'static [&'static str] {
    &HARMLESS
}

/// Whether its value is known to be no secret, so that it may be stored, shown and sent anywhere.
pub fn is_harmless(name: &HeaderName) -> bool {
    HARMLESS.contains(&name.as_str())
}

/// Why some headers cannot be set: they belong to a connection, or are made of something else.
const REFUSED: [(&str, &str); 14] = [
    ("host", "Host is made of the URL"),
    ("content-length", "Content-Length is made of the body"),
    ("transfer-encoding", "Transfer-Encoding is made of the body"),
    ("connection", "Connection belongs to a single connection, which Comity manages"),
    ("keep-alive", "Keep-Alive belongs to a single connection, which Comity manages"),
    ("proxy-connection", "Proxy-Connection belongs to a single connection, which Comity manages"),
    ("te", "TE belongs to a single connection, which Comity manages"),
    ("trailer", "Trailer belongs to a single connection, which Comity manages"),
    ("upgrade", "Upgrade belongs to a single connection, which Comity manages"),
    ("http2-settings", "HTTP2-Settings belongs to a single connection, which Comity manages"),
    ("expect", "Expect is not supported: bodies are sent at once"),
    ("proxy-authorization", "it is for a proxy: put user and password into the proxy's URL"),
    ("proxy-authenticate", "only proxies send Proxy-Authenticate"),
    ("set-cookie", "only servers send Set-Cookie; Cookie is what you send"),
];

/// Headers whose values are no secrets.
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
    fn a_line_is_a_name_and_a_value() {
        let (name, value) = split("X-Api-Key:  a:b ").unwrap();
        assert_eq!((name.as_str(), value), ("x-api-key", "a:b"));
        for wrong in ["X-Api-Key", ": x", "a b: x", "é: x", "a\r\nb: x"] {
            assert!(split(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_belongs_to_a_connection_is_refused_with_the_reason() {
        assert_eq!(name("HOST").unwrap_err(), "Host is made of the URL");
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
    fn what_may_be_a_secret_is_not_harmless() {
        for secret in ["authorization", "cookie", "x-api-key", "x-auth-token", "anything"] {
            assert!(!is_harmless(&name(secret).unwrap()), "{secret}");
        }
        assert!(HARMLESS.iter().all(|harmless| is_harmless(&name(harmless).unwrap())));
    }
}

//! The head of a request or response as it was on the wire: where it ends, how the body is framed, and which lines
//! contain credentials.
//!
//! Only what is needed for that is parsed; a head that hyper rejects is not recorded.

use http::HeaderName;

use crate::redact::{is_secret_header, without_user_info};
use crate::request::header::is_harmless;

/// How the body of a response is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// By its length in bytes.
    Length(u64),
    /// By chunked transfer encoding.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// The length of the head at the start of `bytes`, including its blank line; `None` if it is incomplete. The bytes
/// before `from` were checked before.
pub(super) fn end(bytes: &[u8], from: usize) -> Option<usize> {
    let from = from.saturating_sub(LINE_END_MAX);
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at + 1).find_map(|next| match &bytes[next..] {
        [b'\n', ..] => Some(next + 1),
        [b'\r', b'\n', ..] => Some(next + 2),
        _ => None,
    })
}

/// The status in the first line of a response.
pub(super) fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).nth(1)?;
    std::str::from_utf8(word).ok()?.trim().parse().ok()
}

/// The framing of the body of a response to a GET, by the rules of RFC 9112 (section 6.3).
pub(super) fn framing(head: &[u8]) -> Framing {
    if matches!(status(head), Some(204 | 304)) {
        return Framing::Length(0);
    }
    let words = |value: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(value).split(',').map(|word| word.trim().to_ascii_lowercase()).collect()
    };
    let (mut codings, mut length) = (None, None);
    for (name, value) in lines(head).skip(1).filter_map(field) {
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            codings = words(value).pop();
        } else if name.eq_ignore_ascii_case(b"content-length") {
            length = length.or_else(|| words(value).first().and_then(|word| word.parse().ok()));
        }
    }
    match (codings.as_deref(), length) {
        (Some("chunked"), _) => Framing::Chunked,
        (None, Some(length)) => Framing::Length(length),
        _ => Framing::UntilClose,
    }
}

/// Whether every WARC reader agrees on where this head ends. Some take a line of white space, in a broad sense, for the
/// blank line.
pub(super) fn is_plain(head: &[u8]) -> bool {
    let count = lines(head).count();
    lines(head).take(count.saturating_sub(1)).all(|line| line.iter().any(u8::is_ascii_graphic))
}

/// The head without the lines that contain credentials, and without the user info in URLs.
pub(super) fn without_credentials(head: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(head.len());
    let mut dropping = false;
    for line in lines(head) {
        // A line that starts with a space continues the previous one.
        if !line.starts_with(b" ") && !line.starts_with(b"\t") {
            dropping = field(line).is_some_and(|(name, _)| is_secret(name));
        }
        if !dropping {
            kept.extend(without_user_info(line));
        }
    }
    kept
}

/// The head of a request with only the lines that are never secret, because people add their own headers.
pub(super) fn harmless(head: &[u8]) -> Vec<u8> {
    let known = |name: &[u8]| {
        let name = HeaderName::from_bytes(name.trim_ascii());
        name.is_ok_and(|name| is_harmless(&name) || OWN.contains(&name.as_str()))
    };
    let mut kept = Vec::with_capacity(head.len());
    for (nth, line) in lines(head).enumerate() {
        let is_blank = line.trim_ascii().is_empty();
        if nth == 0 || is_blank || field(line).is_some_and(|(name, _)| known(name)) {
            kept.extend(without_user_info(line));
        }
    }
    kept
}

fn is_secret(name: &[u8]) -> bool {
    is_secret_header(&String::from_utf8_lossy(name.trim_ascii()))
}

/// The lines, including their line breaks.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split_inclusive(|byte| *byte == b'\n')
}

/// The name and the value of a header line.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b':', line)?;
    Some((&line[..at], line[at + 1..].trim_ascii()))
}

/// Headers that Comity sets itself.
const OWN: [&str; 3] = ["host", "content-length", "accept-encoding"];
/// The maximum length of a line break and an incomplete blank line.
const LINE_END_MAX: usize = 3;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_in_pieces_of_any_size() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", Some(25)),
            ("HTTP/1.1 200 OK\nA: b\n\nbody", Some(22)),
            ("HTTP/1.1 200 OK\r\n\r\n", Some(19)),
            ("HTTP/1.1 200 OK\r\nA: b\r\n\r", None),
            ("HTTP/1.1 200 OK\r\nA: b\r\n \r\n", None),
            ("", None),
        ] {
            assert_eq!(end(text.as_bytes(), 0), expected, "{text:?}");
            // Byte by byte, it is found as soon as it is complete.
            let found = (0..=text.len()).find_map(|to| end(&text.as_bytes()[..to], to.saturating_sub(1)));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn the_framing_follows_the_rules_of_http() {
        for (head, expected) in [
            ("200 OK\r\nContent-Length: 12\r\n", Framing::Length(12)),
            ("200 OK\r\ncontent-length:12, 12\r\n", Framing::Length(12)),
            ("200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 3\r\n", Framing::Chunked),
            ("200 OK\r\nTransfer-Encoding: gzip\r\n", Framing::UntilClose),
            ("200 OK\r\n", Framing::UntilClose),
            ("204 No\r\nContent-Length: 12\r\n", Framing::Length(0)),
            ("304 No\r\nTransfer-Encoding: chunked\r\n", Framing::Length(0)),
        ] {
            assert_eq!(framing(format!("HTTP/1.1 {head}\r\n").as_bytes()), expected, "{head}");
        }
        assert_eq!(status(b"HTTP/1.1  404\r\n"), Some(404));
        assert_eq!(status(b"HTTP/1.1 nonsense\r\n"), None);
    }

    #[test]
    fn a_head_with_a_line_of_spaces_is_not_plain() {
        assert!(is_plain(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"));
        assert!(!is_plain(b"HTTP/1.1 200 OK\r\n \r\nA: b\r\n\r\n"));
        assert!(!is_plain(b"HTTP/1.1 200 OK\r\n\xa0\r\nA: b\r\n\r\n"));
    }

    /// B75
    #[test]
    fn credentials_are_removed_and_nothing_else_is_changed() {
        let left = |text: &str| String::from_utf8(without_credentials(text.as_bytes())).unwrap();
        let plain = "GET /a?b=c@d HTTP/1.1\r\nhost: a\r\nAccept:  */*\r\n\r\n";
        assert_eq!(left(plain), plain);
        for secret in [
            "Authorization: Basic c2VjcmV0",
            "PROXY-authorization: x",
            "cookie: a=b",
            "Set-Cookie: a=b;\r\n Path=/",
            "set-cookie : a=b",
            "Authentication-Info: x",
        ] {
            assert_eq!(
                left(&format!("HTTP/1.1 200 OK\r\nA: b\r\n{secret}\r\nC: d\r\n\r\n")),
                "HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n"
            );
        }
        for (line, expected) in [
            ("Location: http://me:pass@host/a//b@c", "Location: http://host/a//b@c"),
            ("Location: //me:p@ss@host", "Location: //host"),
            (
                "Link: <http://me@host/>; a, <https://you:x@host?y>",
                "Link: <http://host/>; a, <https://host?y>",
            ),
            ("Location: /next?to=http://me:pass@host/", "Location: /next?to=http://host/"),
            ("Link: <http://host/me@example.org>", "Link: <http://host/me@example.org>"),
        ] {
            assert_eq!(
                left(&format!("HTTP/1.1 302 Found\r\n{line}\r\n\r\n")),
                format!("HTTP/1.1 302 Found\r\n{expected}\r\n\r\n")
            );
        }
    }
}

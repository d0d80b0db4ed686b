//! Makes text safe to show: short, on one line, and without secrets.
//!
//! Everything that puts a URL or remote text into a log line, an error or a table goes through here. The exception is
//! the password in a store's URL, which `config` hides because it knows the format.

mod headers;

use url::Url;

pub(crate) use headers::{is_secret_header, without_user_info};

/// A URL without user, password and query, because queries contain secrets too.
pub fn url(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() { "?…" } else { "" };
    format!("{}://{host}{port}{}{query}", url.scheme(), url.path())
}

/// Text that may be a URL: shortened, and without user, password and query.
pub fn text(text: &str) -> String {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let start = text.find("://").filter(|at| text[..*at].chars().all(is_scheme)).map_or(0, |at| at + 3);
    let (scheme, rest) = text.split_at(start);
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let rest = match rest.rfind('@') {
        Some(at) if at < end => &rest[at + 1..end],
        // What precedes this at sign may be a query or a password; there is no telling which.
        Some(_) => "…",
        None => &rest[..end],
    };
    let mut kept = scheme.chars().chain(rest.chars()).filter(|c| !c.is_control() && !is_bidi_mark(*c));
    let short: String = kept.by_ref().take(TEXT_MAX).collect();
    if kept.next().is_some() { format!("{short}…") } else { short }
}

/// A URL without user and password, but otherwise complete.
pub fn without_user(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return text.to_owned() };
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

/// Remote text as one trimmed line without control characters, cut to 300 characters; `None` if nothing is left.
pub(crate) fn line(text: &str) -> Option<String> {
    let mut line = String::new();
    let mut chars = 0;
    for word in text.split(|letter: char| letter.is_whitespace() || letter.is_control()) {
        let gap = usize::from(chars > 0);
        let room = LINE_MAX.saturating_sub(chars + gap);
        let mut word = word.chars().filter(|letter| !is_bidi_mark(*letter)).take(room).peekable();
        if word.peek().is_none() {
            continue;
        }
        line.extend((gap > 0).then_some(' '));
        chars += gap;
        line.extend(word.inspect(|_| chars += 1));
    }
    (!line.is_empty()).then_some(line)
}

/// Whether a character changes the text direction: a bidi mark, with which remote text could rewrite the line it is
/// shown in.
pub fn is_bidi_mark(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

const TEXT_MAX: usize = 120;
const LINE_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    /// B75
    #[test]
    fn secrets_are_removed_from_urls() {
        for (whole, expected) in [
            ("htp://user:pass@host/a?key=1", "htp://host/a"),
            ("htp://user:pa@ss@host", "htp://host"),
            ("htp://user:pa?ss@host", "htp://…"),
            ("htp://user:pa#ss@host", "htp://…"),
            ("htp://user:pa/ss@host", "htp://host"),
            ("htp://host/?mail=me@home", "htp://…"),
            ("user:pass@host?x://y", "host"),
            ("user:p@ss@host", "host"),
            ("u?k=1://host", "u"),
            ("htp://host/#token", "htp://host/"),
            ("not a url", "not a url"),
            ("x#fragment", "x"),
            ("a\u{1b}[31mb\u{202e}", "a[31mb"),
        ] {
            assert_eq!(text(whole), expected, "{whole}");
        }
        assert_eq!(text(&"ü".repeat(500)), format!("{}…", "ü".repeat(TEXT_MAX)));
        let whole = "https://user:pass@host:8/a?key=1#b";
        assert_eq!(url(&whole.parse().unwrap()), "https://host:8/a?…");
        assert_eq!(without_user(whole), "https://host:8/a?key=1#b");
    }

    #[test]
    fn remote_text_becomes_one_plain_line() {
        for (text, expected) in [
            ("", ""),
            (" \t\n ", ""),
            ("  a\r\n\tb\u{0}c  ", "a b c"),
            ("\u{202e}\u{7}evil\u{1b}[31m", "evil [31m"),
        ] {
            assert_eq!(line(text).unwrap_or_default(), expected, "{text:?}");
        }
        assert_eq!(line(&"é".repeat(400)).unwrap(), "é".repeat(300));
        assert_eq!(line(&"a ".repeat(400)).unwrap().chars().count(), 299);
    }
}

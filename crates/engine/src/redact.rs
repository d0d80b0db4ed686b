//! Makes text safe to show: short, on one line, and without secrets.
//!
//! Everything that puts a URL or remote text into a log line, an error or a table goes through here. The exception is
//! the password in a store's URL, which `config` hides because it knows the format.

mod headers;

use url::Url;

pub(crate) use headers::{is_secret_header, without_user_info};

/// A URL without user, password and query, because queries contain secrets too.
pub fn url(url: &Url) -> String {
    if is_plain(url) {
        return url.as_str().to_owned();
    }
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() { "?…" } else { "" };
    format!("{}://{host}{port}{}{query}", url.scheme(), url.path())
}

/// Whether there is nothing in a URL that has to be left out.
fn is_plain(url: &Url) -> bool {
    let has_user = !url.username().is_empty() || url.password().is_some();
    !has_user && url.has_host() && url.query().is_none() && url.fragment().is_none()
}

/// Text that may be a URL: shortened, and without user, password and query. An ellipsis shows where a query was.
pub fn text(text: &str) -> String {
    shortened(masked_or_mail(text).chars().filter(|c| !c.is_control() && !is_bidi_mark(*c)))
}

/// Text to show in quotes: only what can't be seen is escaped.
pub(crate) fn escaped(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    text.chars().map(escaped).collect()
}

/// A line that should be a URL but isn't one: like [`text`], but what follows a complete URL is shown too, and white space
/// is kept. If the result is quoted, a tab is visible.
pub fn words(text: &str) -> String {
    let (first, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    let shown = match Url::parse(first) {
        // In a URL whose host is complete, it is clear what is a password and what is a query.
        Ok(parsed) if is_http(&parsed) && first.matches('/').count() > 2 => {
            let rest = rest.split_inclusive(char::is_whitespace).map(|part| {
                let word = part.trim_end_matches(char::is_whitespace);
                masked(word) + &part[word.len()..]
            });
            as_written(first).unwrap_or_else(|| url(&parsed)) + &rest.collect::<String>()
        }
        // What looks like several words may be a password with a space.
        _ => masked_or_mail(text),
    };
    shortened(shown.chars().filter(|c| (c.is_whitespace() || !c.is_control()) && !is_bidi_mark(*c)))
}

/// A URL without user, password and query, and otherwise exactly as it was written; `None` if it isn't clear where its
/// host begins.
fn as_written(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let is_clear =
        matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") && !rest.starts_with(['/', '\\']);
    let rest = is_clear.then_some(rest)?;
    let (authority, path) = rest.split_at(rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let cut = path[end..].chars().next().map(|mark| format!("{mark}…"));
    Some(format!("{scheme}://{host}{}{}", &path[..end], cut.unwrap_or_default()))
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Like [`masked`], but mail addresses are shown if nothing in the text can be a password.
fn masked_or_mail(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let (start, query) = text.split_at(end);
    let words = start.split(|c: char| c.is_whitespace() || matches!(c, '<' | '>' | '(' | ')' | ',' | ';'));
    let is_mail = |word: &str| {
        let address = strip_mailto(word);
        address.matches('@').count() == 1 && !address.starts_with('@') && !address.contains([':', '/', '\\'])
    };
    let is_plain = |word: &str| is_mail(word) || !word.contains([':', '@', '/', '\\']);
    match start.contains('@') && !query.contains('@') && words.clone().all(is_plain) {
        true => start.to_owned() + &masked(query),
        false => masked(text),
    }
}

fn strip_mailto(word: &str) -> &str {
    match word.get(..MAILTO.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(MAILTO) => &word[MAILTO.len()..],
        _ => word,
    }
}

/// Text that may be a URL, without user, password and query.
fn masked(text: &str) -> String {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let start = text.find("://").filter(|at| text[..*at].chars().all(is_scheme)).map_or(0, |at| at + 3);
    let (scheme, rest) = text.split_at(start);
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let kept = match rest.rfind('@') {
        Some(at) if at < end => &rest[at + 1..end],
        Some(_) if start > 0 && !rest[..end].contains('@') && starts_with_host(&rest[..end]) => &rest[..end],
        // What precedes this at sign may be a query or a password; there is no telling which.
        Some(_) => return format!("{scheme}…"),
        None => &rest[..end],
    };
    let cut = rest[end..].chars().next().map(|mark| format!("{mark}…"));
    format!("{scheme}{kept}{}", cut.unwrap_or_default())
}

/// Whether it starts with a host, perhaps with a port, and a path: then there is no password in it.
fn starts_with_host(text: &str) -> bool {
    let Some((host, _)) = text.split_once('/') else { return false };
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    !host.is_empty() && host.split_once(':').is_none_or(|(_, port)| is_number(port))
}

fn shortened(mut text: impl Iterator<Item = char>) -> String {
    let short: String = text.by_ref().take(TEXT_MAX).collect();
    if text.next().is_some() { format!("{short}…") } else { short }
}

/// A word of a command that people copy into a shell: in single quotes if it needs them.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| {
        c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '=' | '@' | '+' | ',' | '%')
    };
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
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

const MAILTO: &str = "mailto:";
const TEXT_MAX: usize = 120;
const LINE_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    /// B75
    #[test]
    fn secrets_are_removed_from_urls() {
        for (whole, expected) in [
            ("htp://user:pass@host/a?key=1", "htp://host/a?…"),
            ("htp://user:pa@ss@host", "htp://host"),
            ("htp://user:pa?ss@host", "htp://…"),
            ("htp://user:pa#ss@host", "htp://…"),
            ("htp://user:pa/ss@host", "htp://host"),
            ("htp://host/?mail=me@home", "htp://host/?…"),
            ("htp://host:80/a?mail=me@home", "htp://host:80/a?…"),
            ("htp://user:pa/s?s@host", "htp://…"),
            ("htp://host/htp://user:pass@host/?a=b@c", "htp://…"),
            ("user/pa?ss@host", "…"),
            ("user:pass@host?x://y", "host?…"),
            ("user:p@ss@host", "host"),
            ("u?k=1://host", "u?…"),
            ("htp://host/#token", "htp://host/#…"),
            ("not a url", "not a url"),
            ("x#fragment", "x#…"),
            ("a\u{1b}[31mb\u{202e}", "a[31mb"),
        ] {
            assert_eq!(text(whole), expected, "{whole}");
        }
        assert_eq!(text(&"ü".repeat(500)), format!("{}…", "ü".repeat(TEXT_MAX)));
        let whole = "https://user:pass@host:8/a?key=1#b";
        assert_eq!(url(&whole.parse().unwrap()), "https://host:8/a?…");
        assert_eq!(without_user(whole), "https://host:8/a?key=1#b");
    }

    /// B75: as much as is safe, with what separates the words.
    #[test]
    fn secrets_are_removed_from_lines_with_more_than_a_url() {
        for (whole, expected) in [
            ("http://host/a?key=1 Title of a", "http://host/a?… Title of a"),
            ("http://user:pass@host/a\tTitle, by me@home", "http://host/a\tTitle, by home"),
            ("https://host/@user/post\tTitle\t", "https://host/@user/post\tTitle\t"),
            ("https://host/?mail=me@home  and more", "https://host/?…  and more"),
            ("http://user:12 34@host/", "http://host/"),
            ("http://user:pass@ host", "http:// host"),
            ("user:pa ss@host\tTitle", "host\tTitle"),
            ("Title http://user:pa?ss@host", "…"),
            ("a\u{1b}[31m\tb\u{202e}", "a[31m\tb"),
        ] {
            assert_eq!(words(whole), expected, "{whole}");
        }
        assert_eq!(words(&"ü ".repeat(500)), format!("{}…", "ü ".repeat(TEXT_MAX / 2)));
    }

    /// They used to be shown as `x.org`.
    #[test]
    fn mail_addresses_are_shown() {
        for (whole, expected) in [
            ("mailto:joe@x.org", "mailto:joe@x.org"),
            ("joe@x.org", "joe@x.org"),
            ("see joe@x.org, or <MAILTO:jim@x.org>", "see joe@x.org, or <MAILTO:jim@x.org>"),
            ("joe@x.org?subject=secret", "joe@x.org?…"),
            ("me:secret@x.org", "x.org"),
            ("me:sec ret@x.org", "x.org"),
            ("me:secret@y joe@x.org", "x.org"),
            ("mailto:me:secret@x.org", "x.org"),
            ("me/secret@x.org", "x.org"),
            ("htp://joe@x.org", "htp://x.org"),
            ("joe@x.org?a@b", "…"),
        ] {
            assert_eq!(text(whole), expected, "{whole}");
            assert_eq!(words(whole), expected, "{whole}");
        }
    }

    /// Quotes used to be shown as `%22`.
    #[test]
    fn a_line_is_shown_as_it_is_in_the_file() {
        for (whole, expected) in [
            (r#"http://host/2,"Two, with comma""#, r#"http://host/2,"Two, with comma""#),
            ("HTTP://Host:80/größe x", "HTTP://Host:80/größe x"),
            ("http://me:pa@ss@host/ä\"?key=1 x", "http://host/ä\"?… x"),
            ("http://host/#token x", "http://host/#… x"),
            ("http:\\\\me:secret@host/a/b/c x", "http://host/a/b/c x"),
            ("http:///me:secret@host/a x", "http://host/a x"),
        ] {
            assert_eq!(words(whole), expected, "{whole}");
        }
        assert_eq!(escaped("a\t\"b\"\\\u{1b}"), "a\\t\"b\"\\\\u{1b}");
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

//! Making one line of plain text of whatever a publisher wrote as a title, and quoting what must not be
//! shown.

use std::borrow::Cow;

/// One trimmed line without control characters, cut to 300 characters; `None` if nothing is left.
pub(super) fn line(text: &str) -> Option<String> {
    let mut line = String::new();
    let mut chars = 0;
    for word in text.split(|letter: char| letter.is_whitespace() || letter.is_control()) {
        let gap = usize::from(chars > 0);
        let room = LINE_MAX.saturating_sub(chars + gap);
        let mut word = word.chars().filter(|letter| !is_direction(*letter)).take(room).peekable();
        if word.peek().is_none() {
            continue;
        }
        line.extend((gap > 0).then_some(' '));
        chars += gap;
        line.extend(word.inspect(|_| chars += 1));
    }
    (!line.is_empty()).then_some(line)
}

/// The same of a title that may be HTML: without the tags that titles have, and with entities resolved.
pub(super) fn markup_line(text: &str) -> Option<String> {
    line(&html_escape::decode_html_entities(&untagged(text)))
}

/// `text` as it may be shown in a problem: short, and without user names, passwords and queries.
pub(super) fn without_secrets(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let text = match text.rsplit_once('@') {
        Some((_, rest)) => Cow::Owned(format!("…@{rest}")),
        None => Cow::Borrowed(text),
    };
    let text = line(&text).unwrap_or_default();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Takes out the tags of [`TAGS`]. Any other `<word>` is more likely to be part of what the title says.
fn untagged(text: &str) -> Cow<'_, str> {
    if !text.contains('<') {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut pieces = text.split('<');
    kept.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        match piece.split_once('>') {
            Some((tag, rest)) if is_tag(tag) => kept.push_str(rest),
            _ => {
                kept.push('<');
                kept.push_str(piece);
            }
        }
    }
    Cow::Owned(kept)
}

fn is_tag(tag: &str) -> bool {
    let tag = tag.strip_prefix('/').unwrap_or(tag);
    let name = tag.split(|letter: char| letter.is_whitespace() || letter == '/').next().unwrap_or_default();
    TAGS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Marks that turn the direction of text, with which a title could rewrite the line it is shown in.
fn is_direction(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

const LINE_MAX: usize = 300;
const SHOWN_MAX: usize = 80;
const TAGS: [&str; 24] = [
    "a", "abbr", "b", "br", "cite", "code", "div", "em", "font", "i", "img", "ins", "mark", "p", "q", "s",
    "small", "span", "strong", "sub", "sup", "tt", "u", "wbr",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_become_one_plain_line() {
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
        for (text, expected) in [
            ("<b>Bold</b> &amp; <i class='x'>brave</i><br/>", "Bold & brave"),
            ("Vec<String> &lt;T&gt; a < b", "Vec<String> <T> a < b"),
            ("R&D &nosuch; &#8212; &hellip;", "R&D &nosuch; — …"),
        ] {
            assert_eq!(markup_line(text).unwrap(), expected);
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (text, expected) in [
            ("ftp://user:pass@host/path?key=secret", "…@host/path"),
            ("user:p@ss@host", "…@host"),
            ("not a url", "not a url"),
            ("x#fragment", "x"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
        assert_eq!(without_secrets(&"x".repeat(1000)).chars().count(), 81);
    }
}

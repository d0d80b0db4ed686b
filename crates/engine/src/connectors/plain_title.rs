//! Converts titles that may contain HTML to one line of plain text.

use std::borrow::Cow;

use crate::redact::line;

/// The title as one line of plain text: common tags removed, and entities resolved.
pub(super) fn plain_title(text: &str) -> Option<String> {
    line(&html_escape::decode_html_entities(&without_tags(text)))
}

/// Removes the tags in [`TAGS`]. Any other `<word>` is more likely part of the title.
fn without_tags(text: &str) -> Cow<'_, str> {
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

const TAGS: [&str; 24] = [
    "a", "abbr", "b", "br", "cite", "code", "div", "em", "font", "i", "img", "ins", "mark", "p", "q", "s",
    "small", "span", "strong", "sub", "sup", "tt", "u", "wbr",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_removed_from_titles() {
        for (text, expected) in [
            ("<b>Bold</b> &amp; <i class='x'>brave</i><br/>", "Bold & brave"),
            ("Vec<String> &lt;T&gt; a < b", "Vec<String> <T> a < b"),
            ("R&D &nosuch; &#8212; &hellip;", "R&D &nosuch; — …"),
        ] {
            assert_eq!(plain_title(text).unwrap(), expected);
        }
    }
}

//! The formats of a list, and detecting them by content. Each format is parsed in its own module.

use super::csv::{delimiter, is_header};
use super::list::url;
use super::text::line_end;

/// The format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OPML, which feed readers export.
    Opml,
    /// A table with one source per row.
    Csv,
    /// One URL per line.
    List,
}

impl Format {
    /// The format of `text`.
    pub(super) fn detect(text: &str) -> Self {
        if text.trim_start().starts_with('<') {
            return Self::Opml;
        }
        let mut rows = text.split(line_end(text)).filter_map(url).take(LINES_LOOKED_AT).peekable();
        if rows.peek().is_some_and(|first| is_header(first, delimiter(text)) || first.starts_with('"')) {
            return Self::Csv;
        }
        // URLs often contain commas too, so this is only a table if names follow the commas.
        let mut rests = rows.filter_map(|row| row.split_once(',')).map(|(_, rest)| rest).peekable();
        if rests.peek().is_some() && rests.all(is_name) { Self::Csv } else { Self::List }
    }
}

/// Whether the text after the first comma of a row is a name rather than part of the URL.
fn is_name(rest: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '\'');
    let worded = rest.chars().all(plain) && rest.contains(char::is_alphabetic);
    worded || rest.is_empty() || rest.contains([' ', '"'])
}

/// How many lines are enough to tell a table from a list.
const LINES_LOOKED_AT: usize = 100;

#[cfg(test)]
mod tests {
    use super::Format::{Csv, List, Opml};
    use super::*;

    #[test]
    fn the_format_is_detected_by_content() {
        for (text, expected) in [
            ("<?xml version=\"1.0\"?><opml>", Opml),
            ("\n  <opml>", Opml),
            ("url", Csv),
            ("name,URL\nx,http://x/", Csv),
            ("Name;Url\nx;http://x/", Csv),
            ("\n\"name\",\"url\"\n", Csv),
            ("http://x/,Example", Csv),
            ("http://x/,An example (no. 1/2)", Csv),
            ("http://x/,\"A\"", Csv),
            ("http://x/,", Csv),
            ("\"http://x/\"", Csv),
            ("http://x/", List),
            ("http://x/1,114871,9.html\nhttp://x/a,B", List),
            ("# http://x/,Example\nhttp://x/", List),
            ("", List),
            ("curl", List),
        ] {
            assert_eq!(Format::detect(text), expected, "{text:?}");
        }
    }
}

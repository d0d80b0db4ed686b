//! The forms a list can have, and telling them apart by content. Reading them is for the form's own module.

use super::csv::{delimiter, is_header};
use super::list::url;
use super::text::line_end;

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// What feed readers export.
    Opml,
    /// A table, one source a row.
    Csv,
    /// One URL a line.
    List,
}

impl Form {
    /// The form that `text` has.
    pub(super) fn of(text: &str) -> Self {
        if text.trim_start().starts_with('<') {
            return Self::Opml;
        }
        let mut rows = text.split(line_end(text)).filter_map(url).take(LINES_LOOKED_AT).peekable();
        if rows.peek().is_some_and(|first| is_header(first, delimiter(text)) || first.starts_with('"')) {
            return Self::Csv;
        }
        // Commas are common in URLs too, so a table is one only where what follows them reads like names.
        let mut rests = rows.filter_map(|row| row.split_once(',')).map(|(_, rest)| rest).peekable();
        if rests.peek().is_some() && rests.all(is_name) { Self::Csv } else { Self::List }
    }
}

/// Whether what follows the first comma of a row is no further part of a URL.
fn is_name(rest: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '\'');
    let worded = rest.chars().all(plain) && rest.contains(char::is_alphabetic);
    worded || rest.is_empty() || rest.contains([' ', '"'])
}

/// Enough to tell a table from a list.
const LINES_LOOKED_AT: usize = 100;

#[cfg(test)]
mod tests {
    use super::Form::{Csv, List, Opml};
    use super::*;

    #[test]
    fn content_tells_the_form() {
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
            assert_eq!(Form::of(text), expected, "{text:?}");
        }
    }
}

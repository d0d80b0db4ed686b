//! Parses plain lists: one URL per line, with blank lines, and comments after `#`.

use super::collector::{Row, RowCollector};
use super::text::line_end;

pub(super) fn read(text: &str, collector: &mut RowCollector) {
    for (line, row) in (1..).zip(text.split(line_end(text))) {
        if let Some(url) = url(row) {
            collector.add(Row { line, url, ..Row::default() });
        }
    }
}

/// The line without its comment; `None` if nothing is left. A `#` without a space before it belongs to the URL.
pub(super) fn url(row: &str) -> Option<&str> {
    let row = row.trim();
    let comment =
        row.match_indices('#').find(|(at, _)| row[..*at].chars().next_back().is_none_or(char::is_whitespace));
    let row = comment.map_or(row, |(at, _)| row[..at].trim_end());
    (!row.is_empty()).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> String {
        let mut collector = RowCollector::default();
        read(text, &mut collector);
        let read = collector.finish();
        let entries = read.entries.iter().map(|entry| format!("{} {}", entry.line, entry.url));
        entries.chain(read.problems.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn comments_and_blank_lines_are_skipped() {
        for end in ["\n", "\r\n", "\r"] {
            let text = "# feeds\n\n  http://a.example/x \n#http://b.example/\nhttp://c.example/#top\nhttp://d.example/ # d\n";
            assert_eq!(
                outline(&text.replace('\n', end)),
                "3 http://a.example/x | 5 http://c.example/ | 6 http://d.example/",
                "{end:?}"
            );
        }
        assert_eq!(outline(""), "");
        assert_eq!(outline("#"), "");
    }

    #[test]
    fn an_invalid_line_is_a_problem_and_the_rest_is_read() {
        assert_eq!(
            outline("http://a.example/\nhtp://x\nhttp://b.example/"),
            "1 http://a.example/ | 3 http://b.example/ | line 2: \"htp://x\" is not an http or https URL with a host"
        );
    }
}

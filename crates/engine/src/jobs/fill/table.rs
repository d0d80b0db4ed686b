//! Recognizes a table among lists of URLs, such as a CSV file, by its first lines. A URL may contain commas, semicolons
//! and pipes, so a line alone doesn't show whether it is a row. Tabs and white space don't occur in URLs: each line with
//! one is refused without this.

use comity_core::domain::Domain;
use url::Url;

/// The separator of a table, or `None` for a list of URLs. `sample` is the start of the list; its last line may be cut
/// off.
///
/// A list is a table if all lines have the separator and a field that no URL would have. Or if it has a header, a
/// first line that isn't a URL, and most URLs are followed by at least as many separators as there are in the header.
pub(super) fn separator(sample: &[u8]) -> Option<char> {
    let text = String::from_utf8_lossy(sample);
    let lines: Vec<&str> = text.lines().filter_map(entry).take(LINES).collect();
    let (first, rest) = lines.split_first()?;
    SEPARATORS.into_iter().find(|separator| match starts_with_url(first, *separator) {
        true => all_are_rows(without_cut(&lines, &text, *separator), *separator),
        false => {
            is_header(first, *separator) && most_are_rows(rest, first.matches(*separator).count(), *separator)
        }
    })
}

/// Whether a line is a URL, followed by the separator and more.
pub(super) fn is_row(text: &str, separator: char) -> bool {
    text.contains(separator) && starts_with_url(text, separator)
}

/// What is wrong with such a line.
pub(super) fn why_not(separator: char) -> String {
    let delimiter = if separator == ',' { ",".to_owned() } else { format!("'{separator}'") };
    format!(
        "has text after the URL, as in a table; expected one URL per line (to take the URLs out of the table: \
         cut -d{delimiter} -f1)"
    )
}

/// How to take the URLs out of a table in which they are quoted or not first; `None` if no field of the row is a URL.
pub(super) fn column_of_urls(row: &str) -> Option<String> {
    let is_url = |field: &str| {
        let field = field.trim().trim_matches('"');
        field.starts_with("http") && Url::parse(field).is_ok_and(|url| Domain::of(&url).is_some())
    };
    let separator = SEPARATORS.into_iter().chain(['\t']).find(|separator| row.contains(*separator))?;
    let nth = row.split(separator).position(is_url)? + 1;
    let delimiter = match separator {
        '\t' => String::new(),
        ',' => " -d,".to_owned(),
        other => format!(" -d'{other}'"),
    };
    let unquoted = if row.contains('"') { " | tr -d '\"'" } else { "" };
    Some(format!("to take the URLs out of a table: cut{delimiter} -f{nth}{unquoted}"))
}

/// The text of a line, unless it is empty or a comment.
pub(super) fn entry(line: &str) -> Option<&str> {
    let text = line.trim().trim_start_matches('\u{feff}');
    (!text.is_empty() && !text.starts_with('#')).then_some(text)
}

fn starts_with_url(text: &str, separator: char) -> bool {
    let first = text.split(separator).next().unwrap_or(text);
    Url::parse(first).is_ok_and(|url| Domain::of(&url).is_some())
}

fn is_header(text: &str, separator: char) -> bool {
    text.contains(separator) && !text.contains("://")
}

fn most_are_rows(lines: &[&str], separators: usize, separator: char) -> bool {
    let urls = lines.iter().filter(|line| starts_with_url(line, separator));
    let (rows, others): (Vec<&str>, Vec<&str>) =
        urls.partition(|line| line.matches(separator).count() >= separators);
    rows.len() > others.len()
}

/// All lines but the last one, if that is cut off before its separator.
fn without_cut<'a>(lines: &'a [&'a str], text: &str, separator: char) -> &'a [&'a str] {
    match lines.split_last() {
        Some((last, whole)) if !text.ends_with('\n') && !is_row(last, separator) => whole,
        _ => lines,
    }
}

/// Without a header, commas in all URLs don't make a table: some sites have them in all their URLs.
fn all_are_rows(lines: &[&str], separator: char) -> bool {
    let is_title = |line: &&str| {
        let (_, fields) = line.split_once(separator).unwrap_or_default();
        fields.contains([' ', '"'])
    };
    let is_short = |line: &&str| line.ends_with(separator);
    lines.len() >= ROWS_MIN
        && lines.iter().all(|line| is_row(line, separator))
        && (lines.iter().any(is_title) || lines.iter().any(is_short) && !lines.iter().all(is_short))
}

const SEPARATORS: [char; 3] = [',', ';', '|'];
/// At most this many lines are examined.
const LINES: usize = 1_000;
/// Fewer lines without a header are no table.
const ROWS_MIN: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Option<char> {
        separator(lines.join("\n").as_bytes())
    }

    #[test]
    fn a_header_and_the_same_separator_in_most_lines_make_a_table() {
        assert_eq!(of(&["url,title", "http://a/1,One", "http://a/2,"]), Some(','));
        assert_eq!(
            of(&["# saved", "", "\u{feff}url;title", "http://a/1;One", "http://a/2", "http://a/3;Three"]),
            Some(';')
        );
        assert_eq!(of(&["url|title|date", "http://a/1|One|2026", "http://a/2|Two|"]), Some('|'));
    }

    #[test]
    fn a_title_in_rows_without_a_header_makes_a_table() {
        assert_eq!(of(&["http://a/1,One", "http://a/2,Two words"]), Some(','));
        assert_eq!(of(&["http://a/1,One", "http://a/2,\"Two, with comma\""]), Some(','));
        assert_eq!(of(&["http://a/1;Eins", "http://a/2;"]), Some(';'));
        assert_eq!(of(&["http://a/1,One", "http://a/2,Two words", "http://a/"]), Some(','), "cut off");
        assert_eq!(of(&["http://a/1,One", "http://a/2,Two words", "http://a/", ""]), None);
    }

    #[test]
    fn a_row_whose_url_is_quoted_or_not_first_says_how_to_get_it() {
        for (row, expected) in [
            ("One,http://a/1", Some("cut -d, -f2")),
            ("\"http://a/1\",\"One\"", Some("cut -d, -f1 | tr -d '\"'")),
            ("1;One;http://a/1", Some("cut -d';' -f3")),
            ("One, two", None),
            ("example.org", None),
        ] {
            let hint = column_of_urls(row);
            assert_eq!(hint.as_deref().and_then(|hint| hint.split(": ").nth(1)), expected, "{row}");
        }
    }

    #[test]
    fn urls_may_contain_separators() {
        for lines in [
            &["http://a/1,2.html", "http://a/3,4.html", "http://a/artikel,5.html"][..],
            &["http://a/1;jsessionid=5", "http://a/2;jsessionid=6"],
            &["http://a/x|y", "http://a/"],
            &["http://a/1,", "http://a/2,"],
            &["http://a/1,One", "http://a/2", "http://a/3,Two words"],
            &["http://a/1,\"x\""],
            &["Links, 2026", "http://a/1", "http://a/2,3", "http://a/4"],
            &["Links", "http://a/1,2", "http://a/2,3"],
            &["ftp://a/1,2", "http://a/1,2", "http://a/2,3"],
            &["# url,title", "http://a/1,2", "http://a/2,3"],
            &["url,title"],
            &[],
        ] {
            assert_eq!(of(lines), None, "{lines:?}");
        }
    }
}

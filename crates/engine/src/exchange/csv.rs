//! Parses CSV as spreadsheets write it: with a header that names the columns, or without one as a URL and an optional
//! name.
//!
//! Columns may be in any order, and their names are case-insensitive; only `url` is required. Columns may be separated
//! by commas, semicolons or tabs. Durations are not checked.

use csv::{ReaderBuilder, StringRecord};

use super::ReadError;
use super::collector::{Row, RowCollector};
use super::text::{Lines, line_end};
use crate::redact;

pub(super) fn read(text: &str, collector: &mut RowCollector) -> Result<(), ReadError> {
    let mut builder = ReaderBuilder::new();
    builder.has_headers(false).flexible(true).delimiter(delimiter(text));
    let mut rows = builder.from_reader(text.as_bytes());
    let (mut lines, mut row, mut columns) = (Lines::new(text), StringRecord::new(), None);
    loop {
        let from = rows.position().byte() as usize;
        match rows.read_record(&mut row) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                collector.problem(lines.line_from(from), format!("could not read the rest: {error}"));
                return Ok(());
            }
        }
        // Spreadsheets write rows of commas where cells were cleared.
        if row.iter().all(|field| field.trim().is_empty()) {
            continue;
        }
        let line = lines.line_from(from);
        match columns {
            Some(columns) => add(&row, columns, line, collector),
            None if row.get(0).is_some_and(|first| first.contains("://")) => {
                columns = Some(Columns::WITHOUT_HEADER);
                add(&row, Columns::WITHOUT_HEADER, line, collector);
            }
            None => columns = Some(Columns::read(&row, line, collector)?),
        }
    }
}

/// The positions of the columns.
#[derive(Clone, Copy, Default)]
struct Columns {
    url: usize,
    name: Option<usize>,
    kind: Option<usize>,
    cadence: Option<usize>,
    min_interval: Option<usize>,
}

impl Columns {
    const WITHOUT_HEADER: Self =
        Self { url: 0, name: Some(1), kind: None, cadence: None, min_interval: None };

    fn read(header: &StringRecord, line: u64, collector: &mut RowCollector) -> Result<Self, ReadError> {
        let find = |name: &str| header.iter().position(|field| is_called(field, name));
        let named = |fields: &[&str]| {
            let names: Vec<_> =
                fields.iter().take(NAMED_MAX).map(|field| format!("\"{}\"", redact::text(field))).collect();
            let more = if fields.len() > NAMED_MAX { ", …" } else { "" };
            format!("{}{more}", names.join(", "))
        };
        let Some(url) = find("url") else {
            return Err(ReadError::NoUrlColumn { columns: named(&header.iter().collect::<Vec<_>>()) });
        };
        let is_unknown =
            |field: &&str| !field.trim().is_empty() && !COLUMNS.iter().any(|name| is_called(field, name));
        let unknown: Vec<_> = header.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            let what = format!("ignored unknown columns: {}", named(&unknown));
            collector.problem(line, what);
        }
        let (name, kind) = (find("name"), find("kind"));
        Ok(Self { url, name, kind, cadence: find("cadence"), min_interval: find("min_interval") })
    }
}

fn add(row: &StringRecord, columns: Columns, line: u64, collector: &mut RowCollector) {
    // If a closing quotation mark is missing, the field swallows the following rows.
    let swallows = |field: &str| field.contains(['\n', '\r']) && field.contains("://");
    if row.iter().any(swallows) {
        let what = "a quoted field continues over the following rows; is a closing quotation mark missing?"
            .to_owned();
        return collector.problem(line, what);
    }
    let at = |column: Option<usize>| column.and_then(|column| row.get(column)).unwrap_or_default();
    collector.add(Row {
        line,
        url: at(Some(columns.url)),
        name: at(columns.name),
        kind: at(columns.kind),
        cadence: at(columns.cadence),
        min_interval: at(columns.min_interval),
        ..Row::default()
    });
}

/// The delimiter between columns: a comma, unless the header shows that it is another.
pub(super) fn delimiter(text: &str) -> u8 {
    let first = text.split(line_end(text)).find(|line| !line.trim().is_empty()).unwrap_or_default();
    let others = [b';', b'\t'].into_iter();
    others.rev().find(|other| !is_header(first, b',') && is_header(first, *other)).unwrap_or(b',')
}

/// Whether `line` is a header with a column `url`.
pub(super) fn is_header(line: &str, delimiter: u8) -> bool {
    line.split(char::from(delimiter)).any(|field| is_called(field.trim().trim_matches('"'), "url"))
}

fn is_called(field: &str, name: &str) -> bool {
    field.trim().eq_ignore_ascii_case(name)
}

const COLUMNS: [&str; 5] = ["url", "name", "kind", "cadence", "min_interval"];
const NAMED_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> String {
        let mut collector = RowCollector::default();
        if let Err(error) = read(text, &mut collector) {
            return error.to_string();
        }
        let read = collector.finish();
        let entries = read.entries.iter().map(|entry| {
            let kind = entry.kind.map(|kind| kind.to_string());
            let fields = [&entry.name, &kind, &entry.cadence, &entry.min_interval];
            let fields = fields.map(|field| field.as_deref().unwrap_or("-"));
            format!("{} {} {}", entry.line, entry.url, fields.join(" "))
        });
        entries.chain(read.problems.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn columns_are_found_by_name() {
        let expected = "2 http://a.example/ A feed 8h 5m";
        assert_eq!(outline("url,name,kind,cadence,min_interval\nhttp://a.example/,A,feed,8h,5m"), expected);
        assert_eq!(
            outline("Name, CADENCE,Min_Interval,URL,Kind\nA,8h,5m, http://a.example/ ,FEED\n"),
            expected
        );
        assert_eq!(
            outline("\"url\";name;kind;cadence;min_interval\r\nhttp://a.example/;A;feed;8h;5m"),
            expected
        );
        assert_eq!(
            outline("url\tname\tkind\tcadence\tmin_interval\nhttp://a.example/\tA\tfeed\t8h\t5m"),
            expected
        );
        assert_eq!(outline("url\nhttp://a.example/"), "2 http://a.example/ - - - -");
        assert_eq!(
            outline("url,Folder,name,\"a,b\"\nhttp://a.example/,x,\"A, \"\"the\"\" one\"\nhttp://b.example/"),
            "2 http://a.example/ A, \"the\" one - - - | 3 http://b.example/ - - - - \
             | line 1: ignored unknown columns: \"Folder\", \"a,b\""
        );
    }

    #[test]
    fn without_a_header_the_columns_are_url_and_name() {
        assert_eq!(
            outline("http://a.example/,A,feed\nhttp://b.example/\n"),
            "1 http://a.example/ A - - - | 2 http://b.example/ - - - -"
        );
        assert_eq!(
            outline("htp://x,A\nhttp://b.example/,B"),
            "2 http://b.example/ B - - - | line 1: \"htp://x\" is not an http or https URL with a host"
        );
        assert_eq!(outline(""), "");
        assert_eq!(
            outline("name,link\nA,http://a/"),
            "expected a column named url, found \"name\", \"link\""
        );
    }

    #[test]
    fn invalid_rows_are_reported_with_their_line_and_the_rest_is_read() {
        assert_eq!(
            outline(
                "\n\nurl,kind\n\r\n,,,\n,page\nhttp://u:p@a.example/@me?k,blog\n\"http://b.example/\",\"\"\n\n\nx"
            ),
            "8 http://b.example/ - - - - | line 6: \"\" is not an http or https URL with a host \
             | line 7: kind \"blog\" of http://a.example/@me: expected \"feed\", \"page\", \"sitemap\" or \"urls\" \
             | line 11: \"x\" is not an http or https URL with a host"
        );
    }

    #[test]
    fn a_missing_closing_quotation_mark_is_reported() {
        assert_eq!(
            outline("url,name\nhttp://a.example/,\"A\nhttp://b.example/,B\n"),
            "line 2: a quoted field continues over the following rows; is a closing quotation mark missing?"
        );
        assert_eq!(
            outline("url,name\nhttp://a.example/,\"A\nB\"\nhttp://c.example/"),
            "2 http://a.example/ A B - - - | 4 http://c.example/ - - - -"
        );
    }
}

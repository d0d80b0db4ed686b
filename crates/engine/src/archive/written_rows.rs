//! Which rows an index already has, so that a process that takes over from a killed one writes none of them again.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};

use xxhash_rust::xxh3::xxh3_128;

use crate::results::Row;

/// Rows that an index has. They are compared without response headers, which the store doesn't know.
#[derive(Debug, Default)]
pub(crate) struct WrittenRows(HashSet<u128>);

impl WrittenRows {
    /// Reads the rows that were added after the index had `bytes` bytes. If it is shorter than that, it is not the same
    /// index, and all its rows are read.
    pub(super) fn read(index: &mut File, bytes: u64) -> io::Result<Self> {
        let from = if bytes <= index.metadata()?.len() { bytes } else { 0 };
        index.seek(SeekFrom::Start(from))?;
        let (mut reader, mut rows, mut line) = (BufReader::new(index), HashSet::new(), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 {
            rows.insert(hash(&line));
            line.clear();
        }
        Ok(Self(rows))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, row: &Row) -> bool {
        !self.is_empty() && self.0.contains(&hash(row.to_json().as_bytes()))
    }
}

/// Identifies a row by its line, without the headers at its end.
fn hash(line: &[u8]) -> u128 {
    let line = line.trim_ascii_end();
    let end = memchr::memmem::find(line, HEADERS).unwrap_or(line.len().saturating_sub(1));
    xxh3_128(&line[..end])
}

/// How the headers of a row begin. In a text, quotation marks are escaped, so this can't be a part of one.
const HEADERS: &[u8] = b",\"headers\":{";

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::{Map, json};

    use super::*;

    fn row(url: &str) -> Row {
        Row {
            url: url.to_owned(),
            final_url: url.to_owned(),
            state: "done".to_owned(),
            status: Some(200),
            outcome: Some("success"),
            error: Some("it says ,\"headers\":{".to_owned()),
            attempts: 1,
            started_at: None,
            fetched_at: None,
            elapsed_ms: None,
            content_type: None,
            bytes: None,
            sha256: None,
            file: None,
            changed: Some(true),
            headers: None,
        }
    }

    #[test]
    fn rows_are_found_behind_the_mark_with_or_without_headers() {
        let headers = Map::from_iter([("server".to_owned(), json!("a"))]);
        let with_headers = Row { headers: Some(headers), ..row("http://b/") };
        let mut file = tempfile::tempfile().unwrap();
        writeln!(file, "{}", row("http://a/").to_json()).unwrap();
        let mark = file.metadata().unwrap().len();
        writeln!(file, "{}\n{{\"url\":\"trunc", with_headers.to_json()).unwrap();
        writeln!(file, "{}", row("http://c/").to_json()).unwrap();
        let urls = |bytes: u64, file: &mut File| {
            let written = WrittenRows::read(file, bytes).unwrap();
            let rows = ["http://a/", "http://b/", "http://c/", "http://d/", "trunc"].map(row);
            let found = rows.iter().filter(|row| written.has(row));
            found.map(|row| row.url.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(urls(mark, &mut file), "http://b/ http://c/");
        assert_eq!(urls(0, &mut file), "http://a/ http://b/ http://c/");
        assert_eq!(urls(1 << 40, &mut file), "http://a/ http://b/ http://c/", "another index");
        let changed = Row { status: Some(304), ..row("http://c/") };
        assert!(!WrittenRows::read(&mut file, 0).unwrap().has(&changed), "a later row of the same URL");
    }
}

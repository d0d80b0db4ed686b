//! Collects the rows of a list in any format: checks URLs, removes duplicates, and limits the number of problems.

use std::collections::HashSet;
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_store::sources::Kind;
use comity_store::tasks::Lead;
use url::Url;

use super::{ListedSource, Problem, SourceList, Switches};
use crate::jobs::meant_url;
use crate::redact;

/// A row as its format has it; blank fields count as missing.
#[derive(Default)]
pub(super) struct Row<'a> {
    pub(super) line: u64,
    pub(super) url: &'a str,
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) lead: Lead,
    pub(super) html_url: &'a str,
    pub(super) folder: &'a [Arc<str>],
    pub(super) cadence: &'a str,
    pub(super) min_interval: &'a str,
    /// What is switched off.
    pub(super) off: &'a str,
}

/// The rows collected so far.
#[derive(Default)]
pub(super) struct RowCollector {
    read: SourceList,
    known: HashSet<String>,
    unlisted: u64,
}

impl RowCollector {
    pub(super) fn add(&mut self, row: Row<'_>) {
        let written = row.url.trim();
        let Some(mut url) = parse_url(written) else {
            let meant = meant_url(written).map(|url| format!("; did you mean {url} ?")).unwrap_or_default();
            let what =
                format!("\"{}\" is not an http or https URL with a host{meant}", redact::text(written));
            return self.problem(row.line, what);
        };
        let word = row.kind.trim().to_ascii_lowercase();
        let kind = Kind::parse(&word);
        if kind.is_none() && !word.is_empty() {
            url.set_query(None);
            let (word, url) = (redact::text(&word), redact::line(&redact::url(&url)).unwrap_or_default());
            let [known @ .., last] = Kind::ALL.map(|kind| format!("\"{kind}\""));
            let what = format!("kind \"{word}\" of {url}: expected {} or {last}", known.join(", "));
            return self.problem(row.line, what);
        }
        let url = String::from(url);
        if !self.known.insert(url.clone()) {
            self.read.repeated += 1;
            return;
        }
        self.read.entries.push(ListedSource {
            // Some feed readers write the URL if there is no name.
            name: cleaned(row.name).filter(|name| name != written && *name != url),
            url,
            kind,
            lead: row.lead,
            html_url: parse_url(row.html_url.trim()).map(|page| redact::without_user(page.as_str())),
            folder: row.folder.to_vec(),
            cadence: cleaned(row.cadence),
            min_interval: cleaned(row.min_interval),
            switches: Switches::read(row.off),
            line: row.line,
        });
    }

    /// Adds a problem. Past a limit they are only counted, because a file may contain nothing else.
    pub(super) fn problem(&mut self, line: u64, what: String) {
        if self.read.problems.len() < PROBLEMS_MAX {
            self.read.problems.push(Problem { line, what });
        } else {
            self.unlisted += 1;
        }
    }

    pub(super) fn finish(mut self) -> SourceList {
        self.read.problems.sort_by_key(|problem| problem.line);
        if let (Some(last), 1..) = (self.read.problems.last(), self.unlisted) {
            let what = format!("{} more problems from here on are not listed", self.unlisted);
            let line = last.line;
            self.read.problems.push(Problem { line, what });
        }
        self.read
    }
}

/// Parses the URL of a source, without its fragment. `None` if it can't be fetched.
pub fn parse_url(text: &str) -> Option<Url> {
    // The url crate drops line breaks and tabs, and takes a path for the host if the host is missing. The result would
    // be a URL that nobody wrote.
    let garbled = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    let (_, rest) = text.split_once("://")?;
    if text.len() > URL_MAX || rest.starts_with(['/', '\\']) || text.contains(garbled) {
        return None;
    }
    let mut url = Url::parse(text).ok()?;
    url.set_fragment(None);
    Domain::of(&url).map(|_| url)
}

/// `text` on one line, without control characters and those not allowed in XML; `None` if nothing is left.
pub(super) fn cleaned(text: &str) -> Option<String> {
    let kept = |c: char| match c {
        '\t' | '\n' | '\r' => Some(' '),
        '\u{fffe}' | '\u{ffff}' => None,
        c if c.is_control() => None,
        c => Some(c),
    };
    let text: String = text.chars().filter_map(kept).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

const PROBLEMS_MAX: usize = 1_000;
/// The same limit as for a line in the URL list of a job.
const URL_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(urls: &[&str]) -> SourceList {
        let mut collector = RowCollector::default();
        for (line, url) in (1..).zip(urls) {
            collector.add(Row { line, url, ..Row::default() });
        }
        collector.finish()
    }

    #[test]
    fn urls_are_normalized_and_duplicates_removed() {
        let read = collect(&[
            "HTTP://Example.ORG:80",
            " http://example.org/#a ",
            "https://u:p@bücher.example/a b?q#f",
        ]);
        let urls: Vec<_> = read.entries.iter().map(|entry| entry.url.as_str()).collect();
        assert_eq!(urls, ["http://example.org/", "https://u:p@xn--bcher-kva.example/a%20b?q"]);
        assert_eq!((read.repeated, read.problems.len()), (1, 0));
    }

    #[test]
    fn a_url_that_cannot_be_fetched_is_a_problem() {
        let long = format!("http://a/{}", "x".repeat(URL_MAX));
        let bad = [
            "htp://x",
            "example.org",
            "http:",
            "http://",
            "http:///x",
            "http:x",
            "ftp://x/",
            "file:///etc/passwd",
            "http://a\tb/",
            "http://a/\nhttp://b/",
            "http://\u{fffd}/",
            "http://[::1",
            "javascript:alert(1)",
            "",
            &long,
        ];
        let read = collect(&bad);
        assert_eq!((read.entries.len(), read.problems.len()), (0, bad.len()));
        assert_eq!(
            read.problems[0].to_string(),
            "line 1: \"htp://x\" is not an http or https URL with a host"
        );
    }

    #[test]
    fn the_number_of_listed_problems_is_limited() {
        let read = collect(&vec!["x"; PROBLEMS_MAX + 5]);
        assert_eq!(read.problems.len(), PROBLEMS_MAX + 1);
        let last = read.problems.last().map(ToString::to_string);
        assert_eq!(last.as_deref(), Some("line 1000: 5 more problems from here on are not listed"));
    }
}

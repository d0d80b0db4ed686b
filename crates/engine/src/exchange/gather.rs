//! Gathering the rows of a list, whatever its form: URLs are checked, each is kept once, problems are limited.

use std::collections::HashSet;
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_store::sources::Kind;
use comity_store::tasks::Lead;
use url::Url;

use super::{Entry, Problem, Read};
use crate::shown;

/// A row as its form gives it; blank fields are none.
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
}

/// What was gathered so far.
#[derive(Default)]
pub(super) struct Gather {
    read: Read,
    known: HashSet<String>,
    unlisted: u64,
}

impl Gather {
    pub(super) fn add(&mut self, row: Row<'_>) {
        let written = row.url.trim();
        let Some(mut url) = address(written) else {
            let what = format!("\"{}\" is not an http or https URL with a host", shown::text(written));
            return self.problem(row.line, what);
        };
        let word = row.kind.trim().to_ascii_lowercase();
        let kind = Kind::parse(&word);
        if kind.is_none() && !word.is_empty() {
            url.set_query(None);
            let (word, url) = (shown::text(&word), shown::line(&shown::url(&url)).unwrap_or_default());
            let [known @ .., last] = Kind::ALL.map(|kind| format!("\"{kind}\""));
            let what = format!("kind \"{word}\" of {url}: expected {} or {last}", known.join(", "));
            return self.problem(row.line, what);
        }
        let url = String::from(url);
        if !self.known.insert(url.clone()) {
            self.read.repeated += 1;
            return;
        }
        self.read.entries.push(Entry {
            // A reader that knows no name writes the URL in its place.
            name: tidied(row.name).filter(|name| name != written && *name != url),
            url,
            kind,
            lead: row.lead,
            html_url: address(row.html_url.trim()).map(|page| shown::without_user(page.as_str())),
            folder: row.folder.to_vec(),
            cadence: tidied(row.cadence),
            min_interval: tidied(row.min_interval),
            line: row.line,
        });
    }

    /// Keeps a problem; past a limit they are only counted, for a file may hold nothing else.
    pub(super) fn problem(&mut self, line: u64, what: String) {
        if self.read.problems.len() < PROBLEMS_MAX {
            self.read.problems.push(Problem { line, what });
        } else {
            self.unlisted += 1;
        }
    }

    pub(super) fn finish(mut self) -> Read {
        self.read.problems.sort_by_key(|problem| problem.line);
        if let (Some(last), 1..) = (self.read.problems.last(), self.unlisted) {
            let what = format!("from here on {} more problems that are not listed", self.unlisted);
            let line = last.line;
            self.read.problems.push(Problem { line, what });
        }
        self.read
    }
}

/// The URL that `text` is, as sources keep it: without its fragment. `None` for what cannot be fetched.
pub fn address(text: &str) -> Option<Url> {
    // The url crate drops line ends and tabs, and takes a path for a host where the host is missing: it would
    // make up a URL that nobody wrote.
    let garbled = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    let (_, rest) = text.split_once("://")?;
    if text.len() > URL_MAX || rest.starts_with(['/', '\\']) || text.contains(garbled) {
        return None;
    }
    let mut url = Url::parse(text).ok()?;
    url.set_fragment(None);
    Domain::of(&url).map(|_| url)
}

/// `text` on one line, without control characters and what XML cannot hold; `None` when nothing is left.
pub(super) fn tidied(text: &str) -> Option<String> {
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
/// As long as a line of a job's list may be.
const URL_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(urls: &[&str]) -> Read {
        let mut gather = Gather::default();
        for (line, url) in (1..).zip(urls) {
            gather.add(Row { line, url, ..Row::default() });
        }
        gather.finish()
    }

    #[test]
    fn urls_are_kept_as_the_url_crate_writes_them_and_once() {
        let read =
            told(&["HTTP://Example.ORG:80", " http://example.org/#a ", "https://u:p@bücher.example/a b?q#f"]);
        let urls: Vec<_> = read.entries.iter().map(|entry| entry.url.as_str()).collect();
        assert_eq!(urls, ["http://example.org/", "https://u:p@xn--bcher-kva.example/a%20b?q"]);
        assert_eq!((read.repeated, read.problems.len()), (1, 0));
    }

    #[test]
    fn what_is_no_url_to_fetch_is_a_problem() {
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
        let read = told(&bad);
        assert_eq!((read.entries.len(), read.problems.len()), (0, bad.len()));
        assert_eq!(
            read.problems[0].to_string(),
            "line 1: \"htp://x\" is not an http or https URL with a host"
        );
    }

    #[test]
    fn a_file_of_nothing_but_problems_stays_small() {
        let read = told(&vec!["x"; PROBLEMS_MAX + 5]);
        assert_eq!(read.problems.len(), PROBLEMS_MAX + 1);
        let last = read.problems.last().map(ToString::to_string);
        assert_eq!(last.as_deref(), Some("line 1000: from here on 5 more problems that are not listed"));
    }
}

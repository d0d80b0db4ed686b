//! Turns the bytes of a source into items: feeds, sitemaps, URL lists and single pages.
//!
//! Everything here is pure: bytes in, a [`ParsedSource`] out. Nothing is fetched, stored or scheduled. No input,
//! however hostile, may cause a panic, a stack overflow or more than a few seconds of work. What a feed says about its
//! own update schedule is returned as [`Hints`]; whether to follow them is decided elsewhere.
//!
//! Reading order: `decode` turns bytes into text, `xml` reads tags from it within limits; `feed` (with `feed_xml`,
//! `feed_fields`, `feed_json`, `details`, `hints` and `date`), `sitemap`, `urls` and `page` turn it into items, which
//! `collector` collects. [`discover`] finds the feeds of a page and [`text`] its main text; both parse with `html`,
//! which has limits. `scan` reads HTML without parsing it. `hostile` contains only tests.

mod collector;
mod date;
mod decode;
mod details;
pub mod discover;
mod feed;
mod feed_fields;
mod feed_json;
mod feed_xml;
mod hints;
mod html;
mod json;
pub mod normalize;
mod page;
mod plain_title;
mod scan;
mod sitemap;
mod sniff;
pub mod text;
mod urls;
mod xml;

#[cfg(test)]
mod hostile;

use comity_core::time::{Span, Timestamp};
use comity_store::details::Details;
use comity_store::sources::Kind;
use url::Url;

pub use details::{CONTENT_MAX, SUMMARY_MAX};
pub use sniff::sniff;

/// The content of one response of a source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedSource {
    /// The title of the feed or page: one line of plain text of at most 300 characters.
    pub title: Option<String>,
    /// The items in document order. Of items with the same identity, only the first is included.
    pub items: Vec<FoundItem>,
    /// The first [`PROBLEMS_KEPT`] problems: what could not be used and why, one sentence each.
    pub problems: Vec<String>,
    /// The number of problems, including those not in `problems`.
    pub problems_count: u64,
    /// Oddities in a response that could be used nevertheless, at most [`PROBLEMS_KEPT`] sentences.
    pub notes: Vec<String>,
    /// The response breaks off. What was missing is unknown, and a conditional request with its ETag would not reveal
    /// it.
    pub is_truncated: bool,
    /// What the feed says about when to fetch it again.
    pub hints: Hints,
    /// The sitemaps listed in a sitemap index, which are to be read too.
    pub sitemaps: Vec<Url>,
}

/// An item found in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundItem {
    /// Identifies the item even when its content changes: `guid:…`, `link:…` or `page`, at most 500 bytes.
    pub identity: String,
    /// The URL of the item, always http or https.
    pub url: Url,
    /// One line of plain text of at most 300 characters.
    pub title: Option<String>,
    /// When it was published, or else updated; years 1970 to 2199 only.
    pub published_at: Option<Timestamp>,
    /// A hash of the content, which changes when the item changes.
    pub hash: u64,
    /// Everything else that the source says about the item.
    pub details: Details,
}

/// What a feed says about when to fetch it again; spans are at most 30 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// How long the response may be cached, from `ttl`.
    pub ttl: Option<Span>,
    /// How often the feed changes, from `sy:updatePeriod` and `sy:updateFrequency`.
    pub update_every: Option<Span>,
    /// The hours of the day, in UTC, in which not to fetch: bit 0 is midnight to one.
    pub skip_hours: u32,
    /// The days of the week, in UTC, on which not to fetch: bit 0 is Monday.
    pub skip_days: u8,
}

/// A response without items, because it is not of the expected kind. Retrying at once would give the same result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The response is empty, or only white space.
    #[error("empty response: expected {expected}")]
    Empty {
        /// What the source should be.
        expected: &'static str,
    },
    /// The response is something else.
    #[error("not {expected}: the response is {found}")]
    Other {
        /// What the source should be.
        expected: &'static str,
        /// What the response is instead, and what to do about it.
        found: String,
    },
    /// The format is right, but there is an error before the first item.
    #[error("not {expected}: {format} error at byte {at}: {why}")]
    Broken {
        /// What the source should be.
        expected: &'static str,
        /// The format that was being read.
        format: &'static str,
        /// The position of the error in the decoded text.
        at: u64,
        /// What is wrong there.
        why: String,
    },
    /// The response is larger than the limit.
    #[error("response of more than {bytes_max} bytes when decompressed: too large for {expected}")]
    TooLarge {
        /// What the source should be.
        expected: &'static str,
        /// The limit.
        bytes_max: u64,
    },
}

impl ParsedSource {
    /// Counts a problem, and keeps its sentence if there is room.
    pub fn add_problem(&mut self, sentence: String) {
        self.problems_count += 1;
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(sentence);
        }
    }
}

/// The kind in words, for messages.
const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Feed => "a feed",
        Kind::Page => "a page",
        Kind::Sitemap => "a sitemap",
        Kind::Urls => "a list of URLs",
    }
}

/// Parses `body`, the response of a source of this kind whose final URL is `base`.
pub fn read(
    kind: Kind,
    body: &[u8],
    content_type: Option<&str>,
    base: &Url,
) -> Result<ParsedSource, Unreadable> {
    let expected = expected(kind);
    let body = decode::decompressed(body, expected)?;
    if body.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
        return Err(Unreadable::Empty { expected });
    }
    match kind {
        Kind::Feed => feed::read(&decode::xml(&body, content_type), base),
        Kind::Page => Ok(page::read(&body, content_type, base)),
        Kind::Sitemap => sitemap::read(&decode::xml(&body, content_type)),
        Kind::Urls => Ok(urls::read(&decode::xml(&body, content_type))),
    }
}

/// Parses a date of a feed.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn read_date(text: &str) -> Option<Timestamp> {
    date::read(text)
}

/// How many problems of one response are kept as text.
pub const PROBLEMS_KEPT: usize = 20;
/// How many items of one response are read; if there are more, that is a problem.
pub const ITEMS_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_empty_response_names_the_expected_kind() {
        let base = Url::parse("https://a.example/").unwrap();
        for (kind, expected) in [
            (Kind::Feed, "empty response: expected a feed"),
            (Kind::Page, "empty response: expected a page"),
            (Kind::Sitemap, "empty response: expected a sitemap"),
            (Kind::Urls, "empty response: expected a list of URLs"),
        ] {
            for body in [&b""[..], b" \r\n\t "] {
                assert_eq!(read(kind, body, None, &base).unwrap_err().to_string(), expected);
            }
        }
    }
}

//! Turning the bytes of a followed source into items: feeds, sitemaps, lists of URLs and single pages.
//!
//! Everything here is pure: bytes in, a [`Harvest`] out. Nothing is fetched, stored or scheduled, and no
//! bytes, however hostile, make it panic, overflow the stack or take more than a few seconds. What a source
//! said about its own rhythm is passed on in [`Hints`]; whether to follow it is not decided here.
//!
//! Reading order: `decode` makes text of bytes, `xml` reads tags from it within limits, `feed` (with
//! `feed_xml`, `feed_fields`, `feed_json`, `details`, `hints` and `date`), `sitemap`, `urls` and `page` make items of
//! it, `gather` collects them. [`discover`] finds the feeds of a page and [`text`] its main text; both parse
//! through `html`, which limits what is parsed. `hostile` is tests only.

mod date;
mod decode;
mod details;
pub mod discover;
mod feed;
mod feed_fields;
mod feed_json;
mod feed_xml;
mod gather;
mod glance;
mod hints;
mod html;
pub mod normalise;
mod page;
mod plain;
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

/// What one answer of a source held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Harvest {
    /// The title of the feed or page: one line of plain text of at most 300 characters.
    pub title: Option<String>,
    /// The items in the order they stand, each identity once; the first of a kind stays.
    pub items: Vec<Found>,
    /// The first [`PROBLEMS_KEPT`] of what could not be used, one sentence each.
    pub problems: Vec<String>,
    /// How many problems there were, kept or not.
    pub problems_count: u64,
    /// What is odd about it, though everything could be used; at most [`PROBLEMS_KEPT`] sentences.
    pub notes: Vec<String>,
    /// The answer broke off: what stood behind is not known, and asking with its ETag would not tell.
    pub is_cut: bool,
    /// What the feed itself says about when to ask again.
    pub hints: Hints,
    /// The sitemaps that a sitemap index names, to be read too.
    pub more: Vec<Url>,
}

/// One item of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What stays the same when the item changes: `guid:…`, `link:…` or `page`, at most 500 bytes.
    pub identity: String,
    /// Where the item is, always http or https.
    pub url: Url,
    /// One line of plain text of at most 300 characters.
    pub title: Option<String>,
    /// When it was published, else when it was updated; years 1970 to 2199 only.
    pub published_at: Option<Timestamp>,
    /// Equal while the item says the same, different once it says something else.
    pub hash: u64,
    /// What else the source says about it.
    pub details: Details,
}

/// What a feed says about when to ask again; spans are at most 30 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// How long the answer may be kept, by `ttl`.
    pub ttl: Option<Span>,
    /// How often the feed changes, by `sy:updatePeriod` and `sy:updateFrequency`.
    pub update_every: Option<Span>,
    /// The hours of the day, in UTC, in which not to ask: bit 0 is midnight to one.
    pub skip_hours: u32,
    /// The days of the week, in UTC, on which not to ask: bit 0 is Monday.
    pub skip_days: u8,
}

/// An answer that holds no items because it is not what the source should be. Asking again at once gives the
/// same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Nothing, or only white space.
    #[error("empty answer: expected {expected}")]
    Empty {
        /// What the source should be.
        expected: &'static str,
    },
    /// Something else, which is named together with what to do.
    #[error("not {expected}: the answer is {found}")]
    Other {
        /// What the source should be.
        expected: &'static str,
        /// What the answer is instead.
        found: String,
    },
    /// The right format, broken before its first item.
    #[error("not {expected}: {format} error at byte {at}: {why}")]
    Broken {
        /// What the source should be.
        expected: &'static str,
        /// The format that was being read.
        format: &'static str,
        /// How far into the decoded text the error stands.
        at: u64,
        /// What is wrong there.
        why: String,
    },
    /// More bytes than are read.
    #[error("answer of more than {bytes_max} bytes once unpacked: expected {expected} smaller than that")]
    TooLarge {
        /// What the source should be.
        expected: &'static str,
        /// The limit.
        bytes_max: u64,
    },
}

impl Harvest {
    /// Counts a problem, and keeps its sentence while there is room.
    pub fn note(&mut self, sentence: String) {
        self.problems_count += 1;
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(sentence);
        }
    }
}

/// What a kind is in a sentence.
const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Feed => "a feed",
        Kind::Page => "a page",
        Kind::Sitemap => "a sitemap",
        Kind::Urls => "a list of URLs",
    }
}

/// Reads `body`, the answer of a source of this kind whose final address is `base`.
pub fn read(kind: Kind, body: &[u8], content_type: Option<&str>, base: &Url) -> Result<Harvest, Unreadable> {
    let expected = expected(kind);
    let body = decode::unpacked(body, expected)?;
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

/// The moment that a date of a feed names.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn read_date(text: &str) -> Option<Timestamp> {
    date::read(text)
}

/// How many problems of one answer are kept word for word.
pub const PROBLEMS_KEPT: usize = 20;
/// How many items of one answer are read; a problem says so when there are more.
pub const ITEMS_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_answer_says_what_was_expected() {
        let base = Url::parse("https://a.example/").unwrap();
        for (kind, expected) in [
            (Kind::Feed, "empty answer: expected a feed"),
            (Kind::Page, "empty answer: expected a page"),
            (Kind::Sitemap, "empty answer: expected a sitemap"),
            (Kind::Urls, "empty answer: expected a list of URLs"),
        ] {
            for body in [&b""[..], b" \r\n\t "] {
                assert_eq!(read(kind, body, None, &base).unwrap_err().to_string(), expected);
            }
        }
    }
}

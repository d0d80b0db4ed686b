//! Feeds, sitemaps and the dates in them.

use std::collections::HashSet;

use comity::connectors::{
    FoundItem, ITEMS_MAX, PROBLEMS_KEPT, ParsedSource, Unreadable, read, read_date, sniff,
};
use comity_core::time::Timestamp;
use comity_store::sources::Kind;
use url::Url;

/// Items of a feed have the promised properties, and survive being written plainly and read back.
pub fn feeds(data: &[u8]) {
    let Some(mut parsed) = parse(Kind::Feed, data) else { return };
    assert!(parsed.sitemaps.is_empty());
    parsed.items.retain(|found| is_short(&found.url));
    let items: String = parsed.items.iter().map(rss_item).collect();
    let again = read_plainly(Kind::Feed, &format!("<rss version='2.0'><channel>{items}</channel></rss>"));
    let summary = |found: &FoundItem| (found.identity.clone(), found.url.clone(), found.published_at);
    assert_eq!(
        again.items.iter().map(summary).collect::<Vec<_>>(),
        parsed.items.iter().map(summary).collect::<Vec<_>>()
    );
}

/// Entries of a sitemap have the promised properties, and survive being written plainly and read back.
pub fn sitemaps(data: &[u8]) {
    let Some(mut parsed) = parse(Kind::Sitemap, data) else { return };
    parsed.items.retain(|found| is_short(&found.url));
    parsed.sitemaps.retain(is_short);
    let urls: String = parsed.items.iter().map(|found| entry("url", &found.url)).collect();
    let again = read_plainly(Kind::Sitemap, &format!("<urlset>{urls}</urlset>"));
    let summary = |found: &FoundItem| (found.identity.clone(), found.url.clone());
    assert_eq!(
        again.items.iter().map(summary).collect::<Vec<_>>(),
        parsed.items.iter().map(summary).collect::<Vec<_>>()
    );
    let more: String = parsed.sitemaps.iter().map(|url| entry("sitemap", url)).collect();
    let again = read_plainly(Kind::Sitemap, &format!("<s:sitemapindex>{more}</s:sitemapindex>"));
    assert_eq!(again.sitemaps, parsed.sitemaps);
}

/// A date is read the same with white space around it, in any case, and when written as RFC 3339.
pub fn dates(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let date = read_date(text);
    // ASCII case does not matter.
    assert_eq!(read_date(&text.to_ascii_uppercase()), date, "{text:?} in upper case");
    if text.len() < 50 {
        assert_eq!(read_date(&format!(" \n{text}\t ")), date, "{text:?} with spaces");
    }
    let Some(date) = date else { return };
    assert!(date >= Timestamp::from_micros(0) && date < Timestamp::from_secs(7_258_118_400), "{text:?}");
    assert_eq!(read_date(&date.to_string()), Some(date), "{text:?}");
    // With an unknown time zone it is not a date, and never a different one.
    let odd = read_date(&format!("{text} QQQ"));
    assert_eq!(odd, None, "{text:?} QQQ");
}

/// Reads a response, if possible, and checks everything that is promised of it.
fn parse(kind: Kind, data: &[u8]) -> Option<ParsedSource> {
    let base = base();
    sniff(data, None);
    let parsed = match read(kind, data, None, &base) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(read(kind, data, None, &base), Err(error));
            return None;
        }
    };
    assert_eq!(read(kind, data, None, &base).as_ref(), Ok(&parsed), "read twice");
    assert!(parsed.items.len() <= ITEMS_MAX && parsed.problems.len() <= PROBLEMS_KEPT);
    assert!(parsed.problems_count >= parsed.problems.len() as u64);
    assert!(parsed.title.as_deref().is_none_or(is_line));
    let mut identities = HashSet::new();
    for found in &parsed.items {
        assert!(is_web(&found.url), "{}", found.url);
        assert!(!found.identity.is_empty() && found.identity.len() <= 500, "{}", found.identity);
        assert!(identities.insert(&found.identity), "{} twice", found.identity);
        assert!(found.title.as_deref().is_none_or(is_line), "{:?}", found.title);
    }
    assert!(parsed.sitemaps.iter().all(is_web));
    Some(parsed)
}

fn read_plainly(kind: Kind, text: &str) -> ParsedSource {
    let read: Result<ParsedSource, Unreadable> = read(kind, text.as_bytes(), None, &base());
    read.unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn rss_item(found: &FoundItem) -> String {
    let guid = found
        .identity
        .strip_prefix("guid:")
        .map(|guid| format!("<guid isPermaLink='false'>{}</guid>", escaped(guid)));
    let date = found.published_at.map(|at| format!("<pubDate>{at}</pubDate>"));
    let link = escaped(found.url.as_str());
    format!("<item><link>{link}</link>{}{}</item>", guid.unwrap_or_default(), date.unwrap_or_default())
}

fn entry(tag: &str, url: &Url) -> String {
    format!("<{tag}><loc>{}</loc></{tag}>", escaped(url.as_str()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn is_line(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= 300 && !text.contains(['\n', '\r']) && text.trim() == text
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty())
}

/// Whether a URL can be read back: percent-encoding makes some longer than the limit.
fn is_short(url: &Url) -> bool {
    url.as_str().len() <= 8 * 1024
}

fn base() -> Url {
    Url::parse("https://a.example/dir/feed.xml").expect("a valid address")
}

//! Feeds, sitemaps and the dates in them.

use std::collections::HashSet;

use comity::connectors::{Found, Harvest, ITEMS_MAX, PROBLEMS_KEPT, Unreadable, read, read_date, sniff};
use comity_core::time::Timestamp;
use comity_store::sources::Kind;
use url::Url;

/// Items of a feed have what is promised of them, and written plainly they are read back as the same.
pub fn feeds(data: &[u8]) {
    let Some(mut harvest) = harvested(Kind::Feed, data) else { return };
    assert!(harvest.more.is_empty());
    harvest.items.retain(|found| is_short(&found.url));
    let items: String = harvest.items.iter().map(rss_item).collect();
    let again = read_plainly(Kind::Feed, &format!("<rss version='2.0'><channel>{items}</channel></rss>"));
    let told = |found: &Found| (found.identity.clone(), found.url.clone(), found.published_at);
    assert_eq!(
        again.items.iter().map(told).collect::<Vec<_>>(),
        harvest.items.iter().map(told).collect::<Vec<_>>()
    );
}

/// The same of a sitemap.
pub fn sitemaps(data: &[u8]) {
    let Some(mut harvest) = harvested(Kind::Sitemap, data) else { return };
    harvest.items.retain(|found| is_short(&found.url));
    harvest.more.retain(is_short);
    let urls: String = harvest.items.iter().map(|found| entry("url", &found.url)).collect();
    let again = read_plainly(Kind::Sitemap, &format!("<urlset>{urls}</urlset>"));
    let told = |found: &Found| (found.identity.clone(), found.url.clone());
    assert_eq!(
        again.items.iter().map(told).collect::<Vec<_>>(),
        harvest.items.iter().map(told).collect::<Vec<_>>()
    );
    let more: String = harvest.more.iter().map(|url| entry("sitemap", url)).collect();
    let again = read_plainly(Kind::Sitemap, &format!("<s:sitemapindex>{more}</s:sitemapindex>"));
    assert_eq!(again.more, harvest.more);
}

/// A date is the same however it is surrounded and capitalised, and as RFC 3339 writes it.
pub fn dates(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let date = read_date(text);
    // Uppercase letters of ASCII are no others.
    assert_eq!(read_date(&text.to_ascii_uppercase()), date, "{text:?} in upper case");
    if text.len() < 50 {
        assert_eq!(read_date(&format!(" \n{text}\t ")), date, "{text:?} with spaces");
    }
    let Some(date) = date else { return };
    assert!(date >= Timestamp::from_micros(0) && date < Timestamp::from_secs(7_258_118_400), "{text:?}");
    assert_eq!(read_date(&date.to_string()), Some(date), "{text:?}");
    // A zone that nobody knows makes it none, never another.
    let odd = read_date(&format!("{text} QQQ"));
    assert_eq!(odd, None, "{text:?} QQQ");
}

/// What an answer holds, if it can be read, with everything checked that is promised of it.
fn harvested(kind: Kind, data: &[u8]) -> Option<Harvest> {
    let base = base();
    sniff(data, None);
    let harvest = match read(kind, data, None, &base) {
        Ok(harvest) => harvest,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(read(kind, data, None, &base), Err(error));
            return None;
        }
    };
    assert_eq!(read(kind, data, None, &base).as_ref(), Ok(&harvest), "read twice");
    assert!(harvest.items.len() <= ITEMS_MAX && harvest.problems.len() <= PROBLEMS_KEPT);
    assert!(harvest.problems_count >= harvest.problems.len() as u64);
    assert!(harvest.title.as_deref().is_none_or(is_line));
    let mut identities = HashSet::new();
    for found in &harvest.items {
        assert!(is_web(&found.url), "{}", found.url);
        assert!(!found.identity.is_empty() && found.identity.len() <= 500, "{}", found.identity);
        assert!(identities.insert(&found.identity), "{} twice", found.identity);
        assert!(found.title.as_deref().is_none_or(is_line), "{:?}", found.title);
    }
    assert!(harvest.more.iter().all(is_web));
    Some(harvest)
}

fn read_plainly(kind: Kind, text: &str) -> Harvest {
    let read: Result<Harvest, Unreadable> = read(kind, text.as_bytes(), None, &base());
    read.unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn rss_item(found: &Found) -> String {
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

/// Whether an address can be read back: percent-encoding makes some longer than what is read.
fn is_short(url: &Url) -> bool {
    url.as_str().len() <= 8 * 1024
}

fn base() -> Url {
    Url::parse("https://a.example/dir/feed.xml").expect("a valid address")
}

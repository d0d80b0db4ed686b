//! Finds the feeds that a page links to in its head.

use comity_store::tasks::Lead;
use url::Url;

use super::{decode, html, normalize};
use crate::redact;

/// A feed that a page links to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedLink {
    /// The URL of the feed.
    pub url: Url,
    /// The title in the link: one line of plain text.
    pub title: Option<String>,
    /// The kind of feed according to the link.
    pub kind: FeedKind,
}

/// The kind of a feed according to the link to it; the feed itself may turn out to be of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedKind {
    /// RSS, or XML of an unstated kind.
    Rss,
    /// Atom.
    Atom,
    /// JSON Feed.
    Json,
}

/// The feeds that `html`, the page at `base`, links to: in document order, comment feeds last, without duplicates.
pub fn feeds(html: &[u8], content_type: Option<&str>, base: &Url) -> Vec<FeedLink> {
    // Feeds are linked at the start of a page, so a page that is only parsed in part loses none.
    let document = html::parse(&decode::html(html, content_type)).document;
    let own_base = document.select_single("base[href]").attr("href");
    let own_base = own_base.and_then(|href| normalize::fetchable(&href, Some(base)));
    let base = own_base.as_ref().unwrap_or(base);
    let mut feeds: Vec<FeedLink> = Vec::new();
    for link in document.select("link[rel][type][href]").iter().take(LINKS_MAX) {
        let attribute = |name| link.attr(name).unwrap_or_default();
        let alternate = attribute("rel").split_whitespace().any(|rel| rel.eq_ignore_ascii_case("alternate"));
        let title = redact::line(&attribute("title"));
        let kind = kind(&attribute("type")).filter(|_| alternate);
        let url = normalize::fetchable(&attribute("href"), Some(base));
        if let (Some(kind), Some(url)) = (kind, url)
            && !feeds.iter().any(|feed| feed.url == url)
        {
            feeds.push(FeedLink { url, title, kind });
        }
    }
    feeds.sort_by_key(is_comment_feed);
    feeds
}

/// Where the URL of a feed comes from that was found on a page listed by the operator: the operator, if the feed is on
/// the same host as the page, and otherwise the page.
pub fn lead(listed: &Url, feed: &Url) -> Lead {
    crate::attempt::redirected_lead(listed, Lead::Listed, feed)
}

/// The kind for a media type, ignoring parameters.
fn kind(media_type: &str) -> Option<FeedKind> {
    match media_type.split(';').next()?.trim().to_ascii_lowercase().as_str() {
        "application/rss+xml" | "application/rdf+xml" | "application/xml" | "text/xml" => Some(FeedKind::Rss),
        "application/atom+xml" => Some(FeedKind::Atom),
        "application/feed+json" | "application/json" => Some(FeedKind::Json),
        _ => None,
    }
}

fn is_comment_feed(feed: &FeedLink) -> bool {
    let title = feed.title.as_deref().unwrap_or_default();
    [title, feed.url.as_str()].iter().any(|text| text.to_lowercase().contains("comments"))
}

/// More than any normal page has. The limit exists because each link is compared with all before it.
const LINKS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(html: &str) -> String {
        let base = Url::parse("https://a.example/blog/").unwrap();
        let feeds = feeds(html.as_bytes(), None, &base);
        let one = |feed: &FeedLink| {
            let title = feed.title.as_deref().unwrap_or("-");
            format!("{:?} {} {title}", feed.kind, feed.url)
        };
        feeds.iter().map(one).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn feeds_are_found_in_order_with_comment_feeds_last() {
        let html = "<head><link rel=alternate type=application/rss+xml title='Comments' href=/c>\
                    <LINK REL='Alternate home' TYPE='application/atom+xml; charset=utf-8' HREF='atom.xml' title=' A\n'>\
                    <link rel=alternate type=application/feed+json href=//b.example/f.json>\
                    <link rel=alternate type=text/xml href=atom.xml>\
                    <link rel=stylesheet type=text/xml href=x.xsl><link rel=alternate type=text/html href=/en>\
                    <link rel=alternate type=application/rss+xml href='javascript:x'>\
                    <link rel=alternate type=application/rss+xml href='/r?a=1&amp;b=2'>";
        assert_eq!(
            found(html),
            "Atom https://a.example/blog/atom.xml A | Json https://b.example/f.json - | \
             Rss https://a.example/r?a=1&b=2 - | Rss https://a.example/c Comments"
        );
    }

    #[test]
    fn links_are_resolved_against_the_base_of_the_page() {
        let link = "<link rel=alternate type=application/rss+xml href=feed>";
        assert_eq!(found(&format!("<base href='/other/'>{link}")), "Rss https://a.example/other/feed -");
        assert_eq!(found(&format!("<base href='mailto:x'>{link}")), "Rss https://a.example/blog/feed -");
        assert_eq!(found(&format!("{link}{}", "<div>".repeat(100_000))), "Rss https://a.example/blog/feed -");
    }

    #[test]
    fn a_page_without_feeds_has_none() {
        for html in ["", "<", "<link>", "<link rel=alternate href=x>", "{}"] {
            assert_eq!(found(html), "", "{html}");
        }
    }
}

//! Turns the entries of a feed into items, whatever its dialect: identity, URL and hash.
//!
//! The fields of an entry are found by `feed_xml` and `feed_json`. An entry without a link is a problem of that entry,
//! not of the whole feed. No identity is made up: an entry is identified by its own id, or else by its link.

use comity_store::details::Markup;
use url::Url;
use xxhash_rust::xxh3::Xxh3;

use super::collector::Collector;
use super::details::DetailsBuilder;
use super::{
    FoundItem, Kind, ParsedSource, Unreadable, date, expected, feed_json, feed_xml, normalize, scan,
};

/// An entry as the feed contains it.
#[derive(Default)]
pub(super) struct Entry {
    /// `guid` of RSS, `id` of Atom and JSON Feed.
    pub(super) guid: Option<String>,
    /// Whether `guid` may be used as the link, which is the default in RSS.
    pub(super) guid_is_link: bool,
    /// `rdf:about` of RDF, for entries without a `guid`.
    pub(super) about: Option<String>,
    /// The first link that can be fetched, as an absolute URL.
    pub(super) link: Option<Url>,
    /// One line of plain text.
    pub(super) title: Option<String>,
    /// The title in another vocabulary, for entries without a title of their own.
    pub(super) other_title: Option<String>,
    pub(super) published: String,
    pub(super) updated: String,
    pub(super) summary: String,
    /// How `summary` is written; HTML by default.
    pub(super) summary_markup: Option<Markup>,
    /// The caption of an image or video, used if there is no summary.
    pub(super) caption: String,
    /// The content, which is part of the hash.
    pub(super) content: String,
    /// How `content` is written; `None` if it isn't text, and then it is not stored.
    pub(super) content_markup: Option<Markup>,
    /// The author in RSS: an email address, with or without a name.
    pub(super) author_address: String,
    /// All other details.
    pub(super) details: DetailsBuilder,
}

/// Parses the text of a feed whose URL is `base`.
pub(super) fn read(text: &str, base: &Url) -> Result<ParsedSource, Unreadable> {
    let mut collector = Collector::default();
    match text.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}') {
        json if json.starts_with('{') => feed_json::read(json, base, &mut collector)?,
        _ if text.contains('<') => feed_xml::read(text, base, &mut collector)?,
        _ => return Err(not_a_feed(format!("plain text; {LOOK}"))),
    }
    Ok(collector.finish())
}

/// The error for a page where a feed was expected.
pub(super) fn html_instead(text: &str) -> Unreadable {
    let titled = scan::title(text).map(|title| format!(" titled {title:?}")).unwrap_or_default();
    not_a_feed(format!("an HTML page{titled}; comity sources add finds the feed of a page"))
}

pub(super) fn not_a_feed(found: String) -> Unreadable {
    Unreadable::Other { expected: expected(Kind::Feed), found }
}

impl Entry {
    /// Adds this entry to `collector` as an item, or as a problem if it has no link.
    pub(super) fn finish(mut self, collector: &mut Collector) {
        self.title = self.title.take().or(self.other_title.take());
        let has_text = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.trim().is_empty());
        if !has_text(&self.guid) && has_text(&self.about) {
            (self.guid, self.guid_is_link) = (self.about.take(), true);
        }
        let guid = self.guid.as_deref().map(str::trim).filter(|guid| !guid.is_empty());
        // A guid is only a link if it is an absolute URL; otherwise it is just an identifier.
        let guid_link =
            || guid.filter(|_| self.guid_is_link).and_then(|guid| normalize::fetchable(guid, None));
        let Some(url) = self.link.clone().or_else(guid_link) else {
            let title = self.title.map(|title| format!(" {title:?}")).unwrap_or_default();
            return collector
                .add_problem(format!("entry {}{title}: no http or https link", collector.number()));
        };
        let identity = match guid {
            Some(guid) => normalize::by_guid(guid),
            None => normalize::by_link(&url),
        };
        let published_at = date::read(&self.published).or_else(|| date::read(&self.updated));
        let hash = self.hash(&url);
        let summary = match self.summary.is_empty() {
            true => (self.caption.as_str(), Markup::Text),
            false => (self.summary.as_str(), self.summary_markup.unwrap_or(Markup::Html)),
        };
        let content =
            self.content_markup.map_or(("", Markup::Text), |markup| (self.content.as_str(), markup));
        let mut details = self.details;
        if !details.has_author() {
            details.author(&self.author_address);
        }
        let details = details.build(summary, content);
        collector.add_item(FoundItem { identity, url, title: self.title, published_at, hash, details });
    }

    fn hash(&self, url: &Url) -> u64 {
        let mut hash = Xxh3::new();
        let title = self.title.as_deref().unwrap_or_default();
        for field in [title, url.as_str(), &self.published, &self.updated, &self.summary, &self.content] {
            // With the length, text that moves from one field to the next changes the hash.
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field.as_bytes());
        }
        hash.digest()
    }
}

/// What to do about a response if there is no better advice.
pub(super) const LOOK: &str = "open its URL in a browser";

/// Parses feeds for the tests of every dialect.
#[cfg(test)]
pub(super) mod test_support {
    use super::*;

    /// An RSS feed of these items.
    pub(in crate::connectors) fn rss(items: &str) -> String {
        format!("<rss version='2.0'><channel><title>T</title>{items}</channel></rss>")
    }

    pub(in crate::connectors) fn parsed(text: &str) -> ParsedSource {
        read(text, &Url::parse("https://a.example/dir/feed.xml").unwrap()).unwrap()
    }

    /// The title; then identity, URL, title and date of each item; then problems and notes. Or the error.
    pub(in crate::connectors) fn outline(text: &str) -> String {
        let parsed = match read(text, &Url::parse("https://a.example/dir/feed.xml").unwrap()) {
            Ok(parsed) => parsed,
            Err(error) => return error.to_string(),
        };
        let items = parsed.items.iter().map(|found| {
            let title = found.title.as_deref().unwrap_or("-");
            let date = found.published_at.map_or("-".to_owned(), |at| at.to_string());
            format!("{} {} {title} {date}", found.identity, found.url)
        });
        let title = parsed.title.clone().unwrap_or("-".to_owned());
        std::iter::once(title)
            .chain(items)
            .chain(parsed.problems.clone())
            .chain(parsed.notes.clone())
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::{outline, parsed, rss};

    #[test]
    fn links_are_resolved_and_missing_ones_are_problems() {
        for (items, expected) in [
            ("<item><link>../x</link></item>", "T | link:https://a.example/x https://a.example/x - -"),
            (
                "<item xml:base='https://b.example/y/'><link>x</link></item>",
                "T | link:https://b.example/y/x https://b.example/y/x - -",
            ),
            (
                "<item><link/><guid>https://a.example/g</guid></item>",
                "T | guid:https://a.example/g https://a.example/g - -",
            ),
            (
                "<item><guid isPermaLink='true'>https://a.example/g</guid></item>",
                "T | guid:https://a.example/g https://a.example/g - -",
            ),
            (
                "<item><title>A \"b\"</title><guid isPermaLink='false'>https://a.example/g</guid></item>",
                "T | entry 1 \"A \\\"b\\\"\": no http or https link",
            ),
            ("<item><guid>7</guid></item>", "T | entry 1: no http or https link"),
            (
                "<item><link>javascript:x</link></item><item><link>/2</link></item>",
                "T | link:https://a.example/2 https://a.example/2 - - | entry 1: no http or https link",
            ),
            (
                "<item><link>mailto:x@y</link><link>/2</link></item>",
                "T | link:https://a.example/2 https://a.example/2 - -",
            ),
        ] {
            assert_eq!(outline(&rss(items)), expected, "{items}");
        }
        let nested = "<feed xml:base='https://b.example/'><title>T</title><entry xml:base='c/'><link href='d'/></entry>\
                      <entry><link href='e'/></entry></feed>";
        assert_eq!(
            outline(nested),
            "T | link:https://b.example/c/d https://b.example/c/d - - | link:https://b.example/e https://b.example/e - -"
        );
    }

    #[test]
    fn items_with_the_same_identity_are_merged() {
        let items = "<item><guid>g</guid><link>/1?utm_source=x</link></item><item><guid>g</guid><link>/1#top</link></item>\
                     <item><link>/3?utm_source=x</link></item><item><link>/3#top</link></item>";
        assert_eq!(
            outline(&rss(items)),
            "T | guid:g https://a.example/1?utm_source=x - - | link:https://a.example/3 https://a.example/3?utm_source=x - -"
        );
    }

    /// Regression: only the first of such entries was found, and the others never.
    #[test]
    fn a_guid_with_several_links_is_not_an_identity() {
        let items = |order: [u8; 4]| {
            let item = |n: u8| match n {
                3 => "<item><guid>h</guid><link>/3</link></item>".to_owned(),
                _ => format!("<item><guid>g</guid><link>/{n}</link></item>"),
            };
            order.map(item).concat()
        };
        let note = "guid:g is used for 2 links: these entries are identified by their links instead";
        assert_eq!(
            outline(&rss(&items([1, 2, 3, 1]))),
            format!(
                "T | link:https://a.example/1 https://a.example/1 - - | link:https://a.example/2 https://a.example/2 - - \
                 | guid:h https://a.example/3 - - | {note}"
            )
        );
        // The identities do not depend on the order.
        let identities = |text: &str| {
            let mut all: Vec<_> =
                parsed(text).items.into_iter().map(|found| (found.url, found.identity)).collect();
            all.sort();
            all
        };
        assert_eq!(identities(&rss(&items([1, 2, 3, 1]))), identities(&rss(&items([2, 1, 1, 3]))));
    }

    #[test]
    fn only_a_changed_entry_gets_a_new_hash() {
        let item = |title: &str, text: &str| {
            format!(
                "<item><guid>{title}</guid><title>{title}</title><link>/x</link><description>{text}</description></item>"
            )
        };
        let hashes = |items: &[String]| {
            parsed(&rss(&items.concat())).items.iter().map(|found| found.hash).collect::<Vec<_>>()
        };
        let before = hashes(&[item("a", "x"), item("b", "y")]);
        assert_eq!(hashes(&[item("a", "x"), item("b", "y")]), before);
        let turned = hashes(&[item("b", "y"), item("a", "x")]);
        assert_eq!((turned[0], turned[1]), (before[1], before[0]));
        let changed = hashes(&[item("a", "x"), item("b", "z")]);
        assert_eq!((changed[0], changed[1] == before[1]), (before[0], false));
        let moved = parsed(&rss("<item><link>/x</link><description>ab</description></item>")).items[0].hash;
        let other = parsed(&rss("<item><link>/x</link><title>a</title><description>b</description></item>"))
            .items[0]
            .hash;
        assert_ne!(moved, other);
        let linked = |href: &str| {
            format!(
                "<feed><entry><link href='/x'/><content type='xhtml'><a href='{href}'>x</a></content></entry></feed>"
            )
        };
        assert_ne!(parsed(&linked("1")).items[0].hash, parsed(&linked("2")).items[0].hash);
    }

    #[test]
    fn the_error_names_what_was_found_instead_of_a_feed() {
        for (text, expected) in [
            (
                "<!doctype html><html><head><title>Login</title></head><br></html>",
                "not a feed: the response is an HTML page titled \"Login\"; comity sources add finds the feed of a page",
            ),
            ("<urlset/>", "not a feed: the response is a sitemap; add it as a sitemap instead"),
            ("<opml/>", "not a feed: the response is XML that starts with <opml>; open its URL in a browser"),
            ("Not found", "not a feed: the response is plain text; open its URL in a browser"),
            ("<rss/>", "not a feed: the response is XML without a channel; open its URL in a browser"),
            ("<rss><channel>", "not a feed: XML error at byte 14: the document ends with 2 tags open"),
        ] {
            assert_eq!(outline(text), expected, "{text}");
        }
        assert_eq!(outline("<rss><channel><title>Nothing yet</title></channel></rss>"), "Nothing yet");
    }
}

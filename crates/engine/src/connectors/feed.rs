//! Items of a feed, whatever its dialect: what an entry's own words make of its identity, address and hash.
//!
//! Which words an entry has is for `feed_xml` and `feed_json` to find. An entry that leads nowhere is a
//! problem of that entry and never of the feed. No identity is made up: an entry has the one it was given, or
//! its link.

use comity_store::details::Markup;
use url::Url;
use xxhash_rust::xxh3::Xxh3;

use super::details::Gathered;
use super::gather::Gather;
use super::{Found, Harvest, Kind, Unreadable, date, expected, feed_json, feed_xml, glance, normalise};

/// An entry as it stands in the feed.
#[derive(Default)]
pub(super) struct Entry {
    /// `guid` of RSS, `id` of Atom and JSON Feed.
    pub(super) guid: Option<String>,
    /// Whether `guid` may be used as the link: by RSS it is one unless it says otherwise.
    pub(super) guid_is_link: bool,
    /// `rdf:about` of RDF, for entries that have no `guid`.
    pub(super) about: Option<String>,
    /// The first link that can be fetched, resolved.
    pub(super) link: Option<Url>,
    /// One line of plain text.
    pub(super) title: Option<String>,
    /// The title by another vocabulary, for entries that have no other.
    pub(super) other_title: Option<String>,
    pub(super) published: String,
    pub(super) updated: String,
    pub(super) summary: String,
    /// HTML where nobody says how it is written.
    pub(super) summary_markup: Option<Markup>,
    /// A summary for want of a better one.
    pub(super) caption: String,
    /// As it is compared with what it was before,
    pub(super) content: String,
    /// and as it is kept; not at all when nobody could read it.
    pub(super) content_markup: Option<Markup>,
    /// The author of RSS: an address, with or without a name.
    pub(super) address: String,
    /// Everything else that is kept.
    pub(super) gathered: Gathered,
}

/// Reads the text of a feed whose address is `base`.
pub(super) fn read(text: &str, base: &Url) -> Result<Harvest, Unreadable> {
    let mut gather = Gather::default();
    match text.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}') {
        json if json.starts_with('{') => feed_json::read(json, base, &mut gather)?,
        _ if text.contains('<') => feed_xml::read(text, base, &mut gather)?,
        _ => return Err(not_a_feed(format!("plain text; {LOOK}"))),
    }
    Ok(gather.done())
}

/// The error for a page that stands where a feed should.
pub(super) fn html_instead(text: &str) -> Unreadable {
    let titled = glance::title(text).map(|title| format!(" titled {title:?}")).unwrap_or_default();
    not_a_feed(format!("an HTML page{titled}; comity sources add finds the feed of a page"))
}

pub(super) fn not_a_feed(found: String) -> Unreadable {
    Unreadable::Other { expected: expected(Kind::Feed), found }
}

impl Entry {
    /// Puts the item that this entry is into `gather`, or says why it is none.
    pub(super) fn settle(mut self, gather: &mut Gather) {
        self.title = self.title.take().or(self.other_title.take());
        let said = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.trim().is_empty());
        if !said(&self.guid) && said(&self.about) {
            (self.guid, self.guid_is_link) = (self.about.take(), true);
        }
        let guid = self.guid.as_deref().map(str::trim).filter(|guid| !guid.is_empty());
        // A guid is a whole address or none: one that looks relative is a name.
        let guid_link =
            || guid.filter(|_| self.guid_is_link).and_then(|guid| normalise::fetchable(guid, None));
        let Some(url) = self.link.clone().or_else(guid_link) else {
            let title = self.title.map(|title| format!(" {title:?}")).unwrap_or_default();
            return gather.problem(format!("entry {}{title}: no http or https link", gather.number()));
        };
        let identity = match guid {
            Some(guid) => normalise::by_guid(guid),
            None => normalise::by_link(&url),
        };
        let published_at = date::read(&self.published).or_else(|| date::read(&self.updated));
        let hash = self.hash(&url);
        let summary = match self.summary.is_empty() {
            true => (self.caption.as_str(), Markup::Text),
            false => (self.summary.as_str(), self.summary_markup.unwrap_or(Markup::Html)),
        };
        let content =
            self.content_markup.map_or(("", Markup::Text), |markup| (self.content.as_str(), markup));
        let mut gathered = self.gathered;
        if !gathered.has_author() {
            gathered.author(&self.address);
        }
        let details = gathered.done(summary, content);
        gather.found(Found { identity, url, title: self.title, published_at, hash, details });
    }

    fn hash(&self, url: &Url) -> u64 {
        let mut hash = Xxh3::new();
        let title = self.title.as_deref().unwrap_or_default();
        for field in [title, url.as_str(), &self.published, &self.updated, &self.summary, &self.content] {
            // The length keeps words from moving between fields unseen.
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field.as_bytes());
        }
        hash.digest()
    }
}

/// What to do about an answer of which nothing better can be said.
pub(super) const LOOK: &str = "look at its address in a browser";

/// Feeds in short, for the tests of every dialect.
#[cfg(test)]
pub(super) mod told {
    use super::*;

    /// An RSS feed of these items.
    pub(in crate::connectors) fn rss(items: &str) -> String {
        format!("<rss version='2.0'><channel><title>T</title>{items}</channel></rss>")
    }

    pub(in crate::connectors) fn harvest(text: &str) -> Harvest {
        read(text, &Url::parse("https://a.example/dir/feed.xml").unwrap()).unwrap()
    }

    /// Title, then identity, address, title and date of each item, then problems and notes; or the error.
    pub(in crate::connectors) fn told(text: &str) -> String {
        let harvest = match read(text, &Url::parse("https://a.example/dir/feed.xml").unwrap()) {
            Ok(harvest) => harvest,
            Err(error) => return error.to_string(),
        };
        let items = harvest.items.iter().map(|found| {
            let title = found.title.as_deref().unwrap_or("-");
            let date = found.published_at.map_or("-".to_owned(), |at| at.to_string());
            format!("{} {} {title} {date}", found.identity, found.url)
        });
        let title = harvest.title.clone().unwrap_or("-".to_owned());
        std::iter::once(title)
            .chain(items)
            .chain(harvest.problems.clone())
            .chain(harvest.notes.clone())
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::told::{harvest, rss, told};

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
            assert_eq!(told(&rss(items)), expected, "{items}");
        }
        let nested = "<feed xml:base='https://b.example/'><title>T</title><entry xml:base='c/'><link href='d'/></entry>\
                      <entry><link href='e'/></entry></feed>";
        assert_eq!(
            told(nested),
            "T | link:https://b.example/c/d https://b.example/c/d - - | link:https://b.example/e https://b.example/e - -"
        );
    }

    #[test]
    fn an_identity_stands_once() {
        let items = "<item><guid>g</guid><link>/1?utm_source=x</link></item><item><guid>g</guid><link>/1#top</link></item>\
                     <item><link>/3?utm_source=x</link></item><item><link>/3#top</link></item>";
        assert_eq!(
            told(&rss(items)),
            "T | guid:g https://a.example/1?utm_source=x - - | link:https://a.example/3 https://a.example/3?utm_source=x - -"
        );
    }

    /// Only the first of such entries was found, and the others never.
    #[test]
    fn a_guid_with_several_links_is_no_identity() {
        let items = |order: [u8; 4]| {
            let item = |n: u8| match n {
                3 => "<item><guid>h</guid><link>/3</link></item>".to_owned(),
                _ => format!("<item><guid>g</guid><link>/{n}</link></item>"),
            };
            order.map(item).concat()
        };
        let note = "guid:g stands for 2 links: its entries are told apart by their links";
        assert_eq!(
            told(&rss(&items([1, 2, 3, 1]))),
            format!(
                "T | link:https://a.example/1 https://a.example/1 - - | link:https://a.example/2 https://a.example/2 - - \
                 | guid:h https://a.example/3 - - | {note}"
            )
        );
        // Whichever comes first, each keeps its identity.
        let identities = |text: &str| {
            let mut all: Vec<_> =
                harvest(text).items.into_iter().map(|found| (found.url, found.identity)).collect();
            all.sort();
            all
        };
        assert_eq!(identities(&rss(&items([1, 2, 3, 1]))), identities(&rss(&items([2, 1, 1, 3]))));
    }

    #[test]
    fn a_changed_entry_has_another_hash_and_its_neighbours_do_not() {
        let item = |title: &str, text: &str| {
            format!(
                "<item><guid>{title}</guid><title>{title}</title><link>/x</link><description>{text}</description></item>"
            )
        };
        let hashes = |items: &[String]| {
            harvest(&rss(&items.concat())).items.iter().map(|found| found.hash).collect::<Vec<_>>()
        };
        let before = hashes(&[item("a", "x"), item("b", "y")]);
        assert_eq!(hashes(&[item("a", "x"), item("b", "y")]), before);
        let turned = hashes(&[item("b", "y"), item("a", "x")]);
        assert_eq!((turned[0], turned[1]), (before[1], before[0]));
        let changed = hashes(&[item("a", "x"), item("b", "z")]);
        assert_eq!((changed[0], changed[1] == before[1]), (before[0], false));
        let moved = harvest(&rss("<item><link>/x</link><description>ab</description></item>")).items[0].hash;
        let other = harvest(&rss("<item><link>/x</link><title>a</title><description>b</description></item>"))
            .items[0]
            .hash;
        assert_ne!(moved, other);
        let linked = |href: &str| {
            format!(
                "<feed><entry><link href='/x'/><content type='xhtml'><a href='{href}'>x</a></content></entry></feed>"
            )
        };
        assert_ne!(harvest(&linked("1")).items[0].hash, harvest(&linked("2")).items[0].hash);
    }

    #[test]
    fn what_is_no_feed_says_what_it_is() {
        for (text, expected) in [
            (
                "<!doctype html><html><head><title>Login</title></head><br></html>",
                "not a feed: the answer is an HTML page titled \"Login\"; comity sources add finds the feed of a page",
            ),
            ("<urlset/>", "not a feed: the answer is a sitemap; add it as a sitemap instead"),
            (
                "<opml/>",
                "not a feed: the answer is XML that starts with <opml>; look at its address in a browser",
            ),
            ("Not found", "not a feed: the answer is plain text; look at its address in a browser"),
            ("<rss/>", "not a feed: the answer is XML without a channel; look at its address in a browser"),
            ("<rss><channel>", "not a feed: XML error at byte 14: the document ends with 2 tags open"),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
        assert_eq!(told("<rss><channel><title>Nothing yet</title></channel></rss>"), "Nothing yet");
    }
}

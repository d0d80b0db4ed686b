//! Parses RSS 0.9x to 2.0, RDF, and Atom 0.3 and 1.0 in one pass. They differ in names, but hardly in structure: a
//! channel with a title and hints, and entries with fields.
//!
//! If there is an error after the first entry, the entries before it are used and the error becomes a problem, because
//! one bad character should not hide a whole site for weeks.

use comity_store::details::Markup;
use url::Url;

use super::collector::{Collector, Room};
use super::feed::{self, Entry, LOOK};
use super::feed_fields::{Field, channel_field, entry_field};
use super::hints::RawHints;
use super::plain_title::plain_title;
use super::xml::{Part, Space, Tag, Xml, XmlError};
use super::{Kind, Unreadable, expected, normalize};
use crate::redact;

/// Parses an XML feed into `collector`.
pub(super) fn read(text: &str, base: &Url, collector: &mut Collector) -> Result<(), Unreadable> {
    let mut reading = Reading {
        collector,
        bases: vec![(0, base.clone())],
        dialect: Dialect::Rss,
        channel: Channel::NotSeen,
        authors: Vec::new(),
        entry: None,
        group: None,
        field: None,
        hints: RawHints::default(),
    };
    let mut xml = Xml::new(text);
    let end = loop {
        match xml.next() {
            Ok(Part::Open(tag)) if xml.depth() == 1 => reading.root(&tag, text)?,
            Ok(Part::Open(tag)) => {
                if reading.open(&tag, xml.depth()) == Room::None {
                    break Ok(());
                }
            }
            Ok(Part::Close) => {
                reading.close(xml.depth() + 1);
                // Anything after the root was appended by the hosting provider, not by the publisher.
                if xml.depth() == 0 {
                    break Ok(());
                }
            }
            Ok(Part::Text(text)) => reading.text(&text),
            Ok(Part::End) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let (hints, channel) = (reading.hints.parse(), reading.channel);
    collector.set_hints(hints);
    match end {
        Ok(()) if channel == Channel::NotSeen => {
            Err(feed::not_a_feed(format!("XML without a channel; {LOOK}")))
        }
        Err(XmlError { at, why }) if collector.is_empty() => {
            Err(Unreadable::Broken { expected: expected(Kind::Feed), format: "XML", at, why })
        }
        Err(XmlError { at, why }) => {
            collector
                .truncated(format!("XML error at byte {at}: {why}; only the entries before it were read"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// The state of the parser.
struct Reading<'g> {
    collector: &'g mut Collector,
    /// The base URLs for relative links, with the depth of the tags that set them.
    bases: Vec<(usize, Url)>,
    dialect: Dialect,
    channel: Channel,
    /// The authors of the feed, for entries without an author.
    authors: Vec<String>,
    entry: Option<(usize, Entry)>,
    /// The depth of a `media:group`, whose tags count as those of its entry.
    group: Option<usize>,
    field: Option<OpenField>,
    hints: RawHints,
}

/// The part of a feed that has a title and hints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channel {
    NotSeen,
    /// Open at this depth.
    Open(usize),
    Closed,
}

/// The two families of dialects. In Atom, texts have a type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Rss,
    Atom,
}

/// A field being read.
struct OpenField {
    depth: usize,
    field: Field,
    text: String,
    format: TextFormat,
    /// The markup tags that are open inside the field.
    tags: Vec<String>,
    /// Whether the current text belongs to the field: of an author, only the name is read.
    text_counts: bool,
}

/// The format of the text of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextFormat {
    /// Plain text.
    Text,
    /// HTML, escaped as text.
    Html,
    /// XHTML, as tags inside the field.
    Xhtml,
    /// Not text.
    Binary,
}

impl Reading<'_> {
    /// The root tells the family of dialects, or that this isn't a feed.
    fn root(&mut self, tag: &Tag<'_>, text: &str) -> Result<(), Unreadable> {
        match tag.name() {
            "rss" | "RDF" => {}
            "feed" => (self.channel, self.dialect) = (Channel::Open(1), Dialect::Atom),
            "channel" => self.channel = Channel::Open(1),
            "html" | "HTML" | "head" | "body" | "title" | "meta" | "script" | "div" | "p" => {
                return Err(feed::html_instead(text));
            }
            "urlset" | "sitemapindex" => {
                return Err(feed::not_a_feed("a sitemap; add it as a sitemap instead".to_owned()));
            }
            name => {
                let name = redact::text(name);
                return Err(feed::not_a_feed(format!("XML that starts with <{name}>; {LOOK}")));
            }
        }
        self.rebase(tag, 1);
        Ok(())
    }

    fn open(&mut self, tag: &Tag<'_>, depth: usize) -> Room {
        self.rebase(tag, depth);
        if let Some(open) = &mut self.field {
            open.nested(tag);
        } else if let Some((entry_depth, _)) = self.entry {
            if depth == entry_depth + 1 || self.group == Some(depth - 1) {
                self.open_entry_field(tag, depth);
            }
        } else if depth <= ENTRY_DEPTH_MAX
            && tag.space == Space::Core
            && matches!(tag.name(), "item" | "entry")
        {
            if self.channel == Channel::NotSeen {
                self.channel = Channel::Closed;
            }
            if self.collector.next_entry() == Room::None {
                return Room::None;
            }
            self.entry = Some((depth, new_entry(tag)));
        } else if depth == 2 && tag.name() == "channel" {
            self.channel = Channel::Open(2);
        } else if self.channel == Channel::Open(depth - 1) {
            self.field = channel_field(tag).map(|field| OpenField::new(depth, field, TextFormat::Text));
        }
        Room::Left
    }

    fn open_entry_field(&mut self, tag: &Tag<'_>, depth: usize) {
        if (tag.space, tag.name()) == (Space::Core, "link") {
            // Only the alternate link is the page itself; others are comments, audio or feeds.
            let rel = tag.attribute("rel").unwrap_or_default();
            match rel.trim().to_ascii_lowercase().as_str() {
                "" | "alternate" => {}
                "enclosure" => return self.enclosure(tag, "href", "length"),
                _ => return,
            }
            if let Some(href) = tag.attribute("href") {
                return self.link(&href);
            }
        }
        match (tag.space, tag.name()) {
            (Space::Core, "enclosure") => return self.enclosure(tag, "url", "length"),
            (Space::Media, "content") => return self.enclosure(tag, "url", "fileSize"),
            (Space::Media, "group") => return self.group = Some(depth),
            (Space::Core, "category") => {
                let name = |key| tag.attribute(key).filter(|name| !name.trim().is_empty());
                if let (Some(name), Some((_, entry))) =
                    (name("label").or_else(|| name("term")), &mut self.entry)
                {
                    return entry.details.category(&name);
                }
            }
            _ => {}
        }
        let format = text_format(tag, self.dialect);
        self.field = entry_field(tag).map(|field| OpenField::new(depth, field, format));
    }

    /// Adds a file to the entry.
    fn enclosure(&mut self, tag: &Tag<'_>, address: &str, length: &str) {
        let base = self.bases.last().map(|(_, base)| base);
        let url = tag.attribute(address).and_then(|text| normalize::fetchable(&text, base));
        if let (Some(url), Some((_, entry))) = (url, &mut self.entry) {
            let length = tag.attribute(length).and_then(|text| text.trim().parse().ok());
            entry.details.enclosure(&url, tag.attribute("type").as_deref(), length);
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(open) = &mut self.field {
            open.add_text(text);
        }
    }

    /// Closes the tag at `depth`.
    fn close(&mut self, depth: usize) {
        if let Some(open) = &mut self.field {
            open.close(depth);
        }
        if let Some(open) = self.field.take_if(|open| open.depth == depth) {
            self.finish_field(open);
        }
        if self.group == Some(depth) {
            self.group = None;
        }
        if let Some((_, mut entry)) = self.entry.take_if(|(entry_depth, _)| *entry_depth == depth) {
            if !entry.details.has_author() {
                self.authors.iter().for_each(|name| entry.details.author(name));
            }
            entry.finish(self.collector);
        }
        if self.channel == Channel::Open(depth) {
            self.channel = Channel::Closed;
        }
        self.bases.pop_if(|(base_depth, _)| *base_depth == depth);
    }

    fn finish_field(&mut self, OpenField { field, text, format, .. }: OpenField) {
        match field {
            Field::ChannelTitle => self.collector.set_title(plain_title(&text)),
            Field::Ttl => self.hints.ttl = Some(text),
            Field::Period => self.hints.period = Some(text),
            Field::Frequency => self.hints.frequency = Some(text),
            Field::SkipHours => self.hints.skip_hours = text,
            Field::SkipDays => self.hints.skip_days = text,
            Field::Link => self.link(&text),
            Field::Author if self.entry.is_none() => {
                // In Atom, they are the authors of entries without an author. Real feeds have only a few.
                if self.dialect == Dialect::Atom && self.authors.len() < 100 {
                    self.authors.push(text);
                }
            }
            _ => self.finish_entry_field(field, text, format),
        }
    }

    /// Stores a field of the entry. If an entry has a field twice, the first that isn't empty counts.
    fn finish_entry_field(&mut self, field: Field, text: String, format: TextFormat) {
        let Some((_, entry)) = &mut self.entry else { return };
        let first = |slot: &mut String| {
            if slot.is_empty() {
                text.trim().clone_into(slot);
            }
        };
        match field {
            Field::Guid { is_link } if entry.guid.is_none() => {
                (entry.guid, entry.guid_is_link) = (Some(text), is_link);
            }
            Field::Title => entry.title = entry.title.take().or_else(|| plain_title(&text)),
            Field::OtherTitle => {
                entry.other_title = entry.other_title.take().or_else(|| plain_title(&text));
            }
            Field::Published => first(&mut entry.published),
            Field::Updated => first(&mut entry.updated),
            Field::Summary if entry.summary.is_empty() => {
                first(&mut entry.summary);
                entry.summary_markup = format.markup().or(Some(Markup::Text));
            }
            Field::Content if entry.content.is_empty() => {
                first(&mut entry.content);
                entry.content_markup = format.markup();
            }
            Field::Caption => first(&mut entry.caption),
            // The author is a name in Atom, but an email address in RSS, where a creator is better.
            Field::Author if self.dialect == Dialect::Atom => entry.details.author(&text),
            Field::Author => first(&mut entry.author_address),
            Field::Creator => entry.details.author(&text),
            Field::Category => entry.details.category(&text),
            _ => {}
        }
    }

    fn link(&mut self, text: &str) {
        let base = self.bases.last().map(|(_, base)| base);
        if let Some((_, entry)) = &mut self.entry {
            entry.link = entry.link.take().or_else(|| normalize::fetchable(text, base));
        }
    }

    /// Uses the `xml:base` of a tag until it closes.
    fn rebase(&mut self, tag: &Tag<'_>, depth: usize) {
        let base = self.bases.last().map(|(_, base)| base);
        let url = tag.attribute("xml:base").and_then(|text| normalize::fetchable(&text, base));
        self.bases.extend(url.map(|url| (depth, url)));
    }
}

impl TextFormat {
    /// How the stored text is marked up; `None` if it isn't text and is not stored.
    fn markup(self) -> Option<Markup> {
        match self {
            Self::Text => Some(Markup::Text),
            Self::Html | Self::Xhtml => Some(Markup::Html),
            Self::Binary => None,
        }
    }
}

/// The format of the text of a tag: HTML in RSS, and what the type says in Atom.
fn text_format(tag: &Tag<'_>, dialect: Dialect) -> TextFormat {
    let kind = tag.attribute("type").filter(|_| tag.space == Space::Core);
    match (kind.as_deref().map(str::trim), dialect) {
        (Some("xhtml" | "application/xhtml+xml"), _) => TextFormat::Xhtml,
        (Some("html" | "text/html"), _) | (None | Some(""), Dialect::Rss) => TextFormat::Html,
        (None | Some("" | "text"), _) => TextFormat::Text,
        (Some(kind), _) if kind.starts_with("text/") => TextFormat::Text,
        (Some(_), Dialect::Rss) => TextFormat::Html,
        (Some(_), Dialect::Atom) => TextFormat::Binary,
    }
}

impl OpenField {
    fn new(depth: usize, field: Field, format: TextFormat) -> Self {
        Self { depth, field, text: String::new(), format, tags: Vec::new(), text_counts: true }
    }

    fn add_text(&mut self, text: &str) {
        match (self.format, self.field) {
            _ if !self.text_counts => {}
            // References were resolved, but in markup they have to be escaped again.
            (TextFormat::Xhtml, Field::Summary | Field::Content) => {
                html_escape::encode_text_to_string(text, &mut self.text);
            }
            _ => self.text.push_str(text),
        }
    }

    /// Closes a tag inside the field, or the field itself.
    fn close(&mut self, depth: usize) {
        if self.field == Field::Author && depth > self.depth {
            self.text_counts = false;
        }
        if let Some(name) = self.tags.pop()
            && !VOID.contains(&name.as_str())
        {
            self.text.push_str("</");
            self.text.push_str(&name);
            self.text.push('>');
        }
    }

    /// Handles a tag inside a field: it separates values in a list, is kept in a summary or content, and is ignored
    /// elsewhere.
    fn nested(&mut self, tag: &Tag<'_>) {
        match self.field {
            Field::Author if tag.name() == "name" => {
                self.text.clear();
                self.text_counts = true;
            }
            Field::Author => self.text_counts = false,
            Field::SkipHours | Field::SkipDays => self.text.push(' '),
            Field::Summary | Field::Content => {
                self.text.push('<');
                self.text.push_str(tag.unprefixed());
                self.text.push('>');
                self.tags.push(tag.name().to_owned());
            }
            _ => {}
        }
    }
}

/// A new entry. RDF identifies what it describes in an attribute of the tag, usually by its URL.
fn new_entry(tag: &Tag<'_>) -> Entry {
    Entry { about: tag.attribute_any_prefix("about"), ..Entry::default() }
}

/// Entries are in the root, or in the channel inside the root.
const ENTRY_DEPTH_MAX: usize = 3;
/// HTML elements without a closing tag.
const VOID: [&str; 13] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"];

#[cfg(test)]
mod tests {
    use comity_core::time::Span;

    use crate::connectors::Hints;
    use crate::connectors::feed::test_support::{outline, parsed, rss};

    #[test]
    fn every_dialect_is_parsed() {
        let date = "2026-01-05T12:00:00Z";
        for (dialect, text) in [
            (
                "RSS 0.90",
                "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
              xmlns='http://my.netscape.com/rdf/simple/0.9/'><channel><title>T</title></channel>\
              <image><title>I</title></image><item><title>One</title><link>https://a.example/1</link></item></rdf:RDF>",
            ),
            (
                "RSS 0.91",
                "<!DOCTYPE rss PUBLIC '-//Netscape//DTD RSS 0.91//EN' 'http://x/rss-0.91.dtd'>\
              <rss version='0.91'><channel><title>T</title><item><title>One</title><link>https://a.example/1</link></item>\
              </channel></rss>",
            ),
            (
                "RSS 0.92",
                "<rss version='0.92'><channel><title>T</title><image><title>I</title></image>\
              <item><enclosure url='https://a.example/x.mp3'/><title>One</title><link>https://a.example/1</link></item>\
              </channel></rss>",
            ),
            (
                "RSS 0.93",
                "<rss version='0.93'><channel><title>T</title>\
              <item><title>One</title><link>https://a.example/1</link></item></channel></rss>",
            ),
            (
                "no version",
                "<rss><channel><title>T</title></channel>\
              <item><title>One</title><link>https://a.example/1</link></item></rss>",
            ),
            (
                "RSS 2.0",
                "<rss version='2.0' xmlns:media='http://search.yahoo.com/mrss/' xmlns:atom='http://www.w3.org/2005/Atom'>\
              <channel><atom:link rel='self' href='https://a.example/feed'/><title>T</title><item><media:title>No</media:title>\
              <atom:link rel='self' href='https://a.example/no'/><link>https://a.example/1</link><title>One</title>\
              <author>A “b@c.example</author></item></channel></rss>",
            ),
        ] {
            assert_eq!(outline(text), "T | link:https://a.example/1 https://a.example/1 One -", "{dialect}");
        }
        for (dialect, text) in [
            (
                "prefixed RSS",
                "<r:rss version='2.0' xmlns:r='http://backend.userland.com/rss2' xmlns:x='urn:x'><r:channel><r:title>T</r:title>\
              <r:item><x:title>No</x:title><r:title>One</r:title><r:link>https://a.example/1</r:link>\
              <r:guid isPermaLink='false'>g</r:guid><r:pubDate>DATE</r:pubDate></r:item></r:channel></r:rss>",
            ),
            (
                "RSS with another prefix, nowhere declared",
                "<r:rss><r:channel><r:title>T</r:title><r:item><r:title>One</r:title><r:link>https://a.example/1</r:link>\
              <r:guid isPermaLink='false'>g</r:guid><r:pubDate>DATE</r:pubDate></r:item></r:channel></r:rss>",
            ),
            (
                "RSS 1.0",
                "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' xmlns='http://purl.org/rss/1.0/' \
              xmlns:dc='http://purl.org/dc/elements/1.1/'><channel><title>T</title><items><rdf:Seq/></items></channel>\
              <item rdf:about='https://a.example/1'><title>One</title><link>https://a.example/1</link>\
              <guid isPermaLink='false'>g</guid><dc:date>DATE</dc:date></item></rdf:RDF>",
            ),
            (
                "RSS 2.0",
                "<rss version='2.0'><channel><title>T</title><item><title>One</title><link>https://a.example/1</link>\
              <guid isPermaLink='false'> g\n</guid><pubDate>Mon, 05 Jan 2026 12:00:00 GMT</pubDate></item></channel></rss>",
            ),
            (
                "Atom 0.3",
                "<feed version='0.3' xmlns='http://purl.org/atom/ns#'><title mode='escaped'>T</title><entry>\
              <title>One</title><link rel='alternate' type='text/html' href='https://a.example/1'/><id>g</id>\
              <issued>DATE</issued><modified>2026-02-05T12:00:00Z</modified></entry></feed>",
            ),
            (
                "Atom 1.0",
                "<feed xmlns='http://www.w3.org/2005/Atom'><title type='html'>&lt;b&gt;T&lt;/b&gt;</title><entry>\
              <source><title>No</title><id>no</id></source><link rel='replies' href='https://a.example/no'/>\
              <link href='https://a.example/1'/><title type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'>O<b>ne</b></div></title>\
              <id>g</id><updated>DATE</updated></entry></feed>",
            ),
            (
                "prefixed Atom",
                "<a:feed xmlns:a='http://www.w3.org/2005/Atom'><a:title>T</a:title><a:entry>\
              <a:title>One</a:title><a:link href='https://a.example/1'/><a:id>g</a:id><a:published>DATE</a:published>\
              <a:updated>2026-03-05T12:00:00Z</a:updated></a:entry></a:feed>",
            ),
        ] {
            let expected = format!("T | guid:g https://a.example/1 One {date}");
            assert_eq!(outline(&text.replace("DATE", date)), expected, "{dialect}");
        }
    }

    #[test]
    fn cdata_and_entities_become_text() {
        let items = "<item><title><![CDATA[R&D <b>bold</b>]]> &nbsp;caf&eacute; &amp;amp; A & B &#8230;</title><link>/?a=1&amp;b=2</link></item>";
        assert_eq!(
            outline(&rss(items)),
            "T | link:https://a.example/?a=1&b=2 https://a.example/?a=1&b=2 R&D bold café & A & B … -"
        );
    }

    #[test]
    fn hints_are_taken_from_the_channel() {
        let text = "<rss version='2.0' xmlns:sy='http://purl.org/rss/1.0/modules/syndication/'><channel>\
            <ttl>90</ttl><sy:updatePeriod>\n hourly </sy:updatePeriod><sy:updateFrequency>2</sy:updateFrequency>\
            <skipHours><hour>0</hour><hour>23</hour></skipHours><skipDays><day>Saturday</day><day>Sunday</day></skipDays>\
            <item><link>/1</link><ttl>5</ttl></item></channel></rss>";
        let expected = Hints {
            ttl: Some(Span::from_mins(90)),
            update_every: Some(Span::from_mins(30)),
            skip_hours: 1 | 1 << 23,
            skip_days: 0b110_0000,
        };
        assert_eq!(parsed(text).hints, expected);
        assert_eq!(
            parsed(&rss("<ttl>x</ttl><item><ttl>5</ttl><link>/1</link></item>")).hints,
            Hints::default()
        );
    }

    #[test]
    fn rdf_entries_are_identified_by_rdf_about() {
        let rdf = |items: &str| {
            format!(
                "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' xmlns='http://purl.org/rss/1.0/' \
                 xmlns:dc='http://purl.org/dc/elements/1.1/'><channel><title>T</title></channel>{items}</rdf:RDF>"
            )
        };
        for (items, expected) in [
            (
                "<item rdf:about='urn:1'><title>One</title><link>/1</link></item>",
                "T | guid:urn:1 https://a.example/1 One -",
            ),
            (
                "<item rdf:about=' https://a.example/1 '/>",
                "T | guid:https://a.example/1 https://a.example/1 - -",
            ),
            (
                "<item rdf:about='urn:1'><link>/x</link></item><item rdf:about='urn:2'><link>/x</link></item>",
                "T | guid:urn:1 https://a.example/x - - | guid:urn:2 https://a.example/x - -",
            ),
            (
                "<item rdf:about='urn:1'><guid isPermaLink='false'>g</guid><link>/1</link></item>",
                "T | guid:g https://a.example/1 - -",
            ),
            (
                "<item rdf:about=''><link>/1</link></item>",
                "T | link:https://a.example/1 https://a.example/1 - -",
            ),
            (
                "<item rdf:about='urn:1'><dc:title>Two</dc:title><link>/1</link></item>",
                "T | guid:urn:1 https://a.example/1 Two -",
            ),
            (
                "<item rdf:about='urn:1'><dc:title>Two</dc:title><title>One</title><link>/1</link></item>",
                "T | guid:urn:1 https://a.example/1 One -",
            ),
        ] {
            assert_eq!(outline(&rdf(items)), expected, "{items}");
        }
    }

    /// Regression: the audio of an entry was taken for its page.
    #[test]
    fn only_the_alternate_link_is_the_page() {
        for (items, expected) in [
            (
                "<item><link rel='enclosure'>https://a.example/x.mp3</link><link>https://a.example/1</link></item>",
                "T | link:https://a.example/1 https://a.example/1 - -",
            ),
            (
                "<item><link rel='enclosure'>https://a.example/x.mp3</link></item>",
                "T | entry 1: no http or https link",
            ),
            (
                "<item><link rel=' Alternate '>https://a.example/1</link></item>",
                "T | link:https://a.example/1 https://a.example/1 - -",
            ),
            (
                "<item><link rel='enclosure'/><link rel=''>https://a.example/1</link></item>",
                "T | link:https://a.example/1 https://a.example/1 - -",
            ),
        ] {
            assert_eq!(outline(&rss(items)), expected, "{items}");
        }
    }

    /// Some hosting providers append scripts to everything they serve.
    #[test]
    fn anything_after_the_root_is_ignored() {
        let feed = format!("{}<script>x</script><html>", rss("<item><link>/1</link></item>"));
        assert_eq!(outline(&feed), "T | link:https://a.example/1 https://a.example/1 - -");
    }

    #[test]
    fn a_truncated_feed_yields_the_entries_before_the_error() {
        let whole = rss("<item><link>/1</link></item><item><link>/2</link></item>");
        let cut = whole.split("/2").next().unwrap();
        let expected = "T | link:https://a.example/1 https://a.example/1 - - | XML error at byte 84: \
                        the document ends with 4 tags open; only the entries before it were read";
        assert_eq!(outline(cut), expected);
    }
}

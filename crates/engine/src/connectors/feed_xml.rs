//! Reading RSS 0.9x to 2.0, RDF and Atom 0.3 and 1.0 in one pass. They differ in names, hardly in shape: a
//! channel with a title and hints, entries with fields.
//!
//! A feed that breaks off after its first entry gives the entries before the break and a problem, because one
//! bad letter should not hide a whole site for weeks.

use comity_store::details::Markup;
use url::Url;

use super::feed::{self, Entry, LOOK};
use super::feed_fields::{Field, channel_field, entry_field};
use super::gather::{Gather, Room};
use super::hints::Said;
use super::xml::{Broken, Part, Space, Tag, Xml};
use super::{Kind, Unreadable, expected, normalise, plain};
use crate::shown;

/// Reads a feed of XML into `gather`.
pub(super) fn read(text: &str, base: &Url, gather: &mut Gather) -> Result<(), Unreadable> {
    let mut reading = Reading {
        gather,
        bases: vec![(0, base.clone())],
        dialect: Dialect::Rss,
        channel: Channel::Unseen,
        authors: Vec::new(),
        entry: None,
        group: None,
        field: None,
        said: Said::default(),
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
                // What follows the root was put there by the host, not by the publisher.
                if xml.depth() == 0 {
                    break Ok(());
                }
            }
            Ok(Part::Text(text)) => reading.text(&text),
            Ok(Part::End) => break Ok(()),
            Err(broken) => break Err(broken),
        }
    };
    let (hints, channel) = (reading.said.hints(), reading.channel);
    gather.hints(hints);
    match end {
        Ok(()) if channel == Channel::Unseen => {
            Err(feed::not_a_feed(format!("XML without a channel; {LOOK}")))
        }
        Err(Broken { at, why }) if gather.is_empty() => {
            Err(Unreadable::Broken { expected: expected(Kind::Feed), format: "XML", at, why })
        }
        Err(Broken { at, why }) => {
            gather.cut(format!("XML error at byte {at}: {why}; only the entries before it were read"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Where in the feed the reader is.
struct Reading<'g> {
    gather: &'g mut Gather,
    /// The address that relative links start from, by the depth of the tag that set it.
    bases: Vec<(usize, Url)>,
    dialect: Dialect,
    channel: Channel,
    /// Who wrote what does not say who wrote it.
    authors: Vec<String>,
    entry: Option<(usize, Entry)>,
    /// The depth of a `media:group`, whose tags are those of its entry.
    group: Option<usize>,
    field: Option<Open>,
    said: Said,
}

/// The part of a feed that has a title and hints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channel {
    Unseen,
    /// At this depth.
    Open(usize),
    Closed,
}

/// Two families of dialects: in Atom a text says how it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Rss,
    Atom,
}

/// A field being read.
struct Open {
    depth: usize,
    field: Field,
    text: String,
    written: Written,
    /// The tags that are open inside it, of a text that is marked up by them.
    tags: Vec<String>,
    /// Of a person, only the name is read.
    reads: Reads,
}

/// How the text of a field is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// As it is read.
    Text,
    /// As HTML in a text.
    Html,
    /// As HTML in tags of its own.
    Xhtml,
    /// Not in words.
    Otherwise,
}

/// Whether the text that comes now belongs to a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    All,
    Nothing,
}

impl Reading<'_> {
    /// The root says which family of dialects this is, or that it is none.
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
                let name = shown::text(name);
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
            if self.channel == Channel::Unseen {
                self.channel = Channel::Closed;
            }
            if self.gather.next_entry() == Room::None {
                return Room::None;
            }
            self.entry = Some((depth, named(tag)));
        } else if depth == 2 && tag.name() == "channel" {
            self.channel = Channel::Open(2);
        } else if self.channel == Channel::Open(depth - 1) {
            self.field = channel_field(tag).map(|field| Open::new(depth, field, Written::Text));
        }
        Room::Left
    }

    fn open_entry_field(&mut self, tag: &Tag<'_>, depth: usize) {
        if (tag.space, tag.name()) == (Space::Core, "link") {
            // Only the alternate is the page itself; others are its comments, its sound, its feed.
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
                    return entry.gathered.category(&name);
                }
            }
            _ => {}
        }
        let written = written(tag, self.dialect);
        self.field = entry_field(tag).map(|field| Open::new(depth, field, written));
    }

    /// A file that belongs to the entry.
    fn enclosure(&mut self, tag: &Tag<'_>, address: &str, length: &str) {
        let base = self.bases.last().map(|(_, base)| base);
        let url = tag.attribute(address).and_then(|text| normalise::fetchable(&text, base));
        if let (Some(url), Some((_, entry))) = (url, &mut self.entry) {
            let length = tag.attribute(length).and_then(|text| text.trim().parse().ok());
            entry.gathered.enclosure(&url, tag.attribute("type").as_deref(), length);
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(open) = &mut self.field {
            open.words(text);
        }
    }

    /// The tag at `depth` closes.
    fn close(&mut self, depth: usize) {
        if let Some(open) = &mut self.field {
            open.close(depth);
        }
        if let Some(open) = self.field.take_if(|open| open.depth == depth) {
            self.settle_field(open);
        }
        if self.group == Some(depth) {
            self.group = None;
        }
        if let Some((_, mut entry)) = self.entry.take_if(|(entry_depth, _)| *entry_depth == depth) {
            if !entry.gathered.has_author() {
                self.authors.iter().for_each(|name| entry.gathered.author(name));
            }
            entry.settle(self.gather);
        }
        if self.channel == Channel::Open(depth) {
            self.channel = Channel::Closed;
        }
        self.bases.pop_if(|(base_depth, _)| *base_depth == depth);
    }

    fn settle_field(&mut self, Open { field, text, written, .. }: Open) {
        match field {
            Field::ChannelTitle => self.gather.title(plain::markup_line(&text)),
            Field::Ttl => self.said.ttl = Some(text),
            Field::Period => self.said.period = Some(text),
            Field::Frequency => self.said.frequency = Some(text),
            Field::SkipHours => self.said.skip_hours = text,
            Field::SkipDays => self.said.skip_days = text,
            Field::Link => self.link(&text),
            Field::Author if self.entry.is_none() => {
                // By Atom they wrote what has no author of its own. They are few, or a joke.
                if self.dialect == Dialect::Atom && self.authors.len() < 100 {
                    self.authors.push(text);
                }
            }
            _ => self.settle_entry_field(field, text, written),
        }
    }

    /// Where an entry has a field twice, the first that says something counts.
    fn settle_entry_field(&mut self, field: Field, text: String, written: Written) {
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
            Field::Title => entry.title = entry.title.take().or_else(|| plain::markup_line(&text)),
            Field::OtherTitle => {
                entry.other_title = entry.other_title.take().or_else(|| plain::markup_line(&text));
            }
            Field::Published => first(&mut entry.published),
            Field::Updated => first(&mut entry.updated),
            Field::Summary if entry.summary.is_empty() => {
                first(&mut entry.summary);
                entry.summary_markup = written.markup().or(Some(Markup::Text));
            }
            Field::Content if entry.content.is_empty() => {
                first(&mut entry.content);
                entry.content_markup = written.markup();
            }
            Field::Caption => first(&mut entry.caption),
            // Atom has people, RSS an address; who is named is better than either.
            Field::Author if self.dialect == Dialect::Atom => entry.gathered.author(&text),
            Field::Author => first(&mut entry.address),
            Field::Creator => entry.gathered.author(&text),
            Field::Category => entry.gathered.category(&text),
            _ => {}
        }
    }

    fn link(&mut self, text: &str) {
        let base = self.bases.last().map(|(_, base)| base);
        if let Some((_, entry)) = &mut self.entry {
            entry.link = entry.link.take().or_else(|| normalise::fetchable(text, base));
        }
    }

    /// Remembers the `xml:base` of a tag until it closes.
    fn rebase(&mut self, tag: &Tag<'_>, depth: usize) {
        let base = self.bases.last().map(|(_, base)| base);
        let url = tag.attribute("xml:base").and_then(|text| normalise::fetchable(&text, base));
        self.bases.extend(url.map(|url| (depth, url)));
    }
}

impl Written {
    /// How what is kept of it is written; nothing is kept of what is not in words.
    fn markup(self) -> Option<Markup> {
        match self {
            Self::Text => Some(Markup::Text),
            Self::Html | Self::Xhtml => Some(Markup::Html),
            Self::Otherwise => None,
        }
    }
}

/// How the text of a tag is written: in RSS as HTML, in Atom as it says.
fn written(tag: &Tag<'_>, dialect: Dialect) -> Written {
    let kind = tag.attribute("type").filter(|_| tag.space == Space::Core);
    match (kind.as_deref().map(str::trim), dialect) {
        (Some("xhtml" | "application/xhtml+xml"), _) => Written::Xhtml,
        (Some("html" | "text/html"), _) | (None | Some(""), Dialect::Rss) => Written::Html,
        (None | Some("" | "text"), _) => Written::Text,
        (Some(kind), _) if kind.starts_with("text/") => Written::Text,
        (Some(_), Dialect::Rss) => Written::Html,
        (Some(_), Dialect::Atom) => Written::Otherwise,
    }
}

impl Open {
    fn new(depth: usize, field: Field, written: Written) -> Self {
        Self { depth, field, text: String::new(), written, tags: Vec::new(), reads: Reads::All }
    }

    fn words(&mut self, text: &str) {
        match (self.written, self.field) {
            _ if self.reads == Reads::Nothing => {}
            // References were resolved: as markup they are needed again.
            (Written::Xhtml, Field::Summary | Field::Content) => {
                html_escape::encode_text_to_string(text, &mut self.text);
            }
            _ => self.text.push_str(text),
        }
    }

    /// A tag inside the field closes, or the field itself.
    fn close(&mut self, depth: usize) {
        if self.field == Field::Author && depth > self.depth {
            self.reads = Reads::Nothing;
        }
        if let Some(name) = self.tags.pop()
            && !VOID.contains(&name.as_str())
        {
            self.text.push_str("</");
            self.text.push_str(&name);
            self.text.push('>');
        }
    }

    /// A tag inside a field: a space between numbers, part of what marked-up text says, nothing in a title.
    fn nested(&mut self, tag: &Tag<'_>) {
        match self.field {
            Field::Author if tag.name() == "name" => {
                self.text.clear();
                self.reads = Reads::All;
            }
            Field::Author => self.reads = Reads::Nothing,
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

/// An entry that opens. RDF names what it describes in the tag itself, by its address as a rule.
fn named(tag: &Tag<'_>) -> Entry {
    Entry { about: tag.attribute_of_any("about"), ..Entry::default() }
}

/// Entries stand in the root or in the channel in it.
const ENTRY_DEPTH_MAX: usize = 3;
/// Tags of HTML that have no end.
const VOID: [&str; 13] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"];

#[cfg(test)]
mod tests {
    use comity_core::time::Span;

    use crate::connectors::Hints;
    use crate::connectors::feed::told::{harvest, rss, told};

    #[test]
    fn every_dialect_is_read() {
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
            assert_eq!(told(text), "T | link:https://a.example/1 https://a.example/1 One -", "{dialect}");
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
            assert_eq!(told(&text.replace("DATE", date)), expected, "{dialect}");
        }
    }

    #[test]
    fn cdata_and_entities_are_text() {
        let items = "<item><title><![CDATA[R&D <b>bold</b>]]> &nbsp;caf&eacute; &amp;amp; A & B &#8230;</title><link>/?a=1&amp;b=2</link></item>";
        assert_eq!(
            told(&rss(items)),
            "T | link:https://a.example/?a=1&b=2 https://a.example/?a=1&b=2 R&D bold café & A & B … -"
        );
    }

    #[test]
    fn hints_are_those_of_the_channel() {
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
        assert_eq!(harvest(text).hints, expected);
        assert_eq!(
            harvest(&rss("<ttl>x</ttl><item><ttl>5</ttl><link>/1</link></item>")).hints,
            Hints::default()
        );
    }

    #[test]
    fn what_rdf_describes_is_known_by_its_name() {
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
            assert_eq!(told(&rdf(items)), expected, "{items}");
        }
    }

    /// The sound of an entry was taken for its page.
    #[test]
    fn only_the_alternate_link_is_the_page_with_href_or_without() {
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
            assert_eq!(told(&rss(items)), expected, "{items}");
        }
    }

    /// Hosts append scripts to whatever they serve.
    #[test]
    fn what_follows_the_root_is_not_read() {
        let feed = format!("{}<script>x</script><html>", rss("<item><link>/1</link></item>"));
        assert_eq!(told(&feed), "T | link:https://a.example/1 https://a.example/1 - -");
    }

    #[test]
    fn a_feed_that_breaks_off_gives_what_came_before() {
        let whole = rss("<item><link>/1</link></item><item><link>/2</link></item>");
        let cut = whole.split("/2").next().unwrap();
        let expected = "T | link:https://a.example/1 https://a.example/1 - - | XML error at byte 84: \
                        the document ends with 4 tags open; only the entries before it were read";
        assert_eq!(told(cut), expected);
    }
}

//! Writes sources as OPML 2.0, for feed readers and other Comity installations. Reading is in `opml`.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use comity_store::sources::Kind;
use comity_store::tasks::Lead;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use super::collector::cleaned;
use super::opml::{CADENCE, KIND, LEAD, MIN_INTERVAL, OFF};
use super::{FOLDERS_MAX, Switches};

/// A source to be exported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportedSource {
    /// The URL. It is written completely, including passwords.
    pub url: String,
    /// The name; without one, the URL is used.
    pub name: Option<String>,
    /// The kind; a feed by default.
    pub kind: Option<Kind>,
    /// Where its URL comes from, which is preserved when it is imported again.
    pub lead: Lead,
    /// The page of a feed.
    pub html_url: Option<String>,
    /// The folders it is in, outermost first.
    pub folder: Vec<Arc<str>>,
    /// How often to fetch it, as people write it: `8h`.
    pub cadence: Option<String>,
    /// The minimum time between two scrapes, in decimal seconds.
    pub min_interval: Option<String>,
    /// What is switched on, which is preserved when it is imported again.
    pub switches: Switches,
}

/// Writes an OPML document. Feeds become subscriptions that every feed reader understands. Other kinds become links,
/// which feed readers ignore and [`super::read`] recognizes. The sources of a folder are grouped at the position of the
/// first of them. Control characters are left out.
pub fn write_opml(sources: &[ExportedSource], title: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    let mut writer = Writer::new_with_indent(&mut out, b' ', 2);
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    writer.write_event(Event::Start(BytesStart::new("opml").with_attributes([("version", "2.0")])))?;
    writer.write_event(Event::Start(BytesStart::new("head")))?;
    let title = cleaned(title).unwrap_or_default();
    writer.create_element("title").write_text_content(BytesText::new(&title))?;
    writer.write_event(Event::End(BytesEnd::new("head")))?;
    writer.write_event(Event::Start(BytesStart::new("body")))?;
    let mut root = Folder::default();
    for source in sources {
        root.add(source);
    }
    root.write(&mut writer)?;
    writer.write_event(Event::End(BytesEnd::new("body")))?;
    writer.write_event(Event::End(BytesEnd::new("opml")))?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Sources and folders in the order in which they were added.
#[derive(Default)]
struct Folder<'s> {
    content: Vec<Content<'s>>,
}

enum Content<'s> {
    Source(&'s ExportedSource),
    Folder(String, Folder<'s>),
}

impl<'s> Folder<'s> {
    fn add(&mut self, source: &'s ExportedSource) {
        let mut folder = self;
        for name in source.folder.iter().filter_map(|name| cleaned(name)).take(FOLDERS_MAX) {
            folder = folder.subfolder(name);
        }
        folder.content.push(Content::Source(source));
    }

    /// The subfolder with this name, which is created if it doesn't exist.
    fn subfolder(&mut self, name: String) -> &mut Self {
        let is_it = |content: &Content<'_>| matches!(content, Content::Folder(known, _) if *known == name);
        let at = self.content.iter().position(is_it).unwrap_or_else(|| {
            self.content.push(Content::Folder(name.clone(), Self::default()));
            self.content.len() - 1
        });
        match &mut self.content[at] {
            Content::Folder(_, folder) => folder,
            Content::Source(_) => unreachable!("a folder was found or added there"),
        }
    }

    fn write(&self, writer: &mut Writer<&mut BufWriter<&mut dyn Write>>) -> io::Result<()> {
        for content in &self.content {
            match content {
                Content::Source(source) => writer.write_event(Event::Empty(outline(source)))?,
                Content::Folder(name, folder) => {
                    let tag = BytesStart::new("outline");
                    let names = [("text", name.as_str()), ("title", name.as_str())];
                    writer.write_event(Event::Start(tag.with_attributes(names)))?;
                    folder.write(writer)?;
                    writer.write_event(Event::End(BytesEnd::new("outline")))?;
                }
            }
        }
        Ok(())
    }
}

fn outline(source: &ExportedSource) -> BytesStart<'static> {
    let url = cleaned(&source.url).unwrap_or_default();
    let name = source.name.as_deref().and_then(cleaned);
    let name = name.as_deref().unwrap_or(&url);
    let kind = source.kind.filter(|kind| *kind != Kind::Feed);
    let mut outline = BytesStart::new("outline");
    outline.push_attribute(("type", if kind.is_some() { "link" } else { "rss" }));
    outline.push_attribute(("text", name));
    outline.push_attribute(("title", name));
    match kind {
        Some(kind) => outline.extend_attributes([("url", url.as_str()), (KIND, kind.as_str())]),
        None => outline.extend_attributes([("xmlUrl", url.as_str())]),
    };
    if source.lead == Lead::Remote {
        outline.push_attribute((LEAD, Lead::Remote.as_str()));
    }
    let also = [
        ("htmlUrl", &source.html_url),
        (CADENCE, &source.cadence),
        (MIN_INTERVAL, &source.min_interval),
        (OFF, &source.switches.written()),
    ];
    for (name, value) in also {
        if let Some(value) = value.as_deref().and_then(cleaned) {
            outline.push_attribute((name, value.as_str()));
        }
    }
    outline
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str, name: Option<&str>, kind: Option<&str>, html_url: Option<&str>) -> ExportedSource {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (name, kind, html_url) = (owned(name), kind.and_then(Kind::parse), owned(html_url));
        ExportedSource { url: url.to_owned(), name, kind, html_url, ..ExportedSource::default() }
    }

    #[test]
    fn feeds_become_subscriptions_and_other_kinds_links() {
        let sources = [
            source(
                "http://a.example/?x&y",
                Some("<A> \"&\" 'Ä'\u{1}\n"),
                Some("feed"),
                Some("http://a.example/"),
            ),
            source("http://b.example/", None, None, None),
            source("http://c.example/s.xml", Some("C"), Some("sitemap"), None),
        ];
        let mut out = Vec::new();
        write_opml(&sources, "Mine & yours\u{0}", &mut out).unwrap();
        let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<opml version="2.0">
  <head>
    <title>Mine &amp; yours</title>
  </head>
  <body>
    <outline type="rss" text="&lt;A&gt; &quot;&amp;&quot; &apos;Ä&apos;" title="&lt;A&gt; &quot;&amp;&quot; &apos;Ä&apos;" xmlUrl="http://a.example/?x&amp;y" htmlUrl="http://a.example/"/>
    <outline type="rss" text="http://b.example/" title="http://b.example/" xmlUrl="http://b.example/"/>
    <outline type="link" text="C" title="C" url="http://c.example/s.xml" comityKind="sitemap"/>
  </body>
</opml>
"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn sources_are_written_in_their_folders() {
        let source = |url: &str, folder: &[&str]| ExportedSource {
            url: url.to_owned(),
            folder: folder.iter().map(|name| Arc::from(*name)).collect(),
            cadence: Some("8h".to_owned()),
            min_interval: Some("2.5".to_owned()),
            ..ExportedSource::default()
        };
        let sources = [
            source("http://a.example/", &["News & more", "Local"]),
            source("http://b.example/", &[]),
            source("http://c.example/", &["News & more"]),
            source("http://d.example/", &["News & more", "", "Local"]),
        ];
        let mut out = Vec::new();
        write_opml(&sources, "T", &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches("</outline>").count(), 2, "{out}");
        let order: Vec<_> =
            ["Local", "//a.", "//d.", "//c.", "//b."].iter().map(|name| out.find(name).unwrap()).collect();
        assert!(order.is_sorted(), "{out}");
        assert_eq!(out.matches("text=\"News &amp; more\"").count(), 1, "{out}");
        assert_eq!(out.matches("comityCadence=\"8h\" comityMinInterval=\"2.5\"").count(), 4, "{out}");
    }

    #[test]
    fn a_failed_write_is_an_error() {
        let mut full: [u8; 10] = [0; 10];
        assert!(write_opml(&[], "x", &mut full.as_mut_slice()).is_err());
    }
}

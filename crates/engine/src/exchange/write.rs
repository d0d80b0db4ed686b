//! Writing sources as OPML 2.0, for feed readers and for another Comity. Reading it back is in `opml`.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use comity_store::sources::Kind;
use comity_store::tasks::Lead;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use super::FOLDERS_MAX;
use super::gather::tidied;
use super::opml::{CADENCE, KIND, LEAD, MIN_INTERVAL};

/// A source to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listed {
    /// Where it is fetched. It is written whole: a list with passwords in its URLs has passwords in it.
    pub url: String,
    /// What it is called; its URL stands in the place of a name that is missing.
    pub name: Option<String>,
    /// What it is; none is a feed.
    pub kind: Option<Kind>,
    /// Who led to it; another Comity goes by that (B76).
    pub lead: Lead,
    /// The page that a feed belongs to.
    pub html_url: Option<String>,
    /// The folders it is in, the outermost first.
    pub folder: Vec<Arc<str>>,
    /// How often it is worth asking, as people write it: `8h`.
    pub cadence: Option<String>,
    /// The least time between two scrapes, in decimal seconds.
    pub min_interval: Option<String>,
}

/// Writes an OPML document. Feeds are outlines that every reader subscribes to; other kinds are links, which they
/// leave alone and [`super::read`] knows again. Sources of one folder stand together, where the first of them does.
/// Control characters are left out.
pub fn write_opml(sources: &[Listed], title: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    let mut writer = Writer::new_with_indent(&mut out, b' ', 2);
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    writer.write_event(Event::Start(BytesStart::new("opml").with_attributes([("version", "2.0")])))?;
    writer.write_event(Event::Start(BytesStart::new("head")))?;
    let title = tidied(title).unwrap_or_default();
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

/// Sources and folders in the order in which they came.
#[derive(Default)]
struct Folder<'s> {
    content: Vec<Content<'s>>,
}

enum Content<'s> {
    Source(&'s Listed),
    Folder(String, Folder<'s>),
}

impl<'s> Folder<'s> {
    fn add(&mut self, source: &'s Listed) {
        let mut folder = self;
        for name in source.folder.iter().filter_map(|name| tidied(name)).take(FOLDERS_MAX) {
            folder = folder.within(name);
        }
        folder.content.push(Content::Source(source));
    }

    /// The folder of this name in this one.
    fn within(&mut self, name: String) -> &mut Self {
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

fn outline(source: &Listed) -> BytesStart<'static> {
    let url = tidied(&source.url).unwrap_or_default();
    let name = source.name.as_deref().and_then(tidied);
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
    let also =
        [("htmlUrl", &source.html_url), (CADENCE, &source.cadence), (MIN_INTERVAL, &source.min_interval)];
    for (name, value) in also {
        if let Some(value) = value.as_deref().and_then(tidied) {
            outline.push_attribute((name, value.as_str()));
        }
    }
    outline
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(url: &str, name: Option<&str>, kind: Option<&str>, html_url: Option<&str>) -> Listed {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (name, kind, html_url) = (owned(name), kind.and_then(Kind::parse), owned(html_url));
        Listed { url: url.to_owned(), name, kind, html_url, ..Listed::default() }
    }

    #[test]
    fn feeds_are_subscriptions_and_the_rest_are_links() {
        let sources = [
            listed(
                "http://a.example/?x&y",
                Some("<A> \"&\" 'Ä'\u{1}\n"),
                Some("feed"),
                Some("http://a.example/"),
            ),
            listed("http://b.example/", None, None, None),
            listed("http://c.example/s.xml", Some("C"), Some("sitemap"), None),
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
    fn sources_stand_in_their_folders() {
        let source = |url: &str, folder: &[&str]| Listed {
            url: url.to_owned(),
            folder: folder.iter().map(|name| Arc::from(*name)).collect(),
            cadence: Some("8h".to_owned()),
            min_interval: Some("2.5".to_owned()),
            ..Listed::default()
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
    fn an_output_that_fails_is_an_error() {
        let mut full: [u8; 10] = [0; 10];
        assert!(write_opml(&[], "x", &mut full.as_mut_slice()).is_err());
    }
}

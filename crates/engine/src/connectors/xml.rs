//! Reads XML part by part, within limits, and as leniently as possible without guessing.
//!
//! Entities declared in a document are never resolved, so there can be no entity bombs: a `DOCTYPE` is skipped, and
//! references to its entities stay as written. HTML entities are resolved although XML does not define them, and a lone
//! `&` is an ampersand. What the tags mean is up to the parsers of the formats.

use std::borrow::Cow;

use quick_xml::NsReader;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{QName, ResolveResult};

/// A document being read.
pub(super) struct Xml<'a> {
    reader: NsReader<&'a [u8]>,
    depth: usize,
    /// The namespace or undeclared prefix of the root, if it has one.
    root: Option<RootSpace>,
}

/// The namespace of a root element, or its undeclared prefix.
#[derive(Debug, PartialEq, Eq)]
enum RootSpace {
    Namespace(String),
    Prefix(String),
}

/// What comes next in a document.
pub(super) enum Part<'a> {
    /// A tag opens; an empty element opens and closes.
    Open(Tag<'a>),
    /// The innermost tag closes.
    Close,
    /// Text, with references resolved.
    Text(Cow<'a, str>),
    /// The end of the document, with every tag closed.
    End,
}

/// An opening tag.
pub(super) struct Tag<'a> {
    /// The vocabulary of its name.
    pub(super) space: Space,
    start: BytesStart<'a>,
}

/// The vocabularies that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// RSS, Atom, sitemaps: the vocabulary of the document itself.
    Core,
    DublinCore,
    Content,
    Syndication,
    /// Media RSS.
    Media,
    /// iTunes podcasts.
    Podcast,
    Other,
}

/// Where and why a document can't be read any further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct XmlError {
    pub(super) at: u64,
    pub(super) why: String,
}

impl<'a> Xml<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut reader = NsReader::from_str(text);
        let config = reader.config_mut();
        config.expand_empty_elements = true;
        config.allow_dangling_amp = true;
        Self { reader, depth: 0, root: None }
    }

    /// The number of open tags: 1 right after the root was opened.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn next(&mut self) -> Result<Part<'a>, XmlError> {
        loop {
            let (namespace, event) = match self.reader.read_resolved_event() {
                Ok(read) => read,
                Err(quick_xml::Error::Namespace(_)) => {
                    return Err(
                        self.error("too many namespaces, or an invalid namespace declaration".to_owned())
                    );
                }
                Err(error) => {
                    let why = error.to_string();
                    return Err(XmlError { at: self.reader.error_position(), why });
                }
            };
            match event {
                Event::Start(start) => {
                    if self.depth == 0 {
                        self.root = RootSpace::read(&namespace);
                    }
                    let space = space(&namespace, &start, self.root.as_ref());
                    self.depth += 1;
                    if self.depth > DEPTH_MAX {
                        return Err(self.error(format!("tags nested more than {DEPTH_MAX} deep")));
                    }
                    return Ok(Part::Open(Tag { space, start }));
                }
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Part::Close);
                }
                Event::Text(text) => return Ok(Part::Text(text.into_inner())),
                Event::CData(text) => return Ok(Part::Text(text.into_inner())),
                Event::GeneralRef(name) => {
                    let reference = format!("&{};", &*name);
                    let resolved = html_escape::decode_html_entities(&reference).into_owned();
                    return Ok(Part::Text(Cow::Owned(resolved)));
                }
                Event::Eof if self.depth > 0 => {
                    return Err(self.error(format!("the document ends with {} tags open", self.depth)));
                }
                Event::Eof => return Ok(Part::End),
                _ => {}
            }
        }
    }

    fn error(&self, why: String) -> XmlError {
        XmlError { at: self.reader.buffer_position(), why }
    }
}

impl Tag<'_> {
    /// The name without its prefix.
    pub(super) fn name(&self) -> &str {
        self.start.local_name().into_inner()
    }

    /// The tag without its prefix, with its attributes as written.
    pub(super) fn unprefixed(&self) -> &str {
        let prefix = self.start.name().prefix().map_or(0, |prefix| prefix.into_inner().len() + 1);
        self.start.get(prefix..).unwrap_or_default()
    }

    /// The attribute with exactly this name, with references resolved.
    pub(super) fn attribute(&self, name: &str) -> Option<String> {
        self.attribute_where(|known| known.0 == name)
    }

    /// The first attribute with this name, ignoring prefixes.
    pub(super) fn attribute_any_prefix(&self, name: &str) -> Option<String> {
        self.attribute_where(|known| known.local_name().into_inner() == name)
    }

    fn attribute_where(&self, is_it: impl Fn(QName<'_>) -> bool) -> Option<String> {
        // Checking for duplicates would take time that grows with the square of their number.
        let mut attributes = self.start.attributes();
        let found = attributes.with_checks(false).flatten().find(|attribute| is_it(attribute.key))?;
        Some(html_escape::decode_html_entities(&found.value).into_owned())
    }
}

impl RootSpace {
    fn read(namespace: &ResolveResult<'_>) -> Option<Self> {
        match namespace {
            ResolveResult::Bound(namespace) => Some(Self::Namespace(namespace.0.to_owned())),
            ResolveResult::Unknown(prefix) => Some(Self::Prefix(prefix.clone())),
            ResolveResult::Unbound => None,
        }
    }

    fn contains(&self, namespace: &ResolveResult<'_>) -> bool {
        match (self, namespace) {
            (Self::Namespace(root), ResolveResult::Bound(namespace)) => root == namespace.0,
            (Self::Prefix(root), ResolveResult::Unknown(prefix)) => root == prefix,
            _ => false,
        }
    }
}

/// The vocabulary of a name. A well-known prefix has its usual meaning even if it was not declared, and the namespace
/// of the root is that of the document itself, prefixed or not.
fn space(namespace: &ResolveResult<'_>, start: &BytesStart<'_>, root: Option<&RootSpace>) -> Space {
    match namespace {
        ResolveResult::Unbound => Space::Core,
        ResolveResult::Bound(namespace) => match namespace.0 {
            "http://purl.org/dc/elements/1.1/" | "http://purl.org/dc/terms/" => Space::DublinCore,
            "http://purl.org/rss/1.0/modules/content/" => Space::Content,
            "http://purl.org/rss/1.0/modules/syndication/" => Space::Syndication,
            "http://www.w3.org/2005/Atom" | "http://purl.org/atom/ns#" | "http://purl.org/rss/1.0/" => {
                Space::Core
            }
            "http://search.yahoo.com/mrss/" | "http://search.yahoo.com/mrss" => Space::Media,
            other if other.eq_ignore_ascii_case("http://www.itunes.com/dtds/podcast-1.0.dtd") => {
                Space::Podcast
            }
            "http://www.w3.org/1999/02/22-rdf-syntax-ns#" => Space::Other,
            // RSS dialects have different default namespaces, and some servers invent their own.
            _ if start.name().prefix().is_none()
                || root.is_some_and(|root| root.contains(&ResolveResult::Bound(*namespace))) =>
            {
                Space::Core
            }
            _ => Space::Other,
        },
        ResolveResult::Unknown(prefix) => match prefix.as_str() {
            "dc" => Space::DublinCore,
            "content" => Space::Content,
            "sy" => Space::Syndication,
            "media" => Space::Media,
            "itunes" => Space::Podcast,
            "atom" | "rss" => Space::Core,
            _ if root.is_some_and(|root| root.contains(namespace)) => Space::Core,
            _ => Space::Other,
        },
    }
}

/// Real documents stay far below this; only hostile ones exceed it.
const DEPTH_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of `text` in short: names, `/`, quoted text, and the error if there is one.
    fn parts(text: &str) -> String {
        let mut xml = Xml::new(text);
        let mut parts = Vec::new();
        loop {
            match xml.next() {
                Ok(Part::Open(tag)) => parts.push(format!("{}{}", tag.name(), short(tag.space))),
                Ok(Part::Close) => parts.push("/".to_owned()),
                Ok(Part::Text(text)) => parts.push(format!("'{text}'")),
                Ok(Part::End) => return parts.join(" "),
                Err(error) => return format!("{} ! {}", parts.join(" "), error.why),
            }
        }
    }

    fn short(space: Space) -> &'static str {
        match space {
            Space::Core => "",
            Space::DublinCore => "(dc)",
            Space::Content => "(content)",
            Space::Syndication => "(sy)",
            Space::Media => "(media)",
            Space::Podcast => "(itunes)",
            Space::Other => "(other)",
        }
    }

    #[test]
    fn text_is_read_leniently() {
        for (text, expected) in [
            ("\u{a0} \n<?xml version='1.0' encoding='utf-16'?><a/>", "'\u{a0} \n' a /"),
            ("<a>x<![CDATA[<b>&amp;]]></a>", "a 'x' '<b>&amp;' /"),
            ("<a>R&D &amp; &nbsp;&eacute;&#65;&#x42;</a>", "a 'R' '&D ' '&' ' ' '\u{a0}' 'é' 'A' 'B' /"),
            ("<a>&nosuch;&#0;&#xFFFFFFFF;</a>", "a '&nosuch;' '&#0;' '&#xFFFFFFFF;' /"),
            ("<a><dc:date/><x:y/><content:encoded/></a>", "a date(dc) / y(other) / encoded(content) / /"),
            ("<s:a xmlns:s='http://s.example/' xmlns:t='t'><s:b/><t:b/></s:a>", "a b / b(other) / /"),
            ("<s:a><s:b/><t:b/></s:a>", "a b / b(other) / /"),
            (
                "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'><rdf:li/></rdf:RDF>",
                "RDF(other) li(other) / /",
            ),
            ("<r xmlns:d='http://purl.org/dc/elements/1.1/'><d:date/></r>", "r date(dc) / /"),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
    }

    #[test]
    fn errors_explain_what_is_wrong() {
        assert!(parts("<a><b>").ends_with("! the document ends with 2 tags open"));
        assert!(parts("<a></b>").contains("! ill-formed"), "{}", parts("<a></b>"));
        assert!(parts(&"<a>".repeat(100_000)).ends_with("! tags nested more than 200 deep"));
        let many: String = (0..1_000).map(|n| format!(" xmlns:n{n}='x'")).collect();
        assert_eq!(
            parts(&format!("<a{many}/>")),
            " ! too many namespaces, or an invalid namespace declaration"
        );
    }

    #[test]
    fn entities_declared_in_a_doctype_are_never_resolved() {
        let bomb =
            "<!DOCTYPE a [<!ENTITY x 'xxxx'><!ENTITY y '&x;&x;'><!ENTITY amp 'z'>]><a b='&y;'>&y;&amp;</a>";
        assert_eq!(parts(bomb), "a '&y;' '&' /");
    }

    #[test]
    fn attributes_are_found_by_their_full_name() {
        let mut xml = Xml::new("<a x:href='no' href=\"?a=1&amp;b=2&copy=3\" href='twice' broken/>");
        let Ok(Part::Open(tag)) = xml.next() else { panic!("no tag") };
        assert_eq!(tag.attribute("href").as_deref(), Some("?a=1&b=2&copy=3"));
        assert_eq!(tag.attribute("nosuch"), None);
    }
}

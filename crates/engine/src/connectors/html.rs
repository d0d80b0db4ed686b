//! Parses HTML within limits. Reading a page without parsing it is in `scan`.
//!
//! A short HTML document can become a tree of enormous depth or size, and working with such a tree takes time that
//! grows with the square of its depth. So a document is parsed in small pieces and the tree is measured after each of
//! them. Past a limit the rest is left out, and [`Parsed::is_complete`] is false.

use std::borrow::Cow;
use std::cell::Cell;

use dom_query::{Document, NodeId};
use html5ever::interface::{ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::tree_builder::TreeBuilderOpts;
use html5ever::{Attribute, ParseOpts, QualName, parse_document};

/// A document, or the start of one.
pub(super) struct Parsed {
    pub(super) document: Document,
    /// Whether the whole document was parsed.
    pub(super) is_complete: bool,
}

/// Parses as much of `html` as the limits allow.
pub(super) fn parse(html: &str) -> Parsed {
    let tree_builder = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let sink = Measured {
        document: Document::default(),
        newest: Cell::new(None),
        calls: Cell::new(0),
        templates: Cell::new(0),
    };
    let mut parser = parse_document(sink, ParseOpts { tree_builder, ..ParseOpts::default() });
    let (mut is_complete, mut stalled, mut calls) = (true, 0, 0);
    for piece in pieces(html) {
        parser.process(StrTendril::from(piece));
        let sink = &parser.tokenizer.sink.sink;
        // While the parser is inside one tag it creates nothing, and it compares all attributes of the tag in pairs.
        stalled = if sink.calls.get() == calls { stalled + gaps(piece) } else { gaps(piece) };
        calls = sink.calls.get();
        if stalled > STALLED_MAX || sink.is_beyond_limits() {
            is_complete = false;
            break;
        }
    }
    is_complete &= html.len() <= BYTES_MAX;
    Parsed { document: parser.finish(), is_complete }
}

/// A document being parsed, and what is needed to measure it.
struct Measured {
    document: Document,
    /// The newest element, which is as deep in the tree as the parser is.
    newest: Cell<Option<NodeId>>,
    calls: Cell<u64>,
    templates: Cell<usize>,
}

impl Measured {
    fn is_beyond_limits(&self) -> bool {
        let deep = self.newest.get().is_some_and(|newest| {
            self.document.tree.ancestor_ids_of_it(&newest, Some(DEPTH_MAX + 1)).count() > DEPTH_MAX
        });
        // The content of a template has no ancestors outside of it, so templates are counted instead.
        deep || self.document.tree.len() > NODES_MAX || self.templates.get() > TEMPLATES_MAX
    }

    fn called(&self) {
        self.calls.set(self.calls.get() + 1);
    }
}

/// Passes everything on to the document, counts some of it, and ignores parse errors.
impl TreeSink for Measured {
    type Handle = NodeId;
    type Output = Document;
    type ElemName<'a> = <Document as TreeSink>::ElemName<'a>;

    fn finish(self) -> Document {
        self.document
    }

    fn parse_error(&self, _message: Cow<'static, str>) {}

    fn get_document(&self) -> NodeId {
        self.document.get_document()
    }

    fn elem_name<'a>(&'a self, target: &'a NodeId) -> Self::ElemName<'a> {
        self.document.elem_name(target)
    }

    fn create_element(&self, name: QualName, attributes: Vec<Attribute>, flags: ElementFlags) -> NodeId {
        self.called();
        self.templates.set(self.templates.get() + usize::from(flags.template));
        let element = self.document.create_element(name, attributes, flags);
        self.newest.set(Some(element));
        element
    }

    fn create_comment(&self, text: StrTendril) -> NodeId {
        self.called();
        self.document.create_comment(text)
    }

    fn create_pi(&self, target: StrTendril, content: StrTendril) -> NodeId {
        self.called();
        self.document.create_pi(target, content)
    }

    fn append(&self, parent: &NodeId, child: NodeOrText<NodeId>) {
        self.called();
        self.document.append(parent, child);
    }

    fn append_based_on_parent_node(&self, element: &NodeId, previous: &NodeId, child: NodeOrText<NodeId>) {
        self.called();
        self.document.append_based_on_parent_node(element, previous, child);
    }

    fn append_doctype_to_document(&self, name: StrTendril, public_id: StrTendril, system_id: StrTendril) {
        self.document.append_doctype_to_document(name, public_id, system_id);
    }

    fn get_template_contents(&self, target: &NodeId) -> NodeId {
        self.document.get_template_contents(target)
    }

    fn same_node(&self, one: &NodeId, other: &NodeId) -> bool {
        self.document.same_node(one, other)
    }

    fn set_quirks_mode(&self, mode: QuirksMode) {
        self.document.set_quirks_mode(mode);
    }

    fn append_before_sibling(&self, sibling: &NodeId, child: NodeOrText<NodeId>) {
        self.called();
        self.document.append_before_sibling(sibling, child);
    }

    fn add_attrs_if_missing(&self, target: &NodeId, attributes: Vec<Attribute>) {
        self.document.add_attrs_if_missing(target, attributes);
    }

    fn remove_from_parent(&self, target: &NodeId) {
        self.document.remove_from_parent(target);
    }

    fn reparent_children(&self, node: &NodeId, parent: &NodeId) {
        self.document.reparent_children(node, parent);
    }

    fn is_mathml_annotation_xml_integration_point(&self, handle: &NodeId) -> bool {
        self.document.is_mathml_annotation_xml_integration_point(handle)
    }
}

/// `html` up to the limit, in pieces that end at character boundaries.
fn pieces(html: &str) -> impl Iterator<Item = &str> {
    let mut rest = html.get(..html.floor_char_boundary(BYTES_MAX)).unwrap_or_default();
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at_checked(rest.floor_char_boundary(PIECE))?;
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The maximum number of attributes that `piece` can contain.
fn gaps(piece: &str) -> usize {
    piece.bytes().filter(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'\'')).count()
}

/// The maximum size that is parsed. Larger pages are not made for people.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Small enough that one piece can't exceed a limit by much.
const PIECE: usize = 4 * 1024;
/// Browsers stop at 512; pages for people stay below 100.
const DEPTH_MAX: usize = 256;
const NODES_MAX: usize = 500_000;
const TEMPLATES_MAX: usize = 500;
const STALLED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normal_page_is_parsed_completely() {
        let parsed =
            parse("<title>A</title><p>one<p>two<table>x<tr><td>y</table><template><b>z</b></template>");
        assert!(parsed.is_complete);
        assert_eq!(parsed.document.select("p").length(), 2);
        let long = format!("<pre>{}</pre><img src='data:{}'>", "word ".repeat(50_000), "A".repeat(500_000));
        assert!(parse(&long).is_complete);
        let items = "<ul>".to_owned() + &"<li><b>unclosed</b> item".repeat(5_000);
        assert!(parse(&items).is_complete);
    }

    #[test]
    fn a_hostile_page_is_truncated() {
        let numbered =
            |text: &str, count| (0..count).map(|n| text.replace('#', &n.to_string())).collect::<String>();
        for html in [
            "<div>".repeat(200_000),
            "<template>".repeat(200_000),
            format!("<table>{}", "<div>".repeat(100_000)),
            "<svg><g>".repeat(100_000),
            numbered("<div><b id=#></div>", 50_000),
            format!("<p {}>", numbered("a# ", 400_000)),
            "x".repeat(BYTES_MAX + 1),
        ] {
            assert!(!parse(&html).is_complete, "{:.40}", html);
        }
    }
}

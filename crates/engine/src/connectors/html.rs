//! Parsing HTML within limits. What is read of a page without parsing it is in `glance`.
//!
//! The rules of HTML let a short document become a tree of immense depth or size, and what is done with such
//! a tree takes time that grows with the square of its depth. So a document is parsed in small pieces, and
//! the tree is measured after each: past a limit the rest is left out, and [`Parsed::whole`] says so.

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
    /// Whether all of it was parsed.
    pub(super) whole: bool,
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
    let (mut whole, mut stalled, mut calls) = (true, 0, 0);
    for piece in pieces(html) {
        parser.process(StrTendril::from(piece));
        let sink = &parser.tokenizer.sink.sink;
        // Nothing comes of a piece while one tag is being read; its attributes are compared pair by pair.
        stalled = if sink.calls.get() == calls { stalled + gaps(piece) } else { gaps(piece) };
        calls = sink.calls.get();
        if stalled > STALLED_MAX || sink.is_beyond_limits() {
            whole = false;
            break;
        }
    }
    whole &= html.len() <= BYTES_MAX;
    Parsed { document: parser.finish(), whole }
}

/// A document in the making, and what must be known to measure it.
struct Measured {
    document: Document,
    /// The newest element stands where the parser is, and so as deep as it is.
    newest: Cell<Option<NodeId>>,
    calls: Cell<u64>,
    templates: Cell<usize>,
}

impl Measured {
    fn is_beyond_limits(&self) -> bool {
        let deep = self.newest.get().is_some_and(|newest| {
            self.document.tree.ancestor_ids_of_it(&newest, Some(DEPTH_MAX + 1)).count() > DEPTH_MAX
        });
        // What is in a template has no ancestor outside of it, so templates are counted instead.
        deep || self.document.tree.len() > NODES_MAX || self.templates.get() > TEMPLATES_MAX
    }

    fn called(&self) {
        self.calls.set(self.calls.get() + 1);
    }
}

/// Everything is passed on, some of it is counted, and complaints about the document are forgotten.
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

/// `html` up to the limit, in pieces that end between letters.
fn pieces(html: &str) -> impl Iterator<Item = &str> {
    let mut rest = html.get(..html.floor_char_boundary(BYTES_MAX)).unwrap_or_default();
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at_checked(rest.floor_char_boundary(PIECE))?;
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The most attributes that can stand in `piece`.
fn gaps(piece: &str) -> usize {
    piece.bytes().filter(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'\'')).count()
}

/// The most that is parsed: pages of more are generated by machines for machines.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Small enough that one piece cannot go far past a limit.
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
    fn an_honest_page_is_parsed_whole() {
        let parsed =
            parse("<title>A</title><p>one<p>two<table>x<tr><td>y</table><template><b>z</b></template>");
        assert!(parsed.whole);
        assert_eq!(parsed.document.select("p").length(), 2);
        let long = format!("<pre>{}</pre><img src='data:{}'>", "word ".repeat(50_000), "A".repeat(500_000));
        assert!(parse(&long).whole);
        let items = "<ul>".to_owned() + &"<li><b>unclosed</b> item".repeat(5_000);
        assert!(parse(&items).whole);
    }

    #[test]
    fn a_page_made_to_hurt_is_cut_short() {
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
            assert!(!parse(&html).whole, "{:.40}", html);
        }
    }
}

//! Parses OPML as feed readers export it: outlines with an `xmlUrl` are sources, outlines without one are folders.
//!
//! Tags are read one after another without recursion, so deep nesting can't overflow the stack; the names of folders
//! past [`FOLDERS_MAX`] are dropped. Entities declared in the document are never expanded. An error usually costs only
//! the outline it is in: parsing resumes at the next one. Writing is in `write`.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use comity_store::tasks::Lead;
use quick_xml::escape::unescape;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Error, Reader, XmlVersion};

use super::collector::{Row, RowCollector, cleaned};
use super::text::Lines;
use super::{FOLDERS_MAX, ReadError};
use crate::redact;

/// The attribute for the kind of a source that isn't a feed.
pub(super) const KIND: &str = "comityKind";
/// The attribute for where a source comes from, if the operator did not list it.
pub(super) const LEAD: &str = "comityLead";
/// The attribute for how often a source is fetched.
pub(super) const CADENCE: &str = "comityCadence";
/// The attribute for the minimum time between two scrapes of a source.
pub(super) const MIN_INTERVAL: &str = "comityMinInterval";
/// The attribute for what is switched off for a source.
pub(super) const OFF: &str = "comityOff";

pub(super) fn read(text: &str, collector: &mut RowCollector) -> Result<(), ReadError> {
    let mut parser = Parser {
        text,
        lines: Lines::new(text),
        collector,
        root: None,
        outlines: 0,
        ended: false,
        bare_ampersands: vec![],
        folders: Folders::default(),
    };
    let mut from = Some(0);
    for _ in 0..=RESUMES_MAX {
        from = from.and_then(|from| parser.run(from));
    }
    if from.is_some() {
        parser.problem(text.len(), "too many invalid tags: the rest was not read");
    }
    parser.finish()
}

struct Parser<'a> {
    text: &'a str,
    lines: Lines<'a>,
    collector: &'a mut RowCollector,
    /// The name of the first element.
    root: Option<String>,
    outlines: u64,
    ended: bool,
    /// Lines with an unescaped ampersand, of which only the first is reported.
    bare_ampersands: Vec<u64>,
    folders: Folders,
}

/// The open outlines.
#[derive(Default)]
struct Folders {
    /// The names of those that are folders.
    names: Vec<Arc<str>>,
    /// For each open outline, whether it has a name in `names`.
    open: Vec<Named>,
    /// Whether too deep nesting was reported.
    depth_reported: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    No,
}

impl Folders {
    fn open(&mut self, name: Option<&str>) {
        let name = name.and_then(cleaned).filter(|_| self.names.len() < FOLDERS_MAX);
        self.open.push(if name.is_some() { Named::Yes } else { Named::No });
        self.names.extend(name.map(Arc::from));
    }

    fn close(&mut self) {
        if self.open.pop() == Some(Named::Yes) {
            self.names.pop();
        }
    }
}

/// What an outline is.
enum Outline<'t> {
    Source,
    /// A folder with this name.
    Folder(Cow<'t, str>),
}

impl Parser<'_> {
    /// Parses from a position on. At an invalid tag it stops and returns the position to resume from.
    fn run(&mut self, from: usize) -> Option<usize> {
        // The reader skips a byte order mark without counting it.
        let text = self.text[from..].trim_start_matches('\u{feff}');
        let from = self.text.len() - text.len();
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        (config.allow_dangling_amp, config.allow_unmatched_ends, config.check_end_names) =
            (true, true, false);
        loop {
            let start = from + reader.buffer_position() as usize;
            match reader.read_event() {
                // With a missing or extra quotation mark, this tag swallows the next one.
                Ok(Event::Start(tag) | Event::Empty(tag)) if tag.contains(OUTLINE) => {
                    return self.resume(start, "unbalanced quotation marks in this tag");
                }
                Ok(Event::Start(tag)) => match self.tag(&tag, start) {
                    Some(Outline::Source) => self.folders.open(None),
                    Some(Outline::Folder(name)) => self.open_folder(&name, start),
                    None => {}
                },
                Ok(Event::Empty(tag)) => {
                    self.tag(&tag, start);
                    self.ended |= is(tag.local_name().as_ref(), "opml");
                }
                Ok(Event::End(tag)) => {
                    self.ended |= is(tag.local_name().as_ref(), "opml");
                    if is(tag.local_name().as_ref(), "outline") {
                        self.folders.close();
                    }
                }
                Ok(Event::Eof) => return None,
                Ok(_) => {}
                Err(Error::IllFormed(_)) => self.problem(start, "invalid XML"),
                Err(_) => return self.resume(start, "unclosed tag, comment or quotation mark"),
            }
        }
    }

    fn resume(&mut self, start: usize, what: &str) -> Option<usize> {
        self.problem(start, what);
        let start = self.text.floor_char_boundary(start);
        let after = self.text[start..].char_indices().nth(1).map(|(at, _)| start + at)?;
        self.text[after..].find(OUTLINE).map(|at| after + at)
    }

    fn problem(&mut self, at: usize, what: &str) {
        let line = self.lines.line_at(at);
        self.collector.problem(line, what.to_owned());
    }

    fn open_folder(&mut self, name: &str, start: usize) {
        self.folders.open(Some(name));
        if self.folders.names.len() == FOLDERS_MAX
            && !self.folders.depth_reported
            && self.folders.open.len() > FOLDERS_MAX
        {
            self.folders.depth_reported = true;
            self.problem(
                start,
                &format!("folders nested more than {FOLDERS_MAX} deep are merged into the one around them"),
            );
        }
    }

    fn tag<'t>(&mut self, tag: &'t BytesStart<'_>, start: usize) -> Option<Outline<'t>> {
        let name = tag.local_name();
        if self.root.is_none() {
            self.root = Some(name.as_ref().to_owned());
        }
        if !is(name.as_ref(), "outline") {
            return None;
        }
        self.outlines += 1;
        let line = self.lines.line_at(start);
        Some(self.outline(tag, line))
    }

    fn outline<'t>(&mut self, tag: &'t BytesStart<'_>, line: u64) -> Outline<'t> {
        let [mut feed, mut address, mut title, mut text, mut kind, mut lead] =
            [const { Cow::Borrowed("") }; 6];
        let [mut page, mut cadence, mut min_interval, mut off] = [const { Cow::Borrowed("") }; 4];
        let mut attributes = tag.attributes();
        for attribute in attributes.with_checks(false) {
            let Ok(attribute) = attribute else {
                self.collector.problem(line, "invalid attribute in this outline".to_owned());
                continue;
            };
            let slot = match attribute.key.as_ref() {
                name if is(name, "xmlUrl") => &mut feed,
                name if is(name, "url") => &mut address,
                name if is(name, "title") => &mut title,
                name if is(name, "text") => &mut text,
                name if is(name, KIND) => &mut kind,
                name if is(name, LEAD) => &mut lead,
                name if is(name, "htmlUrl") => &mut page,
                name if is(name, CADENCE) => &mut cadence,
                name if is(name, MIN_INTERVAL) => &mut min_interval,
                name if is(name, OFF) => &mut off,
                _ => continue,
            };
            if slot.is_empty() {
                *slot = self.value(&attribute, line);
            }
        }
        let name = if title.trim().is_empty() { text } else { title };
        let (url, kind) = match (feed.trim(), kind.trim()) {
            // Feed readers take every xmlUrl for a feed, so other kinds are written as links.
            ("", kind) if !kind.is_empty() => (address.trim(), kind),
            ("", _) => return Outline::Folder(name),
            (feed, "") => (feed, "feed"),
            (feed, kind) => (feed, kind),
        };
        let lead = if is(lead.trim(), Lead::Remote.as_str()) { Lead::Remote } else { Lead::Listed };
        let (html_url, cadence, min_interval, off) = (&*page, &*cadence, &*min_interval, &*off);
        let folder = &self.folders.names;
        self.collector.add(Row {
            line,
            url,
            name: &name,
            kind,
            lead,
            html_url,
            folder,
            cadence,
            min_interval,
            off,
        });
        Outline::Source
    }

    fn value<'t>(&mut self, attribute: &Attribute<'t>, line: u64) -> Cow<'t, str> {
        attribute.normalized_value(XmlVersion::Implicit1_0).unwrap_or_else(|_| {
            self.bare_ampersands.push(line);
            unescape_leniently(&attribute.value).into()
        })
    }

    fn finish(mut self) -> Result<(), ReadError> {
        self.bare_ampersands.dedup();
        if let Some(first) = self.bare_ampersands.first() {
            let what = "an unescaped & or an unknown entity was read as plain text";
            let more = match self.bare_ampersands.len() - 1 {
                0 => String::new(),
                1 => "; also on 1 more line".to_owned(),
                more => format!("; also on {more} more lines"),
            };
            self.collector.problem(*first, format!("{what}{more}"));
        }
        let is_opml = self.root.as_deref().is_some_and(|root| is(root, "opml"));
        if !is_opml && self.outlines == 0 {
            let found =
                self.root.map_or("no XML element".to_owned(), |root| format!("<{}>", redact::text(&root)));
            return Err(ReadError::NotOpml { found });
        }
        if !self.ended {
            self.problem(self.text.len(), "no </opml> at the end: part of the list may be missing");
        }
        Ok(())
    }
}

fn is(name: &str, expected: &str) -> bool {
    name.eq_ignore_ascii_case(expected)
}

/// Unescapes a value in which not every ampersand starts an entity: those that don't are kept.
fn unescape_leniently(raw: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(raw.len()), raw);
    while let Some(at) = rest.find('&') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.bytes().take(ENTITY_MAX).position(|byte| byte == b';').map_or(1, |end| end + 1);
        match unescape(&rest[..end]) {
            Ok(entity) if end > 1 => text.push_str(&entity),
            _ => {
                text.push('&');
                rest = &rest[1..];
                continue;
            }
        }
        rest = &rest[end..];
    }
    text.push_str(rest);
    text.replace(['\t', '\n', '\r'], " ")
}

const OUTLINE: &str = "<outline";
/// How often parsing resumes after an invalid tag, since each time may mean scanning all of the rest.
const RESUMES_MAX: usize = 100;
/// Longer than any known entity.
const ENTITY_MAX: usize = 12;

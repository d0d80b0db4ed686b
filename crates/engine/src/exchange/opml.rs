//! OPML as feed readers export it: outlines with an `xmlUrl`, in folders, which are outlines without one.
//!
//! Tags are looked at one after another, so no depth of folders costs a stack; of those past [`FOLDERS_MAX`] no name is
//! kept. Entities that a document declares
//! are never expanded. What is broken costs the outline it is in, rarely more: reading resumes at the next one.
//! Writing is in `write`.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use comity_store::tasks::Lead;
use quick_xml::escape::unescape;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Error, Reader, XmlVersion};

use super::gather::{Gather, Row, tidied};
use super::text::Lines;
use super::{FOLDERS_MAX, ReadError};
use crate::shown;

/// The attribute that keeps what a source is when it is no feed.
pub(super) const KIND: &str = "comityKind";
/// The attribute that keeps who led to a source when it was not the operator.
pub(super) const LEAD: &str = "comityLead";
/// The attribute that keeps how often a source is asked.
pub(super) const CADENCE: &str = "comityCadence";
/// The attribute that keeps the least time between two scrapes of a source.
pub(super) const MIN_INTERVAL: &str = "comityMinInterval";

pub(super) fn read(text: &str, gather: &mut Gather) -> Result<(), ReadError> {
    let mut pass = Pass {
        text,
        lines: Lines::new(text),
        gather,
        root: None,
        outlines: 0,
        ended: false,
        bare: vec![],
        folders: Folders::default(),
    };
    let mut from = Some(0);
    for _ in 0..=RESUMES_MAX {
        from = from.and_then(|from| pass.run(from));
    }
    if from.is_some() {
        pass.problem(text.len(), "the rest was not read: there are too many broken tags");
    }
    pass.finish()
}

struct Pass<'a> {
    text: &'a str,
    lines: Lines<'a>,
    gather: &'a mut Gather,
    /// The name of the first element.
    root: Option<String>,
    outlines: u64,
    ended: bool,
    /// Lines with an ampersand that stands for itself, of which only the first is told.
    bare: Vec<u64>,
    folders: Folders,
}

/// The outlines that are open.
#[derive(Default)]
struct Folders {
    /// The names of those that are folders.
    names: Vec<Arc<str>>,
    /// Of each outline that is open, whether it has a name in `names`.
    open: Vec<Named>,
    /// Whether it was told that there are too many.
    told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    No,
}

impl Folders {
    fn open(&mut self, name: Option<&str>) {
        let name = name.and_then(tidied).filter(|_| self.names.len() < FOLDERS_MAX);
        self.open.push(if name.is_some() { Named::Yes } else { Named::No });
        self.names.extend(name.map(Arc::from));
    }

    fn close(&mut self) {
        if self.open.pop() == Some(Named::Yes) {
            self.names.pop();
        }
    }
}

/// What the outline of a tag is.
enum Outline<'t> {
    Source,
    /// Of this name.
    Folder(Cow<'t, str>),
}

impl Pass<'_> {
    /// Reads from a place on; a tag that makes no sense ends it, with the place to go on from.
    fn run(&mut self, from: usize) -> Option<usize> {
        let mut reader = Reader::from_str(&self.text[from..]);
        let config = reader.config_mut();
        (config.allow_dangling_amp, config.allow_unmatched_ends, config.check_end_names) =
            (true, true, false);
        loop {
            let start = from + reader.buffer_position() as usize;
            match reader.read_event() {
                // A quotation mark too many, or one missing, takes the next tag into this one.
                Ok(Event::Start(tag) | Event::Empty(tag)) if tag.contains(OUTLINE) => {
                    return self.resume(start, "quotation marks of this tag do not match");
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
                Err(Error::IllFormed(_)) => self.problem(start, "what stands here is not XML"),
                Err(_) => return self.resume(start, "the tag, comment or quotation mark here does not end"),
            }
        }
    }

    fn resume(&mut self, start: usize, what: &str) -> Option<usize> {
        self.problem(start, what);
        let after = self.text[start..].char_indices().nth(1).map(|(at, _)| start + at)?;
        self.text[after..].find(OUTLINE).map(|at| after + at)
    }

    fn problem(&mut self, at: usize, what: &str) {
        let line = self.lines.line_at(at);
        self.gather.problem(line, what.to_owned());
    }

    fn open_folder(&mut self, name: &str, start: usize) {
        self.folders.open(Some(name));
        if self.folders.names.len() == FOLDERS_MAX
            && !self.folders.told
            && self.folders.open.len() > FOLDERS_MAX
        {
            self.folders.told = true;
            self.problem(
                start,
                &format!("folders more than {FOLDERS_MAX} deep count as the one around them"),
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
        let [mut page, mut cadence, mut min_interval] = [const { Cow::Borrowed("") }; 3];
        let mut attributes = tag.attributes();
        for attribute in attributes.with_checks(false) {
            let Ok(attribute) = attribute else {
                self.gather.problem(line, "an attribute of this outline cannot be read".to_owned());
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
                _ => continue,
            };
            if slot.is_empty() {
                *slot = self.value(&attribute, line);
            }
        }
        let name = if title.trim().is_empty() { text } else { title };
        let (url, kind) = match (feed.trim(), kind.trim()) {
            // Other readers would take any xmlUrl for a feed, so what is none is written as a link.
            ("", kind) if !kind.is_empty() => (address.trim(), kind),
            ("", _) => return Outline::Folder(name),
            (feed, "") => (feed, "feed"),
            (feed, kind) => (feed, kind),
        };
        let lead = if is(lead.trim(), Lead::Remote.as_str()) { Lead::Remote } else { Lead::Listed };
        let (html_url, cadence, min_interval) = (&*page, &*cadence, &*min_interval);
        let folder = &self.folders.names;
        self.gather.add(Row { line, url, name: &name, kind, lead, html_url, folder, cadence, min_interval });
        Outline::Source
    }

    fn value<'t>(&mut self, attribute: &Attribute<'t>, line: u64) -> Cow<'t, str> {
        attribute.normalized_value(XmlVersion::Implicit1_0).unwrap_or_else(|_| {
            self.bare.push(line);
            mended(&attribute.value).into()
        })
    }

    fn finish(mut self) -> Result<(), ReadError> {
        self.bare.dedup();
        if let Some(first) = self.bare.first() {
            let what =
                "an & that is not written &amp;, or an entity that is not known, was read as it stands";
            let more = match self.bare.len() - 1 {
                0 => String::new(),
                more => format!("; so it was on {more} more lines"),
            };
            self.gather.problem(*first, format!("{what}{more}"));
        }
        let is_opml = self.root.as_deref().is_some_and(|root| is(root, "opml"));
        if !is_opml && self.outlines == 0 {
            let found =
                self.root.map_or("no XML element".to_owned(), |root| format!("<{}>", shown::text(&root)));
            return Err(ReadError::NotOpml { found });
        }
        if !self.ended {
            self.problem(self.text.len(), "there is no </opml> at the end: some of the list may be missing");
        }
        Ok(())
    }
}

fn is(name: &str, expected: &str) -> bool {
    name.eq_ignore_ascii_case(expected)
}

/// A value in which not every ampersand starts an entity: those that do are replaced, the others stay.
fn mended(raw: &str) -> String {
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
/// As often as this reading resumes after a broken tag; each may mean to look at all of the rest.
const RESUMES_MAX: usize = 100;
/// Longer than any entity that is known.
const ENTITY_MAX: usize = 12;

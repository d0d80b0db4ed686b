//! Collects items and problems within limits. The parsers of all formats use it.

use std::collections::{BTreeMap, HashMap, HashSet};

use url::Url;

use super::{FoundItem, Hints, ITEMS_MAX, PROBLEMS_KEPT, ParsedSource, normalize};
use crate::redact;

/// Collects the content of one response.
#[derive(Default)]
pub(super) struct Collector {
    parsed: ParsedSource,
    /// The links found for each identity.
    links: HashMap<String, HashSet<String>>,
    sitemaps: HashSet<String>,
    entries: usize,
}

/// Whether there is room for another entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Left,
    None,
}

impl Collector {
    /// Sets the title, unless there is one already.
    pub(super) fn set_title(&mut self, title: Option<String>) {
        self.parsed.title = self.parsed.title.take().or(title);
    }

    pub(super) fn set_hints(&mut self, hints: Hints) {
        self.parsed.hints = hints;
    }

    /// Counts an entry before it is read, so that entries past the limit are not read at all.
    pub(super) fn next_entry(&mut self) -> Room {
        if self.entries < ITEMS_MAX {
            self.entries += 1;
            return Room::Left;
        }
        self.add_problem(format!("more than {ITEMS_MAX} entries: only the first {ITEMS_MAX} were read"));
        Room::None
    }

    /// The number of the entry being read, starting from 1.
    pub(super) fn number(&self) -> usize {
        self.entries
    }

    /// Adds an item, unless there is one with the same identity and link.
    pub(super) fn add_item(&mut self, found: FoundItem) {
        let links = self.links.entry(found.identity.clone()).or_default();
        if links.insert(normalize::normalized(&found.url)) {
            self.parsed.items.push(found);
        }
    }

    /// Adds a sitemap that is to be read too, unless it was added before.
    pub(super) fn add_sitemap(&mut self, sitemap: Url) {
        if self.sitemaps.insert(sitemap.as_str().to_owned()) {
            self.parsed.sitemaps.push(sitemap);
        }
    }

    /// Counts a problem, and keeps its sentence if there is room.
    pub(super) fn add_problem(&mut self, sentence: String) {
        self.parsed.add_problem(sentence);
    }

    /// Whether neither items nor sitemaps were found so far.
    pub(super) fn is_empty(&self) -> bool {
        self.parsed.items.is_empty() && self.parsed.sitemaps.is_empty()
    }

    /// Notes that the response breaks off here.
    pub(super) fn truncated(&mut self, sentence: String) {
        self.parsed.is_truncated = true;
        self.add_problem(sentence);
    }

    pub(super) fn finish(mut self) -> ParsedSource {
        self.replace_shared_identities();
        self.parsed
    }

    /// An identity shared by several links does not identify anything. All of these items are identified by their links
    /// instead, so that the result doesn't depend on their order.
    fn replace_shared_identities(&mut self) {
        self.links.retain(|_, links| links.len() > 1);
        if self.links.is_empty() {
            return;
        }
        let mut shared = BTreeMap::new();
        for found in &mut self.parsed.items {
            if let Some(links) = self.links.get(&found.identity) {
                let by_link = normalize::by_link(&found.url);
                shared.insert(std::mem::replace(&mut found.identity, by_link), links.len());
            }
        }
        let mut seen = HashSet::new();
        self.parsed.items.retain(|found| seen.insert(found.identity.clone()));
        let note = |(identity, count): (String, usize)| {
            format!(
                "{} is used for {count} links: these entries are identified by their links instead",
                redact::text(&identity)
            )
        };
        self.parsed.notes.extend(shared.into_iter().take(PROBLEMS_KEPT).map(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::Details;

    #[test]
    fn the_first_item_of_an_identity_is_kept_and_all_problems_are_counted() {
        let mut collector = Collector::default();
        for hash in 1..=3 {
            let url = Url::parse("https://a.example/").unwrap();
            let identity = format!("guid:{}", hash / 2);
            collector.add_item(FoundItem {
                identity,
                url,
                title: None,
                published_at: None,
                hash,
                details: Details::default(),
            });
        }
        for number in 0..30 {
            collector.add_problem(format!("problem {number}"));
        }
        let parsed = collector.finish();
        assert_eq!(parsed.items.iter().map(|found| found.hash).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((parsed.problems.len(), parsed.problems_count), (PROBLEMS_KEPT, 30));
    }

    #[test]
    fn all_entries_past_the_limit_count_as_one_problem() {
        let mut collector = Collector::default();
        assert!((0..ITEMS_MAX).all(|_| collector.next_entry() == Room::Left));
        assert_eq!(collector.next_entry(), Room::None);
        assert_eq!(collector.finish().problems, ["more than 50000 entries: only the first 50000 were read"]);
    }
}

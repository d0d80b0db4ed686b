//! Collecting items and problems within their limits: every reader of a format puts what it finds in here.

use std::collections::{BTreeMap, HashMap, HashSet};

use url::Url;

use super::{Found, Harvest, Hints, ITEMS_MAX, PROBLEMS_KEPT, normalise};
use crate::shown;

/// A harvest in the making.
#[derive(Default)]
pub(super) struct Gather {
    harvest: Harvest,
    /// The links that were found under each identity.
    links: HashMap<String, HashSet<String>>,
    seen: HashSet<String>,
    entries: usize,
}

/// Whether there is room for what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Left,
    None,
}

impl Gather {
    /// The title, if it has none yet.
    pub(super) fn title(&mut self, title: Option<String>) {
        self.harvest.title = self.harvest.title.take().or(title);
    }

    pub(super) fn hints(&mut self, hints: Hints) {
        self.harvest.hints = hints;
    }

    /// Counts one entry before it is read, so that what follows the last one allowed is not read at all.
    pub(super) fn next_entry(&mut self) -> Room {
        if self.entries < ITEMS_MAX {
            self.entries += 1;
            return Room::Left;
        }
        self.problem(format!("more than {ITEMS_MAX} entries: only the first {ITEMS_MAX} were read"));
        Room::None
    }

    /// The number of the entry being read, from 1.
    pub(super) fn number(&self) -> usize {
        self.entries
    }

    /// Adds an item unless one with its identity and link is there.
    pub(super) fn found(&mut self, found: Found) {
        let links = self.links.entry(found.identity.clone()).or_default();
        if links.insert(normalise::normalised(&found.url)) {
            self.harvest.items.push(found);
        }
    }

    /// Adds a sitemap to read too, unless it is there.
    pub(super) fn more(&mut self, sitemap: Url) {
        if self.seen.insert(sitemap.as_str().to_owned()) {
            self.harvest.more.push(sitemap);
        }
    }

    /// Counts a problem, and keeps its sentence while there is room.
    pub(super) fn problem(&mut self, sentence: String) {
        self.harvest.note(sentence);
    }

    /// Whether nothing that can be used was found so far.
    pub(super) fn is_empty(&self) -> bool {
        self.harvest.items.is_empty() && self.harvest.more.is_empty()
    }

    /// The answer breaks off here.
    pub(super) fn cut(&mut self, sentence: String) {
        self.harvest.is_cut = true;
        self.problem(sentence);
    }

    pub(super) fn done(mut self) -> Harvest {
        self.tell_apart();
        self.harvest
    }

    /// An identity that several links share is none. All of them go by their links then, so that none depends on
    /// which of them comes first.
    fn tell_apart(&mut self) {
        self.links.retain(|_, links| links.len() > 1);
        if self.links.is_empty() {
            return;
        }
        let mut shared = BTreeMap::new();
        for found in &mut self.harvest.items {
            if let Some(links) = self.links.get(&found.identity) {
                let by_link = normalise::by_link(&found.url);
                shared.insert(std::mem::replace(&mut found.identity, by_link), links.len());
            }
        }
        let mut seen = HashSet::new();
        self.harvest.items.retain(|found| seen.insert(found.identity.clone()));
        let note = |(identity, count): (String, usize)| {
            format!(
                "{} stands for {count} links: its entries are told apart by their links",
                shown::text(&identity)
            )
        };
        self.harvest.notes.extend(shared.into_iter().take(PROBLEMS_KEPT).map(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::Details;

    #[test]
    fn the_first_of_an_identity_stays_and_problems_are_counted_past_those_kept() {
        let mut gather = Gather::default();
        for hash in 1..=3 {
            let url = Url::parse("https://a.example/").unwrap();
            let identity = format!("guid:{}", hash / 2);
            gather.found(Found {
                identity,
                url,
                title: None,
                published_at: None,
                hash,
                details: Details::default(),
            });
        }
        for number in 0..30 {
            gather.problem(format!("problem {number}"));
        }
        let harvest = gather.done();
        assert_eq!(harvest.items.iter().map(|found| found.hash).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((harvest.problems.len(), harvest.problems_count), (PROBLEMS_KEPT, 30));
    }

    #[test]
    fn entries_past_the_limit_are_one_problem() {
        let mut gather = Gather::default();
        assert!((0..ITEMS_MAX).all(|_| gather.next_entry() == Room::Left));
        assert_eq!(gather.next_entry(), Room::None);
        assert_eq!(gather.done().problems, ["more than 50000 entries: only the first 50000 were read"]);
    }
}

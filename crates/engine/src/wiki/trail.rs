//! The way through a list that goes on from answer to answer, and whether it leads anywhere.
//!
//! A wiki says with each answer where the next one begins. One that names a place it named before, or that names new
//! places for ever and brings nothing, would be asked for ever. Remembering every place takes memory without bound;
//! here one place is remembered, and another one after twice as many answers each time. A circle is noticed when it has
//! been walked about twice (R. P. Brent, 1980).

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::answers::{AllRevisions, Changes, Logs, Page, Pages, Rest, Uploads};

/// How far the way through a list was followed. Kept with the place, so that a restart does not forget it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trail {
    /// Answers that named a next one.
    answers: u64,
    /// The place that is remembered, as its hash.
    place: u64,
    /// What was found there, as its hash.
    found: u64,
    /// Answers that held what was held before.
    repeats: u32,
    /// Answers in a row that held nothing. A new run may look that far again: some wikis search long for a few pages.
    #[serde(skip)]
    empty: u32,
}

impl Trail {
    /// An answer held `found`, and the list goes on at `rest`. Why it is not worth following, if it is not.
    pub(super) fn follow(&mut self, rest: Option<&Rest>, found: Option<u64>) -> Result<(), &'static str> {
        let Some(rest) = rest else {
            *self = Self::default();
            return Ok(());
        };
        let place = hash(rest);
        if self.answers > 0 && place == self.place {
            return Err("its continuation runs in a circle");
        }
        match found {
            None => self.empty += 1,
            Some(found) => {
                self.empty = 0;
                self.repeats += u32::from(self.answers > 0 && found == self.found);
            }
        }
        if self.empty > EMPTY_MAX {
            return Err("too many answers in a row held nothing");
        }
        if self.repeats > REPEATS_MAX {
            return Err("it answers with the same entries again and again");
        }
        self.answers += 1;
        if self.answers.is_power_of_two() {
            self.place = place;
            self.found = found.unwrap_or(self.found);
        }
        Ok(())
    }
}

/// An answer of a list.
pub(super) trait Listed {
    /// A hash of what it holds; nothing when that is nothing.
    fn found(&self) -> Option<u64>;
}

impl Listed for Pages {
    fn found(&self) -> Option<u64> {
        of_pages(&self.pages)
    }
}

impl Listed for AllRevisions {
    fn found(&self) -> Option<u64> {
        of_pages(self.allrevisions.as_deref().unwrap_or_default())
    }
}

impl Listed for Changes {
    fn found(&self) -> Option<u64> {
        let changes = self.recentchanges.iter();
        of(changes.map(|change| (change.revid, change.logid, &change.title, &change.timestamp)))
    }
}

impl Listed for Logs {
    fn found(&self) -> Option<u64> {
        of(self.logevents.iter().map(|event| event.logid))
    }
}

impl Listed for Uploads {
    fn found(&self) -> Option<u64> {
        let versions = self.pages.iter().flat_map(|page| page.imageinfo.iter().map(|one| (&page.title, one)));
        of(versions.map(|(title, version)| (title, &version.timestamp, &version.sha1)))
    }
}

fn of_pages(pages: &[Page]) -> Option<u64> {
    let revisions = |page: &Page| page.revisions.iter().map(|revision| revision.revid).collect::<Vec<_>>();
    of(pages.iter().map(|page| (page.pageid, &page.title, revisions(page))))
}

fn of(entries: impl Iterator<Item: Hash>) -> Option<u64> {
    let entries: Vec<_> = entries.collect();
    (!entries.is_empty()).then(|| hash(&entries))
}

/// The same after a restart, which the hash of a `HashMap` is not.
fn hash(what: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Answers in a row that may hold nothing. A wiki that looks through all revisions for those of a rare namespace gives many.
const EMPTY_MAX: u32 = 10_000;
/// Answers of a list that may hold what another one held.
const REPEATS_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers that are followed of a list whose `nth` answer goes on at a place and holds something, `most` at most.
    fn followed(most: u64, answer: impl Fn(u64) -> (u64, Option<u64>)) -> (u64, &'static str) {
        let mut trail = Trail::default();
        for nth in 0..most {
            let (place, found) = answer(nth);
            let rest = Rest::from([("continue".to_owned(), place.to_string())]);
            if let Err(why) = trail.follow(Some(&rest), found) {
                return (nth, why);
            }
            // As it comes back from a store: in every run a few answers.
            if nth % 7 == 0 {
                trail = Trail {
                    empty: trail.empty,
                    ..serde_json::from_value(serde_json::to_value(&trail).unwrap()).unwrap()
                };
            }
        }
        (most, "")
    }

    #[test]
    fn a_circle_is_noticed_however_long_it_is_and_wherever_it_begins() {
        for before in [0, 1, 2, 5, 100, 1_000] {
            for length in [1, 2, 3, 7, 64, 100, 1_000] {
                let place = |nth: u64| if nth < before { nth } else { before + (nth - before) % length };
                let (nth, why) = followed(u64::MAX, |nth| (place(nth), Some(nth)));
                assert!(why.contains("circle"), "{why}");
                assert!(nth >= length && nth <= 4 * (before + length) + 4, "{before}, {length}: {nth}");
            }
        }
    }

    #[test]
    fn a_list_that_brings_nothing_new_is_given_up() {
        let (nth, why) = followed(u64::MAX, |nth| (nth, None));
        assert!(why.contains("held nothing") && nth == u64::from(EMPTY_MAX), "{nth}: {why}");
        for length in [1, 2, 5, 30] {
            let (nth, why) = followed(u64::MAX, |nth| (nth, Some(nth % length)));
            assert!(why.contains("same entries") && nth < 200 * length + 200, "{length}: {nth}: {why}");
        }
    }

    #[test]
    fn a_list_that_goes_on_is_followed() {
        assert_eq!(followed(50_000, |nth| (nth, Some(nth))), (50_000, ""));
        let rarely = |nth: u64| nth.is_multiple_of(u64::from(EMPTY_MAX)).then_some(nth);
        assert_eq!(followed(50_000, |nth| (nth, rarely(nth))), (50_000, ""));
    }

    #[test]
    fn the_next_list_may_name_the_same_places() {
        let mut trail = Trail::default();
        let rest = Rest::from([("continue".to_owned(), "a".to_owned())]);
        for _ in 0..10 {
            assert_eq!(trail.follow(Some(&rest), Some(1)), Ok(()));
            assert_eq!(trail.follow(None, Some(1)), Ok(()));
        }
    }
}

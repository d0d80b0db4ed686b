//! Detects lists that never end.
//!
//! Each response of a list says where the next one continues. If a wiki returns an earlier position, or new positions
//! without any new entries, the list would be followed forever. Remembering all positions would need unbounded memory,
//! so only one is remembered, and replaced after twice as many responses each time. A loop is detected after about two
//! passes (R. P. Brent, 1980).

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::responses::{AllRevisions, Changes, Continuation, Logs, Page, Pages, Uploads};

/// Detects a list that never ends. It is stored with the position in the list, so that it works across restarts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoopDetector {
    /// The number of responses with a continuation.
    #[serde(rename = "answers")]
    responses: u64,
    /// The remembered position, as a hash.
    #[serde(rename = "place")]
    position: u64,
    /// The entries found there, as a hash.
    found: u64,
    /// The number of responses with the same entries as before.
    repeats: u32,
    /// The number of consecutive empty responses. It starts from zero in each run, because some wikis search for a long
    /// time to find a few pages.
    #[serde(skip)]
    empty: u32,
}

impl LoopDetector {
    /// Notes a response with the entries `found`, after which the list continues at `rest`. Returns an error if the
    /// list should not be followed any further.
    pub(super) fn follow(
        &mut self,
        rest: Option<&Continuation>,
        found: Option<u64>,
    ) -> Result<(), &'static str> {
        let Some(rest) = rest else {
            *self = Self::default();
            return Ok(());
        };
        let position = hash(rest);
        if self.responses > 0 && position == self.position {
            return Err("its continuation loops");
        }
        match found {
            None => self.empty += 1,
            Some(found) => {
                self.empty = 0;
                self.repeats += u32::from(self.responses > 0 && found == self.found);
            }
        }
        if self.empty > EMPTY_MAX {
            return Err("too many consecutive empty responses");
        }
        if self.repeats > REPEATS_MAX {
            return Err("it returns the same entries again and again");
        }
        self.responses += 1;
        if self.responses.is_power_of_two() {
            self.position = position;
            self.found = found.unwrap_or(self.found);
        }
        Ok(())
    }
}

/// A response of a list.
pub(super) trait ListResponse {
    /// A hash of its entries; `None` if there are none.
    fn entries_hash(&self) -> Option<u64>;
}

impl ListResponse for Pages {
    fn entries_hash(&self) -> Option<u64> {
        of_pages(&self.pages)
    }
}

impl ListResponse for AllRevisions {
    fn entries_hash(&self) -> Option<u64> {
        of_pages(self.allrevisions.as_deref().unwrap_or_default())
    }
}

impl ListResponse for Changes {
    fn entries_hash(&self) -> Option<u64> {
        let changes = self.recentchanges.iter();
        of(changes.map(|change| (change.revid, change.logid, &change.title, &change.timestamp)))
    }
}

impl ListResponse for Logs {
    fn entries_hash(&self) -> Option<u64> {
        of(self.logevents.iter().map(|event| event.logid))
    }
}

impl ListResponse for Uploads {
    fn entries_hash(&self) -> Option<u64> {
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

/// A hash that is the same after a restart, unlike that of a `HashMap`.
fn hash(what: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The maximum number of consecutive empty responses. A wiki that searches all revisions for a small namespace returns
/// many.
const EMPTY_MAX: u32 = 10_000;
/// The maximum number of responses of a list with the same entries.
const REPEATS_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many responses of a list are followed, and why not more. `answer` returns position and entries of the nth
    /// response.
    fn followed(most: u64, answer: impl Fn(u64) -> (u64, Option<u64>)) -> (u64, &'static str) {
        let mut loop_detector = LoopDetector::default();
        for nth in 0..most {
            let (position, found) = answer(nth);
            let rest = Continuation::from([("continue".to_owned(), position.to_string())]);
            if let Err(why) = loop_detector.follow(Some(&rest), found) {
                return (nth, why);
            }
            // As if it was stored and a new run started after a few responses.
            if nth % 7 == 0 {
                loop_detector = LoopDetector {
                    empty: loop_detector.empty,
                    ..serde_json::from_value(serde_json::to_value(&loop_detector).unwrap()).unwrap()
                };
            }
        }
        (most, "")
    }

    #[test]
    fn loops_of_any_length_and_start_are_detected() {
        for before in [0, 1, 2, 5, 100, 1_000] {
            for length in [1, 2, 3, 7, 64, 100, 1_000] {
                let position = |nth: u64| if nth < before { nth } else { before + (nth - before) % length };
                let (nth, why) = followed(u64::MAX, |nth| (position(nth), Some(nth)));
                assert!(why.contains("loops"), "{why}");
                assert!(nth >= length && nth <= 4 * (before + length) + 4, "{before}, {length}: {nth}");
            }
        }
    }

    #[test]
    fn a_list_without_new_entries_is_given_up() {
        let (nth, why) = followed(u64::MAX, |nth| (nth, None));
        assert!(why.contains("empty responses") && nth == u64::from(EMPTY_MAX), "{nth}: {why}");
        for length in [1, 2, 5, 30] {
            let (nth, why) = followed(u64::MAX, |nth| (nth, Some(nth % length)));
            assert!(why.contains("same entries") && nth < 200 * length + 200, "{length}: {nth}: {why}");
        }
    }

    #[test]
    fn a_list_with_new_entries_is_followed() {
        assert_eq!(followed(50_000, |nth| (nth, Some(nth))), (50_000, ""));
        let rarely = |nth: u64| nth.is_multiple_of(u64::from(EMPTY_MAX)).then_some(nth);
        assert_eq!(followed(50_000, |nth| (nth, rarely(nth))), (50_000, ""));
    }

    #[test]
    fn another_list_may_have_the_same_positions() {
        let mut loop_detector = LoopDetector::default();
        let rest = Continuation::from([("continue".to_owned(), "a".to_owned())]);
        for _ in 0..10 {
            assert_eq!(loop_detector.follow(Some(&rest), Some(1)), Ok(()));
            assert_eq!(loop_detector.follow(None, Some(1)), Ok(()));
        }
    }
}

//! The waiters of one lane, ordered by when they are ready and when they joined.
//!
//! In a lane of a few waiters, as almost all are, they take no more room than they need themselves: with a million
//! domains in hand, a node of a tree for each of them would be most of the memory. A lane of many waiters is a tree, so
//! that joining and leaving stay cheap however long it gets.

use std::collections::BTreeMap;

use crate::time::Timestamp;

/// When a waiter is ready, and its number among all that ever joined.
pub(crate) type Place = (Timestamp, u64);

/// The waiters of one lane.
#[derive(Debug)]
pub(crate) enum Waiters<W> {
    /// The first one comes first.
    Few(Vec<(Place, W)>),
    Many(BTreeMap<Place, W>),
}

impl<W> Default for Waiters<W> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<W> Waiters<W> {
    /// Adds a waiter. No two have the same place.
    pub(crate) fn insert(&mut self, place: Place, waiter: W) {
        match self {
            Self::Few(few) if few.len() < FEW_MAX => {
                if few.len() == few.capacity() {
                    few.reserve_exact(few.len().max(1));
                }
                let index = few.partition_point(|(known, _)| *known < place);
                few.insert(index, (place, waiter));
            }
            Self::Few(few) => {
                let mut many: BTreeMap<Place, W> = std::mem::take(few).into_iter().collect();
                many.insert(place, waiter);
                *self = Self::Many(many);
            }
            Self::Many(many) => drop(many.insert(place, waiter)),
        }
    }

    /// Removes a waiter; `None` if it isn't there.
    pub(crate) fn remove(&mut self, place: Place) -> Option<W> {
        match self {
            Self::Few(few) => {
                let index = few.binary_search_by_key(&place, |(known, _)| *known).ok()?;
                Some(few.remove(index).1)
            }
            Self::Many(many) => many.remove(&place),
        }
    }

    /// The first waiter and its place.
    pub(crate) fn first(&self) -> Option<(Place, &W)> {
        match self {
            Self::Few(few) => few.first().map(|(place, waiter)| (*place, waiter)),
            Self::Many(many) => many.first_key_value().map(|(place, waiter)| (*place, waiter)),
        }
    }

    /// All waiters, in order.
    pub(crate) fn into_values(self) -> Vec<W> {
        match self {
            Self::Few(few) => few.into_iter().map(|(_, waiter)| waiter).collect(),
            Self::Many(many) => many.into_values().collect(),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many are ready. A retry that is due in an hour isn't ahead of anybody now.
    pub(crate) fn ready(&self, now: Timestamp) -> usize {
        match self {
            Self::Few(few) => few.partition_point(|((ready_at, _), _)| *ready_at <= now),
            // The usual case: all are ready.
            Self::Many(many) if many.last_key_value().is_some_and(|((last, _), _)| *last <= now) => {
                many.len()
            }
            Self::Many(many) => many.range(..=(now, u64::MAX)).count(),
        }
    }
}

/// More waiters than this are kept in a tree.
const FEW_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A million domains with one waiter each must fit.
    #[test]
    fn a_single_waiter_takes_no_room_for_others() {
        let mut waiters = Waiters::default();
        waiters.insert((Timestamp::MIN, 1), 1_u64);
        let Waiters::Few(few) = &waiters else { panic!("one is few") };
        assert_eq!(few.capacity(), 1);
        assert!(size_of::<Waiters<u64>>() <= 32);
    }

    proptest! {
        /// However many there are, and whether they have ever been more.
        #[test]
        fn waiters_are_served_by_their_places(
            steps in proptest::collection::vec((any::<bool>(), 0_i64..40), 0..200),
            now in 0_i64..40,
        ) {
            let (mut waiters, mut model) = (Waiters::default(), BTreeMap::new());
            for (nth, (joins, at)) in (0..).zip(steps) {
                let at = Timestamp::from_secs(at);
                if joins {
                    waiters.insert((at, nth), nth);
                    model.insert((at, nth), nth);
                } else {
                    // The first one at that time or later.
                    let place = model.range((at, 0)..).next().map_or((at, 0), |(place, _)| *place);
                    prop_assert_eq!(waiters.remove(place), model.remove(&place));
                }
                let first = model.first_key_value().map(|(place, waiter)| (*place, waiter));
                prop_assert_eq!(waiters.first(), first);
                prop_assert_eq!((waiters.len(), waiters.is_empty()), (model.len(), model.is_empty()));
            }
            let now = Timestamp::from_secs(now);
            prop_assert_eq!(waiters.ready(now), model.range(..=(now, u64::MAX)).count());
            prop_assert_eq!(waiters.into_values(), model.into_values().collect::<Vec<_>>());
        }
    }
}

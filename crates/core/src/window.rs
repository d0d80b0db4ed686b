//! The sliding window of a burst limit: at most N starts in any window of a given length.
//!
//! Only the latest N starts matter: the next request may start when the Nth latest has left the window. One more is
//! remembered, because a start that moves to a later time doesn't count against itself. Starts that were forgotten
//! because state was lost are assumed to be as late as possible.

use std::collections::VecDeque;

use crate::rule::Burst;
use crate::time::Timestamp;

/// The latest starts, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Window {
    starts: VecDeque<Timestamp>,
}

impl Window {
    /// The earliest time at which one more start fits; starts that aren't remembered count as having been at `lost_at`.
    ///
    /// `except` is a start that doesn't count, because it is about to be moved.
    pub(crate) fn free_at(&self, burst: Burst, lost_at: Timestamp, except: Option<Timestamp>) -> Timestamp {
        let left_out = except.and_then(|except| self.starts.iter().rposition(|start| *start == except));
        let others = self.starts.len() - usize::from(left_out.is_some());
        let count = burst.count as usize;
        let Some(nth) = others.checked_sub(count) else { return lost_at + burst.window };
        // Skip the start that is left out.
        let nth = if left_out.is_some_and(|index| index <= nth) { nth + 1 } else { nth };
        self.starts.get(nth).map_or(lost_at, |start| *start) + burst.window
    }

    /// Adds a start and forgets those that a burst of `count` doesn't need.
    pub(crate) fn push(&mut self, start: Timestamp, count: u32) {
        let index = self.starts.partition_point(|known| *known <= start);
        self.starts.insert(index, start);
        while self.starts.len() > count as usize + 1 {
            self.starts.pop_front();
        }
    }

    /// Moves a start to a later time; if it was already forgotten, it is added again.
    pub(crate) fn shift_start(&mut self, from: Timestamp, to: Timestamp, count: u32) {
        if let Some(index) = self.starts.iter().rposition(|start| *start == from) {
            self.starts.remove(index);
        }
        self.push(to, count);
    }

    /// All starts, to shift them with the clock; their order must not change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.starts.iter_mut()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Timestamp> {
        self.starts.iter().copied()
    }

    pub(crate) fn from_sorted(starts: impl Iterator<Item = Timestamp>) -> Option<Self> {
        let starts: VecDeque<Timestamp> = starts.collect();
        starts.iter().is_sorted().then_some(Self { starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    const THREE: Burst = Burst { count: 3, window: Span::from_secs(60) };

    /// B17, B6
    #[test]
    fn the_next_start_fits_exactly_when_the_oldest_leaves_the_window() {
        let mut window = Window::default();
        for (start, free) in [(0, None), (2, None), (4, Some(60)), (60, Some(62)), (70, Some(64))] {
            window.push(at(start), 3);
            let expected = free.map_or(Timestamp::NEVER, at);
            assert_eq!(window.free_at(THREE, Timestamp::NEVER, None), expected, "after {start}");
        }
    }

    /// B77
    #[test]
    fn lost_starts_are_assumed_as_late_as_possible() {
        let mut window = Window::default();
        assert_eq!(window.free_at(THREE, at(10), None), at(70));
        window.push(at(70), 3);
        assert_eq!(window.free_at(THREE, at(10), None), at(70));
        window.push(at(71), 3);
        window.push(at(72), 3);
        assert_eq!(window.free_at(THREE, at(10), None), at(130));
    }

    /// B25
    #[test]
    fn a_start_that_moves_later_does_not_count_against_itself() {
        let mut window = Window::default();
        [0, 2, 4, 60].iter().for_each(|start| window.push(at(*start), 3));
        assert_eq!(window.free_at(THREE, Timestamp::NEVER, Some(at(0))), at(62));
        assert_eq!(window.free_at(THREE, Timestamp::NEVER, Some(at(60))), at(60));
        window.shift_start(at(0), at(62), 3);
        assert_eq!(window.iter().collect::<Vec<_>>(), [2, 4, 60, 62].map(at));
        window.shift_start(at(1), at(99), 3);
        assert_eq!(
            window.iter().collect::<Vec<_>>(),
            [4, 60, 62, 99].map(at),
            "it was forgotten, but it did start"
        );
    }
}

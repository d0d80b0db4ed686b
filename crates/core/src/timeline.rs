//! The time that all processes on one store share (B7).
//!
//! The wall clock may be set while processes run, and a machine may sleep; the time since it booted knows neither mistake.
//! So a store remembers when, on its timeline, the machine booted: within one boot every process reads the same time,
//! whatever the wall clock does. Only a process that is alone on the store sets the timeline by the wall clock again, and
//! whatever is remembered there moves along, so that what was left to wait is still left.
//!
//! Nothing here reads a clock, and nothing writes rows: a store does, and the simulator.

use crate::time::{Span, Timestamp};

/// What a machine reads at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Which boot of which machine; empty where nothing tells.
    pub boot: String,
    /// The time since then, sleep included.
    pub up: Span,
    /// The wall clock.
    pub wall: Timestamp,
}

/// Which time it is, for everybody on a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Which boot of which machine the timeline was set in.
    pub boot: String,
    /// When that machine booted, on this timeline.
    pub booted_at: Timestamp,
    /// The latest moment that anybody is known to have read on it,
    pub last: Timestamp,
    /// and what the wall clock read then.
    pub wall: Timestamp,
}

/// Who else uses the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Nobody: the timeline may be set.
    Alone,
    /// Somebody goes by the timeline as it is.
    Others,
}

/// The timeline was set: what was `from` on it is `to` now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// What the time was,
    pub from: Timestamp,
    /// and what it is.
    pub to: Timestamp,
}

/// What a process goes by that joins a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// What the time is.
    pub now: Timestamp,
    /// The timeline from now on.
    pub timeline: Timeline,
    /// How everything that is remembered moves, if it does.
    pub shift: Option<Shift>,
}

impl Timeline {
    /// What the time is on a store that knows `known`, for somebody who only looks.
    pub fn now(known: Option<&Self>, reading: &Reading) -> Timestamp {
        match known {
            None => reading.wall,
            Some(known) if known.is_of(reading) => known.booted_at + reading.up,
            Some(known) => known.after_boot(reading),
        }
    }

    /// A process joins a store that knows `known`.
    pub fn join(known: Option<&Self>, reading: &Reading, company: Company) -> Joined {
        let wall = reading.wall;
        let (now, shift) = match (known, company) {
            (None, _) => (wall, None),
            (Some(known), Company::Others) if !known.is_of(reading) => {
                // The others are on another machine: their time is what they wrote last, and stays theirs.
                return Joined { now: known.last, timeline: known.clone(), shift: None };
            }
            (Some(known), Company::Others) => {
                let now = known.booted_at + reading.up;
                let timeline = Self { last: now, wall, ..known.clone() };
                return Joined { now, timeline, shift: None };
            }
            (Some(known), Company::Alone) => {
                let now = Self::now(Some(known), reading);
                let off = wall.since(now).max(now.since(wall));
                if off < TOLERATED { (now, None) } else { (wall, Some(Shift { from: now, to: wall })) }
            }
        };
        let (boot, booted_at) = (reading.boot.clone(), now - reading.up);
        let timeline = Self { boot, booted_at, last: now, wall };
        Joined { now, timeline, shift }
    }

    /// What the time is after another boot. How long the machine was off nobody knows but the wall clock; one that is
    /// behind what it was cannot be right.
    fn after_boot(&self, reading: &Reading) -> Timestamp {
        self.last + reading.wall.since(self.wall)
    }

    /// Whether a reading is of the boot in which the timeline was set. Where nothing tells, a machine that has been up for
    /// a shorter time than it was has been booted since.
    fn is_of(&self, reading: &Reading) -> bool {
        self.boot == reading.boot && self.booted_at + reading.up + TOLERATED >= self.last
    }
}

impl Shift {
    /// A moment as it reads after the shift; [`Timestamp::NEVER`] and the end of time stay where they are.
    pub fn of(self, at: Timestamp) -> Timestamp {
        if at == Timestamp::MAX { at } else { at + self.to.since(self.from) - self.from.since(self.to) }
    }

    /// Microseconds to add to a moment.
    pub fn micros(self) -> i64 {
        self.to.as_micros().saturating_sub(self.from.as_micros())
    }
}

/// A wall clock that is off by less than this is not worth setting anything by.
const TOLERATED: Span = Span::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn reading(boot: &str, up: u64, wall: i64) -> Reading {
        Reading { boot: boot.to_owned(), up: Span::from_secs(up), wall: at(wall) }
    }

    /// B7
    #[test]
    fn whoever_joins_others_reads_their_time_whatever_the_wall_clock_says() {
        let first = Timeline::join(None, &reading("a", 100, 5_000), Company::Alone);
        assert_eq!((first.now, first.shift), (at(5_000), None));
        for wall in [0, 1_400, 5_060, 8_600, 1_000_000] {
            let joined = Timeline::join(Some(&first.timeline), &reading("a", 160, wall), Company::Others);
            assert_eq!((joined.now, joined.shift), (at(5_060), None), "{wall}");
            assert_eq!(Timeline::now(Some(&joined.timeline), &reading("a", 170, wall)), at(5_070));
        }
    }

    /// B7
    #[test]
    fn whoever_is_alone_sets_the_time_and_everything_moves_along() {
        let first = Timeline::join(None, &reading("a", 100, 5_000), Company::Alone).timeline;
        for wall in [1_400, 8_600] {
            let joined = Timeline::join(Some(&first), &reading("a", 160, wall), Company::Alone);
            let shift = joined.shift.unwrap();
            assert_eq!((joined.now, shift), (at(wall), Shift { from: at(5_060), to: at(wall) }));
            assert_eq!(shift.of(at(5_075)), at(wall + 15), "what was left is left");
            assert_eq!(shift.of(Timestamp::NEVER), Timestamp::NEVER);
            assert_eq!(shift.of(Timestamp::MAX), Timestamp::MAX);
        }
        let slewed = Timeline::join(Some(&first), &reading("a", 160, 5_060), Company::Alone);
        assert_eq!((slewed.now, slewed.shift), (at(5_060), None));
    }

    /// B7
    #[test]
    fn another_boot_goes_by_the_wall_clock_but_never_back() {
        let known = Timeline { boot: "a".to_owned(), booted_at: at(4_900), last: at(6_000), wall: at(6_000) };
        let later = Timeline::join(Some(&known), &reading("b", 10, 9_000), Company::Alone);
        assert_eq!((later.now, later.shift), (at(9_000), None));
        let behind = Timeline::join(Some(&known), &reading("b", 10, 2_000), Company::Alone);
        assert_eq!((behind.now, behind.shift), (at(2_000), Some(Shift { from: at(6_000), to: at(2_000) })));
        assert_eq!(Timeline::now(Some(&known), &reading("b", 10, 2_000)), at(6_000));
        // Somebody had set the wall clock an hour ahead while processes ran, and the machine was off for a minute.
        let set = Timeline { wall: at(9_600), ..known.clone() };
        let ahead = Timeline::join(Some(&set), &reading("b", 10, 9_660), Company::Alone);
        assert_eq!((ahead.now, ahead.shift), (at(9_660), Some(Shift { from: at(6_060), to: at(9_660) })));
        let with_others = Timeline::join(Some(&known), &reading("b", 10, 9_000), Company::Others);
        assert_eq!((with_others.now, with_others.timeline), (at(6_000), known));
    }

    #[test]
    fn a_machine_that_does_not_name_its_boots_is_seen_to_have_booted() {
        let known = Timeline { boot: String::new(), booted_at: at(4_900), last: at(6_000), wall: at(6_000) };
        let same = Timeline::join(Some(&known), &reading("", 1_200, 100), Company::Others);
        assert_eq!(same.now, at(6_100));
        let booted = Timeline::join(Some(&known), &reading("", 10, 9_000), Company::Alone);
        assert_eq!((booted.now, booted.shift), (at(9_000), None));
    }
}

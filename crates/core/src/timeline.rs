//! The clock that all processes on one store share.
//!
//! The wall clock may be set while processes run, and the machine may be suspended; the time since boot is immune to
//! both. A store therefore remembers when the machine booted, on its own timeline: within one boot all processes agree
//! on the time, whatever the wall clock does. Only a process that is alone on the store sets the timeline to the wall
//! clock again. Everything stored then shifts by the same amount, so that remaining waits stay the same.
//!
//! Nothing here reads a clock or writes rows: the store and the simulator do.

use crate::time::{Span, Timestamp};

/// The clocks of a machine, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockReading {
    /// Identifies the boot and the machine; empty if the system doesn't provide an id.
    pub boot: String,
    /// Time since boot, including suspend.
    pub up: Span,
    /// The wall clock.
    pub wall: Timestamp,
}

/// The shared clock of a store, as it is saved there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// The boot (and machine) in which the timeline was set.
    pub boot: String,
    /// When that machine booted, on this timeline.
    pub booted_at: Timestamp,
    /// The latest time that any process is known to have read on this timeline.
    pub last: Timestamp,
    /// What the wall clock read at `last`.
    pub wall: Timestamp,
}

/// Whether other processes use the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupancy {
    /// No other process uses it, so the timeline may be set.
    Alone,
    /// Other processes rely on the timeline as it is.
    Shared,
}

/// A correction of the timeline: what used to be `from` is now `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// The time before the correction.
    pub from: Timestamp,
    /// The same moment after the correction.
    pub to: Timestamp,
}

/// The clock of a process that joined a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The current time.
    pub now: Timestamp,
    /// The timeline to save.
    pub timeline: Timeline,
    /// By how much all stored times have to be shifted, if they do.
    pub shift: Option<Shift>,
}

impl Timeline {
    /// The current time on a store whose saved timeline is `known`, for a process that only reads.
    pub fn now(known: Option<&Self>, reading: &ClockReading) -> Timestamp {
        match known {
            None => reading.wall,
            Some(known) if known.is_same_boot(reading) => known.booted_at + reading.up,
            Some(known) => known.after_boot(reading),
        }
    }

    /// A process joins a store whose saved timeline is `known`.
    pub fn join(known: Option<&Self>, reading: &ClockReading, company: Occupancy) -> Joined {
        let wall = reading.wall;
        let (now, shift) = match (known, company) {
            (None, _) => (wall, None),
            (Some(known), Occupancy::Shared) if !known.is_same_boot(reading) => {
                // The others are on another machine: the best guess of their time is what they wrote last.
                return Joined { now: known.last, timeline: known.clone(), shift: None };
            }
            (Some(known), Occupancy::Shared) => {
                let now = known.booted_at + reading.up;
                let timeline = Self { last: now, wall, ..known.clone() };
                return Joined { now, timeline, shift: None };
            }
            (Some(known), Occupancy::Alone) => {
                let now = Self::now(Some(known), reading);
                let off = wall.since(now).max(now.since(wall));
                if off < TOLERANCE { (now, None) } else { (wall, Some(Shift { from: now, to: wall })) }
            }
        };
        let (boot, booted_at) = (reading.boot.clone(), now - reading.up);
        let timeline = Self { boot, booted_at, last: now, wall };
        Joined { now, timeline, shift }
    }

    /// The time after a reboot. Only the wall clock knows how long the machine was off; a wall clock that is behind its
    /// last known value is not believed.
    fn after_boot(&self, reading: &ClockReading) -> Timestamp {
        self.last + reading.wall.since(self.wall)
    }

    /// Whether the reading is from the boot in which the timeline was set. Without boot ids, a machine whose uptime
    /// went down must have rebooted.
    fn is_same_boot(&self, reading: &ClockReading) -> bool {
        self.boot == reading.boot && self.booted_at + reading.up + TOLERANCE >= self.last
    }
}

impl Shift {
    /// A timestamp after the shift; [`Timestamp::NEVER`] and [`Timestamp::MAX`] don't change.
    pub fn of(self, at: Timestamp) -> Timestamp {
        if at == Timestamp::MAX { at } else { at + self.to.since(self.from) - self.from.since(self.to) }
    }

    /// Microseconds to add to a timestamp.
    pub fn micros(self) -> i64 {
        self.to.as_micros().saturating_sub(self.from.as_micros())
    }
}

/// Differences from the wall clock below this are ignored.
const TOLERANCE: Span = Span::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn reading(boot: &str, up: u64, wall: i64) -> ClockReading {
        ClockReading { boot: boot.to_owned(), up: Span::from_secs(up), wall: at(wall) }
    }

    /// B7
    #[test]
    fn a_process_that_joins_others_uses_their_time_whatever_its_wall_clock_says() {
        let first = Timeline::join(None, &reading("a", 100, 5_000), Occupancy::Alone);
        assert_eq!((first.now, first.shift), (at(5_000), None));
        for wall in [0, 1_400, 5_060, 8_600, 1_000_000] {
            let joined = Timeline::join(Some(&first.timeline), &reading("a", 160, wall), Occupancy::Shared);
            assert_eq!((joined.now, joined.shift), (at(5_060), None), "{wall}");
            assert_eq!(Timeline::now(Some(&joined.timeline), &reading("a", 170, wall)), at(5_070));
        }
    }

    /// B7
    #[test]
    fn a_process_alone_on_the_store_sets_the_clock_and_stored_times_shift_with_it() {
        let first = Timeline::join(None, &reading("a", 100, 5_000), Occupancy::Alone).timeline;
        for wall in [1_400, 8_600] {
            let joined = Timeline::join(Some(&first), &reading("a", 160, wall), Occupancy::Alone);
            let shift = joined.shift.unwrap();
            assert_eq!((joined.now, shift), (at(wall), Shift { from: at(5_060), to: at(wall) }));
            assert_eq!(shift.of(at(5_075)), at(wall + 15), "the remaining wait stays the same");
            assert_eq!(shift.of(Timestamp::NEVER), Timestamp::NEVER);
            assert_eq!(shift.of(Timestamp::MAX), Timestamp::MAX);
        }
        let slewed = Timeline::join(Some(&first), &reading("a", 160, 5_060), Occupancy::Alone);
        assert_eq!((slewed.now, slewed.shift), (at(5_060), None));
    }

    /// B7
    #[test]
    fn after_a_reboot_the_wall_clock_counts_but_never_backwards() {
        let known = Timeline { boot: "a".to_owned(), booted_at: at(4_900), last: at(6_000), wall: at(6_000) };
        let later = Timeline::join(Some(&known), &reading("b", 10, 9_000), Occupancy::Alone);
        assert_eq!((later.now, later.shift), (at(9_000), None));
        let behind = Timeline::join(Some(&known), &reading("b", 10, 2_000), Occupancy::Alone);
        assert_eq!((behind.now, behind.shift), (at(2_000), Some(Shift { from: at(6_000), to: at(2_000) })));
        assert_eq!(Timeline::now(Some(&known), &reading("b", 10, 2_000)), at(6_000));
        // The wall clock was set an hour ahead while processes ran, and the machine was off for a minute.
        let set = Timeline { wall: at(9_600), ..known.clone() };
        let ahead = Timeline::join(Some(&set), &reading("b", 10, 9_660), Occupancy::Alone);
        assert_eq!((ahead.now, ahead.shift), (at(9_660), Some(Shift { from: at(6_060), to: at(9_660) })));
        let with_others = Timeline::join(Some(&known), &reading("b", 10, 9_000), Occupancy::Shared);
        assert_eq!((with_others.now, with_others.timeline), (at(6_000), known));
    }

    #[test]
    fn without_boot_ids_a_reboot_is_detected_by_the_uptime() {
        let known = Timeline { boot: String::new(), booted_at: at(4_900), last: at(6_000), wall: at(6_000) };
        let same = Timeline::join(Some(&known), &reading("", 1_200, 100), Occupancy::Shared);
        assert_eq!(same.now, at(6_100));
        let booted = Timeline::join(Some(&known), &reading("", 10, 9_000), Occupancy::Alone);
        assert_eq!((booted.now, booted.shift), (at(9_000), None));
    }
}

//! The clocks of the simulated machine, the timeline of its store, and the time that each process reads. Sites and
//! checkers use the true time.

use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};
use comity_core::timeline::{ClockReading, Joined, Occupancy, Shift, Timeline};

use super::super::{ClockSource, WorldSpec};
use super::Play;

pub(super) struct Clocks {
    /// The timeline saved in the store.
    timeline: Option<Timeline>,
    source: ClockSource,
    /// By how much the clock of each process differs from the true time, in microseconds.
    offsets: Vec<i64>,
    /// By how much the wall clock of each process differs from that of the machine.
    skews: Vec<i64>,
    /// By how much the machine's wall clock differs from the true time.
    wall: i64,
    boots: u32,
    booted_at: Timestamp,
    suspended_until: Timestamp,
    pub(super) wakes: Vec<Timestamp>,
}

impl Clocks {
    pub(super) fn new(spec: &WorldSpec, now: Timestamp) -> Self {
        let skew = |process| spec.skews.get(process).map_or(0, |secs| secs * 1_000_000);
        Self {
            timeline: None,
            source: spec.clock_source,
            offsets: vec![0; spec.processes],
            skews: (0..spec.processes).map(skew).collect(),
            wall: 0,
            boots: 0,
            booted_at: now - Span::from_hours(1),
            suspended_until: Timestamp::NEVER,
            wakes: Vec::new(),
        }
    }

    /// The time that a process reads at the true time `now`.
    pub(super) fn read(&self, process: usize, now: Timestamp) -> Timestamp {
        moved(now, self.offsets[process])
    }

    /// The true time at which a process reads `at`.
    pub(super) fn real(&self, process: usize, at: Timestamp) -> Timestamp {
        moved(at, -self.offsets[process])
    }

    /// Sets the wall clock, except between a reboot and the first process after it: only the wall clock knows how long
    /// the machine was off.
    pub(super) fn step(&mut self, secs: i64) {
        if self.timeline.as_ref().is_none_or(|timeline| timeline.boot == self.boots.to_string()) {
            self.wall += secs * 1_000_000;
        }
    }

    pub(super) fn suspend(&mut self, until: Timestamp) {
        self.suspended_until = until;
        self.wakes.push(until);
    }

    /// When the machine resumes, if it is suspended.
    pub(super) fn suspended_until(&self, now: Timestamp) -> Option<Timestamp> {
        (now < self.suspended_until).then_some(self.suspended_until)
    }

    pub(super) fn reboot(&mut self, now: Timestamp) {
        self.boots += 1;
        self.booted_at = now;
    }

    /// Saves the current time. A real store does this with every heartbeat; here it is done only when it matters.
    pub(super) fn note(&mut self, process: usize, now: Timestamp) {
        let (last, wall) = (self.read(process, now), self.wall_of(process, now));
        if let Some(timeline) = self.timeline.as_mut().filter(|timeline| timeline.last <= last) {
            (timeline.last, timeline.wall) = (last, wall);
        }
    }

    fn wall_of(&self, process: usize, now: Timestamp) -> Timestamp {
        moved(now, self.wall + self.skews[process])
    }

    fn join(&mut self, process: usize, company: Occupancy, now: Timestamp) -> Option<Shift> {
        if self.source == ClockSource::Own {
            self.offsets[process] = self.wall + self.skews[process];
            return None;
        }
        let (up, wall) = (now.since(self.booted_at), self.wall_of(process, now));
        let reading = ClockReading { boot: self.boots.to_string(), up, wall };
        let joined = Timeline::join(self.timeline.as_ref(), &reading, company);
        let Joined { now: time, timeline, shift } = joined;
        self.offsets[process] = time.as_micros() - now.as_micros();
        self.timeline = Some(timeline);
        shift
    }
}

impl Play<'_> {
    /// A process starts and joins the store's timeline; if that is corrected, all stored times are shifted.
    pub(super) fn join_time(&mut self, process: usize) {
        let others =
            self.processes.iter().enumerate().any(|(nth, other)| nth != process && other.dispatch.is_some());
        let company = if others { Occupancy::Shared } else { Occupancy::Alone };
        let Some(shift) = self.clocks.join(process, company, self.now) else { return };
        for state in &mut self.domains {
            let limits = &mut state.saved.limits;
            limits.server = limits.server.map(|(until, stated_at)| (shift.of(until), shift.of(stated_at)));
            limits.floor_at = limits.floor_at.map(|at| shift.of(at));
            if let Some(bytes) = &mut state.saved.pace {
                let mut pace = Pace::decode(bytes).unwrap_or_else(|error| panic!("{error}"));
                pace.shift_times(shift);
                *bytes = pace.encode();
            }
        }
        for task in &mut self.tasks {
            if task.ready_at != Timestamp::MIN {
                task.ready_at = shift.of(task.ready_at);
            }
        }
    }
}

fn moved(at: Timestamp, by: i64) -> Timestamp {
    at.ever().map_or(at, |at| Timestamp::from_micros(at.as_micros().saturating_add(by)))
}

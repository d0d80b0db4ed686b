//! The clocks of the machine that all processes run on, which time the store keeps, and what each process reads. Sites
//! have the true time, and so has whoever checks.

use comity_core::pace::Pace;
use comity_core::time::{Span, Timestamp};
use comity_core::timeline::{Company, Joined, Reading, Shift, Timeline};

use super::super::{Time, WorldSpec};
use super::Play;

pub(super) struct Clocks {
    /// What the store knows.
    timeline: Option<Timeline>,
    time: Time,
    /// What each process reads when the true time is zero.
    offsets: Vec<i64>,
    /// By how much each process sees the wall clock off.
    skews: Vec<i64>,
    /// By how much the machine's wall clock is off.
    wall: i64,
    boots: u32,
    booted_at: Timestamp,
    asleep_until: Timestamp,
    pub(super) wakes: Vec<Timestamp>,
}

impl Clocks {
    pub(super) fn new(spec: &WorldSpec, now: Timestamp) -> Self {
        let skew = |process| spec.skews.get(process).map_or(0, |secs| secs * 1_000_000);
        Self {
            timeline: None,
            time: spec.time,
            offsets: vec![0; spec.processes],
            skews: (0..spec.processes).map(skew).collect(),
            wall: 0,
            boots: 0,
            booted_at: now - Span::from_hours(1),
            asleep_until: Timestamp::NEVER,
            wakes: Vec::new(),
        }
    }

    /// What a process reads at the true time `now`.
    pub(super) fn read(&self, process: usize, now: Timestamp) -> Timestamp {
        moved(now, self.offsets[process])
    }

    /// The true time when a process reads `at`.
    pub(super) fn real(&self, process: usize, at: Timestamp) -> Timestamp {
        moved(at, -self.offsets[process])
    }

    /// Somebody sets the wall clock. Nobody does between a boot and the first process after it: how long the machine was
    /// off is known from nothing else.
    pub(super) fn step(&mut self, secs: i64) {
        if self.timeline.as_ref().is_none_or(|timeline| timeline.boot == self.boots.to_string()) {
            self.wall += secs * 1_000_000;
        }
    }

    pub(super) fn sleep(&mut self, until: Timestamp) {
        self.asleep_until = until;
        self.wakes.push(until);
    }

    /// When the machine wakes, if it is asleep.
    pub(super) fn asleep_until(&self, now: Timestamp) -> Option<Timestamp> {
        (now < self.asleep_until).then_some(self.asleep_until)
    }

    pub(super) fn boot(&mut self, now: Timestamp) {
        self.boots += 1;
        self.booted_at = now;
    }

    /// The store notes the time with every beat; here, right before it matters.
    pub(super) fn note(&mut self, process: usize, now: Timestamp) {
        let (last, wall) = (self.read(process, now), self.wall_of(process, now));
        if let Some(timeline) = self.timeline.as_mut().filter(|timeline| timeline.last <= last) {
            (timeline.last, timeline.wall) = (last, wall);
        }
    }

    fn wall_of(&self, process: usize, now: Timestamp) -> Timestamp {
        moved(now, self.wall + self.skews[process])
    }

    fn join(&mut self, process: usize, company: Company, now: Timestamp) -> Option<Shift> {
        if self.time == Time::Own {
            self.offsets[process] = self.wall + self.skews[process];
            return None;
        }
        let (up, wall) = (now.since(self.booted_at), self.wall_of(process, now));
        let reading = Reading { boot: self.boots.to_string(), up, wall };
        let joined = Timeline::join(self.timeline.as_ref(), &reading, company);
        let Joined { now: time, timeline, shift } = joined;
        self.offsets[process] = time.as_micros() - now.as_micros();
        self.timeline = Some(timeline);
        shift
    }
}

impl Play<'_> {
    /// A process starts and goes by the time of the store; if it sets that, what is kept there moves along.
    pub(super) fn join_time(&mut self, process: usize) {
        let others =
            self.processes.iter().enumerate().any(|(nth, other)| nth != process && other.dispatch.is_some());
        let company = if others { Company::Others } else { Company::Alone };
        let Some(shift) = self.clocks.join(process, company, self.now) else { return };
        for held in &mut self.domains {
            let kept = &mut held.saved.kept;
            kept.server = kept.server.map(|(until, stated_at)| (shift.of(until), shift.of(stated_at)));
            kept.floor_at = kept.floor_at.map(|at| shift.of(at));
            if let Some(bytes) = &mut held.saved.pace {
                let mut pace = Pace::decode(bytes).unwrap_or_else(|error| panic!("{error}"));
                pace.move_along(shift);
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

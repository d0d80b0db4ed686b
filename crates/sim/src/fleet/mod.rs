//! Many machines and one PostgreSQL, in virtual time: the tenancy that the store promises, with networks, clocks and servers that fail.
//!
//! A [`FleetSpec`] is plain data. [`FleetSpec::random`] makes one from a seed; [`FleetSpec::run`] plays it with the core's own dispatch,
//! and the checker of all worlds judges the sites' logs. The database is a model of what `comity-store` does in SQL: `database`. Switching one
//! of its [`Rule`]s off shows what it is for.

mod database;
mod play;
mod processes;
mod random;

use comity_core::time::Span;

use crate::check::{self, Violation};
use crate::world::{Failed, Report, WorldSpec};

/// The description of a fleet.
#[derive(Debug, Clone)]
pub struct FleetSpec {
    /// Sites, tasks and processes, each process on a machine of its own. Its faults and clocks are not used.
    pub world: WorldSpec,
    /// What happens to the fleet.
    pub faults: Vec<FleetFault>,
    /// By how many seconds the database's clock is ahead of the true time.
    pub clock_ahead: i64,
    /// The rule that nobody follows, to see what it is for.
    pub without: Option<Rule>,
}

/// Something that happens to a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetFault {
    /// When it happens, from the start of the world.
    pub at: Span,
    /// What happens.
    pub kind: FleetFaultKind,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetFaultKind {
    /// The process is killed (kill -9) and restarted a moment later.
    Kill {
        /// The process.
        process: usize,
    },
    /// The process is stopped (SIGSTOP) and continues later. Its requests stay on the wire.
    Stop {
        /// The process.
        process: usize,
        /// For how long.
        length: Span,
    },
    /// What one machine and the database send each other is dropped.
    Cut {
        /// The process on that machine.
        process: usize,
        /// In which direction.
        direction: Direction,
        /// For how long.
        length: Span,
    },
    /// The database's answers to one machine take longer.
    Slow {
        /// The process on that machine.
        process: usize,
        /// By how much.
        by: Span,
        /// For how long.
        length: Span,
    },
    /// The database restarts; nothing that was committed is lost.
    Restart {
        /// For how long it is down.
        down: Span,
    },
    /// A standby that lags is promoted: the last commits are lost, and a new timeline begins.
    Failover {
        /// The commits of this time are lost.
        lag: Span,
        /// How long it takes.
        down: Span,
        /// By how many seconds the new server's clock is ahead of the old one's.
        clock_by: i64,
    },
    /// The database's clock is set.
    Step {
        /// By how many seconds.
        by: i64,
    },
}

/// A direction between a machine and the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the machine to the database.
    Requests,
    /// From the database to the machine.
    Answers,
    /// Both.
    Both,
}

/// The rules of the tenancy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A holder trusts its lease from the moment it sent the renewal, not from the answer.
    LeaseFromSending,
    /// A holder is silent when its heartbeat was seen unchanged for a lease on the observer's own clock, whatever the database's clock shows.
    OwnClock,
    /// Whoever takes a silent holder's domain marks that holder dead in the same transaction, and only if its heartbeat is still the one that was seen.
    MarkDead,
    /// Each transaction looks at the server's timeline; after a new one, all domains are lost.
    Timeline,
    /// After a new timeline, nobody takes what was last written on an older one for a whole lease.
    WaitAfterChange,
    /// After a new timeline, holders state again what servers stated to them.
    StateAgain,
    /// Settles require the holder and the epoch that the task was claimed with.
    FencedSettles,
    /// A deadline that a server stated is committed before the domain's next grant.
    SavedBeforeGrant,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 8] = [
        Self::LeaseFromSending,
        Self::OwnClock,
        Self::MarkDead,
        Self::Timeline,
        Self::WaitAfterChange,
        Self::StateAgain,
        Self::FencedSettles,
        Self::SavedBeforeGrant,
    ];
}

impl FleetSpec {
    /// Plays the fleet and checks the logs of its sites.
    pub fn run(&self) -> Result<Report, Box<Failed>> {
        let report = play::play(self);
        match check::check_fleet(&self.world, &report) {
            Ok(()) => Ok(report),
            Err(violation) => Err(Box::new(Failed { violation, report })),
        }
    }

    /// Removes faults and tasks while the fleet still breaks the same promise.
    pub fn shrink(&self, failed: &Failed) -> (Self, Box<Failed>) {
        let mut best = (self.clone(), Box::new(failed.clone()));
        let same = |violation: &Violation| violation.promise == failed.violation.promise;
        while let Some(found) = best.0.smaller().into_iter().find_map(|spec| {
            let failed = spec.run().err()?;
            same(&failed.violation).then_some((spec, failed))
        }) {
            best = found;
        }
        best
    }

    fn smaller(&self) -> Vec<Self> {
        let mut fleets = Vec::new();
        for nth in 0..self.faults.len() {
            let mut fleet = self.clone();
            fleet.faults.remove(nth);
            fleets.push(fleet);
        }
        for nth in 0..self.world.hosts.len() {
            if self.world.hosts[nth].tasks > 1 {
                let mut fleet = self.clone();
                fleet.world.hosts[nth].tasks -= 1;
                fleets.push(fleet);
            }
        }
        fleets
    }

    /// Describes the fleet, the broken promise and the requests before it happened.
    pub fn story(&self, failed: &Failed) -> String {
        let faults: String =
            self.faults.iter().map(|FleetFault { at, kind }| format!("{at}: {kind:?}\n")).collect();
        let story = crate::shrink::story(&self.world, failed);
        let story = story.rsplit_once("\nto reproduce").map_or(&*story, |(story, _)| story);
        let seed = self.world.seed;
        format!("{story}\n{faults}\nto reproduce: cargo run -p comity-sim -- fleet {seed}")
    }
}

//! Processes, workers and faults around the core's own dispatch, in virtual time.
//!
//! A [`WorldSpec`] is plain data. [`WorldSpec::random`] makes one of a seed; [`WorldSpec::run`] plays it and
//! gives back what the sites saw; the same spec plays the same way every time.

mod play;
pub(crate) use play::BEGIN;
mod random;

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::rule::{Fields, RuleTable};
use comity_core::time::{Span, Timestamp};

use crate::check::Violation;
use crate::site::SiteSpec;

/// A world, before anything happened.
#[derive(Debug, Clone)]
pub struct WorldSpec {
    /// Decides everything that is random.
    pub seed: u64,
    /// The profile that rules start from.
    pub profile: &'static str,
    /// The hosts there are.
    pub hosts: Vec<HostSpec>,
    /// How many processes share them.
    pub processes: usize,
    /// Workers of each process.
    pub workers: u32,
    /// Tasks of the job in flight at once, in each process.
    pub concurrency: u32,
    /// Retries of each task.
    pub retries_max: u32,
    /// By how many seconds the wall clock of each process is off; of those that are not named, it is right.
    pub skews: Vec<i64>,
    /// What processes go by.
    pub time: Time,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// What the processes of a world go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Time {
    /// The time of the store that they share.
    #[default]
    Shared,
    /// Each by its own wall clock as it read when the process started, to see what that breaks.
    Own,
}

/// A host, what it is fetched by, and how much.
#[derive(Debug, Clone)]
pub struct HostSpec {
    /// The site behind it.
    pub site: SiteSpec,
    /// The settings of its rule, over the profile's.
    pub fields: Fields,
    /// The crawl-delay of its robots.txt.
    pub crawl_delay: Span,
    /// How long it takes to connect.
    pub connect: Span,
    /// How many pages are fetched from it.
    pub tasks: u32,
    /// Whether every third request is a search.
    pub searches: bool,
}

/// Something that goes wrong, or right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub at: Span,
    /// To which process.
    pub process: usize,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// kill -9; the process comes back later, and another notices the death a moment after.
    Kill,
    /// A clean stop and start.
    Restart,
    /// The process takes over the domain of this host from whoever holds it.
    Take {
        /// Which host.
        host: usize,
    },
    /// Somebody sets the wall clock of the machine by so many seconds.
    Step {
        /// Ahead, or back.
        by: i64,
    },
    /// The machine sleeps: nothing of it happens for so long, and time passes.
    Sleep {
        /// How long.
        length: Span,
    },
    /// The machine loses its power and boots again.
    Boot,
}

/// What the sites saw, and what became of the work.
#[derive(Debug, Clone)]
pub struct Report {
    /// Every request, in the order in which they started.
    pub log: Vec<Entry>,
    /// What the core learnt on the way.
    pub changes: Vec<Change>,
    /// How each task ended; `None` when it did not.
    pub tasks: Vec<TaskEnd>,
    /// When domains began to be held by somebody who knows nothing of what was sent before.
    pub takes: Vec<Taken>,
    /// When the machine woke up, or its processes were back after it booted.
    pub wakes: Vec<Timestamp>,
    /// When it was all over.
    pub ended: Timestamp,
    /// Each host's pace domain, by host.
    pub domains: Vec<Domain>,
    /// The rules in force.
    pub rules: RuleTable,
}

/// One request as its site saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// At which host.
    pub host: usize,
    /// For which task.
    pub task: usize,
    /// By which process.
    pub process: usize,
    /// For what.
    pub intent: Intent,
    /// When it was written.
    pub start: Timestamp,
    /// When it was no longer on the wire; `None` when it still was at the end.
    pub end: Option<Timestamp>,
    /// The answer; `None` when there was none.
    pub status: Option<u16>,
    /// The connection was refused.
    pub refused: bool,
    /// Whether somebody lived to hear it.
    pub heard: bool,
    /// For how long the answer asked to stay away.
    pub stated: Option<Span>,
}

/// A change of a learned delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// At which host the request was that changed it.
    pub host: usize,
    /// When.
    pub at: Timestamp,
    /// For which task that request was.
    pub task: usize,
    /// From what.
    pub from: Span,
    /// To what.
    pub to: Span,
}

/// A domain that got a new holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The host whose domain it is.
    pub host: usize,
    /// When.
    pub at: Timestamp,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskEnd {
    /// The host it is for.
    pub host: usize,
    /// Done, failed, or not ended.
    pub state: comity_core::task::TaskState,
    /// When.
    pub at: Option<Timestamp>,
}

impl WorldSpec {
    /// A world of one host, one process with sixteen workers, and no faults.
    pub fn of(host: HostSpec) -> Self {
        Self {
            seed: 1,
            profile: "standard",
            hosts: vec![host],
            processes: 1,
            workers: 16,
            concurrency: 16,
            retries_max: 3,
            skews: Vec::new(),
            time: Time::Shared,
            faults: Vec::new(),
        }
    }

    /// Plays the world and checks what its sites saw.
    pub fn run(&self) -> Result<Report, Box<Failed>> {
        let report = play::play(self);
        match crate::check::check(self, &report) {
            Ok(()) => Ok(report),
            Err(violation) => Err(Box::new(Failed { violation, report })),
        }
    }

    /// The name of a host.
    pub fn host(nth: usize) -> String {
        format!("h{nth}.test")
    }
}

/// A world in which something did not hold.
#[derive(Debug, Clone)]
pub struct Failed {
    /// What did not.
    pub violation: Violation,
    /// What happened.
    pub report: Report,
}

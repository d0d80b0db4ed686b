//! Processes, workers and faults around the core's own dispatch, in virtual time.
//!
//! A [`WorldSpec`] is plain data. [`WorldSpec::random`] makes one from a seed; [`WorldSpec::run`] plays it, checks it
//! and returns what the sites logged. The same spec gives the same result every time.

mod play;
pub(crate) use play::{BEGIN, rules};
mod random;

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::rule::{Fields, RuleTable};
use comity_core::time::{Span, Timestamp};

use crate::check::Violation;
use crate::site::SiteSpec;

/// The description of a world.
#[derive(Debug, Clone)]
pub struct WorldSpec {
    /// The seed of everything random.
    pub seed: u64,
    /// The profile that rules start from.
    pub profile: &'static str,
    /// The hosts.
    pub hosts: Vec<HostSpec>,
    /// Number of processes that share the hosts.
    pub processes: usize,
    /// Workers per process.
    pub workers: u32,
    /// Maximum number of tasks in flight per process.
    pub concurrency: u32,
    /// Maximum retries per task.
    pub retries_max: u32,
    /// By how many seconds the wall clock of each process is off; missing ones are correct.
    pub skews: Vec<i64>,
    /// Which clock the processes use.
    pub clock_source: ClockSource,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// Which clock the processes of a world use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockSource {
    /// The shared timeline of the store.
    #[default]
    Shared,
    /// Each process its own wall clock, to see what that breaks.
    Own,
}

/// A host, its rule and its tasks.
#[derive(Debug, Clone)]
pub struct HostSpec {
    /// The site behind it.
    pub site: SiteSpec,
    /// The settings of its rule, which override the profile.
    pub fields: Fields,
    /// The crawl-delay of its robots.txt.
    pub crawl_delay: Span,
    /// How long it takes to connect.
    pub connect: Span,
    /// Number of pages to fetch from it.
    pub tasks: u32,
    /// Whether every third request is a search.
    pub searches: bool,
}

/// A fault, or a change that has to be handled without faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it happens, from the start of the world.
    pub at: Span,
    /// The process it happens to.
    pub process: usize,
    /// What happens.
    pub kind: FaultKind,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The process is killed (kill -9) and restarted later; other processes notice it after a moment.
    Kill,
    /// A clean stop and start.
    Restart,
    /// The process takes over the domain of this host from its current holder.
    Take {
        /// The host.
        host: usize,
    },
    /// The wall clock of the machine is set.
    Step {
        /// By how many seconds; negative is back.
        by: i64,
    },
    /// The machine is suspended: time passes, but nothing happens on it.
    Suspend {
        /// For how long.
        length: Span,
    },
    /// The machine loses power and boots again.
    Reboot,
}

/// The requests that the sites logged, and the results of all tasks.
#[derive(Debug, Clone)]
pub struct Report {
    /// All requests, in the order in which they started.
    pub log: Vec<Entry>,
    /// Changes of learned delays.
    pub changes: Vec<Change>,
    /// How each task ended.
    pub tasks: Vec<TaskEnd>,
    /// Takeovers by a new holder that doesn't know what was sent before.
    pub takeovers: Vec<Takeover>,
    /// When the machine resumed, or its processes were running again after a reboot.
    pub wakes: Vec<Timestamp>,
    /// Requests, by their place in the log, whose results were lost with the commits that had saved them.
    pub forgotten: Vec<usize>,
    /// When everything was over.
    pub ended: Timestamp,
    /// The pace domain of each host.
    pub domains: Vec<Domain>,
    /// The rules of all hosts.
    pub rules: RuleTable,
}

/// One request, as logged by its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The host.
    pub host: usize,
    /// The task.
    pub task: usize,
    /// The process that sent it.
    pub process: usize,
    /// What it was for.
    pub intent: Intent,
    /// When it was written.
    pub start: Timestamp,
    /// When it ended; `None` if it was still in flight at the end of the world.
    pub end: Option<Timestamp>,
    /// The status of the response; `None` if there was none.
    pub status: Option<u16>,
    /// Whether the connection was refused.
    pub refused: bool,
    /// Whether the sender was still alive to receive the result.
    pub received: bool,
    /// How long the response asked us to wait.
    pub stated: Option<Span>,
}

/// A change of a learned delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The host of the request that caused it.
    pub host: usize,
    /// When it happened.
    pub at: Timestamp,
    /// The task of the request that caused it.
    pub task: usize,
    /// The old delay.
    pub from: Span,
    /// The new delay.
    pub to: Span,
}

impl Change {
    /// In place of a task: what was learned last was not saved, and a new holder started with an older delay.
    pub const FORGOTTEN: usize = usize::MAX;
}

/// A domain got a new holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Takeover {
    /// The host whose domain it is.
    pub host: usize,
    /// When it happened.
    pub at: Timestamp,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskEnd {
    /// The host of the task.
    pub host: usize,
    /// Its last state: done or failed, or another one if it never ended.
    pub state: comity_core::task::TaskState,
    /// When it ended; `None` if it never did.
    pub at: Option<Timestamp>,
}

impl WorldSpec {
    /// A world with one host, one process with sixteen workers, and no faults.
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
            clock_source: ClockSource::Shared,
            faults: Vec::new(),
        }
    }

    /// Plays the world and checks the logs of its sites.
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

/// A world in which a promise was broken.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The broken promise.
    pub violation: Violation,
    /// The report of the world.
    pub report: Report,
}

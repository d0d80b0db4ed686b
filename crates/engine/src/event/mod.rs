//! One stream of what happens. Logs and counters read it, and so does whoever else listens.
//!
//! Events are told where they happen, on the thread where they happen: a listener must be quick. What is told
//! holds no secret: URLs come without user, password and query (B75).

mod counters;
mod log;

use std::sync::{Arc, RwLock};

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::interval::Deferred;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{DecodeError, Pace, Recorded};
use comity_core::task::JobState;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::LeftBehind;
use comity_store::{Store, StoreError};

pub use crate::shown::{text as shown_text, url as shown};
pub use counters::{Counted, Counters};
use log::Log;

/// Something that happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request may leave.
    Granted {
        /// To where.
        domain: &'a Domain,
    },
    /// Somebody waits in line. Told only when the log or a listener wants to know.
    Waits {
        /// For which domain.
        domain: &'a Domain,
        /// Why.
        reason: &'a Reason,
    },
    /// A permit was given back unused.
    Abandoned {
        /// Of which domain.
        domain: &'a Domain,
    },
    /// An answer was recorded.
    Recorded {
        /// Of which domain.
        domain: &'a Domain,
        /// What came back.
        answer: &'a Answer,
        /// What that changed.
        recorded: &'a Recorded,
        /// How it went lately.
        streaks: Streaks,
    },
    /// Another process holds a domain that is wanted here.
    HeldElsewhere {
        /// Which.
        domain: &'a Domain,
        /// By whom.
        by: &'a str,
    },
    /// A domain is ours now.
    TookOver {
        /// Which.
        domain: &'a Domain,
        /// How its last holder left it.
        left: &'a LeftBehind,
    },
    /// A domain went to another process.
    HandedOver {
        /// Which.
        domain: &'a Domain,
    },
    /// This process was silent for too long and lost its domains.
    LostAll {
        /// How many.
        domains: usize,
    },
    /// A saved pace could not be read; the domain goes on as if its last holder had died.
    PaceDamaged {
        /// Of which domain.
        domain: &'a Domain,
        /// What is wrong with it.
        error: &'a DecodeError,
    },
    /// The store answered that this process still lives there.
    Beat {
        /// How long that took.
        took: Span,
    },
    /// The store does not work: nobody is let go any more.
    StoreFailed {
        /// Why.
        error: &'a StoreError,
    },
    /// What was learnt changed how many tasks of a job may be in flight on a domain (B40).
    Concurrency {
        /// On which.
        domain: &'a Domain,
        /// By how many it was lowered before,
        from: u32,
        /// and is now.
        to: u32,
    },
    /// A robots.txt was read, or could not be.
    Robots {
        /// Whose.
        origin: &'a str,
        /// What came of it.
        what: &'a str,
    },
    /// A task was settled or put off.
    Task {
        /// What it fetches, without secrets.
        url: &'a str,
        /// What became of it.
        step: TaskEvent<'a>,
    },
    /// A job ended.
    JobEnded {
        /// Which.
        job: &'a str,
        /// How.
        state: JobState,
        /// Why, when it did not finish.
        message: Option<&'a str>,
    },
}

/// Answers of one kind in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streaks {
    /// Successes.
    pub success: u32,
    /// Failures.
    pub error: u32,
}

impl Streaks {
    pub(crate) fn of(pace: &Pace) -> Self {
        Self { success: pace.learned().success_streak(), error: pace.learned().error_streak() }
    }
}

/// What became of a task.
#[derive(Debug, Clone, Copy)]
pub enum TaskEvent<'a> {
    /// Fetched.
    Done {
        /// The status of the answer.
        status: u16,
        /// The bytes of its body.
        bytes: u64,
    },
    /// Given up.
    Failed {
        /// Why.
        error: &'a str,
    },
    /// Not to be fetched.
    Skipped {
        /// Why.
        reason: &'a str,
    },
    /// To be tried again.
    Retried {
        /// Why.
        outcome: Outcome,
        /// From when on.
        ready_at: Timestamp,
    },
    /// It goes on at another domain.
    Moved {
        /// Which.
        domain: &'a Domain,
    },
    /// Its source was scraped too short a time ago: put off, nothing was sent.
    Deferred {
        /// By how much, and why.
        deferred: &'a Deferred,
    },
    /// Its domain was taken by others before it could be settled; it is theirs now.
    Fenced,
}

/// Somebody who is told what happens.
pub trait Listener: Send + Sync {
    /// Something happened. Must be quick and must not call back into what told it.
    fn hear(&self, event: &Event<'_>);

    /// Whether it wants to hear of everybody who waits, which costs a look at the pace each time.
    fn hears_waits(&self) -> bool {
        false
    }
}

/// Where events are told. Clones are the same stream.
#[derive(Clone, Default)]
pub struct Events(Arc<Listeners>);

#[derive(Default)]
struct Listeners {
    counters: Counters,
    /// What of it was added up in a store.
    added_up: tokio::sync::Mutex<Counted>,
    more: RwLock<Vec<Arc<dyn Listener>>>,
}

impl Events {
    /// A stream that logs and counts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds somebody who listens.
    pub fn listen(&self, listener: Arc<dyn Listener>) {
        if let Ok(mut more) = self.0.more.write() {
            more.push(listener);
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Somebody cancelled a job by hand, beside whoever works on it.
    pub fn job_cancelled(&self, job: &str) {
        self.tell(&Event::JobEnded { job, state: JobState::Cancelled, message: Some("cancelled by hand") });
    }

    /// Adds what was counted since the last time to what the others on a store counted.
    pub(crate) async fn add_up(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut added_up = self.0.added_up.lock().await;
        let counted = self.0.counters.counted();
        let added = counted.since(&added_up);
        if !added.is_empty() {
            store.add_counts(added).await?;
        }
        // Not before: what a store did not take is added the next time.
        *added_up = counted;
        Ok(())
    }

    /// Whether anybody wants to know who waits.
    pub(crate) fn hears_waits(&self) -> bool {
        let wanted = |more: &Vec<Arc<dyn Listener>>| more.iter().any(|listener| listener.hears_waits());
        tracing::enabled!(tracing::Level::DEBUG) || self.0.more.read().is_ok_and(|more| wanted(&more))
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.0.counters.hear(event);
        Log.hear(event);
        if let Ok(more) = self.0.more.read() {
            more.iter().for_each(|listener| listener.hear(event));
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Events").field(&self.0.counters).finish()
    }
}

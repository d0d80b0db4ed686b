//! One stream of events, read by logs, counters and any other listener.
//!
//! Events are emitted on the thread where they happen, so listeners must be quick. Events contain no secrets: URLs come
//! without user and password, and with `?…` in place of their query.

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
use comity_store::activity::DomainReport;
use comity_store::domains::LastHolderBuf;
use comity_store::{Store, StoreError};

pub use crate::redact::{text as redacted_text, url as redacted_url};
pub use counters::{CounterValues, Counters};
use log::Log;

/// An event.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A permit was granted: a request may leave.
    Granted {
        /// The domain.
        domain: &'a Domain,
    },
    /// A caller or task waits in line. Emitted only if the log or a listener wants it.
    Waiting {
        /// The domain.
        domain: &'a Domain,
        /// What it waits for.
        reason: &'a Reason,
    },
    /// A permit was returned unused.
    Abandoned {
        /// The domain.
        domain: &'a Domain,
    },
    /// The result of a request was recorded.
    Recorded {
        /// The domain.
        domain: &'a Domain,
        /// The URL that was requested, without secrets. Known only for requests sent from here, and only if the log
        /// wants it.
        url: Option<&'a str>,
        /// The result.
        answer: &'a Answer,
        /// What it changed.
        recorded: &'a Recorded,
        /// The current streaks.
        streaks: Streaks,
    },
    /// Another process holds a domain that is wanted here.
    HeldElsewhere {
        /// The domain.
        domain: &'a Domain,
        /// The name of its holder.
        by: &'a str,
    },
    /// This process took over a domain.
    TookOver {
        /// The domain.
        domain: &'a Domain,
        /// How its last holder left it.
        left: &'a LastHolderBuf,
    },
    /// A domain was handed over to another process.
    HandedOver {
        /// The domain.
        domain: &'a Domain,
    },
    /// This process missed its heartbeats for too long and lost its domains.
    DomainsLost {
        /// How many.
        domains: usize,
    },
    /// A saved pace could not be decoded. The domain continues as if its last holder had died.
    PaceUnreadable {
        /// The domain.
        domain: &'a Domain,
        /// What is wrong with the saved pace.
        error: &'a DecodeError,
    },
    /// The store confirmed a heartbeat.
    Heartbeat {
        /// How long that took.
        took: Span,
    },
    /// The store failed: no more requests may leave.
    StoreFailed {
        /// Why.
        error: &'a StoreError,
    },
    /// Learning changed how many tasks of a job may be in flight on a domain.
    ConcurrencyChanged {
        /// The domain.
        domain: &'a Domain,
        /// How far the concurrency was reduced before.
        from: u32,
        /// How far it is reduced now.
        to: u32,
    },
    /// A robots.txt was read, or could not be fetched.
    Robots {
        /// Its origin.
        origin: &'a str,
        /// The result.
        what: &'a str,
    },
    /// A task was settled, postponed or deferred.
    Task {
        /// Its URL as it was listed, without secrets.
        url: &'a str,
        /// Where redirects have led so far, if anywhere else; without secrets.
        final_url: Option<&'a str>,
        /// What happened to it.
        step: TaskEvent<'a>,
    },
    /// Scrapes of a source were deferred. Each of them has a [`TaskEvent::Deferred`], too.
    Deferred {
        /// The id of the source.
        source: i64,
        /// How many.
        items: u64,
        /// For how long the first of them was deferred, and why.
        first: &'a Deferred,
        /// When the last of them will run.
        last_at: Timestamp,
    },
    /// A job ended.
    JobEnded {
        /// The name of the job.
        job: &'a str,
        /// Its final state.
        state: JobState,
        /// Why, if it did not finish.
        message: Option<&'a str>,
    },
}

/// How many results of the same kind came in a row.
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

/// What happened to a task.
#[derive(Debug, Clone, Copy)]
pub enum TaskEvent<'a> {
    /// It was fetched.
    Done {
        /// The HTTP status.
        status: u16,
        /// The size of the body in bytes.
        bytes: u64,
    },
    /// It failed for good.
    Failed {
        /// Why.
        error: &'a str,
    },
    /// It was skipped.
    Skipped {
        /// Why.
        reason: &'a str,
    },
    /// It will be retried.
    Retried {
        /// The outcome of the failed attempt.
        outcome: Outcome,
        /// When it will be ready.
        ready_at: Timestamp,
    },
    /// A redirect led it to another domain, where it continues.
    Moved {
        /// The other domain.
        domain: &'a Domain,
    },
    /// It was deferred because its source was scraped too recently; nothing was sent.
    Deferred {
        /// For how long, and why.
        deferred: &'a Deferred,
    },
    /// Another process took its domain, and the task with it, before it could be settled.
    Fenced,
}

/// Receives events.
pub trait Listener: Send + Sync {
    /// Called for every event. Must be quick, and must not call back into whatever emitted the event.
    fn on_event(&self, event: &Event<'_>);

    /// Whether it wants [`Event::Waiting`], which costs a look at the pace each time.
    fn wants_waits(&self) -> bool {
        false
    }
}

/// The event stream. Clones share it.
#[derive(Clone, Default)]
pub struct Events(Arc<Listeners>);

#[derive(Default)]
struct Listeners {
    log: Log,
    counters: Counters,
    /// The counts that were already added to the store.
    flushed: tokio::sync::Mutex<CounterValues>,
    /// The counts that were already reported as traffic.
    reported: tokio::sync::Mutex<CounterValues>,
    more: RwLock<Vec<Arc<dyn Listener>>>,
}

impl Events {
    /// A stream that logs and counts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener.
    pub fn listen(&self, listener: Arc<dyn Listener>) {
        if let Ok(mut more) = self.0.more.write() {
            more.push(listener);
        }
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Reports that an operator cancelled a job, which another process may be working on.
    pub fn job_cancelled(&self, job: &str) {
        self.emit(&Event::JobEnded { job, state: JobState::Cancelled, message: Some("cancelled by hand") });
    }

    /// Adds the counts since the last flush to the store's totals.
    pub(crate) async fn flush_counts(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut flushed = self.0.flushed.lock().await;
        let counted = self.0.counters.values();
        let added = counted.since(&flushed);
        if !added.is_empty() {
            store.add_counts(added).await?;
        }
        // Only now: counts that the store did not take are added with the next flush.
        *flushed = counted;
        Ok(())
    }

    /// Reports the traffic since the last report, and how some domains are doing.
    pub(crate) async fn report_activity(
        &self,
        store: &dyn Store,
        domains: Vec<DomainReport>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut reported = self.0.reported.lock().await;
        let counted = self.0.counters.values();
        let traffic = counted.traffic_since(&reported);
        if !traffic.is_empty() || !domains.is_empty() {
            store.report_activity(traffic, domains, now).await?;
        }
        *reported = counted;
        Ok(())
    }

    /// Whether anybody wants [`Event::Waiting`].
    pub(crate) fn wants_waits(&self) -> bool {
        let wanted = |more: &Vec<Arc<dyn Listener>>| more.iter().any(|listener| listener.wants_waits());
        tracing::enabled!(tracing::Level::DEBUG) || self.0.more.read().is_ok_and(|more| wanted(&more))
    }

    pub(crate) fn emit(&self, event: &Event<'_>) {
        self.0.counters.count(event);
        self.0.log.on_event(event);
        if let Ok(more) = self.0.more.read() {
            more.iter().for_each(|listener| listener.on_event(event));
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Events").field(&self.0.counters).finish()
    }
}

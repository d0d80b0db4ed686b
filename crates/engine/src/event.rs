//! One stream of what happens. Logs and counters read it, and so does whoever else listens.
//!
//! Events are told where they happen, on the thread where they happen: a listener must be quick. What is told
//! holds no secret: URLs come without user, password and query (B75).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::interval::Deferred;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{DecodeError, Heeded, Pace, Recorded, Standing};
use comity_core::task::JobState;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::LeftBehind;
use url::Url;

/// Something that happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request may leave.
    Granted {
        /// To where.
        domain: &'a Domain,
    },
    /// Somebody waits in line. Told only when the log wants to know.
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
}

/// Where events are told. Clones are the same stream.
#[derive(Clone, Default)]
pub struct Events(Arc<Listeners>);

#[derive(Default)]
struct Listeners {
    counters: Counters,
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

/// What was counted since the stream began.
#[derive(Debug, Default)]
pub struct Counters {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// Permits granted.
    pub granted: AtomicU64,
    /// Tasks fetched.
    pub done: AtomicU64,
    /// Tasks given up.
    pub failed: AtomicU64,
    /// Tasks not to be fetched.
    pub skipped: AtomicU64,
    /// Attempts followed by another, by what they came to.
    retries: [AtomicU64; Outcome::ALL.len()],
    /// Jobs that were cancelled.
    pub cancelled: AtomicU64,
    /// Times that what was learnt lowered how many tasks of a job may be in flight on a domain.
    pub overridden: AtomicU64,
    /// Times that the store did not work.
    pub store_failed: AtomicU64,
    /// Scrapes put off because their source was scraped too short a time ago.
    pub deferred: AtomicU64,
    /// Bytes of bodies fetched.
    pub bytes: AtomicU64,
    /// Domains handed to other processes.
    pub handed_over: AtomicU64,
}

impl Counters {
    /// How many attempts came to `outcome`.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// How many attempts that came to `outcome` were followed by another.
    pub fn retries(&self, outcome: Outcome) -> u64 {
        self.retries[outcome as usize].load(Ordering::Relaxed)
    }

    fn hear(&self, event: &Event<'_>) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        match event {
            Event::Granted { .. } => add(&self.granted, 1),
            Event::HandedOver { .. } => add(&self.handed_over, 1),
            Event::Recorded { answer, recorded, .. } if recorded.standing != Standing::Repeated => {
                add(&self.outcomes[answer.outcome as usize], 1)
            }
            Event::JobEnded { state: JobState::Cancelled, .. } => add(&self.cancelled, 1),
            Event::Concurrency { from, to, .. } if to > from => add(&self.overridden, 1),
            Event::StoreFailed { .. } => add(&self.store_failed, 1),
            Event::Task { step, .. } => match step {
                TaskEvent::Done { bytes, .. } => {
                    add(&self.bytes, *bytes);
                    add(&self.done, 1)
                }
                TaskEvent::Failed { .. } => add(&self.failed, 1),
                TaskEvent::Skipped { .. } => add(&self.skipped, 1),
                TaskEvent::Retried { outcome, .. } => add(&self.retries[*outcome as usize], 1),
                TaskEvent::Deferred { .. } => add(&self.deferred, 1),
                TaskEvent::Moved { .. } | TaskEvent::Fenced => 0,
            },
            _ => 0,
        };
    }
}

/// Writes what happens to the log (B72).
struct Log;

impl Listener for Log {
    fn hear(&self, event: &Event<'_>) {
        match event {
            Event::Granted { domain } => tracing::trace!(%domain, "may send"),
            Event::Waits { domain, reason } => tracing::debug!(%domain, %reason, "waits"),
            Event::Abandoned { domain } => tracing::debug!(%domain, "a permit was given back unused"),
            Event::Recorded { domain, answer, recorded, streaks } => {
                log_recorded(domain, answer, recorded, *streaks)
            }
            Event::HeldElsewhere { domain, by } => tracing::debug!(%domain, by, "held by another process"),
            Event::TookOver { domain, left: LeftBehind::Died { .. } } => {
                tracing::info!(%domain, "took over from a process that ended without a word: as if it had just sent");
            }
            Event::TookOver { domain, .. } => tracing::debug!(%domain, "took over"),
            Event::HandedOver { domain } => tracing::debug!(%domain, "handed over"),
            Event::LostAll { domains } => {
                tracing::warn!(
                    domains,
                    "this process was silent for too long and lost its domains; starting anew"
                );
            }
            Event::PaceDamaged { domain, error } => {
                tracing::warn!(%domain, %error, "what was remembered cannot be read");
            }
            Event::Beat { took } => tracing::trace!(%took, "the store knows that this process lives"),
            Event::StoreFailed { error } => tracing::error!(%error, "the store does not work"),
            Event::Concurrency { domain, from, to } => {
                tracing::info!(%domain, from, to, "jobs have fewer requests in flight here, by so many");
            }
            Event::Robots { origin, what } => tracing::debug!(origin, what, "robots.txt"),
            Event::Task { url, step } => log_task(url, step),
            Event::JobEnded { job, state: JobState::Done, .. } => tracing::info!(job, "job done"),
            Event::JobEnded { job, state, message } => {
                tracing::warn!(job, state = state.as_str(), why = message.unwrap_or(""), "job ended");
            }
        }
    }
}

fn log_recorded(domain: &Domain, answer: &Answer, recorded: &Recorded, streaks: Streaks) {
    if let Some(change) = &recorded.delay {
        tracing::info!(
            %domain,
            old = %change.from,
            new = %change.to,
            floor = %change.floor,
            success_streak = streaks.success,
            error_streak = streaks.error,
            "the learned delay changed"
        );
    }
    match recorded.heeded {
        Heeded::Unusable => {
            tracing::warn!(%domain, "a Retry-After that makes no sense; the rule's own wait holds")
        }
        Heeded::Clamped { asked, to } => {
            tracing::warn!(%domain, %asked, %to, "a Retry-After longer than allowed")
        }
        Heeded::Absent | Heeded::Honoured(_) => {}
    }
    if let Some(until) = recorded.held_until.filter(|_| answer.outcome.is_penalty()) {
        tracing::warn!(%domain, outcome = answer.outcome.as_str(), %until, "backing off");
    } else {
        tracing::debug!(%domain, outcome = answer.outcome.as_str(), "answered");
    }
}

fn log_task(url: &str, step: &TaskEvent<'_>) {
    match step {
        TaskEvent::Done { status, bytes } => tracing::debug!(url, status, bytes, "fetched"),
        TaskEvent::Failed { error } => tracing::warn!(url, error, "failed"),
        TaskEvent::Skipped { reason } => tracing::info!(url, reason, "skipped"),
        TaskEvent::Retried { outcome, ready_at } => {
            tracing::info!(url, outcome = outcome.as_str(), %ready_at, "put off, to be tried again");
        }
        TaskEvent::Deferred { deferred } => tracing::info!(url, %deferred, "put off"),
        TaskEvent::Moved { domain } => tracing::debug!(url, %domain, "goes on elsewhere"),
        TaskEvent::Fenced => tracing::info!(url, "another process has it now"),
    }
}

/// A URL as it may be shown: no user, no password, and no query, where secrets live too.
pub fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() { "?…" } else { "" };
    format!("{}://{host}{port}{}{query}", url.scheme(), url.path())
}

/// What is no URL, as it may be shown: short, without control characters, and without whatever may be a secret.
pub fn shown_text(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let text = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
    text.chars().take(120).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

//! Writes events to the log. What would be the same line again and again is a warning once: the failures of one site for one
//! reason are counted, and listed at `info`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use comity_core::domain::Domain;
use comity_core::outcome::{Answer, Reach};
use comity_core::pace::{Recorded, RetryAfterEffect};
use comity_core::task::JobState;
use comity_store::domains::LastHolderBuf;

use super::{Event, Listener, Streaks, TaskEvent};
use crate::lock;

/// Writes events to the log.
#[derive(Default)]
pub(super) struct Log(Mutex<Logged>);

/// What was logged before.
#[derive(Default)]
struct Logged {
    /// Sources whose items were deferred.
    deferred: BTreeSet<i64>,
    /// How many more URLs of a site failed for the same reason.
    failures: BTreeMap<(String, String), u64>,
}

impl Listener for Log {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Granted { domain } => tracing::trace!(%domain, "permit granted"),
            Event::Waiting { domain, reason } => {
                tracing::debug!(%domain, reason = reason.to_string(), "waiting")
            }
            Event::Abandoned { domain } => tracing::debug!(%domain, "permit returned unused"),
            Event::Recorded { domain, url, answer, recorded, streaks } => {
                log_recorded(domain, *url, answer, recorded, *streaks)
            }
            Event::HeldElsewhere { domain, by } => {
                tracing::debug!(%domain, by, "another process is in charge of the site")
            }
            Event::TookOver { domain, left: LastHolderBuf::Died { .. } } => {
                tracing::info!(%domain, "took over the site from a process that died, or stopped during a request; waiting one full delay first");
            }
            Event::TookOver { domain, .. } => tracing::debug!(%domain, "took over the site"),
            Event::HandedOver { domain } => tracing::debug!(%domain, "handed over the site"),
            Event::DomainsLost { domains } => {
                tracing::warn!(
                    domains,
                    "missed its heartbeats, and other processes took over its sites; starting over"
                );
            }
            Event::PaceUnreadable { domain, error } => {
                tracing::warn!(%domain, error = error.to_string(), "could not decode the site's saved pace; waiting as if a request had just been sent");
            }
            Event::Heartbeat { took } => tracing::trace!(%took, "heartbeat"),
            Event::StoreFailed { error } => tracing::error!(error = error.to_string(), "the store failed"),
            Event::ConcurrencyChanged { domain, from, to } if to > from => {
                tracing::info!(%domain, from, to, "concurrency on this site reduced after repeated 429s");
            }
            Event::ConcurrencyChanged { domain, from, to } => {
                tracing::info!(%domain, from, to, "concurrency on this site raised again");
            }
            Event::Robots { origin, what } => tracing::debug!(origin, what, "robots.txt"),
            Event::Task { url, final_url, step: TaskEvent::Failed { error } } => {
                self.log_failure(url, *final_url, error);
            }
            Event::Task { url, final_url, step } => log_task(url, *final_url, step),
            // One line per source: a run may defer thousands of items, each by one interval more.
            Event::Deferred { source, items, first, last_at } => {
                let is_first = lock(&self.0).deferred.insert(*source);
                if is_first || *items > 1 {
                    let apart = first.interval;
                    tracing::info!(source, items, %apart, %last_at, "items queued; their source has a minimum interval");
                }
            }
            Event::JobEnded { job, state, message } => {
                self.log_more_failures();
                match state {
                    JobState::Done => tracing::info!(job, "job done"),
                    _ => {
                        tracing::warn!(job, state = state.as_str(), why = message.unwrap_or(""), "job ended")
                    }
                }
            }
        }
    }
}

impl Log {
    /// Logs a URL that failed: as a warning if its site has not failed for that reason yet.
    fn log_failure(&self, url: &str, final_url: Option<&str>, error: &str) {
        let site =
            Domain::of_url(final_url.unwrap_or(url)).map_or_else(|_| String::new(), |site| site.to_string());
        let is_repeated = {
            let failures = &mut lock(&self.0).failures;
            let has_room = failures.len() < FAILURES_MAX;
            match failures.entry((site, error.to_owned())) {
                Entry::Occupied(mut more) => {
                    *more.get_mut() += 1;
                    true
                }
                Entry::Vacant(place) => {
                    if has_room {
                        place.insert(0);
                    }
                    false
                }
            }
        };
        match is_repeated {
            true => tracing::info!(url, final_url, error, "failed"),
            false => tracing::warn!(url, final_url, error, "failed"),
        }
    }

    /// Logs how many URLs failed besides those that were warnings.
    fn log_more_failures(&self) {
        let failures = std::mem::take(&mut lock(&self.0).failures);
        for ((site, error), urls) in failures.into_iter().filter(|(_, more)| *more > 0) {
            tracing::warn!(site, urls, error, "more URLs failed");
        }
    }
}

fn log_recorded(domain: &Domain, url: Option<&str>, answer: &Answer, recorded: &Recorded, streaks: Streaks) {
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
    match recorded.retry_after {
        RetryAfterEffect::Unusable => {
            tracing::warn!(%domain, "invalid Retry-After header; using the wait from the rule instead")
        }
        RetryAfterEffect::Clamped { asked, to } => {
            tracing::warn!(%domain, %asked, %to, "Retry-After is longer than allowed; capped")
        }
        RetryAfterEffect::Absent | RetryAfterEffect::Honored(_) => {}
    }
    let outcome = answer.outcome.as_str();
    match recorded.held_until.filter(|_| answer.outcome.is_penalty()) {
        // Nothing was sent, and it is tried again in a second. If that doesn't help, a warning says what failed.
        Some(until) if answer.reach == Reach::Unreachable => {
            tracing::info!(%domain, url, outcome, %until, "could not be reached; backing off");
        }
        Some(until) => tracing::warn!(%domain, url, outcome, %until, "backing off"),
        None => tracing::debug!(%domain, url, outcome, "answered"),
    }
}

fn log_task(url: &str, final_url: Option<&str>, step: &TaskEvent<'_>) {
    match step {
        TaskEvent::Done { status, bytes } => tracing::debug!(url, final_url, status, bytes, "fetched"),
        TaskEvent::Failed { .. } => {}
        TaskEvent::Skipped { reason } => tracing::info!(url, final_url, reason, "skipped"),
        TaskEvent::Retried { outcome, ready_at } => {
            tracing::info!(url, final_url, outcome = outcome.as_str(), %ready_at, "will retry");
        }
        TaskEvent::Deferred { deferred } => tracing::debug!(url, why = deferred.to_string(), "deferred"),
        TaskEvent::Moved { domain } => {
            tracing::debug!(url, final_url, %domain, "redirected to another site")
        }
        TaskEvent::Fenced => tracing::info!(url, final_url, "another process took over the URL"),
    }
}

/// How many reasons of how many sites are told apart.
const FAILURES_MAX: usize = 1_000;

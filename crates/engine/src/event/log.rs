//! Writes events to the log.

use comity_core::domain::Domain;
use comity_core::outcome::{Answer, Reach};
use comity_core::pace::{Recorded, RetryAfterEffect};
use comity_core::task::JobState;
use comity_store::domains::LastHolderBuf;

use super::{Event, Listener, Streaks, TaskEvent};

/// Writes events to the log.
pub(super) struct Log;

impl Listener for Log {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Granted { domain } => tracing::trace!(%domain, "permit granted"),
            Event::Waiting { domain, reason } => tracing::debug!(%domain, %reason, "waiting"),
            Event::Abandoned { domain } => tracing::debug!(%domain, "permit returned unused"),
            Event::Recorded { domain, url, answer, recorded, streaks } => {
                log_recorded(domain, *url, answer, recorded, *streaks)
            }
            Event::HeldElsewhere { domain, by } => {
                tracing::debug!(%domain, by, "another process is in charge of the site")
            }
            Event::TookOver { domain, left: LastHolderBuf::Died { .. } } => {
                tracing::info!(%domain, "took over the site from a process that died; waiting as if it had just sent a request");
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
                tracing::warn!(%domain, %error, "could not decode the site's saved pace; waiting as if a request had just been sent");
            }
            Event::Heartbeat { took } => tracing::trace!(%took, "heartbeat"),
            Event::StoreFailed { error } => tracing::error!(%error, "the store failed"),
            Event::ConcurrencyChanged { domain, from, to } => {
                tracing::info!(%domain, from, to, "the learned delay changed how far the concurrency of jobs is reduced on this site");
            }
            Event::Robots { origin, what } => tracing::debug!(origin, what, "robots.txt"),
            Event::Task { url, final_url, step } => log_task(url, *final_url, step),
            // One line per source: a run may defer thousands of items, each by one interval more.
            Event::Deferred { source, items, first, last_at } => {
                tracing::info!(source, items, why = %first, %last_at, "deferred");
            }
            Event::JobEnded { job, state: JobState::Done, .. } => tracing::info!(job, "job done"),
            Event::JobEnded { job, state, message } => {
                tracing::warn!(job, state = state.as_str(), why = message.unwrap_or(""), "job ended");
            }
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
        TaskEvent::Failed { error } => tracing::warn!(url, final_url, error, "failed"),
        TaskEvent::Skipped { reason } => tracing::info!(url, final_url, reason, "skipped"),
        TaskEvent::Retried { outcome, ready_at } => {
            tracing::info!(url, final_url, outcome = outcome.as_str(), %ready_at, "will retry");
        }
        TaskEvent::Deferred { deferred } => tracing::debug!(url, why = %deferred, "deferred"),
        TaskEvent::Moved { domain } => {
            tracing::debug!(url, final_url, %domain, "redirected to another site")
        }
        TaskEvent::Fenced => tracing::info!(url, final_url, "another process took over the URL"),
    }
}

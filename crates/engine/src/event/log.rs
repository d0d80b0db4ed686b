//! Writes what happens to the log (B72).

use comity_core::domain::Domain;
use comity_core::outcome::Answer;
use comity_core::pace::{Heeded, Recorded};
use comity_core::task::JobState;
use comity_store::domains::LeftBehind;

use super::{Event, Listener, Streaks, TaskEvent};

/// Writes what happens to the log (B72).
pub(super) struct Log;

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
            tracing::info!(url, outcome = outcome.as_str(), %ready_at, "will retry");
        }
        TaskEvent::Deferred { deferred } => tracing::info!(url, why = %deferred, "deferred"),
        TaskEvent::Moved { domain } => tracing::debug!(url, %domain, "goes on elsewhere"),
        TaskEvent::Fenced => tracing::info!(url, "another process has it now"),
    }
}

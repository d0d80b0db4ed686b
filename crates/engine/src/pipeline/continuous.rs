//! Continuous runs: sleeps until the next source is due, not for a fixed time.
//!
//! Sources on a slow host don't delay the others: sources that become due in the meantime get a run of their own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use comity_core::cadence::RunWindow;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::sources::{Source, SourceId};
use tokio::task::JoinSet;

use super::backoff::{delay, jitter};
use super::plan::{cadence, next_at};
use super::{Pipeline, RunListener, RunOptions, RunReport, Scraping, SourceOutcome};

/// What is remembered between runs.
#[derive(Default)]
struct WatchState {
    /// Sources that are being fetched, or wait for their turn.
    in_progress: HashSet<SourceId>,
    /// Sources that are not checked again before this time, although they may be due.
    snoozed: HashMap<SourceId, Timestamp>,
}

impl Pipeline {
    /// Runs whenever a source is due, until [`Self::stop`]. The listener gets a report after each run.
    pub async fn watch(
        &self,
        options: &RunOptions,
        listener: Arc<dyn RunListener>,
    ) -> Result<(), StoreError> {
        let mut stop = self.0.stopping.subscribe();
        let mut state = WatchState::default();
        let mut runs: JoinSet<Result<(Vec<SourceId>, RunReport), StoreError>> = JoinSet::new();
        let mut announced = None;
        while !self.is_stopping() {
            let now = self.0.gate.clock().now();
            let version = self.0.store.version().await?;
            let sources = self.selected(options).await?;
            let due = state.due(&sources, now);
            if !due.is_empty() {
                let window = RunWindow::ending(now, now).unwrap_or_else(|_| unreachable!("it ends now"));
                let options = RunOptions { sources: Some(due.clone()), window, ..options.clone() };
                let (pipeline, listener) = (self.clone(), listener.clone());
                runs.spawn(async move { Ok((due, pipeline.run(&options, &*listener).await?)) });
            }
            let mut next = sources.iter().filter_map(|source| state.due_at(source, now)).min();
            if announced != Some(next) && runs.is_empty() {
                listener.sleeping(next);
                announced = Some(next);
            }
            // There may be room now for items that were refused before.
            if options.scraping == Scraping::On && self.enqueue_pending(options).await?.refused > 0 {
                next = Some(next.map_or(now + ROOM_POLL, |next| next.min(now + ROOM_POLL)));
            }
            let sleep = async {
                match next {
                    Some(next) => self.0.gate.clock().sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                others = self.others_wrote(version) => others?,
                Some(ran) = runs.join_next() => {
                    let (due, report) = ran.unwrap_or(Err(StoreError::Closed))?;
                    state.ran(&due, &report, self.0.gate.clock().now());
                    listener.run_done(&report);
                }
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        // Finish the requests in flight.
        while let Some(ran) = runs.join_next().await {
            listener.run_done(&ran.unwrap_or(Err(StoreError::Closed))?.1);
        }
        Ok(())
    }

    /// Waits until another process wrote to the store, because it may have added a source. Then waits a moment longer,
    /// so that frequent writes don't cause frequent checks.
    async fn others_wrote(&self, version: i64) -> Result<(), StoreError> {
        let changed = self.0.gate.store_changed();
        loop {
            changed.notified().await;
            if self.0.store.version().await? != version {
                tokio::time::sleep(RECHECK_DELAY).await;
                return Ok(());
            }
        }
    }
}

impl WatchState {
    /// When a source is to be fetched; `None` if it is in progress or disabled.
    fn due_at(&self, source: &Source, now: Timestamp) -> Option<Timestamp> {
        let snoozed_until = self.snoozed.get(&source.id).copied().unwrap_or(Timestamp::MIN);
        let at = fetch_at(source, now).filter(|_| !self.in_progress.contains(&source.id))?;
        Some(at.max(snoozed_until))
    }

    /// The sources that are due, which are in progress from now on.
    fn due(&mut self, sources: &[Source], now: Timestamp) -> Vec<SourceId> {
        self.snoozed.retain(|_, until| *until > now);
        let is_due = |source: &&Source| self.due_at(source, now).is_some_and(|at| at <= now);
        let due: Vec<SourceId> = sources.iter().filter(is_due).map(|source| source.id).collect();
        self.in_progress.extend(&due);
        due
    }

    /// Notes that a run ended.
    fn ran(&mut self, due: &[SourceId], report: &RunReport, now: Timestamp) {
        for id in due {
            self.in_progress.remove(id);
            self.snoozed.insert(*id, now + RECHECK_MIN);
        }
        for source in &report.sources {
            let until = match source.outcome {
                // A hold may end sooner than planned, because somebody may lift it.
                SourceOutcome::Held { until, .. } => until.min(now + HELD_RECHECK_MAX),
                // A source that can't be fetched as long as a variable or file is missing has no backoff.
                SourceOutcome::Failed { .. } => now + HELD_RECHECK_MAX,
                SourceOutcome::Fetched { .. } | SourceOutcome::NotDue { .. } => continue,
            };
            self.snoozed.insert(source.source, until);
        }
    }
}

/// When a source is to be fetched, including jitter. Without a cadence it is always due, but there is a pause in
/// between.
fn fetch_at(source: &Source, now: Timestamp) -> Option<Timestamp> {
    let every = cadence(source).ok().flatten().map_or(DEFAULT_CADENCE, |cadence| cadence.every());
    let at = next_at(source, DEFAULT_CADENCE, now)?;
    // A source that was never fetched is fetched at once.
    if at < Timestamp::from_secs(0) {
        return Some(at);
    }
    Some(at + delay(every, jitter(source.id.0 as u64, at)))
}

/// How often a source without a cadence is fetched while watching.
pub const DEFAULT_CADENCE: Span = Span::from_mins(15);
/// No source is checked again sooner than this after a run.
const RECHECK_MIN: Span = Span::from_secs(1);
/// A source that is held back or failed is checked again after at most this time, if it is due by then.
const HELD_RECHECK_MAX: Span = Span::from_mins(1);
/// How often to check whether there is room for more items.
const ROOM_POLL: Span = Span::from_secs(1);
/// How long after another process wrote to the store the sources are checked again.
const RECHECK_DELAY: std::time::Duration = std::time::Duration::from_secs(3);

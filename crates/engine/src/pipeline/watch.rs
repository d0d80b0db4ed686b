//! Runs that go on: sleeping until the next source is due, not for a fixed time.

use std::collections::HashMap;

use comity_core::cadence::RunWindow;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::sources::{Source, SourceId};
use tokio::sync::watch;

use super::later::{delay, jitter};
use super::plan::{cadence, next_at};
use super::{Listener, Orders, Outcome, Pipeline};

impl Pipeline {
    /// Runs whenever a source is due, until told to stop. Each run is told when it ends, with when the next one is.
    pub async fn watch(
        &self,
        orders: &Orders,
        mut stop: watch::Receiver<bool>,
        listener: &dyn Listener,
    ) -> Result<(), StoreError> {
        // Sources that a run left alone although they are due, and until when.
        let mut left_alone: HashMap<SourceId, Timestamp> = HashMap::new();
        let mut told = None;
        while !*stop.borrow() {
            let now = self.gate.clock().now();
            let seen = self.store.version().await?;
            let sources = self.store.list_sources().await?;
            left_alone.retain(|_, until| *until > now);
            let wanted = |source: &Source| orders.wants(source.id);
            let due_at = |source: &Source| {
                let left = left_alone.get(&source.id).copied().unwrap_or(Timestamp::MIN);
                worth_asking_at(source).map(|at| at.max(left))
            };
            let due: Vec<SourceId> = sources
                .iter()
                .filter(|source| wanted(source) && due_at(source).is_some_and(|at| at <= now))
                .map(|source| source.id)
                .collect();
            if !due.is_empty() {
                let window = RunWindow::ending(now, now).unwrap_or_else(|_| unreachable!("it ends now"));
                let orders = Orders { sources: Some(due.clone()), window, ..orders.clone() };
                let run = self.run(&orders, listener);
                let report = tokio::select! {
                    report = run => report?,
                    _ = stop.wait_for(|stop| *stop) => return Ok(()),
                };
                left_alone.extend(due.iter().map(|id| (*id, now + AGAIN)));
                for note in &report.notes {
                    if let Outcome::Held { until, .. } = note.outcome {
                        left_alone.insert(note.source, until);
                    }
                }
                listener.ran(&report);
                continue;
            }
            let next = sources.iter().filter(|source| wanted(source)).filter_map(due_at).min();
            if told != Some(next) {
                listener.sleeps(next);
                told = Some(next);
            }
            let sleep = async {
                match next {
                    Some(next) => self.gate.clock().sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                others = self.others_wrote(seen) => others?,
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        Ok(())
    }
}

impl Pipeline {
    /// Waits until another process wrote something: it may have added a source. What else they write need not be
    /// looked at more often.
    async fn others_wrote(&self, seen: i64) -> Result<(), StoreError> {
        let changed = self.gate.store_changed();
        loop {
            changed.notified().await;
            if self.store.version().await? != seen {
                tokio::time::sleep(LOOK).await;
                return Ok(());
            }
        }
    }
}

/// When a source is worth asking, jitter included. One without a cadence is always due, but not without a pause.
fn worth_asking_at(source: &Source) -> Option<Timestamp> {
    let every = cadence(source).ok().flatten().map_or(UNPACED, |cadence| cadence.every());
    let at = next_at(source, UNPACED)?;
    // What was never fetched is fetched at once.
    if at < Timestamp::from_secs(0) {
        return Some(at);
    }
    Some(at + delay(every, jitter(source.id.0 as u64, at)))
}

/// A source without a cadence is asked this often while watching.
pub const UNPACED: Span = Span::from_mins(15);
/// No source is looked at again sooner than this.
const AGAIN: Span = Span::from_secs(5);
/// After others wrote to the store, sources are looked at again this much later.
const LOOK: std::time::Duration = std::time::Duration::from_secs(3);

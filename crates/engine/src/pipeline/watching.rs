//! Runs that go on: sleeping until the next source is due, not for a fixed time.
//!
//! A run of sources whose host is slow holds up nobody: what becomes due meanwhile is a run of its own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use comity_core::cadence::RunWindow;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::sources::{Source, SourceId};
use tokio::task::JoinSet;

use super::later::{delay, jitter};
use super::plan::{cadence, next_at};
use super::{Orders, Pipeline, Report, RunListener, Scraping, SourceEnd};

/// What is remembered between runs.
#[derive(Default)]
struct Watched {
    /// Sources that are being asked, or wait for their turn.
    under_way: HashSet<SourceId>,
    /// Sources that a run left alone although they are due, and until when.
    left_alone: HashMap<SourceId, Timestamp>,
}

impl Pipeline {
    /// Runs whenever a source is due, until [`Self::stop`]. Each run is told when it ends.
    pub async fn watch(&self, orders: &Orders, listener: Arc<dyn RunListener>) -> Result<(), StoreError> {
        let mut stop = self.0.stopping.subscribe();
        let mut watched = Watched::default();
        let mut runs: JoinSet<Result<(Vec<SourceId>, Report), StoreError>> = JoinSet::new();
        let mut told = None;
        while !self.is_stopping() {
            let now = self.0.gate.clock().now();
            let seen = self.0.store.version().await?;
            let sources = self.wanted(orders).await?;
            let due = watched.due(&sources, now);
            if !due.is_empty() {
                let window = RunWindow::ending(now, now).unwrap_or_else(|_| unreachable!("it ends now"));
                let orders = Orders { sources: Some(due.clone()), window, ..orders.clone() };
                let (pipeline, listener) = (self.clone(), listener.clone());
                runs.spawn(async move { Ok((due, pipeline.run(&orders, &*listener).await?)) });
            }
            let mut next = sources.iter().filter_map(|source| watched.due_at(source, now)).min();
            if told != Some(next) && runs.is_empty() {
                listener.sleeps(next);
                told = Some(next);
            }
            // What had no room before may have now.
            if orders.scraping == Scraping::On && self.enqueue_left(orders).await?.refused > 0 {
                next = Some(next.map_or(now + ROOM, |next| next.min(now + ROOM)));
            }
            let sleep = async {
                match next {
                    Some(next) => self.0.gate.clock().sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                others = self.others_wrote(seen) => others?,
                Some(ran) = runs.join_next() => {
                    let (due, report) = ran.unwrap_or(Err(StoreError::Closed))?;
                    watched.ran(&due, &report, self.0.gate.clock().now());
                    listener.ran(&report);
                }
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        // What is on the wire comes to its end.
        while let Some(ran) = runs.join_next().await {
            listener.ran(&ran.unwrap_or(Err(StoreError::Closed))?.1);
        }
        Ok(())
    }

    /// Waits until another process wrote something: it may have added a source. What else they write need not be
    /// looked at more often.
    async fn others_wrote(&self, seen: i64) -> Result<(), StoreError> {
        let changed = self.0.gate.store_changed();
        loop {
            changed.notified().await;
            if self.0.store.version().await? != seen {
                tokio::time::sleep(LOOK).await;
                return Ok(());
            }
        }
    }
}

impl Watched {
    /// When a source is to be asked; never, while it is.
    fn due_at(&self, source: &Source, now: Timestamp) -> Option<Timestamp> {
        let left_until = self.left_alone.get(&source.id).copied().unwrap_or(Timestamp::MIN);
        let at = worth_asking_at(source, now).filter(|_| !self.under_way.contains(&source.id))?;
        Some(at.max(left_until))
    }

    /// The sources that are due, which are under way from now on.
    fn due(&mut self, sources: &[Source], now: Timestamp) -> Vec<SourceId> {
        self.left_alone.retain(|_, until| *until > now);
        let is_due = |source: &&Source| self.due_at(source, now).is_some_and(|at| at <= now);
        let due: Vec<SourceId> = sources.iter().filter(is_due).map(|source| source.id).collect();
        self.under_way.extend(&due);
        due
    }

    /// A run ended.
    fn ran(&mut self, due: &[SourceId], report: &Report, now: Timestamp) {
        for id in due {
            self.under_way.remove(id);
            self.left_alone.insert(*id, now + AGAIN);
        }
        for note in &report.notes {
            // What holds a site back may end sooner: somebody may lift it.
            if let SourceEnd::Held { until, .. } = note.outcome {
                self.left_alone.insert(note.source, until.min(now + HELD));
            }
        }
    }
}

/// When a source is worth asking, jitter included. One without a cadence is always due, but not without a pause.
fn worth_asking_at(source: &Source, now: Timestamp) -> Option<Timestamp> {
    let every = cadence(source).ok().flatten().map_or(UNPACED, |cadence| cadence.every());
    let at = next_at(source, UNPACED, now)?;
    // What was never fetched is fetched at once.
    if at < Timestamp::from_secs(0) {
        return Some(at);
    }
    Some(at + delay(every, jitter(source.id.0 as u64, at)))
}

/// A source without a cadence is asked this often while watching.
pub const UNPACED: Span = Span::from_mins(15);
/// No source is looked at again sooner than this,
const AGAIN: Span = Span::from_secs(1);
/// and one that is held back not later than this.
const HELD: Span = Span::from_mins(1);
/// How often it is looked whether there is room for items.
const ROOM: Span = Span::from_secs(1);
/// After others wrote to the store, sources are looked at again this much later.
const LOOK: std::time::Duration = std::time::Duration::from_secs(3);

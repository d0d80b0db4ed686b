//! Scrapes of items: a task of a source takes its turn, asks the store whether it may start, and leaves a row in the
//! scrape log right before its request leaves (B51–B53, B58).
//!
//! Tasks of one source ask one after the other, before they join any line: one that is too soon is put off without
//! a permit having been drawn for it. The last word is the store's, when the connection is open.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use comity_core::interval::Deferred;
use comity_core::task::TaskId;
use comity_core::time::Span;
use comity_store::StoreError;
use comity_store::domains::Hold;
use comity_store::items::{LogId, Start, StartStep, Started};
use comity_store::sources::SourceId;

use super::Inner;
use super::errand::Page;
use crate::gate::Permit;
use crate::transport::Depart;

/// What a task of an item knows of its scrape.
#[derive(Default)]
pub(super) struct Scrape {
    /// Until it has begun, no other task of its source asks.
    turn: Option<Turn>,
    log: Option<LogId>,
}

/// Tasks that wait for their turn, by source; a source that is in here has somebody asking.
pub(super) type Turns = HashMap<SourceId, VecDeque<Box<Page>>>;

/// Why a request did not leave although its connection was open.
#[derive(Debug)]
pub(super) enum Stays {
    /// It was not its time after all.
    Withheld,
    /// Its source was scraped meanwhile; it was put off.
    Deferred(Deferred),
    /// It is not to be scraped any more.
    Gone(&'static str),
    /// It is not ours any more.
    Fenced,
    /// The store does not work.
    Store(StoreError),
}

impl Scrape {
    /// Whether it has begun: what follows, redirects for instance, is part of it.
    pub(super) fn has_begun(&self) -> bool {
        self.log.is_some()
    }

    /// The row of a scrape that is not sent after all.
    pub(super) fn take_log(&mut self) -> Option<LogId> {
        self.log.take()
    }
}

/// The right to ask for a source. Dropped, it goes to the next task of that source.
struct Turn {
    pool: Arc<Inner>,
    source: SourceId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Whoever drops it may hold the lock of the gate.
        let (pool, source) = (self.pool.clone(), self.source);
        self.pool.runtime.spawn(async move { pass_on(&pool, source) });
    }
}

/// Waits for its turn, asks, and joins the line if it may.
pub(super) fn take_turn(pool: &Arc<Inner>, page: Box<Page>, source: SourceId) {
    let mut turns = pool.turns();
    if let Some(waiting) = turns.get_mut(&source) {
        waiting.push_back(page);
        return;
    }
    turns.insert(source, VecDeque::new());
    drop(turns);
    ask(pool, page, source);
}

fn pass_on(pool: &Arc<Inner>, source: SourceId) {
    let mut turns = pool.turns();
    match turns.get_mut(&source).and_then(VecDeque::pop_front) {
        Some(page) => {
            drop(turns);
            ask(pool, page, source);
        }
        None => drop(turns.remove(&source)),
    }
}

fn ask(pool: &Arc<Inner>, mut page: Box<Page>, source: SourceId) {
    if let Some(scrape) = page.scrape_mut() {
        scrape.turn = Some(Turn { pool: pool.clone(), source });
    }
    let pool = pool.clone();
    pool.runtime.clone().spawn(async move {
        if pool.is_over() || !page.is_open() {
            return page.put_down();
        }
        match pool.start(&page, StartStep::Ask).await {
            Ok(Started::MayJoin | Started::Begun(_)) => page.join(),
            Ok(Started::Soon(at)) => page.join_at(at),
            Ok(Started::Deferred(deferred)) => page.deferred(&deferred),
            Ok(Started::Gone(why)) => page.gone(why),
            Ok(Started::Fenced) => page.put_down(),
            Err(error) => {
                pool.gate.fail(error);
                page.put_down();
            }
        }
    });
}

impl Inner {
    async fn start(&self, page: &Page, step: StartStep) -> Result<Started, StoreError> {
        let (task, hold) = page.task();
        self.start_scrape(task, hold, step).await
    }

    async fn start_scrape(&self, task: TaskId, hold: Hold, step: StartStep) -> Result<Started, StoreError> {
        let Some(holder) = self.gate.holder() else { return Ok(Started::Fenced) };
        let start = Start { task, hold, interval: self.scrape_interval, patience: PATIENCE, step };
        self.store.start_scrape(holder, start, self.now()).await
    }
}

/// A scrape whose connection is open: its row is committed, and then its request leaves.
pub(super) struct Beginning<'a> {
    pub(super) pool: &'a Inner,
    pub(super) permit: &'a mut Permit,
    pub(super) scrape: &'a mut Scrape,
    pub(super) task: TaskId,
    pub(super) hold: Hold,
}

impl Depart<Stays> for Beginning<'_> {
    async fn depart(&mut self) -> Result<(), Stays> {
        if !self.scrape.has_begun() {
            self.begin().await?;
        }
        if self.permit.departs(PATIENCE).await { Ok(()) } else { Err(Stays::Withheld) }
    }
}

impl Beginning<'_> {
    async fn begin(&mut self) -> Result<(), Stays> {
        loop {
            let started = self.pool.start_scrape(self.task, self.hold, StartStep::Begin).await;
            match started.map_err(Stays::Store)? {
                Started::Begun(log) => {
                    self.scrape.log = Some(log);
                    self.scrape.turn = None;
                    return Ok(());
                }
                Started::Soon(at) => self.pool.gate.clock().sleep_until(at).await,
                Started::Deferred(deferred) => return Err(Stays::Deferred(deferred)),
                Started::Gone(why) => return Err(Stays::Gone(why)),
                Started::Fenced | Started::MayJoin => return Err(Stays::Fenced),
            }
        }
    }
}

/// A wait no longer than this is waited for on the spot, so that a source whose interval is its site's pace is not
/// put off for a few milliseconds.
const PATIENCE: Span = Span::from_millis(250);

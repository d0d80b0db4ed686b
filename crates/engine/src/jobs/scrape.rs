//! Scrapes of items: a task of a source takes its turn, asks the store whether it may start, and leaves a row in the
//! scrape log right before its request leaves (B51–B53, B58).
//!
//! One that is too soon is to be put off before a permit is drawn for it, so tasks of a source take turns: of those on
//! one domain, one stands in line at a time; and of all of them, one asks and leaves at a time, as long as it can leave
//! at once. One that has to wait in line lets the others pass, which may be on domains that are free. The last word is
//! the store's, when the connection is open.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity_core::interval::Deferred;
use comity_core::task::TaskId;
use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::domains::Hold;
use comity_store::items::{LogId, Start, StartStep, Started};
use comity_store::sources::SourceId;
use comity_store::tasks::{LaneId, Step};

use super::Inner;
use super::errand::Trip;
use crate::attempt::{Before, PATIENCE};
use crate::event::{Event, TaskEvent};
use crate::{lock, shown};

/// What a task of an item knows of its scrape.
#[derive(Default)]
pub(super) struct Scrape {
    /// Until it has begun, no other task of its source stands in the same line,
    lane_turn: Option<Turn>,
    /// and none asks, unless it does not come to its turn soon.
    source_turn: Arc<Mutex<Option<Turn>>>,
    log: Option<LogId>,
    /// Its row was made for a request that has not left yet.
    is_fresh: bool,
}

/// Tasks that wait for their turn; what is in here is taken by somebody.
pub(super) type Turns = HashMap<Key, VecDeque<Box<Trip>>>;

/// What tasks take turns for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// To stand in one line.
    Lane(SourceId, LaneId),
    /// To ask, and to leave if that is possible at once.
    Source(SourceId),
}

/// Why a request did not leave although its connection was open.
#[derive(Debug)]
pub(super) enum Stays {
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

    /// The turn does not last for ever; it goes before, with whoever has it.
    fn limit_source_turn(&self, pool: &Inner) {
        let turn = Arc::downgrade(&self.source_turn);
        pool.runtime.spawn(async move {
            tokio::time::sleep(TURN_MAX).await;
            if let Some(turn) = turn.upgrade() {
                drop(lock(&turn).take());
            }
        });
    }

    fn drop_source_turn(&self) {
        drop(lock(&self.source_turn).take());
    }

    /// The row of a scrape that is not sent after all; that of one that was sent before stays.
    pub(super) fn take_unsent(&mut self) -> Option<LogId> {
        self.log.take_if(|_| self.is_fresh)
    }

    /// A request of it left, or tried to.
    pub(super) fn sent(&mut self) {
        self.is_fresh = false;
    }
}

/// A turn that is taken. Dropped, it goes to the next task that waits for it.
struct Turn {
    pool: Arc<Inner>,
    key: Key,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Whoever drops it may hold the lock of the gate.
        let (pool, key) = (self.pool.clone(), self.key);
        self.pool.runtime.spawn(async move { pass_on(&pool, key) });
    }
}

/// Waits for its turns, asks, and joins the line if it may.
pub(super) fn take_turn(pool: &Arc<Inner>, trip: Box<Trip>, key: Key) {
    let mut turns = pool.turns();
    if let Some(waiting) = turns.get_mut(&key) {
        waiting.push_back(trip);
        return;
    }
    turns.insert(key, VecDeque::new());
    drop(turns);
    has_turn(pool, trip, key);
}

fn pass_on(pool: &Arc<Inner>, key: Key) {
    let mut turns = pool.turns();
    match turns.get_mut(&key).and_then(VecDeque::pop_front) {
        Some(trip) => {
            drop(turns);
            has_turn(pool, trip, key);
        }
        None => drop(turns.remove(&key)),
    }
}

fn has_turn(pool: &Arc<Inner>, mut trip: Box<Trip>, key: Key) {
    let turn = Some(Turn { pool: pool.clone(), key });
    let Some(scrape) = trip.scrape.as_mut() else { return };
    match key {
        Key::Lane(source, _) => {
            scrape.lane_turn = turn;
            take_turn(pool, trip, Key::Source(source));
        }
        Key::Source(_) => {
            *lock(&scrape.source_turn) = turn;
            ask_in_turn(pool, trip);
        }
    }
}

fn ask_in_turn(pool: &Arc<Inner>, trip: Box<Trip>) {
    let pool = pool.clone();
    pool.runtime.clone().spawn(async move {
        if pool.is_over() || !trip.is_open() {
            return trip.put_down();
        }
        if let Some((trip, at)) = may_start(&pool, trip).await {
            trip.join_in_turn(at);
        }
    });
}

impl Trip {
    /// The row of its scrape goes, if nothing was sent of it.
    pub(super) async fn call_off(&mut self) {
        let log = self.scrape.as_mut().and_then(Scrape::take_unsent);
        if let Some(log) = log
            && let Err(error) = self.pool.store.call_off_scrape(log).await
        {
            self.pool.gate.fail(error);
        }
    }

    /// Its connection was open, and its scrape did not begin.
    pub(super) fn stays(self: Box<Self>, stays: Stays) {
        match stays {
            Stays::Deferred(deferred) => self.deferred(&deferred),
            Stays::Gone(why) => self.gone(why),
            Stays::Fenced => self.put_down(),
            Stays::Store(error) => {
                self.pool.gate.fail(error);
                self.put_down();
            }
        }
    }

    /// Its source was scraped too short a time ago: in the store it was put off.
    pub(super) fn deferred(self: Box<Self>, deferred: &Deferred) {
        let step = TaskEvent::Deferred { deferred };
        self.pool.gate.events().tell(&Event::Task { url: &shown::url(&self.url), step });
        self.put_down();
    }

    /// There is nothing to be scraped any more.
    pub(super) fn gone(self: Box<Self>, why: &str) {
        self.settle(Step::Skipped { reason: why.to_owned() }, None);
    }

    /// Joins the line from then on. Whoever could leave at once keeps the turn of its source meanwhile, for a while.
    fn join_in_turn(mut self: Box<Self>, at: Timestamp) {
        let (free, pool) = (self.may_leave_at_once(), self.pool.clone());
        if let Some(scrape) = self.scrape.as_mut() {
            if free { scrape.limit_source_turn(&pool) } else { scrape.drop_source_turn() }
        }
        self.join_at(at);
    }
}

/// Asks the store whether a task may start, before anything is done on its behalf; from when on, unless that is settled.
pub(super) async fn may_start(pool: &Arc<Inner>, trip: Box<Trip>) -> Option<(Box<Trip>, Timestamp)> {
    match pool.start(&trip, StartStep::Ask).await {
        Ok(Started::MayJoin | Started::Begun(_) | Started::GoesOn(_)) => return Some((trip, Timestamp::MIN)),
        Ok(Started::Soon(at)) => return Some((trip, at)),
        Ok(Started::Deferred(deferred)) => trip.deferred(&deferred),
        Ok(Started::Gone(why)) => trip.gone(why),
        Ok(Started::Fenced) => trip.put_down(),
        Err(error) => {
            pool.gate.fail(error);
            trip.put_down();
        }
    }
    None
}

impl Inner {
    async fn start(&self, trip: &Trip, step: StartStep) -> Result<Started, StoreError> {
        let (task, hold) = trip.task();
        self.start_scrape(task, hold, step).await
    }

    async fn start_scrape(&self, task: TaskId, hold: Hold, step: StartStep) -> Result<Started, StoreError> {
        let Some(holder) = self.gate.holder() else { return Ok(Started::Fenced) };
        let start = Start { task, hold, interval: self.scrape_interval, patience: PATIENCE, step };
        self.store.start_scrape(holder, start, self.now()).await
    }
}

/// What is done when the connection of a task is open: the row of its scrape is committed, if it scrapes an item.
pub(super) struct Beginning<'a> {
    pub(super) pool: &'a Inner,
    pub(super) scrape: Option<&'a mut Scrape>,
    pub(super) task: TaskId,
    pub(super) hold: Hold,
}

impl Before for Beginning<'_> {
    type Stays = Stays;

    async fn before(&mut self) -> Result<(), Stays> {
        let Some(scrape) = self.scrape.as_deref_mut().filter(|scrape| !scrape.has_begun()) else {
            return Ok(());
        };
        loop {
            let started = self.pool.start_scrape(self.task, self.hold, StartStep::Begin).await;
            let started = started.map_err(Stays::Store)?;
            scrape.is_fresh = matches!(started, Started::Begun(_));
            match started {
                Started::Begun(log) | Started::GoesOn(log) => {
                    scrape.log = Some(log);
                    scrape.lane_turn = None;
                    scrape.drop_source_turn();
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

/// Whoever could leave at once and did not within this time lets the others of its source ask.
const TURN_MAX: Duration = Duration::from_secs(1);

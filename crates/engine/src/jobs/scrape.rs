//! Scrapes of items. The task waits for its turn, asks the store whether it may start, and adds a row to the scrape log
//! right before its request is sent.
//!
//! A scrape that is too early must be deferred before it takes a permit. Therefore the tasks of a source take turns:
//! only one of them per domain is in line at a time, and only one at a time asks the store and is sent, as long as it
//! can be sent right away. A task that has to wait in line lets the others go ahead, whose domains may be free. The
//! store makes the final decision when the connection is open.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity_core::interval::Deferred;
use comity_core::task::TaskId;
use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::domains::Tenure;
use comity_store::items::{LogId, Start, StartStep, Started};
use comity_store::sources::SourceId;
use comity_store::tasks::{LaneId, Step};

use super::Inner;
use super::active_task::ActiveTask;
use crate::attempt::{BeforeSend, DEPART_WAIT_MAX};
use crate::event::{Event, TaskEvent};
use crate::{lock, redact};

/// The scrape of an item's task.
#[derive(Default)]
pub(super) struct Scrape {
    /// The turn for its line: until the scrape starts, no other task of the source is in that line.
    lane_turn: Option<Turn>,
    /// The turn for its source: no other task of the source asks the store, unless this one takes too long.
    source_turn: Arc<Mutex<Option<Turn>>>,
    log: Option<LogId>,
    /// Whether its row in the scrape log was added for a request that has not been sent yet.
    is_fresh: bool,
}

/// Tasks that wait for a turn. A key in here means that the turn is taken.
pub(super) type Turns = HashMap<TurnKey, VecDeque<Box<ActiveTask>>>;

/// What tasks take turns for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TurnKey {
    /// Being in the line of one lane.
    Lane(SourceId, LaneId),
    /// Asking the store, and being sent if that is possible right away.
    Source(SourceId),
}

/// Why a request was not sent although its connection was open.
#[derive(Debug)]
pub(super) enum ScrapeVeto {
    /// Its source was scraped in the meantime, so it was deferred.
    Deferred(Deferred),
    /// The item is no longer to be scraped.
    Gone(&'static str),
    /// The task now belongs to another process.
    Fenced,
    /// The store failed.
    Store(StoreError),
}

impl Scrape {
    /// Whether the scrape has started. Further requests, such as redirects, are part of it.
    pub(super) fn has_started(&self) -> bool {
        self.log.is_some()
    }

    /// Passes the turn of the source on after a while, even if the task still has it.
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

    /// Takes the log row of a scrape that was not sent after all. The row of one that was already sent stays.
    pub(super) fn take_unsent(&mut self) -> Option<LogId> {
        self.log.take_if(|_| self.is_fresh)
    }

    /// Notes that a request of the scrape was sent, or tried to be.
    pub(super) fn sent(&mut self) {
        self.is_fresh = false;
    }
}

/// A taken turn. Dropping it passes it on to the next waiting task.
struct Turn {
    pool: Arc<Inner>,
    key: TurnKey,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // In the background, because whoever drops the turn may hold the gate's lock.
        let (pool, key) = (self.pool.clone(), self.key);
        self.pool.runtime.spawn(async move { pass_on(&pool, key) });
    }
}

/// Waits for a turn; with both turns the task asks the store and joins the line.
pub(super) fn take_turn(pool: &Arc<Inner>, active: Box<ActiveTask>, key: TurnKey) {
    let mut turns = pool.turns();
    if let Some(waiting) = turns.get_mut(&key) {
        waiting.push_back(active);
        return;
    }
    turns.insert(key, VecDeque::new());
    drop(turns);
    has_turn(pool, active, key);
}

fn pass_on(pool: &Arc<Inner>, key: TurnKey) {
    let mut turns = pool.turns();
    match turns.get_mut(&key).and_then(VecDeque::pop_front) {
        Some(active) => {
            drop(turns);
            has_turn(pool, active, key);
        }
        None => drop(turns.remove(&key)),
    }
}

fn has_turn(pool: &Arc<Inner>, mut active: Box<ActiveTask>, key: TurnKey) {
    let turn = Some(Turn { pool: pool.clone(), key });
    let Some(scrape) = active.scrape.as_mut() else { return };
    match key {
        TurnKey::Lane(source, _) => {
            scrape.lane_turn = turn;
            take_turn(pool, active, TurnKey::Source(source));
        }
        TurnKey::Source(_) => {
            *lock(&scrape.source_turn) = turn;
            ask_in_turn(pool, active);
        }
    }
}

fn ask_in_turn(pool: &Arc<Inner>, active: Box<ActiveTask>) {
    let pool = pool.clone();
    pool.runtime.clone().spawn(async move {
        if pool.is_stopping() || !active.is_open() {
            return active.release();
        }
        if let Some((active, at)) = may_start(&pool, active).await {
            active.join_in_turn(at);
        }
    });
}

impl ActiveTask {
    /// Removes the log row of its scrape, if nothing was sent.
    pub(super) async fn call_off(&mut self) {
        let log = self.scrape.as_mut().and_then(Scrape::take_unsent);
        if let Some(log) = log
            && let Err(error) = self.pool.store.cancel_scrape(log).await
        {
            self.pool.gate.fail(error);
        }
    }

    /// Handles a scrape that was vetoed when its connection was open.
    pub(super) fn vetoed(self: Box<Self>, veto: ScrapeVeto) {
        match veto {
            ScrapeVeto::Deferred(deferred) => self.deferred(&deferred),
            ScrapeVeto::Gone(why) => self.gone(why),
            ScrapeVeto::Fenced => self.release(),
            ScrapeVeto::Store(error) => {
                self.pool.gate.fail(error);
                self.release();
            }
        }
    }

    /// Releases a task that the store deferred because its source was scraped too recently.
    pub(super) fn deferred(self: Box<Self>, deferred: &Deferred) {
        let (events, step) = (self.pool.gate.events(), TaskEvent::Deferred { deferred });
        events.emit(&Event::Task { url: &redact::url(&self.url), final_url: None, step });
        if let Some((_, source)) = self.row.scrapes {
            let last_at = deferred.wake_at;
            events.emit(&Event::Deferred { source: source.0, items: 1, first: deferred, last_at });
        }
        self.release();
    }

    /// Skips a task whose item is no longer to be scraped.
    pub(super) fn gone(self: Box<Self>, why: &str) {
        self.settle(Step::Skipped { reason: why.to_owned() }, None);
    }

    /// Joins the line, ready from `at` on. If the task can be sent right away, it keeps the turn of its source for a
    /// while.
    fn join_in_turn(mut self: Box<Self>, at: Timestamp) {
        let (free, pool) = (self.may_leave_at_once(), self.pool.clone());
        if let Some(scrape) = self.scrape.as_mut() {
            if free { scrape.limit_source_turn(&pool) } else { scrape.drop_source_turn() }
        }
        self.join_at(at);
    }
}

/// Asks the store whether a task may start, before anything is done for it. Returns the task and when it may start,
/// unless the answer settles the matter.
pub(super) async fn may_start(
    pool: &Arc<Inner>,
    active: Box<ActiveTask>,
) -> Option<(Box<ActiveTask>, Timestamp)> {
    match pool.start(&active, StartStep::Ask).await {
        Ok(Started::MayJoin | Started::Begun(_) | Started::Continues(_)) => {
            return Some((active, Timestamp::MIN));
        }
        Ok(Started::Soon(at)) => return Some((active, at)),
        Ok(Started::Deferred(deferred)) => active.deferred(&deferred),
        Ok(Started::Gone(why)) => active.gone(why),
        Ok(Started::Fenced) => active.release(),
        Err(error) => {
            pool.gate.fail(error);
            active.release();
        }
    }
    None
}

impl Inner {
    async fn start(&self, active: &ActiveTask, step: StartStep) -> Result<Started, StoreError> {
        let (task, tenure) = active.task();
        self.start_scrape(task, tenure, step).await
    }

    async fn start_scrape(
        &self,
        task: TaskId,
        tenure: Tenure,
        step: StartStep,
    ) -> Result<Started, StoreError> {
        let Some(holder) = self.gate.holder() else { return Ok(Started::Fenced) };
        let start = Start { task, tenure, interval: self.scrape_interval, patience: DEPART_WAIT_MAX, step };
        self.store.start_scrape(holder, start, self.now()).await
    }
}

/// Commits the log row of the task's scrape when its connection is open, if it scrapes an item.
pub(super) struct StartScrape<'a> {
    pub(super) pool: &'a Inner,
    pub(super) scrape: Option<&'a mut Scrape>,
    pub(super) task: TaskId,
    pub(super) tenure: Tenure,
}

impl BeforeSend for StartScrape<'_> {
    type Veto = ScrapeVeto;

    async fn before_send(&mut self) -> Result<(), ScrapeVeto> {
        let Some(scrape) = self.scrape.as_deref_mut().filter(|scrape| !scrape.has_started()) else {
            return Ok(());
        };
        loop {
            let started = self.pool.start_scrape(self.task, self.tenure, StartStep::Begin).await;
            let started = started.map_err(ScrapeVeto::Store)?;
            scrape.is_fresh = matches!(started, Started::Begun(_));
            match started {
                Started::Begun(log) | Started::Continues(log) => {
                    scrape.log = Some(log);
                    scrape.lane_turn = None;
                    scrape.drop_source_turn();
                    return Ok(());
                }
                Started::Soon(at) => self.pool.gate.clock().sleep_until(at).await,
                Started::Deferred(deferred) => return Err(ScrapeVeto::Deferred(deferred)),
                Started::Gone(why) => return Err(ScrapeVeto::Gone(why)),
                Started::Fenced | Started::MayJoin => return Err(ScrapeVeto::Fenced),
            }
        }
    }
}

/// How long a task that could be sent right away keeps the turn of its source.
const TURN_MAX: Duration = Duration::from_secs(1);

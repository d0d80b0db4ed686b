//! Commits what became of tasks, many at a time, and draws the conclusions once it is committed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_core::guard;
use comity_core::paces::DomainId;
use comity_core::task::JobStep;
use comity_store::domains::Hold;
use comity_store::tasks::{LaneId, Settle, Settled, Step, TaskRow};
use tokio::sync::mpsc;
use url::Url;

use super::Inner;
use super::errand::Trip;
use crate::event::{Event, TaskEvent};
use crate::gate::Gate;
use crate::shown;

/// What a settler is sent.
pub(super) enum Settling {
    One(Box<One>),
    /// There is no more.
    Last,
}

/// One task to be settled.
pub(super) struct One {
    pub(super) settle: Settle,
    pub(super) row: TaskRow,
    pub(super) lane: LaneId,
    pub(super) url: Url,
    /// The answer was another 4xx: the list is stale, the site is fine (B47).
    pub(super) answered: bool,
    pub(super) tenant: Option<Tenant>,
}

/// Says that a task of a domain is not settled yet: the domain does not change hands before.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) gate: Gate,
    pub(super) tenure: (DomainId, u64),
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.gate.settled(self.tenure);
    }
}

/// Settles until told that there is no more.
pub(super) async fn run(pool: Weak<Inner>, mut receiver: mpsc::UnboundedReceiver<Settling>) {
    let mut batch = Vec::new();
    let mut last = false;
    while !last && receiver.recv_many(&mut batch, BATCH).await > 0 {
        if batch.len() < ENOUGH && !batch.iter().any(|one| matches!(one, Settling::Last)) {
            // A commit costs as much for one as for fifty: wait a moment for company.
            tokio::time::sleep(GATHER).await;
            while batch.len() < BATCH
                && let Ok(more) = receiver.try_recv()
            {
                batch.push(more);
            }
        }
        let Some(pool) = pool.upgrade() else { return };
        let mut ones = Vec::with_capacity(batch.len());
        for settling in batch.drain(..) {
            match settling {
                Settling::One(one) => ones.push(*one),
                Settling::Last => last = true,
            }
        }
        commit(&pool, ones).await;
    }
}

async fn commit(pool: &Arc<Inner>, ones: Vec<One>) {
    let Some(holder) = pool.gate.holder() else { return };
    if ones.is_empty() {
        return;
    }
    let settles = ones.iter().map(|one| one.settle.clone()).collect();
    match pool.store.settle(holder, settles, pool.now()).await {
        Ok(results) => {
            let mut poke = false;
            for (one, settled) in ones.into_iter().zip(results) {
                poke |= conclude(pool, one, settled);
            }
            if poke {
                pool.poke.notify_one();
            }
        }
        Err(error) => pool.gate.fail(error),
    }
}

/// What follows from a settled task; true when the pool should look.
fn conclude(pool: &Arc<Inner>, one: One, settled: Settled) -> bool {
    let One { settle, row, lane, url, answered, tenant } = one;
    let url = shown::url(&url);
    let tell = |step| pool.gate.events().tell(&Event::Task { url: &url, step });
    if settled == Settled::Fenced {
        tell(TaskEvent::Fenced);
        drop(tenant);
        return pool.lanes().put_down(lane, settle.hold, settle.task);
    }
    let counted = match &settle.step {
        Step::Done { status, bytes, .. } => {
            tell(TaskEvent::Done { status: *status, bytes: *bytes });
            Some(guard::Settled::Done)
        }
        Step::Failed { error, .. } => {
            tell(TaskEvent::Failed { error });
            Some(if answered { guard::Settled::Answered } else { guard::Settled::Failed(error) })
        }
        Step::Skipped { reason } => {
            tell(TaskEvent::Skipped { reason });
            Some(guard::Settled::Skipped)
        }
        Step::Moved { domain, .. } => {
            tell(TaskEvent::Moved { domain });
            None
        }
        Step::Retry { ready_at, .. } => {
            if let Some(attempt) = settle.attempts.last() {
                tell(TaskEvent::Retried { outcome: attempt.outcome, ready_at: *ready_at });
            }
            None
        }
        Step::Postpone { .. } => None,
    };
    let tripped = counted.and_then(|counted| pool.guards().failures.settled(counted));
    if let Some(message) = tripped {
        pool.guards().tripped.get_or_insert((JobStep::Fail, message));
        pool.poke.notify_one();
    }
    drop(tenant);
    if let Step::Retry { ready_at, retries, .. } = settle.step
        && !pool.is_over()
        && let Some((hold, domain)) = kept(pool, lane, settle.hold)
    {
        let row = TaskRow { ready_at, retries, ..row };
        Trip::begin(pool, lane, hold, &domain, row);
        return false;
    }
    if let Step::Moved { .. } = settle.step {
        pool.fresh.store(true, Ordering::Relaxed);
        pool.poke.notify_one();
    }
    pool.lanes().put_down(lane, settle.hold, settle.task)
}

/// Whether a task that is tried again stays in hand, and under which hold.
fn kept(pool: &Inner, lane: LaneId, hold: Hold) -> Option<(Hold, comity_core::domain::Domain)> {
    let lanes = pool.lanes();
    lanes.hold(lane).filter(|(now, _)| *now == hold && lanes.keeps(lane))
}

/// Tasks settled in one transaction, at most.
const BATCH: usize = 512;
/// From so many on nobody waits for more.
const ENOUGH: usize = 48;
/// How long a few wait for more.
const GATHER: Duration = Duration::from_millis(2);

//! Commits what became of tasks, many at a time, and draws the conclusions once it is committed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_core::guard::{self, FailureGuard};
use comity_core::paces::DomainId;
use comity_core::task::{JobStep, TaskId};
use comity_core::time::Timestamp;
use comity_store::domains::{Hold, HolderId};
use comity_store::tasks::{GAVE_UP, LaneId, Rest, Settle, Settled, Step, TaskRow};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use url::Url;

use super::errand::{Trip, put_back};
use super::lanes::GivenUp;
use super::rows::row_of;
use super::{Guards, Inner, Until};
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
    /// When the answer came, or that there is none was known.
    pub(super) answered_at: Timestamp,
    pub(super) tenant: Option<Tenant>,
    /// The headers of the last answer, if its row is to have them.
    pub(super) headers: Option<Map<String, Value>>,
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
    let now = pool.begin_telling();
    match pool.store.settle(holder, settles, now).await {
        Ok(results) => {
            pool.settled.fetch_add(results.len() as u64, Ordering::Relaxed);
            let rows = match pool.wants_rows() {
                true => std::iter::zip(&ones, &results)
                    .filter(|(_, settled)| **settled == Settled::Yes)
                    .filter_map(|(one, _)| row_of(one, now))
                    .collect(),
                false => Vec::new(),
            };
            let mut poke = false;
            let mut given_up = Vec::new();
            for (one, settled) in ones.into_iter().zip(results) {
                match conclude(pool, one, settled) {
                    Concluded::Look => poke = true,
                    Concluded::Fine => {}
                    Concluded::GivenUp(up) => given_up.push(up),
                }
            }
            for up in given_up {
                give_up(pool, holder, up).await;
                poke = true;
            }
            if poke {
                pool.poke.notify_one();
            }
            if let Err(error) = pool.tell(rows).await {
                pool.gate.fail(error);
            }
        }
        Err(error) => pool.gate.fail(error),
    }
}

/// What follows from a settled task for the pool.
enum Concluded {
    Fine,
    /// It should look.
    Look,
    /// The domain of the task is to be given up.
    GivenUp(GivingUp),
}

/// A domain is to be given up; until it is, the task that was the last straw is in hand, and its lane with it.
struct GivingUp {
    lane: LaneId,
    hold: Hold,
    task: TaskId,
    message: String,
}

/// What follows from a settled task.
fn conclude(pool: &Arc<Inner>, one: One, settled: Settled) -> Concluded {
    let look = |look: bool| if look { Concluded::Look } else { Concluded::Fine };
    let One { settle, row, lane, url, answered, answered_at, tenant, headers: _ } = one;
    let url = shown::url(&url);
    let tell = |step| pool.gate.events().tell(&Event::Task { url: &url, step });
    if settled == Settled::Fenced {
        tell(TaskEvent::Fenced);
        drop(tenant);
        return look(pool.lanes().put_down(lane, settle.hold, settle.task));
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
    };
    let tripped = counted.and_then(|counted| pool.guards().settled(lane, counted, answered_at));
    drop(tenant);
    if let Some(message) = tripped {
        return Concluded::GivenUp(GivingUp { lane, hold: settle.hold, task: settle.task, message });
    }
    if let Step::Retry { ready_at, retries, forgiven, .. } = settle.step
        && !pool.is_over()
        && let Some((hold, domain)) = kept(pool, lane, settle.hold)
    {
        let attempts = row.attempts + settle.attempts.len() as u32;
        let last = settle.attempts.last().cloned().or(row.last);
        let row = TaskRow { ready_at, retries, forgiven, attempts, last, ..row };
        Trip::begin(pool, lane, hold, &domain, row);
        return Concluded::Fine;
    }
    if let Step::Moved { .. } = settle.step {
        pool.fresh.store(true, Ordering::Relaxed);
        pool.poke.notify_one();
    }
    look(pool.lanes().put_down(lane, settle.hold, settle.task))
}

impl Guards {
    /// Counts a settled task of a lane; the message when its domain is given up by it (B47).
    fn settled(
        &mut self,
        lane: LaneId,
        settled: guard::Settled<'_>,
        answered_at: Timestamp,
    ) -> Option<String> {
        if self.failures_max == 0 {
            return None;
        }
        let guard = self.failures.entry(lane).or_insert_with(|| FailureGuard::new(self.failures_max));
        if !guard.is_tripped() {
            self.given_up = None;
        }
        guard.settled(settled, answered_at)
    }
}

/// Gives the domain of a lane up: what waits in line for it is put down, and whoever claims the lane next skips it. A
/// job without an end leaves it for the next run instead. When nothing else is left, the job failed.
async fn give_up(pool: &Arc<Inner>, holder: HolderId, up: GivingUp) {
    let GivingUp { lane, hold, task, message } = up;
    let given_up = match pool.until {
        Until::Done => GivenUp::Skip,
        Until::Idle { .. } => GivenUp::Leave,
    };
    let domain = pool.lanes().give_up(lane, given_up);
    // A lane that went to another process meanwhile is that one's to judge.
    let Some(domain) = domain else { return };
    let message = format!("{GAVE_UP}{domain}: {message}");
    tracing::warn!(job = pool.job.name, "{message}");
    pool.gate.leave_domain(pool.job.id, &domain).into_iter().for_each(put_back);
    match given_up {
        GivenUp::Leave => pool.guards().left = Some(message),
        GivenUp::Skip => match pool.store.give_up(holder, lane, message.clone()).await {
            Ok(Rest::Tasks) => {}
            Ok(Rest::List) => pool.guards().given_up = Some(message),
            Ok(Rest::Nothing) => drop(pool.guards().tripped.get_or_insert((JobStep::Fail, message))),
            Err(error) => pool.gate.fail(error),
        },
    }
    pool.lanes().put_down(lane, hold, task);
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

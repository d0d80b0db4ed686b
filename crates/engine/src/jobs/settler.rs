//! Commits the results of tasks in batches, and acts on them once they are committed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_core::guard::{self, FailureGuard};
use comity_core::outcome::Outcome;
use comity_core::paces::DomainId;
use comity_core::task::{JobStep, TaskId};
use comity_core::time::Timestamp;
use comity_store::domains::{HolderId, Tenure};
use comity_store::tasks::{GAVE_UP, LaneId, RemainingWork, Settle, Settled, Step, TaskRow};
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use url::Url;

use super::active_task::{ActiveTask, release_queued};
use super::lanes::GivenUp;
use super::rows::row_of;
use super::{Guards, Inner, Until};
use crate::event::{Event, TaskEvent, redacted_text};
use crate::gate::Gate;
use crate::{lock, redact};

/// A message to the settler.
pub(super) enum Settling {
    Task(Box<TaskResult>),
    /// No more results follow.
    Last,
}

/// The result of a task, to be settled.
pub(super) struct TaskResult {
    /// What the store writes.
    pub(super) settle: Settle,
    /// What is acted on once it is committed.
    pub(super) task: TaskInHand,
}

/// A task in hand that is being settled.
pub(super) struct TaskInHand {
    pub(super) row: TaskRow,
    pub(super) lane: LaneId,
    pub(super) url: Url,
    /// Whether the response was a 4xx such as 404: then the list is stale, but the site is fine.
    pub(super) answered: bool,
    /// When the response arrived, or when it was clear that there is none.
    pub(super) answered_at: Timestamp,
    pub(super) guard: Option<UnsettledGuard>,
    /// The headers of the last response, if the row includes them.
    pub(super) headers: Option<Map<String, Value>>,
}

/// Keeps a domain from being handed over until its task is settled.
#[derive(Debug)]
pub(super) struct UnsettledGuard {
    pub(super) gate: Gate,
    pub(super) holding: (DomainId, u64),
    /// Its share of what may be uncommitted.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl Drop for UnsettledGuard {
    fn drop(&mut self) {
        self.gate.settled(self.holding);
    }
}

/// Settles results until the last one.
pub(super) async fn run(pool: Weak<Inner>, mut receiver: mpsc::UnboundedReceiver<Settling>) {
    let mut batch = Vec::new();
    let mut last = false;
    while !last && receiver.recv_many(&mut batch, BATCH).await > 0 {
        gather(&mut receiver, &mut batch).await;
        let Some(pool) = pool.upgrade() else { return };
        let (mut settles, mut tasks) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for settling in batch.drain(..) {
            match settling {
                Settling::Task(one) => {
                    let TaskResult { settle, task } = *one;
                    settles.push(settle);
                    tasks.push(task);
                }
                Settling::Last => last = true,
            }
        }
        commit(&pool, settles.into(), tasks).await;
    }
}

/// Waits a moment for more results, and for as long as many arrive: results of one commit share the pages of the database
/// that it writes, so one commit of 500 writes a fifth of what ten commits of 50 write.
async fn gather(receiver: &mut mpsc::UnboundedReceiver<Settling>, batch: &mut Vec<Settling>) {
    for _ in 0..ROUNDS {
        if batch.len() >= BATCH || batch.iter().any(|one| matches!(one, Settling::Last)) {
            return;
        }
        let before = batch.len();
        tokio::time::sleep(GATHER).await;
        while batch.len() < BATCH
            && let Ok(more) = receiver.try_recv()
        {
            batch.push(more);
        }
        if batch.len() - before < MANY {
            return;
        }
    }
}

async fn commit(pool: &Arc<Inner>, settles: Arc<[Settle]>, tasks: Vec<TaskInHand>) {
    let Some(holder) = pool.gate.holder() else { return };
    if tasks.is_empty() {
        return;
    }
    let now = pool.note_pending();
    match pool.store.settle(holder, settles.clone(), now).await {
        Ok(results) => {
            pool.settled.fetch_add(results.len() as u64, Ordering::Relaxed);
            let rows = match pool.wants_rows() {
                true => std::iter::zip(&*settles, &tasks)
                    .zip(&results)
                    .filter(|(_, settled)| **settled == Settled::Yes)
                    .filter_map(|((settle, task), _)| row_of(settle, task, now))
                    .collect(),
                false => Vec::new(),
            };
            let mut poke = false;
            let mut given_up = Vec::new();
            for ((settle, task), settled) in settles.iter().zip(tasks).zip(results) {
                match conclude(pool, settle, task, settled) {
                    Concluded::CheckForWork => poke = true,
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
            if let Err(error) = pool.write_settled(rows).await {
                pool.gate.fail(error);
            }
        }
        Err(error) => pool.gate.fail(error),
    }
}

/// What the pool has to do after a task is settled.
enum Concluded {
    Fine,
    /// Check for work.
    CheckForWork,
    /// Give up the domain of the task.
    GivenUp(GivingUp),
}

/// A domain to be given up. Until it is, the task that triggered this stays in hand, and so does its lane.
struct GivingUp {
    lane: LaneId,
    tenure: Tenure,
    task: TaskId,
    message: String,
}

/// Acts on a settled task.
fn conclude(pool: &Arc<Inner>, settle: &Settle, task: TaskInHand, settled: Settled) -> Concluded {
    let check_if = |check: bool| if check { Concluded::CheckForWork } else { Concluded::Fine };
    let TaskInHand { row, lane, url, answered, answered_at, guard, headers: _ } = task;
    let final_url = (url.as_str() != row.url).then(|| redact::url(&url));
    let url = match &final_url {
        Some(_) => redacted_text(&row.url),
        None => redact::url(&url),
    };
    let final_url = final_url.as_deref().filter(|final_url| *final_url != url);
    let emit = |step| pool.gate.events().emit(&Event::Task { url: &url, final_url, step });
    if settled == Settled::Fenced {
        emit(TaskEvent::Fenced);
        drop(guard);
        return check_if(pool.lanes().release(lane, settle.tenure, settle.task));
    }
    count(pool, settle, &row);
    let counted = match &settle.step {
        Step::Done { status, bytes, .. } => {
            emit(TaskEvent::Done { status: *status, bytes: *bytes });
            Some(guard::Settled::Done)
        }
        Step::Failed { error, .. } => {
            emit(TaskEvent::Failed { error });
            Some(if answered { guard::Settled::Answered } else { guard::Settled::Failed(error) })
        }
        Step::Skipped { reason } => {
            emit(TaskEvent::Skipped { reason });
            Some(guard::Settled::Skipped)
        }
        Step::Moved { domain, .. } => {
            emit(TaskEvent::Moved { domain });
            None
        }
        Step::Retry { ready_at, .. } => {
            if let Some(attempt) = settle.attempts.last() {
                emit(TaskEvent::Retried { outcome: attempt.outcome, ready_at: *ready_at });
            }
            None
        }
    };
    let tripped = counted.and_then(|counted| pool.guards().settled(lane, counted, answered_at));
    drop(guard);
    if let Some(message) = tripped {
        return Concluded::GivenUp(GivingUp { lane, tenure: settle.tenure, task: settle.task, message });
    }
    if let Step::Retry { ready_at, retries, forgiven, .. } = settle.step
        && !pool.is_stopping()
        && let Some((tenure, domain)) = kept(pool, lane, settle.tenure)
    {
        let attempts = row.attempts + settle.attempts.len() as u32;
        let last = settle.attempts.last().cloned().or(row.last);
        let row = TaskRow { ready_at, retries, forgiven, attempts, last, ..row };
        ActiveTask::begin(pool, lane, tenure, &domain, row);
        return Concluded::Fine;
    }
    if let Step::Moved { .. } = settle.step {
        pool.fresh.store(true, Ordering::Relaxed);
        pool.poke.notify_one();
    }
    check_if(pool.lanes().release(lane, settle.tenure, settle.task))
}

/// Counts what became of a task.
fn count(pool: &Inner, settle: &Settle, row: &TaskRow) {
    let mut counts = lock(&pool.run_counts);
    let limited = settle.attempts.iter().filter(|attempt| attempt.outcome == Outcome::RateLimited);
    counts.rate_limited += limited.count() as u64;
    match &settle.step {
        Step::Done { status, .. } => match is_changed(*status, settle, row) {
            true => counts.changed += 1,
            false => counts.unchanged += 1,
        },
        Step::Failed { .. } => counts.failed += 1,
        Step::Retry { .. } => counts.retries += 1,
        Step::Skipped { .. } | Step::Moved { .. } => {}
    }
}

/// Whether a page is new, or has another body than before. The store decides the same way.
pub(super) fn is_changed(status: u16, settle: &Settle, row: &TaskRow) -> bool {
    let before = row.previous.as_ref().and_then(|previous| previous.facts.sha256);
    status != 304 && (before.is_none() || before != settle.facts.sha256)
}

impl Guards {
    /// Counts a settled task of a lane. Returns why if its domain is to be given up.
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

/// Gives up the domain of a lane: releases its tasks in line, and has the store skip the waiting ones. A job that stays
/// open leaves them for the next run instead. If nothing else is left, the job has failed.
async fn give_up(pool: &Arc<Inner>, holder: HolderId, up: GivingUp) {
    let GivingUp { lane, tenure, task, message } = up;
    let given_up = match pool.until {
        Until::Done { .. } => GivenUp::Skip,
        Until::Idle { .. } => GivenUp::Leave,
    };
    let domain = pool.lanes().give_up(lane, given_up);
    // A lane that another process claimed in the meantime is up to that process.
    let Some(domain) = domain else { return };
    let message = format!("{GAVE_UP}{domain}: {message}");
    tracing::warn!(job = pool.job.name, "{message}");
    pool.gate.leave_domain(pool.job.id, &domain).into_iter().for_each(release_queued);
    match given_up {
        GivenUp::Leave => pool.guards().left_for_later = Some(message),
        GivenUp::Skip => match pool.store.give_up(holder, lane, message.clone()).await {
            Ok(RemainingWork::Tasks) => {}
            Ok(RemainingWork::List) => pool.guards().given_up = Some(message),
            Ok(RemainingWork::Nothing) => drop(pool.guards().tripped.get_or_insert((JobStep::Fail, message))),
            Err(error) => pool.gate.fail(error),
        },
    }
    pool.lanes().release(lane, tenure, task);
}

/// The tenure and domain under which a task to be retried stays in hand, if it does.
fn kept(pool: &Inner, lane: LaneId, tenure: Tenure) -> Option<(Tenure, comity_core::domain::Domain)> {
    let lanes = pool.lanes();
    lanes.tenure(lane).filter(|(now, _)| *now == tenure && lanes.keeps_retries(lane))
}

/// The maximum number of tasks settled in one transaction. The rest of what may be uncommitted (`UNCOMMITTED_MAX`) is left
/// for what is fetched during the commit.
const BATCH: usize = 768;
/// How long one round of waiting for more results takes.
const GATHER: Duration = Duration::from_millis(2);
/// The maximum number of rounds: a page that was fetched is committed soon, or a crash would fetch it again.
const ROUNDS: usize = 20;
/// With fewer new results in a round, waiting longer does not pay.
const MANY: usize = 16;

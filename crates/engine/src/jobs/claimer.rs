//! Claims lanes and tasks from the store, and ends the work when nothing is left.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use comity_core::guard::FailureGuard;
use comity_core::task::{JobState, JobStep};
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::jobs::Stepped;
use comity_store::tasks::{Claim, LaneId};

use super::active_task::ActiveTask;
use super::lanes::GivenUp;
use super::{Inner, StopReason, Until};
use crate::event::Event;
use crate::gate::ClaimedLane;

/// Claims lanes and tasks, and ends the job.
pub(super) struct Claimer {
    inner: Arc<Inner>,
    /// When to check for lanes that are due.
    pub(super) check_at: Timestamp,
    /// When the state of the job was last checked; another process may have ended it.
    asked_at: Timestamp,
    /// Whether another process has written to the store since then.
    changed: bool,
    /// Since when no task can be sent for a long time.
    stuck_since: Option<Timestamp>,
    /// Since when the pool has only been waiting.
    quiet_since: Option<Timestamp>,
    settled: u64,
}

impl Claimer {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        let (inner, asked_at) = (inner.clone(), inner.now());
        Self {
            inner,
            check_at: Timestamp::MIN,
            asked_at,
            changed: false,
            stuck_since: None,
            quiet_since: None,
            settled: 0,
        }
    }

    /// Notes that another process wrote to the store: it may have ended the job, or left lanes for us.
    pub(super) fn others_wrote(&mut self) {
        self.changed = true;
        if self.inner.lanes().is_empty() {
            self.check_at = Timestamp::MIN;
        }
    }

    /// Does whatever there is to do. Returns why the work ended, if it did.
    pub(super) async fn work(&mut self) -> Result<Option<StopReason>, StoreError> {
        let tripped = self.inner.guards().tripped.take();
        if let Some((step, message)) = tripped {
            return match self.inner.until {
                Until::Done { .. } => self.end(step, Some(message)).await,
                Until::Idle { .. } => Ok(Some(StopReason::Halted(message))),
            };
        }
        if self.inner.now().since(self.asked_at) >= if self.changed { CHECK_SOON } else { CHECK_EVERY } {
            self.changed = false;
            self.asked_at = self.inner.now();
            let name = &self.inner.job.name;
            let job = self.inner.store.find_job(name.clone()).await?;
            match job.filter(|job| job.id == self.inner.job.id) {
                Some(job) if job.state.is_terminal() => return Ok(Some(StopReason::Job(job.state))),
                Some(_) => {}
                None => {
                    let what = format!(
                        "job {name} is no longer in this store, which was replaced by an older copy; start the job again"
                    );
                    return Err(StoreError::Rejected { location: self.inner.store.location(), what });
                }
            }
        }
        self.begin_next();
        self.refill().await?;
        self.close_lanes().await?;
        if self.inner.fresh.swap(false, Ordering::Relaxed) {
            self.check_at = Timestamp::MIN;
        }
        let now = self.inner.now();
        let room = LANES_MAX.saturating_sub(self.inner.lanes().len());
        if room == 0 {
            self.check_at = now + CHECK_EVERY;
        } else if now >= self.check_at {
            self.claim(room).await?;
        }
        let idle = self.inner.lanes().is_idle() && self.inner.fetches.is_empty();
        if idle && !self.inner.filling.load(Ordering::Relaxed) {
            let ended = match self.inner.until {
                Until::Done { .. } => self.finish().await?,
                Until::Idle { .. } => self.idle().await?,
            };
            if ended.is_some() {
                return Ok(ended);
            }
            // Deferred tasks are in no claimed lane until they are due.
        }
        self.too_long().await
    }

    /// Ends a job with nothing left to do here. It is done, unless every domain that still had tasks was given up.
    async fn finish(&mut self) -> Result<Option<StopReason>, StoreError> {
        let given_up = self.inner.guards().given_up.clone();
        if given_up.is_some() {
            let job = self.inner.store.find_job(self.inner.job.name.clone()).await?;
            if job.is_some_and(|job| job.counts.waiting() == 0 && !job.unread && !job.being_filled) {
                return self.end(JobStep::Fail, given_up).await;
            }
        }
        self.end(JobStep::Finish, None).await
    }

    /// Ends a job that was stopped while its last tasks were in flight: nothing is left to resume.
    pub(super) async fn after_stop(
        &mut self,
        ended: Result<StopReason, StoreError>,
    ) -> Result<StopReason, StoreError> {
        let is_open =
            matches!(self.inner.until, Until::Idle { .. }) || self.inner.filling.load(Ordering::Relaxed);
        match ended {
            Ok(StopReason::Requested) if !is_open => {
                // If that fails, the job can still be resumed.
                let finished = self.finish().await.ok().flatten();
                let done = finished.filter(|ended| matches!(ended, StopReason::Job(_)));
                Ok(done.unwrap_or(StopReason::Requested))
            }
            ended => ended,
        }
    }

    /// Whether no task is waiting any more, here or elsewhere, except those left for the next run.
    async fn idle(&mut self) -> Result<Option<StopReason>, StoreError> {
        let job = self.inner.store.find_job(self.inner.job.name.clone()).await?;
        let waits = job.is_some_and(|job| job.counts.waiting() > 0);
        let left_for_later = self.inner.guards().left_for_later.clone();
        match left_for_later {
            Some(message) if waits && self.inner.store.next_due(self.inner.job.id).await?.is_none() => {
                Ok(Some(StopReason::Halted(message)))
            }
            _ => Ok((!waits).then_some(StopReason::Idle)),
        }
    }

    /// Whether waiting would take too long: the next task is due far in the future, or always soon but deferred again
    /// each time.
    async fn too_long(&mut self) -> Result<Option<StopReason>, StoreError> {
        let inner = self.inner.clone();
        let Some(patience) = inner.until.patience() else { return Ok(None) };
        // A robots.txt is fetched outside of the pool's tasks; its request may be in line behind a long wait.
        let fetches_robots = !inner.awaiting_robots().is_empty() && !inner.gate.only_waits(inner.job.id);
        let busy = inner.filling.load(Ordering::Relaxed) || !inner.fetches.is_empty() || fetches_robots;
        let now = inner.now();
        let first = match busy {
            true => None,
            false => inner.gate.soonest().into_iter().chain(inner.store.next_due(inner.job.id).await?).min(),
        };
        let settled = inner.settled.load(Ordering::Relaxed);
        if busy || std::mem::replace(&mut self.settled, settled) != settled {
            self.quiet_since = None;
        }
        let quiet = now.since(*self.quiet_since.get_or_insert(now)) > patience;
        if let Some(first) = first.filter(|_| quiet) {
            return Ok(Some(StopReason::NotDueUntil(first)));
        }
        let Some(first) = first.filter(|first| first.since(now) > patience) else {
            self.stuck_since = None;
            return Ok(None);
        };
        // A task that is just joining a line is in none yet, so the state has to last for a while.
        let since = *self.stuck_since.get_or_insert(now);
        Ok((now.since(since) > STUCK).then_some(StopReason::NotDueUntil(first)))
    }

    /// Takes a step of the job if that is allowed in its current state. Returns why the work ended, if it did.
    async fn end(
        &mut self,
        step: JobStep,
        message: Option<String>,
    ) -> Result<Option<StopReason>, StoreError> {
        let inner = &self.inner;
        let job = match inner.store.step_job(inner.job.id, step, message, inner.now()).await? {
            Stepped::Yes(job) => {
                let (name, state) = (&inner.job.name, job.state);
                inner.gate.events().emit(&Event::JobEnded {
                    job: name,
                    state,
                    message: job.message.as_deref(),
                });
                job
            }
            Stepped::No(job) => job,
            Stepped::Missing => return Ok(Some(StopReason::Job(JobState::Cancelled))),
        };
        if job.state.is_terminal() {
            return Ok(Some(StopReason::Job(job.state)));
        }
        let unread = job.unread && !job.being_filled && job.counts.waiting() == 0;
        Ok(unread.then_some(StopReason::Unread))
    }

    async fn claim(&mut self, room: usize) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        let lanes = room.min(CLAIM_LANES);
        let now = inner.now();
        let claimed =
            inner.gate.claim(Claim { job: inner.job.id, lanes: lanes as u32, tasks: CLAIM_TASKS }).await?;
        let is_all = claimed.due < lanes;
        claimed.lanes.into_iter().for_each(|lane| inner.install(lane));
        if is_all {
            let due_at = inner.store.next_due(inner.job.id).await?;
            if due_at.is_none() && inner.lanes().is_empty() {
                // Damaged rows must not keep the job waiting for ever.
                inner.store.set_aside_stranded(inner.job.id, now).await?;
            }
            self.check_at = due_at.map_or(now + CHECK_EVERY, |due_at| due_at.min(now + CHECK_EVERY));
        } else {
            self.check_at = Timestamp::MIN;
            inner.poke.notify_one();
        }
        Ok(())
    }

    /// Begins the next tasks of lanes whose earlier ones were released before they left.
    fn begin_next(&self) {
        let next = self.inner.lanes().take_next();
        for (lane, tenure, domain, rows) in next {
            rows.into_iter().for_each(|row| ActiveTask::begin(&self.inner, lane, tenure, &domain, row));
        }
    }

    async fn refill(&mut self) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        let refills = inner.lanes().take_low(inner.now());
        if refills.is_empty() {
            return Ok(());
        }
        for (lane, tasks) in inner.store.refill(refills).await? {
            let fresh = inner.lanes().refilled(lane, tasks, inner.now());
            if let Some((tenure, domain, tasks)) = fresh {
                tasks.into_iter().for_each(|task| ActiveTask::begin(&inner, lane, tenure, &domain, task));
            }
        }
        Ok(())
    }

    /// Gives back lanes without remaining tasks.
    async fn close_lanes(&mut self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let Some(holder) = inner.gate.holder() else { return Ok(()) };
        let now = inner.now();
        let finished: Vec<(LaneId, Timestamp)> =
            inner.lanes().take_finished().into_iter().map(|lane| (lane, now)).collect();
        if !finished.is_empty() {
            inner.guards().forget_successful(finished.iter().map(|(lane, _)| *lane));
            inner.store.park(holder, finished).await?;
            self.check_at = Timestamp::MIN;
        }
        Ok(())
    }
}

impl Inner {
    /// Starts the tasks of a newly claimed lane.
    fn install(self: &Arc<Self>, claimed: ClaimedLane) {
        let ClaimedLane { lane, domain, tenure, tasks } = claimed;
        let now = self.now();
        if self.is_left(lane) {
            let mut lanes = self.lanes();
            lanes.open(lane, domain, tenure, Vec::new(), CLAIM_TASKS, now);
            lanes.give_up(lane, GivenUp::Leave);
            return;
        }
        let tasks = self.lanes().open(lane, domain.clone(), tenure, tasks, CLAIM_TASKS, now);
        tasks.into_iter().for_each(|task| ActiveTask::begin(self, lane, tenure, &domain, task));
    }

    /// Whether a lane was given up and its waiting tasks are left for the next run.
    fn is_left(&self, lane: LaneId) -> bool {
        matches!(self.until, Until::Idle { .. })
            && self.guards().failures.get(&lane).is_some_and(FailureGuard::is_tripped)
    }
}

/// The maximum number of lanes claimed at the same time.
const LANES_MAX: usize = 1 << 20;
/// The maximum number of lanes per claim.
const CLAIM_LANES: usize = 1_024;
/// The maximum number of tasks per lane that come with a claim.
const CLAIM_TASKS: u32 = 8;
/// How often to check the state of the job while other processes write to the store.
const CHECK_SOON: Span = Span::from_millis(100);
/// How long the next task must be too far away before the pool stops.
const STUCK: Span = Span::from_secs(1);
/// How often to check the store even if nothing happens.
pub(super) const CHECK_EVERY: Span = Span::from_millis(500);

//! Brings in lanes and tasks from the store, and ends the work when nothing is left.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use comity_core::guard::FailureGuard;
use comity_core::task::{JobState, JobStep};
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::jobs::Stepped;
use comity_store::tasks::{Claim, LaneId};

use super::errand::Trip;
use super::lanes::GivenUp;
use super::{Ended, Inner, Until};
use crate::event::Event;
use crate::gate::LaneInHand;

/// Brings in lanes and tasks, and ends the job.
pub(super) struct Claimer {
    inner: Arc<Inner>,
    /// When to look for lanes that are due.
    pub(super) look_at: Timestamp,
    /// When the state of the job was last asked for: somebody else may have ended it.
    asked_at: Timestamp,
    /// Another process wrote something since.
    changed: bool,
    /// Since when nothing can leave for long.
    stuck_since: Option<Timestamp>,
    /// Since when nothing was done but wait, and how many tasks had been settled by then.
    quiet_since: Option<Timestamp>,
    settled: u64,
}

impl Claimer {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        let (inner, asked_at) = (inner.clone(), inner.now());
        Self {
            inner,
            look_at: Timestamp::MIN,
            asked_at,
            changed: false,
            stuck_since: None,
            quiet_since: None,
            settled: 0,
        }
    }

    /// Another process wrote something: it may have ended the job, or left lanes for us.
    pub(super) fn others_wrote(&mut self) {
        self.changed = true;
        if self.inner.lanes().is_empty() {
            self.look_at = Timestamp::MIN;
        }
    }

    /// Does what there is to do; how it ended, when it did.
    pub(super) async fn work(&mut self) -> Result<Option<Ended>, StoreError> {
        let tripped = self.inner.guards().tripped.take();
        if let Some((step, message)) = tripped {
            return match self.inner.until {
                Until::Done => self.end(step, Some(message)).await,
                Until::Idle { .. } => Ok(Some(Ended::Halted(message))),
            };
        }
        if self.inner.now().since(self.asked_at) >= if self.changed { SOON } else { LOOK } {
            self.changed = false;
            self.asked_at = self.inner.now();
            let name = &self.inner.job.name;
            let job = self.inner.store.find_job(name.clone()).await?;
            match job.filter(|job| job.id == self.inner.job.id) {
                Some(job) if job.state.is_terminal() => return Ok(Some(Ended::Job(job.state))),
                Some(_) => {}
                None => {
                    let what = format!(
                        "job {name} is not in it any more: a copy from before it was started took its place; start it again"
                    );
                    return Err(StoreError::Rejected { place: self.inner.store.place(), what });
                }
            }
        }
        self.refill().await?;
        self.close_lanes().await?;
        if self.inner.fresh.swap(false, Ordering::Relaxed) {
            self.look_at = Timestamp::MIN;
        }
        let now = self.inner.now();
        let room = LANES_MAX.saturating_sub(self.inner.lanes().len());
        if room == 0 {
            self.look_at = now + LOOK;
        } else if now >= self.look_at {
            self.claim(room).await?;
        }
        let idle = self.inner.lanes().is_idle() && self.inner.fetches.is_empty();
        if idle && !self.inner.filling.load(Ordering::Relaxed) {
            return match self.inner.until {
                Until::Done => self.finish().await,
                // What was put off is in no lane until it is due.
                Until::Idle { .. } => match self.idle().await? {
                    None => self.too_long().await,
                    ended => Ok(ended),
                },
            };
        }
        self.too_long().await
    }

    /// Nothing is in hand: the job is done, unless every domain that still had tasks was given up (B47).
    async fn finish(&mut self) -> Result<Option<Ended>, StoreError> {
        let given_up = self.inner.guards().given_up.clone();
        if given_up.is_some() {
            let job = self.inner.store.find_job(self.inner.job.name.clone()).await?;
            if job.is_some_and(|job| job.counts.waiting() == 0 && !job.unread && !job.filled) {
                return self.end(JobStep::Fail, given_up).await;
            }
        }
        self.end(JobStep::Finish, None).await
    }

    /// Whether nothing waits any more, here or elsewhere, but what is left for the next run.
    async fn idle(&mut self) -> Result<Option<Ended>, StoreError> {
        let job = self.inner.store.find_job(self.inner.job.name.clone()).await?;
        let waits = job.is_some_and(|job| job.counts.waiting() > 0);
        let left = self.inner.guards().left.clone();
        match left {
            Some(message) if waits && self.inner.store.next_due(self.inner.job.id).await?.is_none() => {
                Ok(Some(Ended::Halted(message)))
            }
            _ => Ok((!waits).then_some(Ended::Idle)),
        }
    }

    /// Whether nothing can leave for so long that it is not waited for: the next is far away, or near again and again and
    /// put off each time.
    async fn too_long(&mut self) -> Result<Option<Ended>, StoreError> {
        let inner = self.inner.clone();
        let Until::Idle { patience: Some(patience) } = inner.until else { return Ok(None) };
        let busy =
            inner.filling.load(Ordering::Relaxed) || !inner.fetches.is_empty() || !inner.asking().is_empty();
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
            return Ok(Some(Ended::Left(first)));
        }
        let Some(first) = first.filter(|first| first.since(now) > patience) else {
            self.stuck_since = None;
            return Ok(None);
        };
        // A task on its way into a line is in none: what is seen twice, a while apart, is so.
        let since = *self.stuck_since.get_or_insert(now);
        Ok((now.since(since) > STUCK).then_some(Ended::Left(first)))
    }

    /// Takes the step if the job is where that is legal; how it ended, when it did.
    async fn end(&mut self, step: JobStep, message: Option<String>) -> Result<Option<Ended>, StoreError> {
        let inner = &self.inner;
        let job = match inner.store.step_job(inner.job.id, step, message, inner.now()).await? {
            Stepped::Yes(job) => {
                let (name, state) = (&inner.job.name, job.state);
                inner.gate.events().tell(&Event::JobEnded {
                    job: name,
                    state,
                    message: job.message.as_deref(),
                });
                job
            }
            Stepped::No(job) => job,
            Stepped::Missing => return Ok(Some(Ended::Job(JobState::Cancelled))),
        };
        if job.state.is_terminal() {
            return Ok(Some(Ended::Job(job.state)));
        }
        let unread = job.unread && !job.filled && job.counts.waiting() == 0;
        Ok(unread.then_some(Ended::Unread))
    }

    async fn claim(&mut self, room: usize) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        let lanes = room.min(CLAIM_LANES);
        let now = inner.now();
        let brought =
            inner.gate.claim(Claim { job: inner.job.id, lanes: lanes as u32, tasks: CLAIM_TASKS }).await?;
        let is_all = brought.due < lanes;
        brought.lanes.into_iter().for_each(|lane| inner.take_up(lane));
        if is_all {
            let due_at = inner.store.next_due(inner.job.id).await?;
            self.look_at = due_at.map_or(now + LOOK, |due_at| due_at.min(now + LOOK));
        } else {
            self.look_at = Timestamp::MIN;
            inner.poke.notify_one();
        }
        Ok(())
    }

    async fn refill(&mut self) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        let refills = inner.lanes().take_low(inner.now());
        if refills.is_empty() {
            return Ok(());
        }
        for (lane, tasks) in inner.store.refill(refills).await? {
            let fresh = inner.lanes().refilled(lane, tasks, inner.now());
            if let Some((hold, domain, tasks)) = fresh {
                tasks.into_iter().for_each(|task| Trip::begin(&inner, lane, hold, &domain, task));
            }
        }
        Ok(())
    }

    /// Gives back lanes with nothing left in hand.
    async fn close_lanes(&mut self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let Some(holder) = inner.gate.holder() else { return Ok(()) };
        let now = inner.now();
        let finished: Vec<(LaneId, Timestamp)> =
            inner.lanes().take_finished().into_iter().map(|lane| (lane, now)).collect();
        if !finished.is_empty() {
            inner.store.park(holder, finished).await?;
            self.look_at = Timestamp::MIN;
        }
        Ok(())
    }
}

impl Inner {
    /// A lane was claimed.
    fn take_up(self: &Arc<Self>, claimed: LaneInHand) {
        let LaneInHand { lane, domain, hold, tasks } = claimed;
        let now = self.now();
        if self.is_left(lane) {
            let mut lanes = self.lanes();
            lanes.open(lane, domain, hold, Vec::new(), CLAIM_TASKS, now);
            lanes.give_up(lane, GivenUp::Leave);
            return;
        }
        let tasks = self.lanes().open(lane, domain.clone(), hold, tasks, CLAIM_TASKS, now);
        tasks.into_iter().for_each(|task| Trip::begin(self, lane, hold, &domain, task));
    }

    /// Whether a lane was given up, and what waits in it is left for the next run.
    fn is_left(&self, lane: LaneId) -> bool {
        matches!(self.until, Until::Idle { .. })
            && self.guards().failures.get(&lane).is_some_and(FailureGuard::is_tripped)
    }
}

/// Lanes in hand at once, at most.
const LANES_MAX: usize = 10_000;
/// Lanes of one claim.
const CLAIM_LANES: usize = 256;
/// Tasks of each that come with the claim.
const CLAIM_TASKS: u32 = 8;
/// When others write, the state of the job is asked for this often,
const SOON: Span = Span::from_millis(100);
/// Nothing leaves for long when that was so for this long.
const STUCK: Span = Span::from_secs(1);
/// However quiet it is, the store is looked at this often.
pub(super) const LOOK: Span = Span::from_millis(500);

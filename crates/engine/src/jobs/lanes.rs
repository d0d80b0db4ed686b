//! The claimed lanes: which of their tasks are being worked on, and how far they have been read.
//!
//! A task counts as in hand from when it is read until its result is committed. So a lane is never read again past
//! tasks whose rows still say that they are waiting.

use std::collections::{HashMap, HashSet};

use comity_core::domain::Domain;
use comity_core::task::TaskId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::Tenure;
use comity_store::tasks::{Cursor, LaneId, Refill, TaskRow};

/// The claimed lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    open: HashMap<LaneId, Lane>,
    /// Lanes that are running low on tasks.
    low: HashSet<LaneId>,
    /// Lanes that may have no tasks left.
    finished: HashSet<LaneId>,
}

#[derive(Debug)]
struct Lane {
    domain: Domain,
    tenure: Tenure,
    in_hand: HashSet<TaskId>,
    cursor: Option<Cursor>,
    /// Whether no tasks were left after the cursor when it was last read.
    exhausted: bool,
    refilling: bool,
    limit: u32,
    refilled_at: Timestamp,
    /// Set if the job gave up the lane's domain: no more of its tasks are worked on.
    given_up: Option<GivenUp>,
}

/// What happens to the waiting tasks of a lane that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// The store skips them.
    Skip,
    /// They are left for whoever works on the job next. Until then the lane stays claimed.
    Leave,
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds a claimed lane with its first tasks, and returns those to start.
    pub(super) fn open(
        &mut self,
        id: LaneId,
        domain: Domain,
        tenure: Tenure,
        tasks: Vec<TaskRow>,
        asked: u32,
        now: Timestamp,
    ) -> Vec<TaskRow> {
        let lane = Lane {
            domain,
            tenure,
            in_hand: HashSet::new(),
            cursor: None,
            exhausted: false,
            refilling: false,
            limit: asked,
            refilled_at: Timestamp::MIN,
            given_up: None,
        };
        let lane = self.open.entry(id).insert_entry(lane).into_mut();
        let fresh = lane.take(tasks, asked, now);
        self.mark(id);
        fresh
    }

    /// The lanes that need more tasks.
    pub(super) fn take_low(&mut self, now: Timestamp) -> Vec<Refill> {
        let low = std::mem::take(&mut self.low);
        low.into_iter()
            .filter_map(|id| {
                let lane = self.open.get_mut(&id).filter(|lane| !lane.exhausted && !lane.refilling)?;
                lane.refilling = true;
                // Read a fast lane in larger batches.
                if now.since(lane.refilled_at) < FAST {
                    lane.limit = (lane.limit * 2).min(LIMIT_MAX);
                }
                lane.refilled_at = now;
                Some(Refill { lane: id, after: lane.cursor, limit: lane.limit })
            })
            .collect()
    }

    /// Adds more tasks to a lane, and returns those to start.
    pub(super) fn refilled(
        &mut self,
        id: LaneId,
        tasks: Vec<TaskRow>,
        now: Timestamp,
    ) -> Option<(Tenure, Domain, Vec<TaskRow>)> {
        let lane = self.open.get_mut(&id).filter(|lane| lane.given_up.is_none())?;
        lane.refilling = false;
        let limit = lane.limit;
        let fresh = lane.take(tasks, limit, now);
        let (tenure, domain) = (lane.tenure, lane.domain.clone());
        self.mark(id);
        Some((tenure, domain, fresh))
    }

    /// Whether a task to be retried stays in hand. Only if nothing else is left in its lane, because otherwise it would
    /// overtake the others.
    pub(super) fn keeps_retries(&self, id: LaneId) -> bool {
        self.open.get(&id).is_some_and(|lane| lane.exhausted && lane.given_up.is_none())
    }

    /// Gives up the domain of a lane, so that no more of its tasks are read. Returns the domain.
    pub(super) fn give_up(&mut self, id: LaneId, given_up: GivenUp) -> Option<Domain> {
        let lane = self.open.get_mut(&id)?;
        (lane.given_up, lane.exhausted) = (Some(given_up), true);
        let domain = lane.domain.clone();
        self.mark(id);
        Some(domain)
    }

    /// Whether the domain of a lane was given up.
    pub(super) fn is_given_up(&self, id: LaneId) -> bool {
        self.open.get(&id).is_some_and(|lane| lane.given_up.is_some())
    }

    /// Whether no tasks are in hand, and only lanes left for later are claimed.
    pub(super) fn is_idle(&self) -> bool {
        self.open.values().all(|lane| lane.given_up == Some(GivenUp::Leave) && lane.in_hand.is_empty())
    }

    /// The tenure and domain of a claimed lane.
    pub(super) fn tenure(&self, id: LaneId) -> Option<(Tenure, Domain)> {
        self.open.get(&id).map(|lane| (lane.tenure, lane.domain.clone()))
    }

    /// Whether a lane is still claimed under this tenure.
    pub(super) fn is_open(&self, id: LaneId, tenure: Tenure) -> bool {
        self.open.get(&id).is_some_and(|lane| lane.tenure == tenure)
    }

    /// Releases a task. True if there is something to do for its lane.
    pub(super) fn release(&mut self, id: LaneId, tenure: Tenure, task: TaskId) -> bool {
        // Ignore a task from before the lane was lost and claimed again.
        if let Some(lane) = self.open.get_mut(&id).filter(|lane| lane.tenure == tenure) {
            lane.in_hand.remove(&task);
        }
        self.mark(id)
    }

    /// Removes and returns the lanes with no tasks left.
    pub(super) fn take_finished(&mut self) -> Vec<LaneId> {
        let finished = std::mem::take(&mut self.finished);
        let done: Vec<LaneId> =
            finished.into_iter().filter(|id| self.open.get(id).is_some_and(Lane::is_finished)).collect();
        done.iter().for_each(|id| drop(self.open.remove(id)));
        done
    }

    /// Removes and returns all lanes.
    pub(super) fn take_all(&mut self) -> Vec<LaneId> {
        std::mem::take(self).open.into_keys().collect()
    }

    /// Drops the lanes under these tenures.
    pub(super) fn drop_tenures(&mut self, tenures: &[Tenure]) {
        let tenures: HashSet<Tenure> = tenures.iter().copied().collect();
        self.open.retain(|_, lane| !tenures.contains(&lane.tenure));
    }

    /// Stops reading more tasks.
    pub(super) fn clear_waiting(&mut self) {
        self.low.clear();
        self.finished.clear();
    }

    fn mark(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.open.get(&id) else { return false };
        if lane.exhausted {
            lane.in_hand.is_empty() && self.finished.insert(id)
        } else {
            !lane.refilling && lane.in_hand.len() <= lane.limit as usize / 2 && self.low.insert(id)
        }
    }
}

impl Lane {
    /// Whether the lane can be given back.
    fn is_finished(&self) -> bool {
        self.exhausted && self.in_hand.is_empty() && self.given_up != Some(GivenUp::Leave)
    }

    fn take(&mut self, mut tasks: Vec<TaskRow>, asked: u32, now: Timestamp) -> Vec<TaskRow> {
        self.exhausted = tasks.len() < asked as usize;
        // A deferred scrape isn't started before its time. The lane is claimed again then.
        if let Some(later) = tasks.iter().position(|task| task.scrapes.is_some() && task.ready_at > now) {
            tasks.truncate(later);
            self.exhausted = true;
        }
        if let Some(last) = tasks.last() {
            self.cursor = Some(Cursor { ready_at: last.ready_at, task: last.id });
        }
        tasks.into_iter().filter(|task| self.in_hand.insert(task.id)).collect()
    }
}

/// A lane that needs more tasks within this time counts as fast.
const FAST: Span = Span::from_secs(2);
/// The maximum number of tasks read from a lane at once.
const LIMIT_MAX: u32 = 512;

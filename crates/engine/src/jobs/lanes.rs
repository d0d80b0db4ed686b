//! The lanes in hand: which of their tasks are being worked on, and how far they were read.
//!
//! A task is in hand from when it was read until its settling is committed; so a lane is never read again over
//! tasks whose row still says that they wait.

use std::collections::{HashMap, HashSet};

use comity_core::domain::Domain;
use comity_core::task::TaskId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::Hold;
use comity_store::tasks::{Cursor, LaneId, Refill, TaskRow};

/// The lanes in hand.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    open: HashMap<LaneId, Lane>,
    /// Lanes that are running low.
    low: HashSet<LaneId>,
    /// Lanes that may have nothing left.
    finished: HashSet<LaneId>,
}

#[derive(Debug)]
struct Lane {
    domain: Domain,
    hold: Hold,
    in_hand: HashSet<TaskId>,
    cursor: Option<Cursor>,
    /// Nothing was left behind the cursor when it was last read.
    exhausted: bool,
    refilling: bool,
    limit: u32,
    refilled_at: Timestamp,
    /// Its job gave its domain up: nothing more of it is worked on.
    given_up: Option<GivenUp>,
}

/// What becomes of the tasks that wait in a lane that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// The store skips them.
    Skip,
    /// They wait for whoever works on the job next; until then the lane stays in hand.
    Leave,
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A lane was claimed with its first tasks; those to be worked on.
    pub(super) fn open(
        &mut self,
        id: LaneId,
        domain: Domain,
        hold: Hold,
        tasks: Vec<TaskRow>,
        asked: u32,
        now: Timestamp,
    ) -> Vec<TaskRow> {
        let lane = Lane {
            domain,
            hold,
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
        self.look(id);
        fresh
    }

    /// The lanes that want more tasks.
    pub(super) fn take_low(&mut self, now: Timestamp) -> Vec<Refill> {
        let low = std::mem::take(&mut self.low);
        low.into_iter()
            .filter_map(|id| {
                let lane = self.open.get_mut(&id).filter(|lane| !lane.exhausted && !lane.refilling)?;
                lane.refilling = true;
                // A lane that goes fast is read in larger pieces.
                if now.since(lane.refilled_at) < FAST {
                    lane.limit = (lane.limit * 2).min(LIMIT_MAX);
                }
                lane.refilled_at = now;
                Some(Refill { lane: id, after: lane.cursor, limit: lane.limit })
            })
            .collect()
    }

    /// More tasks were read; those to be worked on.
    pub(super) fn refilled(
        &mut self,
        id: LaneId,
        tasks: Vec<TaskRow>,
        now: Timestamp,
    ) -> Option<(Hold, Domain, Vec<TaskRow>)> {
        let lane = self.open.get_mut(&id).filter(|lane| lane.given_up.is_none())?;
        lane.refilling = false;
        let limit = lane.limit;
        let fresh = lane.take(tasks, limit, now);
        let (hold, domain) = (lane.hold, lane.domain.clone());
        self.look(id);
        Some((hold, domain, fresh))
    }

    /// Whether a task that is to be tried again stays in hand: only when nothing else is left in its lane, which
    /// it would otherwise overtake (B41).
    pub(super) fn keeps(&self, id: LaneId) -> bool {
        self.open.get(&id).is_some_and(|lane| lane.exhausted && lane.given_up.is_none())
    }

    /// The domain of a lane is given up: nothing more of it is read. The domain.
    pub(super) fn give_up(&mut self, id: LaneId, given_up: GivenUp) -> Option<Domain> {
        let lane = self.open.get_mut(&id)?;
        (lane.given_up, lane.exhausted) = (Some(given_up), true);
        let domain = lane.domain.clone();
        self.look(id);
        Some(domain)
    }

    /// Whether the domain of a lane was given up.
    pub(super) fn is_given_up(&self, id: LaneId) -> bool {
        self.open.get(&id).is_some_and(|lane| lane.given_up.is_some())
    }

    /// Whether nothing is in hand but lanes that are left for later.
    pub(super) fn is_idle(&self) -> bool {
        self.open.values().all(|lane| lane.given_up == Some(GivenUp::Leave) && lane.in_hand.is_empty())
    }

    /// The hold under which a lane is worked on.
    pub(super) fn hold(&self, id: LaneId) -> Option<(Hold, Domain)> {
        self.open.get(&id).map(|lane| (lane.hold, lane.domain.clone()))
    }

    /// Whether a lane is still worked on under the hold it was claimed with.
    pub(super) fn is_open(&self, id: LaneId, hold: Hold) -> bool {
        self.open.get(&id).is_some_and(|lane| lane.hold == hold)
    }

    /// A task is not worked on any more. True when there is something to do for its lane.
    pub(super) fn put_down(&mut self, id: LaneId, hold: Hold, task: TaskId) -> bool {
        // A lane that was lost and claimed again has its own hand.
        if let Some(lane) = self.open.get_mut(&id).filter(|lane| lane.hold == hold) {
            lane.in_hand.remove(&task);
        }
        self.look(id)
    }

    /// Lanes with nothing left; they are out of hand now.
    pub(super) fn take_finished(&mut self) -> Vec<LaneId> {
        let finished = std::mem::take(&mut self.finished);
        let done: Vec<LaneId> =
            finished.into_iter().filter(|id| self.open.get(id).is_some_and(Lane::is_finished)).collect();
        done.iter().for_each(|id| drop(self.open.remove(id)));
        done
    }

    /// Every lane; none is in hand any more.
    pub(super) fn take_all(&mut self) -> Vec<LaneId> {
        std::mem::take(self).open.into_keys().collect()
    }

    /// The lanes under these holds are gone.
    pub(super) fn drop_holds(&mut self, holds: &[Hold]) {
        let holds: HashSet<Hold> = holds.iter().copied().collect();
        self.open.retain(|_, lane| !holds.contains(&lane.hold));
    }

    /// Nothing more is read.
    pub(super) fn clear_waiting(&mut self) {
        self.low.clear();
        self.finished.clear();
    }

    fn look(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.open.get(&id) else { return false };
        if lane.exhausted {
            lane.in_hand.is_empty() && self.finished.insert(id)
        } else {
            !lane.refilling && lane.in_hand.len() <= lane.limit as usize / 2 && self.low.insert(id)
        }
    }
}

impl Lane {
    /// Whether it can be given back.
    fn is_finished(&self) -> bool {
        self.exhausted && self.in_hand.is_empty() && self.given_up != Some(GivenUp::Leave)
    }

    fn take(&mut self, mut tasks: Vec<TaskRow>, asked: u32, now: Timestamp) -> Vec<TaskRow> {
        self.exhausted = tasks.len() < asked as usize;
        // A scrape that is deferred is not asked for before its wake; the lane comes back then.
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

/// A lane that was refilled less than this ago goes fast.
const FAST: Span = Span::from_secs(2);
/// Tasks of a lane that are read at once, at most.
const LIMIT_MAX: u32 = 512;

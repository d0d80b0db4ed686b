//! The claimed lanes: which of their tasks are being worked on, and how far they have been read.
//!
//! A task counts as in hand from when it is read until its result is committed. So a lane is never read again past
//! tasks whose rows still say that they are waiting.
//!
//! In most lanes, one task at a time is in line, and the others are plain rows until it leaves: with a hundred thousand
//! lanes, tasks that all wait for their turn would be most of the memory. A lane whose tasks leave quickly has all of
//! them in line.

use std::collections::VecDeque;

use comity_core::domain::Domain;
use comity_core::task::TaskId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, Tenure};
use comity_store::tasks::{Cursor, LaneId, Refill, TaskRow};

use crate::{FastMap, FastSet};

/// The claimed lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    open: FastMap<LaneId, Lane>,
    /// The lane of each domain: a job has one per domain.
    domains: FastMap<DomainKey, LaneId>,
    /// Lanes that are running low on tasks.
    low: FastSet<LaneId>,
    /// Lanes that may have no tasks left.
    finished: FastSet<LaneId>,
    /// Lanes whose next task may begin.
    ready: FastSet<LaneId>,
}

#[derive(Debug)]
struct Lane {
    domain: Domain,
    tenure: Tenure,
    /// The tasks in hand, by id. Mostly the first ones leave first.
    in_hand: VecDeque<(TaskId, Stage)>,
    /// Those that have not begun, in the order in which they do.
    rows: VecDeque<TaskRow>,
    cursor: Option<Cursor>,
    /// Whether no tasks were left after the cursor when it was last read.
    exhausted: bool,
    refilling: bool,
    /// Whether its tasks leave quickly.
    is_fast: bool,
    limit: u32,
    refilled_at: Timestamp,
    /// Set if the job gave up the lane's domain: no more of its tasks are worked on.
    given_up: Option<GivenUp>,
}

/// How quickly the tasks of a lane leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LanePace {
    Slow,
    Fast,
}

/// How far a task in hand has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is a row.
    Row,
    /// It has begun, and is in line or will be soon.
    InLine,
    /// It no longer keeps the next one from beginning.
    Passed,
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
            in_hand: VecDeque::new(),
            rows: VecDeque::new(),
            cursor: None,
            exhausted: false,
            refilling: false,
            is_fast: false,
            limit: asked,
            refilled_at: Timestamp::MIN,
            given_up: None,
        };
        self.domains.insert(tenure.key, id);
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
                    lane.is_fast = true;
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

    /// Notes that a task no longer keeps the next one of its lane from beginning, because it has left its line or waits for
    /// something that others may not wait for. Returns the next ones.
    pub(super) fn passed(
        &mut self,
        id: LaneId,
        tenure: Tenure,
        task: TaskId,
    ) -> Option<(Domain, Vec<TaskRow>)> {
        let lane = self.open.get_mut(&id).filter(|lane| lane.tenure == tenure)?;
        // Also if no row is left: the next ones may be read while this task is in flight.
        lane.stage(task, Stage::Passed);
        (!lane.rows.is_empty()).then(|| (lane.domain.clone(), lane.begin()))
    }

    /// Lets the next one of a lane's rows begin that is `wanted`, while an earlier task waits for something that this one
    /// need not wait for.
    pub(super) fn overtake(
        &mut self,
        id: LaneId,
        tenure: Tenure,
        waiting: TaskId,
        wanted: impl Fn(&TaskRow) -> bool,
    ) -> Option<(Domain, TaskRow)> {
        let lane = self.open.get_mut(&id).filter(|lane| lane.tenure == tenure)?;
        let next = lane.rows.iter().position(wanted)?;
        lane.stage(waiting, Stage::Passed);
        let row = if lane.may_begin() { lane.rows.remove(next)? } else { return None };
        lane.stage(row.id, Stage::InLine);
        Some((lane.domain.clone(), row))
    }

    /// The tasks that may begin in lanes whose earlier ones were released before they left.
    pub(super) fn take_next(&mut self) -> Vec<(LaneId, Tenure, Domain, Vec<TaskRow>)> {
        let ready = std::mem::take(&mut self.ready);
        let begin = |id| {
            let lane = self.open.get_mut(&id)?;
            Some((id, lane.tenure, lane.domain.clone(), lane.begin()))
        };
        ready.into_iter().filter_map(begin).collect()
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
        lane.rows = VecDeque::new();
        lane.in_hand.retain(|(_, stage)| *stage != Stage::Row);
        let domain = lane.domain.clone();
        self.mark(id);
        Some(domain)
    }

    /// How quickly the tasks of a lane leave; `None` if its domain was given up.
    pub(super) fn pace(&self, id: LaneId) -> Option<LanePace> {
        match self.open.get(&id) {
            Some(lane) if lane.given_up.is_some() => None,
            Some(lane) if !lane.is_fast => Some(LanePace::Slow),
            _ => Some(LanePace::Fast),
        }
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
        let lane = self.open.get_mut(&id).filter(|lane| lane.tenure == tenure);
        let is_ready = lane.is_some_and(|lane| {
            lane.find(task).ok().and_then(|index| lane.in_hand.remove(index));
            lane.may_begin()
        });
        let is_ready = is_ready && self.ready.insert(id);
        self.mark(id) || is_ready
    }

    /// Removes and returns the lanes with no tasks left.
    pub(super) fn take_finished(&mut self) -> Vec<LaneId> {
        let finished = std::mem::take(&mut self.finished);
        let done: Vec<LaneId> =
            finished.into_iter().filter(|id| self.open.get(id).is_some_and(Lane::is_finished)).collect();
        done.iter().for_each(|id| self.close(*id));
        done
    }

    /// Removes and returns all lanes.
    pub(super) fn take_all(&mut self) -> Vec<LaneId> {
        std::mem::take(self).open.into_keys().collect()
    }

    /// Drops the lanes under these tenures.
    pub(super) fn drop_tenures(&mut self, tenures: &[Tenure]) {
        for tenure in tenures {
            if let Some(id) = self.domains.get(&tenure.key).copied().filter(|id| self.is_open(*id, *tenure)) {
                self.close(id);
            }
        }
    }

    fn close(&mut self, id: LaneId) {
        if let Some(lane) = self.open.remove(&id) {
            self.domains.remove(&lane.tenure.key);
        }
    }

    /// Stops reading more tasks.
    pub(super) fn clear_waiting(&mut self) {
        self.low.clear();
        self.finished.clear();
        self.ready.clear();
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
        for task in tasks {
            if let Err(index) = self.find(task.id) {
                self.in_hand.insert(index, (task.id, Stage::Row));
                self.rows.push_back(task);
            }
        }
        let begun = self.begin();
        if !self.is_fast {
            self.in_hand.shrink_to_fit();
            self.rows.shrink_to_fit();
        }
        begun
    }

    /// Where a task in hand is, or would be.
    fn find(&self, task: TaskId) -> Result<usize, usize> {
        self.in_hand.binary_search_by_key(&task, |(known, _)| *known)
    }

    fn stage(&mut self, task: TaskId, stage: Stage) {
        if let Ok(index) = self.find(task) {
            self.in_hand[index].1 = stage;
        }
    }

    /// Whether the next row may begin.
    fn may_begin(&self) -> bool {
        let one_is_in_line = || self.in_hand.iter().any(|(_, stage)| *stage == Stage::InLine);
        !self.rows.is_empty() && (self.is_fast || !one_is_in_line())
    }

    /// The rows that begin now.
    fn begin(&mut self) -> Vec<TaskRow> {
        let mut begun = Vec::new();
        while self.may_begin()
            && let Some(row) = self.rows.pop_front()
        {
            self.stage(row.id, Stage::InLine);
            begun.push(row);
        }
        begun
    }
}

/// A lane that needs more tasks within this time counts as fast.
const FAST: Span = Span::from_secs(2);
/// The maximum number of tasks read from a lane at once.
const LIMIT_MAX: u32 = 512;

#[cfg(test)]
mod tests {
    use comity_store::tasks::Lead;

    use super::*;

    const LANE: LaneId = LaneId(1);
    const TENURE: Tenure = Tenure { key: DomainKey(1), epoch: 1 };

    fn row(id: u64) -> TaskRow {
        TaskRow {
            id: TaskId(id),
            url: format!("http://a.example/{id}"),
            url_key: None,
            lead: Lead::Listed,
            at_url: None,
            hops: 0,
            retries: 0,
            forgiven: 0,
            ready_at: Timestamp::from_secs(0),
            scrapes: None,
            attempts: 0,
            last: None,
            previous: None,
            sends: None,
        }
    }

    fn rows(ids: std::ops::Range<u64>) -> Vec<TaskRow> {
        ids.map(row).collect()
    }

    fn ids(rows: &[TaskRow]) -> Vec<u64> {
        rows.iter().map(|row| row.id.0).collect()
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// A lane with these tasks, of 8 that were asked for.
    fn open(lanes: &mut Lanes, tasks: Vec<TaskRow>) -> Vec<u64> {
        let domain = Domain::parse("a.example").unwrap();
        ids(&lanes.open(LANE, domain, TENURE, tasks, 8, at(0)))
    }

    fn passed(lanes: &mut Lanes, task: u64) -> Vec<u64> {
        lanes.passed(LANE, TENURE, TaskId(task)).map(|(_, rows)| ids(&rows)).unwrap_or_default()
    }

    #[test]
    fn one_task_of_a_slow_lane_is_in_line_at_a_time() {
        let mut lanes = Lanes::default();
        assert_eq!(open(&mut lanes, rows(1..4)), [1]);
        assert_eq!(passed(&mut lanes, 1), [2]);
        assert!(passed(&mut lanes, 1).is_empty(), "the second one is still in line");
        assert!(!lanes.release(LANE, TENURE, TaskId(1)), "nothing to do: the next one has begun");
        assert_eq!(passed(&mut lanes, 2), [3]);
        for task in [2, 3] {
            assert!(lanes.take_finished().is_empty());
            lanes.release(LANE, TENURE, TaskId(task));
        }
        assert_eq!(lanes.take_finished(), [LANE]);
    }

    #[test]
    fn a_task_in_flight_keeps_no_task_of_the_next_batch_waiting() {
        let mut lanes = Lanes::default();
        assert_eq!(open(&mut lanes, rows(1..9)), [1]);
        for task in 1..9 {
            passed(&mut lanes, task);
        }
        for task in 1..5 {
            lanes.release(LANE, TENURE, TaskId(task));
        }
        assert_eq!(lanes.take_low(at(10)).len(), 1);
        let (.., begun) = lanes.refilled(LANE, rows(9..17), at(10)).unwrap();
        assert_eq!(ids(&begun), [9]);
    }

    #[test]
    fn a_task_that_need_not_wait_overtakes_those_that_do() {
        let mut lanes = Lanes::default();
        assert_eq!(open(&mut lanes, rows(1..5)), [1]);
        let overtake = |lanes: &mut Lanes, waiting, wanted: u64| {
            let overtaking = lanes.overtake(LANE, TENURE, TaskId(waiting), |row| row.id.0 >= wanted);
            overtaking.map(|(_, row)| row.id.0)
        };
        assert_eq!(overtake(&mut lanes, 1, 9), None);
        assert_eq!(overtake(&mut lanes, 1, 3), Some(3));
        assert_eq!(overtake(&mut lanes, 1, 3), None, "one is in line at a time");
        assert_eq!(passed(&mut lanes, 3), [2]);
    }

    #[test]
    fn a_task_released_before_it_left_lets_the_next_one_begin() {
        let mut lanes = Lanes::default();
        assert_eq!(open(&mut lanes, rows(1..4)), [1]);
        assert!(lanes.release(LANE, TENURE, TaskId(1)), "the next one has to begin");
        let next = lanes.take_next();
        assert_eq!(next.iter().map(|(.., rows)| ids(rows)).collect::<Vec<_>>(), [[2]]);
        assert!(lanes.take_next().is_empty());
    }

    #[test]
    fn all_tasks_of_a_fast_lane_are_in_line() {
        let mut lanes = Lanes::default();
        assert_eq!(open(&mut lanes, rows(1..9)), [1]);
        let refill = |lanes: &mut Lanes, done: std::ops::Range<u64>, more: std::ops::Range<u64>, now| {
            for task in done {
                passed(lanes, task);
                lanes.release(LANE, TENURE, TaskId(task));
            }
            assert_eq!(lanes.take_low(now).len(), 1);
            lanes.refilled(LANE, rows(more), now).map(|(.., rows)| ids(&rows)).unwrap()
        };
        assert!(refill(&mut lanes, 1..5, 9..17, at(10)).is_empty(), "one of the first eight is in line");
        assert_eq!(lanes.pace(LANE), Some(LanePace::Slow));
        // Its tasks left within a second.
        assert_eq!(refill(&mut lanes, 5..13, 17..33, at(11)), (14..33).collect::<Vec<_>>());
        assert_eq!(lanes.pace(LANE), Some(LanePace::Fast));
    }

    #[test]
    fn tasks_that_have_not_begun_are_not_taken_twice() {
        let mut lanes = Lanes::default();
        assert_eq!(open(&mut lanes, rows(1..9)), [1]);
        (1..5).for_each(|task| {
            passed(&mut lanes, task);
            lanes.release(LANE, TENURE, TaskId(task));
        });
        lanes.take_low(at(10));
        // One that was read before is ready later by now, so it is read again.
        assert!(lanes.refilled(LANE, vec![row(8), row(9)], at(10)).unwrap().2.is_empty());
        let mut begun = Vec::new();
        for task in 5..10 {
            begun.extend(passed(&mut lanes, task));
        }
        assert_eq!(begun, [6, 7, 8, 9]);
    }

    #[test]
    fn a_lane_is_dropped_only_with_its_own_tenure() {
        let mut lanes = Lanes::default();
        open(&mut lanes, rows(1..4));
        lanes.drop_tenures(&[Tenure { epoch: 2, ..TENURE }, Tenure { key: DomainKey(2), epoch: 1 }]);
        assert!(lanes.is_open(LANE, TENURE));
        lanes.drop_tenures(&[TENURE]);
        assert!(lanes.is_empty());
    }

    #[test]
    fn a_lane_that_is_given_up_has_no_tasks_to_begin() {
        let mut lanes = Lanes::default();
        open(&mut lanes, rows(1..4));
        lanes.give_up(LANE, GivenUp::Skip);
        assert_eq!((passed(&mut lanes, 1), lanes.pace(LANE)), (Vec::new(), None));
        assert!(lanes.release(LANE, TENURE, TaskId(1)));
        assert_eq!(lanes.take_finished(), [LANE]);
    }
}

//! Adds and claims tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, params};

use super::domains::{REMEMBERED_MAX, domain_of};
use super::holders::Liveness;
use super::results::task_of;
use super::used_ids::Ids;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::{HolderId, Take};
use crate::tasks::{
    Claim, Claimed, Enqueued, LaneId, Lead, NewTask, Refill, RemainingWork, Settle, Settled, TaskFilter,
    TaskRow, TaskStore, TaskView, origin_of,
};

impl TaskStore for Sqlite {
    fn enqueue(&self, job: JobId, tasks: Vec<NewTask>, now: Timestamp) -> Reply<'_, Enqueued> {
        self.writer.run(move |tx| tx.enqueue(job, &tasks, now))
    }

    fn claim(&self, holder: HolderId, claim: Claim, now: Timestamp) -> Reply<'_, Vec<Claimed>> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.claim(&liveness, holder, claim, now))
    }

    fn refill(&self, refills: Vec<Refill>) -> Reply<'_, Vec<(LaneId, Vec<TaskRow>)>> {
        self.writer
            .run(move |tx| refills.iter().map(|refill| Ok((refill.lane, tx.read_lane(*refill)?))).collect())
    }

    fn settle(&self, holder: HolderId, settles: Arc<[Settle]>, now: Timestamp) -> Reply<'_, Vec<Settled>> {
        self.writer.run(move |tx| tx.settle(holder, &settles, now))
    }

    fn park(&self, holder: HolderId, lanes: Vec<(LaneId, Timestamp)>) -> Reply<'_, ()> {
        self.writer.run(move |tx| lanes.iter().try_for_each(|(lane, due_at)| tx.park(holder, *lane, *due_at)))
    }

    fn give_up(&self, holder: HolderId, lane: LaneId, reason: String) -> Reply<'_, RemainingWork> {
        self.writer.run(move |tx| tx.give_up(holder, lane, &reason))
    }

    fn set_aside_stranded(&self, job: JobId, now: Timestamp) -> Reply<'_, u64> {
        self.writer.run(move |tx| tx.set_aside_stranded(job, now))
    }

    fn next_due(&self, job: JobId) -> Reply<'_, Option<Timestamp>> {
        self.writer.run(move |tx| tx.next_due(job))
    }

    fn retry_now(&self, domain: Domain, now: Timestamp) -> Reply<'_, u64> {
        self.writer.run(move |tx| tx.retry_now(&domain, now))
    }

    fn lists(&self, job: JobId, origins: Vec<String>) -> Reply<'_, Vec<bool>> {
        self.read(move |tx| origins.iter().map(|origin| tx.lists(job, origin)).collect())
    }

    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>> {
        self.read(move |tx| tx.views(job, &state, limit))
    }

    fn page_tasks(
        &self,
        job: JobId,
        which: TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Vec<TaskView>> {
        self.read(move |tx| tx.page(job, &which, after, limit))
    }
}

impl Tx<'_> {
    pub(super) fn enqueue(
        &mut self,
        job: JobId,
        tasks: &[NewTask],
        now: Timestamp,
    ) -> rusqlite::Result<Enqueued> {
        let job = job.0 as i64;
        let mut enqueued = Enqueued::default();
        let sql = "SELECT 1 FROM jobs WHERE id = ?1 AND state IN ('running', 'done')";
        if !self.sql.prepare_cached(sql)?.exists([job])? {
            enqueued.refused = tasks.len() as u64;
            return Ok(enqueued);
        }
        let mut lanes: BTreeMap<i64, Vec<&NewTask>> = BTreeMap::new();
        for task in tasks {
            let lane = self.lane_id(job, task.domain.as_str())?;
            lanes.entry(lane).or_default().push(task);
        }
        let listed = lanes.values().flatten().filter(|task| task.lead == Lead::Listed);
        self.list_origins(job, listed.map(|task| origin_of(&task.url)).collect())?;
        let first = self.unused_id(Ids::Tasks)?;
        let mut insert = self.insert()?;
        let mut due = BTreeSet::new();
        for (lane, tasks) in in_turns(&lanes) {
            for task in tasks {
                let id = first + enqueued.new as i64;
                match insert.add(id, job, lane, task, now)? {
                    true => {
                        enqueued.new += 1;
                        due.insert(lane);
                    }
                    false => enqueued.known += 1,
                }
            }
        }
        due.into_iter().try_for_each(|lane| self.make_due(lane, now))?;
        if enqueued.new > 0 {
            self.forget_pruned(job, enqueued.new)?;
            // A new task reopens a job that is done.
            let sql = "UPDATE jobs SET tasks = tasks + ?2, state = 'running', ended_us = NULL, message = NULL WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute(params![job, enqueued.new as i64])?;
        }
        Ok(enqueued)
    }

    pub(super) fn lane_id(&mut self, job: i64, domain: &str) -> rusqlite::Result<i64> {
        let domain = self.domain_id(domain)?;
        if let Some(id) = self.cache.lane_ids.get(&(job, domain)) {
            return Ok(*id);
        }
        let sql = "INSERT INTO lanes (id, job_id, domain_id) VALUES (?1, ?2, ?3) ON CONFLICT (job_id, domain_id) DO NOTHING";
        self.sql.prepare_cached(sql)?.execute([self.unused_id(Ids::Lanes)?, job, domain])?;
        let sql = "SELECT id FROM lanes WHERE job_id = ?1 AND domain_id = ?2";
        let id = self.sql.prepare_cached(sql)?.query_row([job, domain], |row| row.get(0))?;
        if self.cache.lane_ids.len() >= REMEMBERED_MAX {
            self.cache.lane_ids.clear();
        }
        self.cache.lane_ids.insert((job, domain), id);
        Ok(id)
    }

    /// Makes sure that a lane is looked at by `due_at`, when one of its tasks is ready.
    pub(super) fn make_due(&self, lane: i64, due_at: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE lanes SET due_us = ?2 WHERE id = ?1 AND (due_us IS NULL OR due_us > ?2)";
        self.sql.prepare_cached(sql)?.execute([lane, us(due_at)])?;
        Ok(())
    }

    pub(super) fn claim(
        &mut self,
        liveness: &Liveness,
        holder: HolderId,
        claim: Claim,
        now: Timestamp,
    ) -> rusqlite::Result<Vec<Claimed>> {
        if !self.is_holder(holder)? {
            return Ok(Vec::new());
        }
        let sql =
            "SELECT lanes.id, domain_id, domain, given_up FROM lanes LEFT JOIN domains ON domains.id = domain_id
            WHERE job_id = ?1 AND lanes.holder IS NULL AND due_us <= ?2 ORDER BY due_us LIMIT ?3";
        let due = params![claim.job.0 as i64, us(now), claim.lanes];
        let (due, unreadable) = self.readable_and_unreadable("lanes", sql, due, |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, domain_of(row, 2)?, row.get(3)?))
        })?;
        for (lane, why) in unreadable {
            let error = format!("its site cannot be read from the store: {why}");
            self.end_lane(claim.job, lane, Ending::Failed, &error, now)?;
        }
        let mut claimed = Vec::new();
        for (lane, domain_id, domain, given_up) in due {
            if let Some(reason) = Option::<String>::as_deref(&given_up) {
                self.end_lane(claim.job, lane, Ending::Skipped, reason, now)?;
                continue;
            }
            let tasks = self.read_lane(Refill { lane: LaneId(lane), after: None, limit: claim.tasks })?;
            let Some(first) = tasks.first() else {
                self.set_lane(lane, None, None)?;
                continue;
            };
            if first.ready_at > now {
                self.set_lane(lane, None, Some(first.ready_at))?;
                continue;
            }
            let take = self.take(liveness, holder, domain_id, now)?;
            if let Take::Held { .. } = take {
                // The holder makes the lane due when it releases the domain; this is for a holder that does not.
                self.set_lane(lane, None, Some(now + PARKED))?;
                continue;
            }
            self.set_lane(lane, Some(holder), None)?;
            claimed.push(Claimed { lane: LaneId(lane), job: claim.job, domain, take, tasks });
        }
        Ok(claimed)
    }

    fn set_lane(
        &self,
        lane: i64,
        holder: Option<HolderId>,
        due_at: Option<Timestamp>,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE lanes SET holder = ?2, due_us = ?3 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![
            lane,
            holder.map(|holder| holder.0),
            due_at.map(us)
        ])?;
        Ok(())
    }

    pub(super) fn read_lane(&self, refill: Refill) -> rusqlite::Result<Vec<TaskRow>> {
        let Refill { lane, after, limit } = refill;
        let sql =
            "SELECT id, url, lead, at_url, hops, retries, ready_us, item_id, source_id, forgiven, requests,
            last_us, last_took_us, last_outcome, status, sha256 IS NOT NULL OR etag IS NOT NULL OR last_modified IS NOT NULL,
            iif(bodiless, NULL, method), body, headers FROM tasks
            WHERE lane_id = ?1 AND state = 'waiting' AND (ready_us, id) > (?2, ?3)
            ORDER BY ready_us, id LIMIT ?4";
        let (ready, id) = after.map_or((i64::MIN, 0), |after| (us(after.ready_at), after.task.0 as i64));
        loop {
            let (tasks, unreadable) =
                self.readable_and_unreadable("tasks", sql, params![lane.0, ready, id, limit], task_of)?;
            if unreadable.is_empty() {
                return tasks.into_iter().map(|task| self.with_page(task)).collect();
            }
            for (task, why) in unreadable {
                let sql = "UPDATE tasks SET state = 'failed', error = ?2 WHERE id = ?1 RETURNING job_id";
                let error = format!("its row in the store cannot be read: {why}");
                let mut statement = self.sql.prepare_cached(sql)?;
                let job: i64 = statement.query_row(params![task, error], |row| row.get(0))?;
                self.sql
                    .prepare_cached("UPDATE jobs SET failed = failed + 1 WHERE id = ?1")?
                    .execute([job])?;
            }
        }
    }

    /// Records that a job gives up on a lane.
    pub(super) fn give_up(
        &self,
        holder: HolderId,
        lane: LaneId,
        reason: &str,
    ) -> rusqlite::Result<RemainingWork> {
        let sql = "UPDATE lanes SET given_up = ?3 WHERE id = ?1 AND holder = ?2 RETURNING job_id";
        let mut statement = self.sql.prepare_cached(sql)?;
        let job = statement.query_row(params![lane.0, holder.0, reason], |row| row.get(0)).optional()?;
        // Another process serves the lane now and decides about it.
        let Some(job): Option<i64> = job else { return Ok(RemainingWork::Tasks) };
        // Lanes that are served, and lanes that will be; the others are empty.
        let waiting = "EXISTS (SELECT 1 FROM tasks WHERE lane_id = lanes.id AND state = 'waiting')";
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM lanes WHERE holder IS NOT NULL AND job_id = ?1 AND given_up IS NULL AND {waiting})
            OR EXISTS (SELECT 1 FROM lanes WHERE holder IS NULL AND due_us IS NOT NULL AND job_id = ?1
                AND given_up IS NULL AND {waiting})"
        );
        if self.sql.prepare_cached(&sql)?.query_row([job], |row| row.get(0))? {
            return Ok(RemainingWork::Tasks);
        }
        let read = self.sql.prepare_cached("SELECT 1 FROM fillers WHERE job_id = ?1")?.exists([job])?;
        Ok(if read { RemainingWork::List } else { RemainingWork::Nothing })
    }

    /// Ends a batch of the tasks waiting in a lane. The lane stays due while there are more.
    fn end_lane(
        &self,
        job: JobId,
        lane: i64,
        ending: Ending,
        error: &str,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let state = ending.state();
        let sql = "UPDATE tasks SET state = ?2, error = ?3, settled_us = ?4 WHERE id IN (
            SELECT id FROM tasks WHERE lane_id = ?1 AND state = 'waiting' LIMIT ?5)";
        let mut statement = self.sql.prepare_cached(sql)?;
        let ended = statement.execute(params![lane, state, error, us(now), PART as i64])?;
        let sql = format!("UPDATE jobs SET {state} = {state} + ?2 WHERE id = ?1");
        self.sql.prepare_cached(&sql)?.execute([job.0 as i64, ended as i64])?;
        if ended < PART {
            self.set_lane(lane, None, None)?;
        }
        Ok(())
    }

    pub(super) fn park(&self, holder: HolderId, lane: LaneId, due_at: Timestamp) -> rusqlite::Result<()> {
        // Without a waiting task it is not due at all.
        let sql = "UPDATE lanes SET holder = NULL, due_us = (SELECT max(ready_us, ?3) FROM tasks
            WHERE lane_id = lanes.id AND state = 'waiting' ORDER BY ready_us, id LIMIT 1)
            WHERE id = ?1 AND holder = ?2";
        self.sql.prepare_cached(sql)?.execute([lane.0, holder.0, us(due_at)])?;
        Ok(())
    }

    pub(super) fn next_due(&self, job: JobId) -> rusqlite::Result<Option<Timestamp>> {
        let sql = "SELECT due_us FROM lanes WHERE job_id = ?1 AND holder IS NULL AND due_us IS NOT NULL
            ORDER BY due_us LIMIT 1";
        let due = self.sql.prepare_cached(sql)?.query_row([job.0 as i64], |row| row.get(0)).optional()?;
        Ok(due.map(at))
    }
}

/// The order in which new tasks are stored: some of each lane in turn, and within a lane in the order given. Tasks of a lane
/// are read together, and tasks of all lanes are settled together: both find them on few pages of the database.
fn in_turns<'a, 'b>(
    lanes: &'b BTreeMap<i64, Vec<&'a NewTask>>,
) -> impl Iterator<Item = (i64, &'b [&'a NewTask])> {
    let turns = lanes.values().map(|tasks| tasks.len().div_ceil(TURN)).max().unwrap_or(0);
    let mut left: Vec<_> = lanes.iter().map(|(lane, tasks)| (*lane, tasks.chunks(TURN))).collect();
    (0..turns).flat_map(move |_| {
        let turn: Vec<_> = left.iter_mut().filter_map(|(lane, tasks)| Some((*lane, tasks.next()?))).collect();
        left.retain(|(_, tasks)| tasks.len() > 0);
        turn
    })
}

/// How the tasks of a lane end together.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Failed,
    Skipped,
}

impl Ending {
    /// The state of such a task, which is also the name of the column that counts them.
    fn state(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// A span as a column value.
pub(super) fn micros(span: Span) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Anything not known to be listed is not trusted.
pub(super) fn lead_of(word: &str) -> Lead {
    if word == Lead::Listed.as_str() { Lead::Listed } else { Lead::Remote }
}

/// How many tasks of a lane are stored in a row. With 50 lanes, 8 to 16 wrote least; more are read from fewer pages.
const TURN: usize = 16;
/// The maximum number of a lane's tasks that are ended in one transaction.
const PART: usize = 10_000;
/// How soon a lane is looked at again whose domain another process holds.
const PARKED: Span = Span::from_secs(1);

//! Filling, claiming and settling.

use std::collections::{BTreeMap, HashMap};

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, Row, params};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::domains::{REMEMBERED_MAX, domain_of};
use super::holders::Living;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::{Hold, HolderId, Take};
use crate::items::ItemId;
use crate::sources::SourceId;
use crate::tasks::{
    Attempt, Claim, Claimed, Enqueued, LaneId, Lead, NewTask, Refill, Rest, Settle, Settled, Step, TaskRow,
    TaskStore, TaskView,
};

impl TaskStore for Sqlite {
    fn enqueue(&self, job: JobId, tasks: Vec<NewTask>, now: Timestamp) -> Reply<'_, Enqueued> {
        self.writer.run(move |tx| tx.enqueue(job, tasks.clone(), now))
    }

    fn claim(&self, holder: HolderId, claim: Claim, now: Timestamp) -> Reply<'_, Vec<Claimed>> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.claim(&living, holder, claim, now))
    }

    fn refill(&self, refills: Vec<Refill>) -> Reply<'_, Vec<(LaneId, Vec<TaskRow>)>> {
        self.writer
            .run(move |tx| refills.iter().map(|refill| Ok((refill.lane, tx.read_lane(*refill)?))).collect())
    }

    fn settle(&self, holder: HolderId, settles: Vec<Settle>, now: Timestamp) -> Reply<'_, Vec<Settled>> {
        self.writer.run(move |tx| tx.settle(holder, settles.clone(), now))
    }

    fn park(&self, holder: HolderId, lanes: Vec<(LaneId, Timestamp)>) -> Reply<'_, ()> {
        self.writer.run(move |tx| lanes.iter().try_for_each(|(lane, due_at)| tx.park(holder, *lane, *due_at)))
    }

    fn give_up(&self, holder: HolderId, lane: LaneId, reason: String) -> Reply<'_, Rest> {
        self.writer.run(move |tx| tx.give_up(holder, lane, &reason))
    }

    fn next_due(&self, job: JobId) -> Reply<'_, Option<Timestamp>> {
        self.writer.run(move |tx| tx.next_due(job))
    }

    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>> {
        self.read(move |tx| tx.views(job, &state, limit))
    }
}

impl Tx<'_> {
    pub(super) fn enqueue(
        &mut self,
        job: JobId,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> rusqlite::Result<Enqueued> {
        let job = job.0 as i64;
        let mut enqueued = Enqueued::default();
        let sql = "SELECT 1 FROM jobs WHERE id = ?1 AND state = 'running'";
        if !self.sql.prepare_cached(sql)?.exists([job])? {
            enqueued.refused = tasks.len() as u64;
            return Ok(enqueued);
        }
        // Lane by lane, each in the order given: neighbours in the index are neighbours in time.
        let mut lanes: BTreeMap<i64, Vec<NewTask>> = BTreeMap::new();
        for task in tasks {
            let lane = self.lane_id(job, task.domain.as_str())?;
            lanes.entry(lane).or_default().push(task);
        }
        for (lane, tasks) in lanes {
            let mut new = 0;
            for task in &tasks {
                match self.insert(job, lane, task, now)? {
                    true => new += 1,
                    false => enqueued.known += 1,
                }
            }
            if new > 0 {
                self.make_due(lane, now)?;
                enqueued.new += new;
            }
        }
        let sql = "UPDATE jobs SET tasks = tasks + ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![job, enqueued.new as i64])?;
        Ok(enqueued)
    }

    /// Adds a task unless the job has its URL. Different URLs with one key take the next one that is free.
    fn insert(&self, job: i64, lane: i64, task: &NewTask, now: Timestamp) -> rusqlite::Result<bool> {
        let mut key = xxh3_64_with_seed(task.url.as_bytes(), job as u64) as i64;
        loop {
            let sql = "INSERT INTO tasks (job_id, lane_id, url, url_key, lead, ready_us)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (job_id, url_key) DO NOTHING";
            let lead = task.lead.as_str();
            let mut insert = self.sql.prepare_cached(sql)?;
            if insert.execute(params![job, lane, task.url, key, lead, us(now)])? == 1 {
                return Ok(true);
            }
            let sql = "SELECT url FROM tasks WHERE job_id = ?1 AND url_key = ?2";
            let there: String = self.sql.prepare_cached(sql)?.query_row([job, key], |row| row.get(0))?;
            if there == task.url {
                return Ok(false);
            }
            key = key.wrapping_add(1);
        }
    }

    pub(super) fn lane_id(&mut self, job: i64, domain: &str) -> rusqlite::Result<i64> {
        let domain = self.domain_id(domain)?;
        if let Some(id) = self.memory.lane_ids.get(&(job, domain)) {
            return Ok(*id);
        }
        let sql = "INSERT INTO lanes (job_id, domain_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.sql.prepare_cached(sql)?.execute([job, domain])?;
        let sql = "SELECT id FROM lanes WHERE job_id = ?1 AND domain_id = ?2";
        let id = self.sql.prepare_cached(sql)?.query_row([job, domain], |row| row.get(0))?;
        if self.memory.lane_ids.len() >= REMEMBERED_MAX {
            self.memory.lane_ids.clear();
        }
        self.memory.lane_ids.insert((job, domain), id);
        Ok(id)
    }

    /// A lane with a task that may go at `due_at` is looked at by then.
    pub(super) fn make_due(&self, lane: i64, due_at: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE lanes SET due_us = ?2 WHERE id = ?1 AND (due_us IS NULL OR due_us > ?2)";
        self.sql.prepare_cached(sql)?.execute([lane, us(due_at)])?;
        Ok(())
    }

    pub(super) fn claim(
        &mut self,
        living: &Living,
        holder: HolderId,
        claim: Claim,
        now: Timestamp,
    ) -> rusqlite::Result<Vec<Claimed>> {
        if !self.is_holder(holder)? {
            return Ok(Vec::new());
        }
        let sql =
            "SELECT lanes.id, domain_id, domain, given_up FROM lanes JOIN domains ON domains.id = domain_id
            WHERE job_id = ?1 AND lanes.holder IS NULL AND due_us <= ?2 ORDER BY due_us LIMIT ?3";
        let due = params![claim.job.0 as i64, us(now), claim.lanes];
        let (due, unreadable) = self.sorted("lanes", sql, due, |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, domain_of(row, 2)?, row.get(3)?))
        })?;
        for (lane, why) in unreadable {
            let error = format!("its domain cannot be read from the store: {why}");
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
            let take = self.take(living, holder, domain_id, now)?;
            if let Take::Held { .. } = take {
                // Its holder makes the lane due when it lets go; this is for a holder that does not.
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
            "SELECT id, url, lead, at_url, hops, retries, ready_us, item_id, source_id, forgiven FROM tasks
            WHERE lane_id = ?1 AND state = 'waiting' AND (ready_us, id) > (?2, ?3)
            ORDER BY ready_us, id LIMIT ?4";
        let (ready, id) = after.map_or((i64::MIN, 0), |after| (us(after.ready_at), after.task.0 as i64));
        loop {
            let (tasks, unreadable) =
                self.sorted("tasks", sql, params![lane.0, ready, id, limit], task_of)?;
            if unreadable.is_empty() {
                return Ok(tasks);
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

    /// Notes that the job of a lane gives it up.
    pub(super) fn give_up(&self, holder: HolderId, lane: LaneId, reason: &str) -> rusqlite::Result<Rest> {
        let sql = "UPDATE lanes SET given_up = ?3 WHERE id = ?1 AND holder = ?2 RETURNING job_id";
        let mut statement = self.sql.prepare_cached(sql)?;
        let job = statement.query_row(params![lane.0, holder.0, reason], |row| row.get(0)).optional()?;
        // A lane that went to another process is that one's to judge.
        let Some(job): Option<i64> = job else { return Ok(Rest::Tasks) };
        // Lanes that are served, and those that will be: the others are empty.
        let waiting = "EXISTS (SELECT 1 FROM tasks WHERE lane_id = lanes.id AND state = 'waiting')";
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM lanes WHERE holder IS NOT NULL AND job_id = ?1 AND given_up IS NULL AND {waiting})
            OR EXISTS (SELECT 1 FROM lanes WHERE holder IS NULL AND due_us IS NOT NULL AND job_id = ?1
                AND given_up IS NULL AND {waiting})"
        );
        if self.sql.prepare_cached(&sql)?.query_row([job], |row| row.get(0))? {
            return Ok(Rest::Tasks);
        }
        let read = self.sql.prepare_cached("SELECT 1 FROM fillers WHERE job_id = ?1")?.exists([job])?;
        Ok(if read { Rest::List } else { Rest::Nothing })
    }

    /// Ends the tasks that wait in a lane, a part at a time: the lane stays due while there are more.
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
        let sql = "SELECT ready_us FROM tasks WHERE lane_id = ?1 AND state = 'waiting'
            ORDER BY ready_us, id LIMIT 1";
        let first: Option<i64> =
            self.sql.prepare_cached(sql)?.query_row([lane.0], |row| row.get(0)).optional()?;
        let sql = "UPDATE lanes SET holder = NULL, due_us = ?3 WHERE id = ?1 AND holder = ?2";
        let due = first.map(|ready| ready.max(us(due_at)));
        self.sql.prepare_cached(sql)?.execute(params![lane.0, holder.0, due])?;
        Ok(())
    }

    pub(super) fn next_due(&self, job: JobId) -> rusqlite::Result<Option<Timestamp>> {
        let sql = "SELECT due_us FROM lanes WHERE job_id = ?1 AND holder IS NULL AND due_us IS NOT NULL
            ORDER BY due_us LIMIT 1";
        let due = self.sql.prepare_cached(sql)?.query_row([job.0 as i64], |row| row.get(0)).optional()?;
        Ok(due.map(at))
    }

    pub(super) fn settle(
        &mut self,
        holder: HolderId,
        settles: Vec<Settle>,
        now: Timestamp,
    ) -> rusqlite::Result<Vec<Settled>> {
        let lives = self.is_holder(holder)?;
        let mut holds: HashMap<Hold, bool> = HashMap::new();
        let mut tallies: BTreeMap<JobId, Tally> = BTreeMap::new();
        let mut results = Vec::with_capacity(settles.len());
        for settle in settles {
            let valid = match holds.get(&settle.hold) {
                Some(valid) => *valid,
                None => {
                    let valid = lives && self.holds(holder, settle.hold)?;
                    holds.insert(settle.hold, valid);
                    valid
                }
            };
            let tally = tallies.entry(settle.job).or_default();
            let taken = valid && self.settle_one(&settle, tally, now)?;
            results.push(if taken { Settled::Yes } else { Settled::Fenced });
        }
        for (job, tally) in tallies {
            let sql = "UPDATE jobs SET done = done + ?2, failed = failed + ?3, skipped = skipped + ?4,
                rate_limited = rate_limited + ?5, retries = retries + ?6 WHERE id = ?1";
            let Tally { done, failed, skipped, rate_limited, retries } = tally;
            self.sql.prepare_cached(sql)?.execute([
                job.0 as i64,
                done,
                failed,
                skipped,
                rate_limited,
                retries,
            ])?;
        }
        Ok(results)
    }

    /// Writes what became of one task; false when it does not wait any more.
    fn settle_one(&mut self, settle: &Settle, tally: &mut Tally, now: Timestamp) -> rusqlite::Result<bool> {
        let id = settle.task.0 as i64;
        // A task that moved on meanwhile is another holder's.
        let sql = "SELECT item_id FROM tasks JOIN lanes ON lanes.id = lane_id
            WHERE tasks.id = ?1 AND state = 'waiting' AND tasks.job_id = ?2 AND domain_id = ?3";
        let mut statement = self.sql.prepare_cached(sql)?;
        let row = statement.query_row([id, settle.job.0 as i64, settle.hold.key.0], |row| row.get(0));
        let Some(item): Option<Option<i64>> = row.optional()? else { return Ok(false) };
        drop(statement);
        let end = "UPDATE tasks SET state = ?2, status = ?3, bytes = ?4, error = ?5, settled_us = ?6
            WHERE id = ?1 AND state = 'waiting'";
        let end = |state, status: Option<u16>, bytes: Option<i64>, error: Option<&str>| {
            let mut statement = self.sql.prepare_cached(end)?;
            statement.execute(params![id, state, status, bytes, error, us(now)])
        };
        let changed = match &settle.step {
            Step::Done { status, bytes, .. } => end("done", Some(*status), Some(*bytes as i64), None)?,
            Step::Failed { error, status } => end("failed", *status, None, Some(error))?,
            Step::Skipped { reason } => end("skipped", None, None, Some(reason))?,
            Step::Retry { ready_at, retries, forgiven, error } => {
                let sql = "UPDATE tasks SET ready_us = ?2, retries = ?3, forgiven = ?4, error = ?5
                    WHERE id = ?1 AND state = 'waiting'";
                let row = params![id, us(*ready_at), retries, forgiven, error];
                self.sql.prepare_cached(sql)?.execute(row)?
            }
            Step::Moved { domain, at_url, hops } => {
                let lane = self.lane_id(settle.job.0 as i64, domain.as_str())?;
                let sql = "UPDATE tasks SET home_lane_id = coalesce(home_lane_id, lane_id), lane_id = ?2,
                    at_url = coalesce(?3, at_url), hops = ?4, ready_us = ?5
                    WHERE id = ?1 AND state = 'waiting'";
                let mut statement = self.sql.prepare_cached(sql)?;
                let changed = statement.execute(params![id, lane, at_url, hops, us(now)])?;
                drop(statement);
                self.make_due(lane, now)?;
                changed
            }
        };
        if changed == 0 {
            return Ok(false);
        }
        tally.count(settle);
        if let Some(item) = item {
            self.settle_item(item, settle, now)?;
        }
        settle.attempts.iter().try_for_each(|attempt| self.note(id, attempt))?;
        Ok(true)
    }

    fn note(&self, task: i64, attempt: &Attempt) -> rusqlite::Result<()> {
        let Attempt { started_at, took, outcome, status } = attempt;
        let sql = "INSERT OR REPLACE INTO attempts (task_id, started_us, took_us, outcome, status)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        let mut statement = self.sql.prepare_cached(sql)?;
        statement.execute(params![task, us(*started_at), took, outcome.as_str(), status]).map(|_| ())
    }

    pub(super) fn views(&self, job: JobId, state: &str, limit: u32) -> rusqlite::Result<Vec<TaskView>> {
        // Said so that the index of what failed or was skipped serves: a large job is not read through.
        let trouble = matches!(state, "failed" | "skipped");
        let only = if trouble { "AND state IN ('failed', 'skipped')" } else { "" };
        let sql = format!(
            "SELECT id, url, state, status, error, settled_us FROM tasks WHERE job_id = ?1 AND state = ?2 {only}
            ORDER BY settled_us DESC LIMIT ?3"
        );
        self.readable("tasks", &sql, params![job.0 as i64, state, limit], |row| {
            Ok(TaskView {
                url: row.get(1)?,
                state: row.get(2)?,
                status: row.get(3)?,
                error: row.get(4)?,
                settled_at: row.get::<_, Option<i64>>(5)?.map(at),
            })
        })
    }
}

/// How the tasks of a lane end together.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Failed,
    Skipped,
}

impl Ending {
    /// The state of such a task, and the column that counts them.
    fn state(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// What a batch of settles adds to the counts of a job.
#[derive(Debug, Default)]
struct Tally {
    done: i64,
    failed: i64,
    skipped: i64,
    rate_limited: i64,
    retries: i64,
}

impl Tally {
    fn count(&mut self, settle: &Settle) {
        match settle.step {
            Step::Done { .. } => self.done += 1,
            Step::Failed { .. } => self.failed += 1,
            Step::Skipped { .. } => self.skipped += 1,
            Step::Retry { .. } => self.retries += 1,
            Step::Moved { .. } => {}
        }
        let limited = settle.attempts.iter().filter(|attempt| attempt.outcome == Outcome::RateLimited);
        self.rate_limited += limited.count() as i64;
    }
}

fn task_of(row: &Row<'_>) -> rusqlite::Result<TaskRow> {
    let lead: String = row.get(2)?;
    Ok(TaskRow {
        id: TaskId(row.get::<_, i64>(0)? as u64),
        url: row.get(1)?,
        lead: lead_of(&lead),
        at_url: row.get(3)?,
        hops: row.get(4)?,
        retries: row.get(5)?,
        forgiven: row.get(9)?,
        ready_at: at(row.get(6)?),
        scrapes: row
            .get::<_, Option<i64>>(7)?
            .zip(row.get::<_, Option<i64>>(8)?)
            .map(|(item, source)| (ItemId(item), SourceId(source))),
    })
}

/// Whatever is not known to be listed is not trusted.
pub(super) fn lead_of(word: &str) -> Lead {
    if word == Lead::Listed.as_str() { Lead::Listed } else { Lead::Remote }
}

/// Tasks of a lane that are ended in one transaction.
const PART: usize = 10_000;
/// A lane whose domain another process holds is looked at again after this long.
const PARKED: Span = Span::from_secs(1);

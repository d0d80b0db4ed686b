//! Stores jobs: opens, lists and ends them, and records who fills them and works on them. Retries are in `job_retry`.

use comity_core::task::{JobId, JobState, JobStep, TaskId};
use comity_core::time::Timestamp;
use serde_json::Value;
use tokio_postgres::Row;

use super::failure::{Failure, Result};
use super::param::{Param, opt_text, text};
use super::time::HOLDER_US;
use super::tx::{Tx, by_key};
use super::{Postgres, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::jobs::{
    Counted, Counts, FailureGroup, FillStep, Job, JobQuery, JobStore, JobTally, Removed, RetryFilter,
    RowMark, Stepped,
};
use crate::tasks::{JOB_ENDED, NewTask};

impl JobStore for Postgres {
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)> {
        self.write(move |tx| tx.open_job(&name, &options, now))
    }

    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>> {
        self.write(move |tx| tx.make_job(&name, &options, &tasks, now))
    }

    fn find_job(&self, name: String) -> Reply<'_, Option<Job>> {
        self.read(move |tx| tx.find_job(&name))
    }

    fn list_jobs(&self) -> Reply<'_, Vec<Job>> {
        self.read(|tx| tx.jobs(None, u32::MAX))
    }

    fn page_jobs(&self, older_than: Option<JobId>, limit: u32) -> Reply<'_, Vec<Job>> {
        self.read(move |tx| tx.jobs(older_than, limit))
    }

    fn search_jobs(&self, query: JobQuery) -> Reply<'_, Vec<Job>> {
        self.read(move |tx| tx.search_jobs(&query))
    }

    fn tally_jobs(&self) -> Reply<'_, JobTally> {
        self.read(|tx| tx.tally_jobs())
    }

    fn failure_groups(&self, job: JobId, samples: u32) -> Reply<'_, Vec<FailureGroup>> {
        self.read(move |tx| tx.failure_groups(job, samples))
    }

    fn count_retry(&self, job: JobId, filter: RetryFilter, most: u32) -> Reply<'_, Counted> {
        self.read(move |tx| tx.count_retry(job, &filter, most))
    }

    fn set_options(&self, job: JobId, options: Value) -> Reply<'_, ()> {
        self.write(move |tx| {
            let options = options.to_string();
            tx.change("UPDATE job SET options = $2 WHERE id = $1", &[&id_of(job), &text(&options)])?;
            Ok(())
        })
    }

    fn name_files_in_full(
        &self,
        job: JobId,
        folder: String,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Option<TaskId>> {
        self.write(move |tx| tx.name_files_in_full(job, &folder, after, limit))
    }

    fn note_fill(&self, job: JobId, holder: HolderId, step: FillStep, now: Timestamp) -> Reply<'_, ()> {
        self.write(move |tx| tx.note_fill(id_of(job), holder, step, now))
    }

    fn step_job(
        &self,
        job: JobId,
        step: JobStep,
        message: Option<String>,
        now: Timestamp,
    ) -> Reply<'_, Stepped> {
        self.write(move |tx| tx.step_job(job, step, message.as_deref(), now))
    }

    fn reopen_job(&self, job: JobId, filter: RetryFilter) -> Reply<'_, Stepped> {
        self.write(move |tx| tx.reopen_job(job, &filter))
    }

    fn can_retry(&self, job: JobId, filter: RetryFilter) -> Reply<'_, bool> {
        self.read(move |tx| tx.can_retry(job, &filter))
    }

    fn set_message(&self, job: JobId, message: Option<String>) -> Reply<'_, ()> {
        self.write(move |tx| {
            let sql =
                "UPDATE job SET message = $2 WHERE id = $1 AND state = 'running' AND message IS DISTINCT FROM $2";
            tx.change(sql, &[&id_of(job), &opt_text(message.as_deref())]).map(|_| ())
        })
    }

    fn work_on(
        &self,
        job: JobId,
        holder: HolderId,
        written: RowMark,
        now: Timestamp,
    ) -> Reply<'_, Option<RowMark>> {
        self.write(move |tx| tx.work_on(id_of(job), holder, written, now))
    }

    fn leave_job(&self, job: JobId, holder: HolderId) -> Reply<'_, ()> {
        self.write(move |tx| {
            let sql = "DELETE FROM worker WHERE job_id = $1 AND holder = $2";
            tx.change(sql, &[&id_of(job), &holder.0]).map(|_| ())
        })
    }

    fn remove_job(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, Removed> {
        self.write(move |tx| tx.remove_job(job, limit, now))
    }

    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool> {
        self.write(move |tx| tx.sweep(job, limit, now))
    }
}

impl Tx<'_> {
    pub(super) fn open_job(&mut self, name: &str, options: &Value, now: Timestamp) -> Result<(Job, bool)> {
        // Another process may create it, and remove it, in between; and ids may have to be moved on first.
        for _ in 0..OPEN_TRIES {
            if let Some(job) = self.find_job(name)? {
                return Ok((job, false));
            }
            if let Some(id) = self.create_job(name, options, now)? {
                let job = self.job(id)?;
                return job.map(|job| (job, true)).ok_or_else(|| rejected("the new job is gone"));
            }
        }
        Err(rejected("the job was created and removed by others again and again"))
    }

    /// Creates a job; `None` if there is one called so already, or if its id was used before.
    fn create_job(&mut self, name: &str, options: &Value, now: Timestamp) -> Result<Option<JobId>> {
        // The id of a removed job is not given out again, because other processes may remember it. A failover may set the
        // sequence back. If another process creates the job at the same time, this waits until that has committed.
        let sql = "WITH new AS MATERIALIZED (SELECT nextval(pg_get_serial_sequence('job', 'id')) AS id)
            INSERT INTO job (id, name, state, options, created_us)
            SELECT new.id, $1, 'running', $2, $3 FROM new, identity WHERE new.id > removed_job
            ON CONFLICT DO NOTHING RETURNING id";
        let (name, options) = (text(name), options.to_string());
        let created = self.change_rows(sql, &[&name, &text(&options), &us(now)])?;
        if let Some(row) = created.first() {
            self.tell();
            return Ok(Some(job_id(row.get(0))));
        }
        let sql = "SELECT setval(pg_get_serial_sequence('job', 'id'), used) FROM (
            SELECT greatest(removed_job, (SELECT max(id) FROM job)) AS used FROM identity) AS ids
            WHERE used > (SELECT last_value FROM job_id_seq)";
        self.rows(sql, &[])?;
        Ok(None)
    }

    fn make_job(
        &mut self,
        name: &str,
        options: &Value,
        tasks: &[NewTask],
        now: Timestamp,
    ) -> Result<Option<Job>> {
        let (job, made) = self.open_job(name, options, now)?;
        if !made {
            return Ok(None);
        }
        self.enqueue(job.id, tasks, now)?;
        self.job(job.id)
    }

    /// The job called `name`.
    pub(super) fn find_job(&mut self, name: &str) -> Result<Option<Job>> {
        self.job_where("name = $1", &text(name))
    }

    pub(super) fn job(&mut self, job: JobId) -> Result<Option<Job>> {
        self.job_where("id = $1", &id_of(job))
    }

    fn job_where(&mut self, what: &str, value: &dyn Param) -> Result<Option<Job>> {
        let row = self.row(&format!("{JOBS} WHERE {what}"), &[value])?;
        let jobs = row.iter().map(job_of).collect();
        Ok(self.with_activity(jobs)?.pop())
    }

    fn jobs(&mut self, older_than: Option<JobId>, limit: u32) -> Result<Vec<Job>> {
        let sql = format!("{JOBS} WHERE id < $1 ORDER BY id DESC LIMIT $2");
        let rows = self.rows(&sql, &[&older_than.map_or(i64::MAX, id_of), &i64::from(limit)])?;
        self.with_activity(rows.iter().map(job_of).collect())
    }

    /// Adds to jobs whether a process that seems to be alive works on them or reads a list into them, and whether one died
    /// while it worked on them. A lease that has ended is taken as a death here: if nobody else is running, nobody records it.
    pub(super) fn with_activity(&mut self, mut jobs: Vec<Job>) -> Result<Vec<Job>> {
        if jobs.is_empty() {
            return Ok(jobs);
        }
        let ids: Vec<i64> = jobs.iter().map(|job| id_of(job.id)).collect();
        let sql = format!(
            "SELECT job_id, bool_or(holder.id IS NOT NULL), bool_or(works AND holder.id IS NULL) FROM (
                SELECT job_id, holder AS holder_id, true AS works FROM worker WHERE job_id = ANY ($1)
                UNION ALL SELECT job_id, holder, false FROM filler WHERE job_id = ANY ($1)) AS busy
            LEFT JOIN holder ON holder.id = holder_id AND died_us IS NULL
                AND (offset_us IS NULL OR until_us > {HOLDER_US})
            GROUP BY job_id"
        );
        let busy = by_key(self.rows(&sql, &[&ids])?);
        for job in &mut jobs {
            if let Some(row) = busy.get(&id_of(job.id)) {
                (job.worked_on, job.abandoned) = (row.get(1), row.get(2));
            }
        }
        Ok(jobs)
    }

    /// Makes others wait who want to change the state of a job, fill it, add tasks to it or settle its tasks, until this
    /// transaction ends. False if there is no such job.
    pub(super) fn lock_job(&mut self, job: i64) -> Result<bool> {
        // What it looks like is read afterwards: this may have waited for somebody who changed it.
        self.exists("SELECT 1 FROM job WHERE id = $1 FOR UPDATE", &[&job])
    }

    /// Makes a state transition, if the current state allows it.
    pub(super) fn step_job(
        &mut self,
        job: JobId,
        step: JobStep,
        message: Option<&str>,
        now: Timestamp,
    ) -> Result<Stepped> {
        let id = id_of(job);
        if step == JobStep::Finish {
            // Most attempts to finish a job come too early. They wait for nobody.
            match self.job(job)? {
                None => return Ok(Stepped::Missing),
                Some(found) if found.state.after(step).is_err() || found.counts.waiting() > 0 => {
                    return Ok(Stepped::No(found));
                }
                Some(_) => {}
            }
            // Before the job is locked: whoever writes for a process takes its row first.
            self.check_holders_of(id, now)?;
        }
        self.lock_job(id)?;
        let Some(found) = self.job(job)? else { return Ok(Stepped::Missing) };
        let Ok(state) = found.state.after(step) else { return Ok(Stepped::No(found)) };
        if step == JobStep::Reopen {
            return self.reopen(job, &RetryFilter::default());
        }
        if step == JobStep::Finish {
            let is_filled = self.is_filled(id)?;
            if is_filled || found.counts.waiting() > 0 || found.unread || !self.is_swept(id)? {
                // Read again: a process that was found dead no longer counts as reading a list.
                return Ok(Stepped::No(self.job(job)?.unwrap_or(found)));
            }
        }
        let ended = state.is_terminal().then_some(us(now));
        let swept = matches!(step, JobStep::Finish | JobStep::Extend);
        let sql = "UPDATE job SET state = $2, ended_us = $3, message = $4, swept = $5 WHERE id = $1";
        self.change(sql, &[&id, &state.as_str(), &ended, &opt_text(message), &swept])?;
        self.tell();
        Ok(self.job(job)?.map_or(Stepped::Missing, Stepped::Yes))
    }

    /// Whether the job's tasks are in line with its state.
    pub(super) fn is_swept(&mut self, job: i64) -> Result<bool> {
        self.exists("SELECT 1 FROM job WHERE id = $1 AND swept", &[&job])
    }

    /// Records the progress of reading a list of URLs.
    fn note_fill(&mut self, job: i64, holder: HolderId, step: FillStep, now: Timestamp) -> Result<()> {
        if step == FillStep::Started {
            if self.change("UPDATE job SET unread = true WHERE id = $1", &[&job])? > 0 {
                let sql = "INSERT INTO filler (job_id, holder) VALUES ($1, $2) ON CONFLICT DO NOTHING";
                self.change(sql, &[&job, &holder.0])?;
            }
            return Ok(());
        }
        if step == FillStep::Finished {
            self.check_holders_of(job, now)?;
        }
        // Of two processes that finish their lists at once, one is the last. Those that add or settle tasks don't mind.
        self.rows("SELECT 1 FROM job WHERE id = $1 FOR NO KEY UPDATE", &[&job])?;
        let sql = "DELETE FROM filler WHERE job_id = $1 AND holder = $2";
        self.change(sql, &[&job, &holder.0])?;
        if step == FillStep::Finished && !self.is_filled(job)? {
            self.change("UPDATE job SET unread = false WHERE id = $1", &[&job])?;
            self.tell();
        }
        Ok(())
    }

    /// Notices which of those that work on the job or read a list into it have died.
    pub(super) fn check_holders_of(&mut self, job: i64, now: Timestamp) -> Result<()> {
        let sql =
            "SELECT holder FROM filler WHERE job_id = $1 UNION SELECT holder FROM worker WHERE job_id = $1";
        let holders: Vec<i64> = self.rows(sql, &[&job])?.iter().map(|row| row.get(0)).collect();
        self.check_holders(&holders, now)
    }

    /// Whether a live process is reading a list into the job, which is locked. Dead ones are removed.
    fn is_filled(&mut self, job: i64) -> Result<bool> {
        let rows = self.rows("SELECT holder FROM filler WHERE job_id = $1", &[&job])?;
        let holders: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if holders.is_empty() {
            return Ok(false);
        }
        let alive = self.live_holders(&holders)?;
        let dead: Vec<i64> = holders.into_iter().filter(|holder| !alive.contains(holder)).collect();
        if !dead.is_empty() {
            let sql = "DELETE FROM filler WHERE job_id = $1 AND holder = ANY ($2)";
            self.change(sql, &[&job, &dead])?;
        }
        Ok(!alive.is_empty())
    }

    /// Records who works on a job. Returns from where on the result rows of dead workers may be missing.
    fn work_on(
        &mut self,
        job: i64,
        holder: HolderId,
        written: RowMark,
        now: Timestamp,
    ) -> Result<Option<RowMark>> {
        let sql = "SELECT holder FROM worker WHERE job_id = $1 AND holder <> $2";
        let others: Vec<i64> = self.rows(sql, &[&job, &holder.0])?.iter().map(|row| row.get(0)).collect();
        let mut missing = None;
        if !others.is_empty() {
            self.check_holders(&others, now)?;
            let alive = self.live_holders(&others)?;
            let dead: Vec<i64> = others.into_iter().filter(|other| !alive.contains(other)).collect();
            missing = self.take_marks(job, &dead)?;
        }
        // If this process dies before it has written the missing rows, they are left to the next one.
        let written = missing.map_or(written, |missing| earlier(missing, written));
        let sql = "INSERT INTO worker (job_id, holder, told_us, index_bytes)
            SELECT id, $2, $3, $4 FROM job WHERE id = $1
            ON CONFLICT (job_id, holder) DO UPDATE SET told_us = excluded.told_us, index_bytes = excluded.index_bytes";
        let index_bytes = written.index_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        self.change(sql, &[&job, &holder.0, &us(written.settled_before), &index_bytes])?;
        Ok(missing)
    }

    /// Removes dead workers of a job, and returns up to where all of them had written their rows. Each mark is returned
    /// once, however many ask at the same time.
    fn take_marks(&mut self, job: i64, dead: &[i64]) -> Result<Option<RowMark>> {
        if dead.is_empty() {
            return Ok(None);
        }
        let sql =
            "WITH gone AS MATERIALIZED (SELECT holder FROM worker WHERE job_id = $1 AND holder = ANY ($2)
                ORDER BY holder FOR UPDATE)
            DELETE FROM worker USING gone WHERE job_id = $1 AND worker.holder = gone.holder
            RETURNING told_us, index_bytes";
        let marks = self.change_rows(sql, &[&job, &dead])?;
        let marks = marks.iter().map(|row| RowMark {
            settled_before: at(row.get(0)),
            index_bytes: row.get::<_, Option<i64>>(1).map(i64::unsigned_abs),
        });
        Ok(marks.reduce(earlier))
    }

    /// Brings a batch of tasks in line with the job's state.
    pub(super) fn sweep(&mut self, job: JobId, limit: u32, now: Timestamp) -> Result<bool> {
        let id = id_of(job);
        // There is almost never anything to do, and then nobody waits for this.
        let sql = "SELECT state FROM job WHERE id = $1 AND NOT swept";
        if !self.exists(sql, &[&id])? || !self.lock_job(id)? {
            return Ok(false);
        }
        let Some(row) = self.row(sql, &[&id])? else { return Ok(false) };
        let changed = match row.get::<_, &str>(0) == JobState::Running.as_str() {
            true => self.revive(id, limit, now)?,
            false => self.skip_waiting(id, limit, now)?,
        };
        let more = changed >= u64::from(limit) && limit > 0;
        if !more {
            self.change("UPDATE job SET swept = true, revival = NULL WHERE id = $1", &[&id])?;
        }
        self.tell();
        Ok(more)
    }

    /// Skips tasks. Those that a refresh has not requested yet are done, as before it.
    fn skip_waiting(&mut self, job: i64, limit: u32, now: Timestamp) -> Result<u64> {
        // What failed in an earlier refresh has another status.
        let has_page = "bytes IS NOT NULL AND settled_us IS NOT NULL AND coalesce(status, 0) / 100 IN (2, 3)
            AND requests + retries + forgiven + hops = 0";
        // Lane by lane: the tasks that wait are few among those of the job, and the index of a lane has only them.
        let sql = format!(
            "WITH batch AS MATERIALIZED (
                SELECT waiting.id FROM lane CROSS JOIN LATERAL (
                    SELECT id FROM task WHERE lane_id = lane.id AND state = 'waiting' LIMIT $2) AS waiting
                WHERE lane.job_id = $1 LIMIT $2)
            UPDATE task SET error = $3, state = CASE WHEN {has_page} THEN 'done' ELSE 'skipped' END,
                settled_us = CASE WHEN {has_page} THEN settled_us ELSE $4 END
            FROM batch WHERE task.id = batch.id AND state = 'waiting' RETURNING state = 'done'"
        );
        let ended = self.change_rows(&sql, &[&job, &i64::from(limit), &JOB_ENDED, &us(now)])?;
        let done = ended.iter().filter(|row| row.get(0)).count();
        let sql = "UPDATE lane SET due_us = NULL WHERE job_id = $1 AND holder IS NULL AND due_us IS NOT NULL";
        self.change(sql, &[&job])?;
        let sql = "UPDATE job SET skipped = skipped + $2, done = done + $3 WHERE id = $1";
        self.change(sql, &[&job, &((ended.len() - done) as i64), &(done as i64)])?;
        Ok(ended.len() as u64)
    }
}

/// The id of a job as a column value.
pub(super) fn id_of(job: JobId) -> i64 {
    job.0 as i64
}

fn job_id(id: i64) -> JobId {
    JobId(id as u64)
}

fn rejected(what: &str) -> Failure {
    Failure::Rejected(what.to_owned())
}

/// Up to where both have written their rows. A missing size is the earliest: nothing is known about the index then.
fn earlier(one: RowMark, other: RowMark) -> RowMark {
    RowMark {
        settled_before: one.settled_before.min(other.settled_before),
        index_bytes: one.index_bytes.min(other.index_bytes),
    }
}

/// Reads a job, apart from whether anybody works on it.
pub(super) fn job_of(row: &Row) -> Job {
    let state: &str = row.get(2);
    let state = JobState::ALL.into_iter().find(|known| known.as_str() == state).unwrap_or(JobState::Failed);
    let count = |nth: usize| row.get::<_, i64>(nth).max(0) as u64;
    Job {
        id: job_id(row.get(0)),
        name: row.get(1),
        state,
        options: serde_json::from_str(row.get(3)).unwrap_or(Value::Null),
        created_at: at(row.get(4)),
        ended_at: row.get::<_, Option<i64>>(5).map(at),
        message: row.get(6),
        unread: row.get(13),
        being_filled: row.get(14),
        worked_on: false,
        abandoned: false,
        pruned: row.get(15),
        counts: Counts {
            tasks: count(7),
            done: count(8),
            failed: count(9),
            skipped: count(10),
            rate_limited: count(11),
            retries: count(12),
        },
    }
}

/// The columns that [`job_of`] reads.
pub(super) const JOBS: &str =
    "SELECT id, name, state, options, created_us, ended_us, message, tasks, done, failed, skipped, rate_limited,
    retries, unread, EXISTS (SELECT 1 FROM filler WHERE job_id = job.id), pruned_us IS NOT NULL FROM job";
/// How often opening a job is tried.
const OPEN_TRIES: usize = 20;

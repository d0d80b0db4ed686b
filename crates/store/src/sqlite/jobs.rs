//! Stores jobs.

use comity_core::task::{JobId, JobState, JobStep, TaskId};
use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;

use super::holders::{HolderState, Liveness};
use super::unreadable_rows::in_table;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::jobs::{
    Counted, Counts, FailureGroup, FillStep, Job, JobQuery, JobStore, JobTally, Removed, RetryFilter,
    RowMark, Stepped,
};
use crate::tasks::{JOB_ENDED, NewTask};

impl JobStore for Sqlite {
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.open_job(&liveness, &name, &options, now))
    }

    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.make_job(&liveness, &name, &options, tasks.clone(), now))
    }

    fn find_job(&self, name: String) -> Reply<'_, Option<Job>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.job_named(&liveness, &name))
    }

    fn list_jobs(&self) -> Reply<'_, Vec<Job>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.jobs(&liveness, None, u32::MAX))
    }

    fn page_jobs(&self, older_than: Option<JobId>, limit: u32) -> Reply<'_, Vec<Job>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.jobs(&liveness, older_than, limit))
    }

    fn search_jobs(&self, query: JobQuery) -> Reply<'_, Vec<Job>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.search_jobs(&liveness, &query))
    }

    fn tally_jobs(&self) -> Reply<'_, JobTally> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.tally_jobs(&liveness))
    }

    fn failure_groups(&self, job: JobId, samples: u32) -> Reply<'_, Vec<FailureGroup>> {
        self.read(move |tx| tx.failure_groups(job, samples))
    }

    fn count_retry(&self, job: JobId, filter: RetryFilter, most: u32) -> Reply<'_, Counted> {
        self.read(move |tx| tx.count_retry(job, &filter, most))
    }

    fn set_options(&self, job: JobId, options: Value) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "UPDATE jobs SET options = ?2 WHERE id = ?1";
            tx.sql.prepare_cached(sql)?.execute(params![job.0 as i64, options.to_string()]).map(|_| ())
        })
    }

    fn name_files_in_full(
        &self,
        job: JobId,
        folder: String,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Option<TaskId>> {
        self.writer.run(move |tx| tx.name_files_in_full(job, &folder, after, limit))
    }

    fn note_fill(&self, job: JobId, holder: HolderId, step: FillStep, now: Timestamp) -> Reply<'_, ()> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.note_fill(&liveness, job, holder, step, now))
    }

    fn step_job(
        &self,
        job: JobId,
        step: JobStep,
        message: Option<String>,
        now: Timestamp,
    ) -> Reply<'_, Stepped> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.step_job(&liveness, job, step, message.as_deref(), now))
    }

    fn reopen_job(&self, job: JobId, filter: RetryFilter) -> Reply<'_, Stepped> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.reopen_job(&liveness, job, &filter))
    }

    fn can_retry(&self, job: JobId, filter: RetryFilter) -> Reply<'_, bool> {
        self.read(move |tx| tx.can_retry(job, &filter))
    }

    fn set_message(&self, job: JobId, message: Option<String>) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql =
                "UPDATE jobs SET message = ?2 WHERE id = ?1 AND state = 'running' AND message IS NOT ?2";
            tx.sql.prepare_cached(sql)?.execute(params![job.0 as i64, message]).map(|_| ())
        })
    }

    fn work_on(
        &self,
        job: JobId,
        holder: HolderId,
        written: RowMark,
        now: Timestamp,
    ) -> Reply<'_, Option<RowMark>> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.work_on(&liveness, job, holder, written, now))
    }

    fn leave_job(&self, job: JobId, holder: HolderId) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "DELETE FROM workers WHERE job_id = ?1 AND holder = ?2";
            tx.sql.prepare_cached(sql)?.execute([job.0 as i64, holder.0]).map(|_| ())
        })
    }

    fn remove_job(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, Removed> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.remove_job(&liveness, job, limit, now))
    }

    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.sweep(job, limit, now))
    }
}

impl Tx<'_> {
    pub(super) fn open_job(
        &self,
        liveness: &Liveness,
        name: &str,
        options: &Value,
        now: Timestamp,
    ) -> rusqlite::Result<(Job, bool)> {
        // The id of a removed job is not reused: other processes may remember it.
        let sql = "INSERT INTO jobs (id, name, state, options, created_us) VALUES (
            1 + max(coalesce((SELECT max(id) FROM jobs), 0), (SELECT removed_job FROM identity)), ?1, 'running', ?2, ?3)
            ON CONFLICT (name) DO NOTHING";
        let made = self.sql.prepare_cached(sql)?.execute(params![name, options.to_string(), us(now)])? == 1;
        let job = self.job_where(liveness, "name = ?1", name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        Ok((job, made))
    }

    pub(super) fn make_job(
        &mut self,
        liveness: &Liveness,
        name: &str,
        options: &Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Job>> {
        let (job, made) = self.open_job(liveness, name, options, now)?;
        if !made {
            return Ok(None);
        }
        self.enqueue(job.id, &tasks, now)?;
        self.job(liveness, job.id)
    }

    pub(super) fn job_named(&self, liveness: &Liveness, name: &str) -> rusqlite::Result<Option<Job>> {
        self.job_where(liveness, "name = ?1", name)
    }

    pub(super) fn job(&self, liveness: &Liveness, job: JobId) -> rusqlite::Result<Option<Job>> {
        self.job_where(liveness, "id = ?1", job.0 as i64)
    }

    pub(super) fn jobs(
        &self,
        liveness: &Liveness,
        older_than: Option<JobId>,
        limit: u32,
    ) -> rusqlite::Result<Vec<Job>> {
        let sql = format!("{JOBS} WHERE id < ?1 ORDER BY id DESC LIMIT ?2");
        let before = older_than.map_or(i64::MAX, |job| job.0 as i64);
        let jobs = self.readable("jobs", &sql, params![before, limit], job_of)?;
        jobs.into_iter().map(|job| self.with_activity(liveness, job)).collect()
    }

    /// Adds to a job whether anybody works on it.
    pub(super) fn with_activity(&self, liveness: &Liveness, job: Job) -> rusqlite::Result<Job> {
        let (worked_on, abandoned) = self.activity(liveness, job.id)?;
        Ok(Job { worked_on, abandoned, ..job })
    }

    /// Whether a live process works on a job or reads a list into it, and whether a process died while working on it.
    pub(super) fn activity(&self, liveness: &Liveness, job: JobId) -> rusqlite::Result<(bool, bool)> {
        let sql = "SELECT holder, 1 FROM workers WHERE job_id = ?1
            UNION ALL SELECT holder, 0 FROM fillers WHERE job_id = ?1";
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query([job.0 as i64])?;
        let (mut worked_on, mut abandoned) = (false, false);
        while let Some(row) = rows.next()? {
            match self.seems_alive(liveness, row.get(0)?)? {
                true => worked_on = true,
                false => abandoned |= row.get::<_, bool>(1)?,
            }
        }
        Ok((worked_on, abandoned))
    }

    /// Records who works on a job. Returns from where on the result rows of dead workers may be missing.
    fn work_on(
        &mut self,
        liveness: &Liveness,
        job: JobId,
        holder: HolderId,
        written: RowMark,
        now: Timestamp,
    ) -> rusqlite::Result<Option<RowMark>> {
        let id = job.0 as i64;
        let others: Vec<(i64, RowMark)> = self
            .sql
            .prepare_cached(
                "SELECT holder, told_us, index_bytes FROM workers WHERE job_id = ?1 AND holder <> ?2",
            )?
            .query_map([id, holder.0], |row| {
                let index_bytes = row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs);
                Ok((row.get(0)?, RowMark { settled_before: at(row.get(1)?), index_bytes }))
            })?
            .collect::<rusqlite::Result<_>>()?;
        let mut missing = None;
        for (other, mark) in others {
            if self.check_holder(liveness, other, now)? != HolderState::Lives {
                missing = Some(missing.map_or(mark, |missing| earlier(missing, mark)));
                let sql = "DELETE FROM workers WHERE job_id = ?1 AND holder = ?2";
                self.sql.prepare_cached(sql)?.execute([id, other])?;
            }
        }
        // If this process dies before it has written the missing rows, they are left to the next one.
        let written = missing.map_or(written, |missing| earlier(missing, written));
        let sql = "INSERT INTO workers (job_id, holder, told_us, index_bytes) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET told_us = excluded.told_us, index_bytes = excluded.index_bytes";
        let index_bytes = written.index_bytes.map(|bytes| bytes as i64);
        let row = params![id, holder.0, us(written.settled_before), index_bytes];
        self.sql.prepare_cached(sql)?.execute(row)?;
        Ok(missing)
    }

    /// Makes a state transition, if the current state allows it.
    pub(super) fn step_job(
        &mut self,
        liveness: &Liveness,
        job: JobId,
        step: JobStep,
        message: Option<&str>,
        now: Timestamp,
    ) -> rusqlite::Result<Stepped> {
        let Some(found) = self.job(liveness, job)? else { return Ok(Stepped::Missing) };
        let Ok(state) = found.state.after(step) else { return Ok(Stepped::No(found)) };
        if step == JobStep::Reopen {
            return self.reopen(liveness, job, &RetryFilter::default());
        }
        let filled = self.is_filled(liveness, job, now)?;
        let unfinished = filled || found.counts.waiting() > 0 || found.unread || !self.is_swept(job)?;
        if step == JobStep::Finish && unfinished {
            // Read again: a process that was found dead no longer counts as reading a list.
            return Ok(Stepped::No(self.job(liveness, job)?.unwrap_or(found)));
        }
        let ended = state.is_terminal().then_some(us(now));
        let sql = "UPDATE jobs SET state = ?2, ended_us = ?3, message = ?4, swept = ?5 WHERE id = ?1";
        let swept = matches!(step, JobStep::Finish | JobStep::Extend);
        self.sql.prepare_cached(sql)?.execute(params![
            job.0 as i64,
            state.as_str(),
            ended,
            message,
            swept
        ])?;
        Ok(self.job(liveness, job)?.map_or(Stepped::Missing, Stepped::Yes))
    }

    /// Whether the job's tasks are in line with its state.
    pub(super) fn is_swept(&self, job: JobId) -> rusqlite::Result<bool> {
        self.sql.prepare_cached("SELECT 1 FROM jobs WHERE id = ?1 AND swept")?.exists([job.0 as i64])
    }

    /// Records the progress of reading a list of URLs.
    pub(super) fn note_fill(
        &mut self,
        liveness: &Liveness,
        job: JobId,
        holder: HolderId,
        step: FillStep,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let (id, me) = (job.0 as i64, holder.0);
        if step == FillStep::Started {
            let sql = "INSERT OR IGNORE INTO fillers (job_id, holder) VALUES (?1, ?2)";
            self.sql.prepare_cached(sql)?.execute([id, me])?;
            self.sql.prepare_cached("UPDATE jobs SET unread = 1 WHERE id = ?1")?.execute([id])?;
            return Ok(());
        }
        let sql = "DELETE FROM fillers WHERE job_id = ?1 AND holder = ?2";
        self.sql.prepare_cached(sql)?.execute([id, me])?;
        if step == FillStep::Finished && !self.is_filled(liveness, job, now)? {
            self.sql.prepare_cached("UPDATE jobs SET unread = 0 WHERE id = ?1")?.execute([id])?;
        }
        Ok(())
    }

    /// Whether a live process is reading a list into the job. Dead ones are removed.
    fn is_filled(&mut self, liveness: &Liveness, job: JobId, now: Timestamp) -> rusqlite::Result<bool> {
        let id = job.0 as i64;
        let holders: Vec<i64> = self
            .sql
            .prepare_cached("SELECT holder FROM fillers WHERE job_id = ?1")?
            .query_map([id], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut filled = false;
        for holder in holders {
            if self.check_holder(liveness, holder, now)? == HolderState::Lives {
                filled = true;
            } else {
                let sql = "DELETE FROM fillers WHERE job_id = ?1 AND holder = ?2";
                self.sql.prepare_cached(sql)?.execute([id, holder])?;
            }
        }
        Ok(filled)
    }

    /// Brings a batch of tasks in line with the job's state.
    pub(super) fn sweep(&mut self, job: JobId, limit: u32, now: Timestamp) -> rusqlite::Result<bool> {
        let id = job.0 as i64;
        let sql = "SELECT state, swept FROM jobs WHERE id = ?1";
        let row = self.sql.prepare_cached(sql)?.query_row([id], |row| {
            Ok((row.get::<_, String>(0)? == JobState::Running.as_str(), row.get::<_, bool>(1)?))
        });
        let changed = match row.optional()? {
            None | Some((_, true)) => return Ok(false),
            Some((true, false)) => self.revive(job, limit, now)?,
            Some((false, false)) => self.skip_waiting(id, limit, now)?,
        };
        let more = changed >= limit as usize && limit > 0;
        if !more {
            let sql = "UPDATE jobs SET swept = 1, revival = NULL WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute([id])?;
        }
        Ok(more)
    }

    /// Skips tasks. Those that a refresh has not requested yet are done, as before it.
    fn skip_waiting(&self, job: i64, limit: u32, now: Timestamp) -> rusqlite::Result<usize> {
        // What failed in an earlier refresh has another status.
        let has_page = "bytes IS NOT NULL AND settled_us IS NOT NULL AND coalesce(status, 0) / 100 IN (2, 3)
            AND requests + retries + forgiven + hops = 0";
        let sql = format!(
            "UPDATE tasks SET error = ?3, state = iif({has_page}, 'done', 'skipped'),
            settled_us = iif({has_page}, settled_us, ?4) WHERE id IN (
            SELECT tasks.id FROM lanes JOIN tasks ON tasks.lane_id = lanes.id AND tasks.state = 'waiting'
            WHERE lanes.job_id = ?1 LIMIT ?2) RETURNING state = 'done'"
        );
        let ended = params![job, limit, JOB_ENDED, us(now)];
        let ended: Vec<bool> = self
            .sql
            .prepare_cached(&sql)?
            .query_map(ended, |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let done = ended.iter().filter(|is_done| **is_done).count();
        let sql = "UPDATE jobs SET skipped = skipped + ?2, done = done + ?3 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([job, (ended.len() - done) as i64, done as i64])?;
        self.sql
            .prepare_cached(
                "UPDATE lanes SET due_us = NULL WHERE job_id = ?1 AND holder IS NULL AND due_us IS NOT NULL",
            )?
            .execute([job])?;
        Ok(ended.len())
    }

    fn job_where(
        &self,
        liveness: &Liveness,
        what: &str,
        value: impl rusqlite::ToSql,
    ) -> rusqlite::Result<Option<Job>> {
        let sql = format!("{JOBS} WHERE {what}");
        let job = self.sql.prepare_cached(&sql)?.query_row([value], job_of);
        let job = in_table("jobs", job).optional()?;
        job.map(|job| self.with_activity(liveness, job)).transpose()
    }
}

/// Up to where both have written their rows. A missing size is the earliest: nothing is known about the index then.
fn earlier(one: RowMark, other: RowMark) -> RowMark {
    RowMark {
        settled_before: one.settled_before.min(other.settled_before),
        index_bytes: one.index_bytes.min(other.index_bytes),
    }
}

pub(super) fn job_of(row: &Row<'_>) -> rusqlite::Result<Job> {
    let state: String = row.get(2)?;
    let state = JobState::ALL.into_iter().find(|known| known.as_str() == state).unwrap_or(JobState::Failed);
    let options: String = row.get(3)?;
    let count = |nth| row.get::<_, i64>(nth).map(|count| count.max(0) as u64);
    Ok(Job {
        id: JobId(row.get::<_, i64>(0)? as u64),
        name: row.get(1)?,
        state,
        options: serde_json::from_str(&options).unwrap_or(Value::Null),
        created_at: at(row.get(4)?),
        ended_at: row.get::<_, Option<i64>>(5)?.map(at),
        message: row.get(6)?,
        unread: row.get(13)?,
        being_filled: row.get(14)?,
        worked_on: false,
        abandoned: false,
        pruned: row.get(15)?,
        counts: Counts {
            tasks: count(7)?,
            done: count(8)?,
            failed: count(9)?,
            skipped: count(10)?,
            rate_limited: count(11)?,
            retries: count(12)?,
        },
    })
}

pub(super) const JOBS: &str =
    "SELECT id, name, state, options, created_us, ended_us, message, tasks, done, failed, skipped,
    rate_limited, retries, unread, EXISTS (SELECT 1 FROM fillers WHERE job_id = jobs.id), pruned_us IS NOT NULL FROM jobs";

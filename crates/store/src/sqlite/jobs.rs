//! Named batches of tasks.

use comity_core::task::{JobId, JobState, JobStep};
use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;

use super::holders::{Living, Standing};
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::jobs::{Counts, Filling, Job, JobStore, Removed, Revival, Stepped};
use crate::tasks::{JOB_ENDED, NewTask};

impl JobStore for Sqlite {
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.open_job(&living, &name, &options, now))
    }

    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.make_job(&living, &name, &options, tasks.clone(), now))
    }

    fn find_job(&self, name: String) -> Reply<'_, Option<Job>> {
        let living = self.living.clone();
        self.read(move |tx| tx.job_named(&living, &name))
    }

    fn list_jobs(&self) -> Reply<'_, Vec<Job>> {
        let living = self.living.clone();
        self.read(move |tx| tx.jobs(&living, None, u32::MAX))
    }

    fn page_jobs(&self, older_than: Option<JobId>, limit: u32) -> Reply<'_, Vec<Job>> {
        let living = self.living.clone();
        self.read(move |tx| tx.jobs(&living, older_than, limit))
    }

    fn set_options(&self, job: JobId, options: Value) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "UPDATE jobs SET options = ?2 WHERE id = ?1";
            tx.sql.prepare_cached(sql)?.execute(params![job.0 as i64, options.to_string()]).map(|_| ())
        })
    }

    fn filling(&self, job: JobId, holder: HolderId, filling: Filling, now: Timestamp) -> Reply<'_, ()> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.filling(&living, job, holder, filling, now))
    }

    fn step_job(
        &self,
        job: JobId,
        step: JobStep,
        message: Option<String>,
        now: Timestamp,
    ) -> Reply<'_, Stepped> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.step_job(&living, job, step, message.as_deref(), now))
    }

    fn reopen_job(&self, job: JobId, revival: Revival) -> Reply<'_, Stepped> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.reopen_job(&living, job, &revival))
    }

    fn work_on(
        &self,
        job: JobId,
        holder: HolderId,
        told_at: Timestamp,
        now: Timestamp,
    ) -> Reply<'_, Option<Timestamp>> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.work_on(&living, job, holder, told_at, now))
    }

    fn leave_job(&self, job: JobId, holder: HolderId) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "DELETE FROM workers WHERE job_id = ?1 AND holder = ?2";
            tx.sql.prepare_cached(sql)?.execute([job.0 as i64, holder.0]).map(|_| ())
        })
    }

    fn remove_job(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, Removed> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.remove_job(&living, job, limit, now))
    }

    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.sweep(job, limit, now))
    }
}

impl Tx<'_> {
    pub(super) fn open_job(
        &self,
        living: &Living,
        name: &str,
        options: &Value,
        now: Timestamp,
    ) -> rusqlite::Result<(Job, bool)> {
        // The number of one that was removed is not given out again: others may remember it.
        let sql = "INSERT INTO jobs (id, name, state, options, created_us) VALUES (
            1 + max(coalesce((SELECT max(id) FROM jobs), 0), (SELECT removed_job FROM identity)), ?1, 'running', ?2, ?3)
            ON CONFLICT (name) DO NOTHING";
        let made = self.sql.prepare_cached(sql)?.execute(params![name, options.to_string(), us(now)])? == 1;
        let job = self.job_where(living, "name = ?1", name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        Ok((job, made))
    }

    pub(super) fn make_job(
        &mut self,
        living: &Living,
        name: &str,
        options: &Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Job>> {
        let (job, made) = self.open_job(living, name, options, now)?;
        if !made {
            return Ok(None);
        }
        self.enqueue(job.id, tasks, now)?;
        self.job(living, job.id)
    }

    pub(super) fn job_named(&self, living: &Living, name: &str) -> rusqlite::Result<Option<Job>> {
        self.job_where(living, "name = ?1", name)
    }

    pub(super) fn job(&self, living: &Living, job: JobId) -> rusqlite::Result<Option<Job>> {
        self.job_where(living, "id = ?1", job.0 as i64)
    }

    pub(super) fn jobs(
        &self,
        living: &Living,
        older_than: Option<JobId>,
        limit: u32,
    ) -> rusqlite::Result<Vec<Job>> {
        let sql = format!("{JOBS} WHERE id < ?1 ORDER BY id DESC LIMIT ?2");
        let before = older_than.map_or(i64::MAX, |job| job.0 as i64);
        let jobs = self.readable("jobs", &sql, params![before, limit], job_of)?;
        jobs.into_iter().map(|job| self.attended(living, job)).collect()
    }

    /// The same job, with who is at it.
    fn attended(&self, living: &Living, job: Job) -> rusqlite::Result<Job> {
        let (worked_on, deserted) = self.attendance(living, job.id)?;
        Ok(Job { worked_on, deserted, ..job })
    }

    /// Whether somebody alive works on a job or reads a list into it, and whether somebody died who worked on it.
    pub(super) fn attendance(&self, living: &Living, job: JobId) -> rusqlite::Result<(bool, bool)> {
        let sql = "SELECT holder, 1 FROM workers WHERE job_id = ?1
            UNION ALL SELECT holder, 0 FROM fillers WHERE job_id = ?1";
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query([job.0 as i64])?;
        let (mut worked_on, mut deserted) = (false, false);
        while let Some(row) = rows.next()? {
            match self.seems_alive(living, row.get(0)?)? {
                true => worked_on = true,
                false => deserted |= row.get::<_, bool>(1)?,
            }
        }
        Ok((worked_on, deserted))
    }

    /// Notes who works on a job. From when on rows of others may be missing, who died meanwhile.
    fn work_on(
        &mut self,
        living: &Living,
        job: JobId,
        holder: HolderId,
        told_at: Timestamp,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Timestamp>> {
        let id = job.0 as i64;
        let others: Vec<(i64, i64)> = self
            .sql
            .prepare_cached("SELECT holder, told_us FROM workers WHERE job_id = ?1 AND holder <> ?2")?
            .query_map([id, holder.0], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut missing = None;
        for (other, told) in others {
            if self.look_at(living, other, now)? != Standing::Lives {
                missing = Some(missing.map_or(told, |missing: i64| missing.min(told)));
                let sql = "DELETE FROM workers WHERE job_id = ?1 AND holder = ?2";
                self.sql.prepare_cached(sql)?.execute([id, other])?;
            }
        }
        // Whoever dies while it writes the rows of another leaves them to the next.
        let told = missing.map_or(us(told_at), |missing| missing.min(us(told_at)));
        let sql = "INSERT INTO workers (job_id, holder, told_us) VALUES (?1, ?2, ?3)
            ON CONFLICT DO UPDATE SET told_us = excluded.told_us";
        self.sql.prepare_cached(sql)?.execute([id, holder.0, told])?;
        Ok(missing.map(at))
    }

    /// Takes a step if it is legal where the job is.
    pub(super) fn step_job(
        &mut self,
        living: &Living,
        job: JobId,
        step: JobStep,
        message: Option<&str>,
        now: Timestamp,
    ) -> rusqlite::Result<Stepped> {
        let Some(found) = self.job(living, job)? else { return Ok(Stepped::Missing) };
        let Ok(state) = found.state.after(step) else { return Ok(Stepped::No(found)) };
        if step == JobStep::Reopen {
            return self.reopen_job(living, job, &Revival::default());
        }
        let filled = self.is_filled(living, job, now)?;
        let unfinished = filled || found.counts.waiting() > 0 || found.unread || !self.is_swept(job)?;
        if step == JobStep::Finish && unfinished {
            // Asked again: who is found dead reads no list any more.
            return Ok(Stepped::No(self.job(living, job)?.unwrap_or(found)));
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
        Ok(self.job(living, job)?.map_or(Stepped::Missing, Stepped::Yes))
    }

    /// Whether its tasks are in line with its state.
    fn is_swept(&self, job: JobId) -> rusqlite::Result<bool> {
        self.sql.prepare_cached("SELECT 1 FROM jobs WHERE id = ?1 AND swept")?.exists([job.0 as i64])
    }

    /// Notes how the reading of a list goes.
    pub(super) fn filling(
        &mut self,
        living: &Living,
        job: JobId,
        holder: HolderId,
        filling: Filling,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let (id, me) = (job.0 as i64, holder.0);
        if filling == Filling::Begun {
            let sql = "INSERT OR IGNORE INTO fillers (job_id, holder) VALUES (?1, ?2)";
            self.sql.prepare_cached(sql)?.execute([id, me])?;
            self.sql.prepare_cached("UPDATE jobs SET unread = 1 WHERE id = ?1")?.execute([id])?;
            return Ok(());
        }
        let sql = "DELETE FROM fillers WHERE job_id = ?1 AND holder = ?2";
        self.sql.prepare_cached(sql)?.execute([id, me])?;
        if filling == Filling::Ended && !self.is_filled(living, job, now)? {
            self.sql.prepare_cached("UPDATE jobs SET unread = 0 WHERE id = ?1")?.execute([id])?;
        }
        Ok(())
    }

    /// Whether somebody alive adds tasks to the job. The dead are struck off.
    fn is_filled(&mut self, living: &Living, job: JobId, now: Timestamp) -> rusqlite::Result<bool> {
        let id = job.0 as i64;
        let holders: Vec<i64> = self
            .sql
            .prepare_cached("SELECT holder FROM fillers WHERE job_id = ?1")?
            .query_map([id], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut filled = false;
        for holder in holders {
            if self.look_at(living, holder, now)? == Standing::Lives {
                filled = true;
            } else {
                let sql = "DELETE FROM fillers WHERE job_id = ?1 AND holder = ?2";
                self.sql.prepare_cached(sql)?.execute([id, holder])?;
            }
        }
        Ok(filled)
    }

    /// Brings the tasks of a job in line with its state, a part at a time.
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

    fn skip_waiting(&self, job: i64, limit: u32, now: Timestamp) -> rusqlite::Result<usize> {
        let sql = "UPDATE tasks SET state = 'skipped', error = ?3, settled_us = ?4 WHERE id IN (
            SELECT tasks.id FROM lanes JOIN tasks ON tasks.lane_id = lanes.id AND tasks.state = 'waiting'
            WHERE lanes.job_id = ?1 LIMIT ?2)";
        let skipped = self.sql.prepare_cached(sql)?.execute(params![job, limit, JOB_ENDED, us(now)])?;
        let sql = "UPDATE jobs SET skipped = skipped + ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![job, skipped as i64])?;
        self.sql
            .prepare_cached(
                "UPDATE lanes SET due_us = NULL WHERE job_id = ?1 AND holder IS NULL AND due_us IS NOT NULL",
            )?
            .execute([job])?;
        Ok(skipped)
    }

    fn job_where(
        &self,
        living: &Living,
        what: &str,
        value: impl rusqlite::ToSql,
    ) -> rusqlite::Result<Option<Job>> {
        let sql = format!("{JOBS} WHERE {what}");
        let job = self.sql.prepare_cached(&sql)?.query_row([value], job_of).optional()?;
        job.map(|job| self.attended(living, job)).transpose()
    }
}

fn job_of(row: &Row<'_>) -> rusqlite::Result<Job> {
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
        filled: row.get(14)?,
        worked_on: false,
        deserted: false,
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

const JOBS: &str =
    "SELECT id, name, state, options, created_us, ended_us, message, tasks, done, failed, skipped,
    rate_limited, retries, unread, EXISTS (SELECT 1 FROM fillers WHERE job_id = jobs.id) FROM jobs";

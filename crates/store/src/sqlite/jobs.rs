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
use crate::jobs::{Counts, Filling, Job, JobStore, Stepped};
use crate::tasks::{GAVE_UP, JOB_ENDED, NewTask};

impl JobStore for Sqlite {
    fn open_job(&self, name: String, options: Value, now: Timestamp) -> Reply<'_, (Job, bool)> {
        self.writer.run(move |tx| tx.open_job(&name, &options, now))
    }

    fn make_job(
        &self,
        name: String,
        options: Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Reply<'_, Option<Job>> {
        self.writer.run(move |tx| tx.make_job(&name, &options, tasks.clone(), now))
    }

    fn find_job(&self, name: String) -> Reply<'_, Option<Job>> {
        self.read(move |tx| tx.job_named(&name))
    }

    fn list_jobs(&self) -> Reply<'_, Vec<Job>> {
        self.read(|tx| tx.jobs())
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

    fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.sweep(job, limit, now))
    }
}

impl Tx<'_> {
    pub(super) fn open_job(
        &self,
        name: &str,
        options: &Value,
        now: Timestamp,
    ) -> rusqlite::Result<(Job, bool)> {
        let sql = "INSERT INTO jobs (name, state, options, created_us) VALUES (?1, 'running', ?2, ?3)
            ON CONFLICT (name) DO NOTHING";
        let made = self.sql.prepare_cached(sql)?.execute(params![name, options.to_string(), us(now)])? == 1;
        let job = self.job_where("name = ?1", name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        Ok((job, made))
    }

    pub(super) fn make_job(
        &mut self,
        name: &str,
        options: &Value,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Job>> {
        let (job, made) = self.open_job(name, options, now)?;
        if !made {
            return Ok(None);
        }
        self.enqueue(job.id, tasks, now)?;
        self.job(job.id)
    }

    pub(super) fn job_named(&self, name: &str) -> rusqlite::Result<Option<Job>> {
        self.job_where("name = ?1", name)
    }

    pub(super) fn job(&self, job: JobId) -> rusqlite::Result<Option<Job>> {
        self.job_where("id = ?1", job.0 as i64)
    }

    pub(super) fn jobs(&self) -> rusqlite::Result<Vec<Job>> {
        let sql = format!("{JOBS} ORDER BY id DESC");
        self.readable("jobs", &sql, [], job_of)
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
        let Some(found) = self.job(job)? else { return Ok(Stepped::Missing) };
        let Ok(state) = found.state.after(step) else { return Ok(Stepped::No(found)) };
        let filled = self.is_filled(living, job, now)?;
        let unfinished = filled || found.counts.waiting() > 0 || found.unread || !self.is_swept(job)?;
        if step == JobStep::Finish && unfinished {
            // Asked again: who is found dead reads no list any more.
            return Ok(Stepped::No(self.job(job)?.unwrap_or(found)));
        }
        if step == JobStep::Reopen {
            let sql = "UPDATE lanes SET given_up = NULL WHERE job_id = ?1 AND given_up IS NOT NULL";
            self.sql.prepare_cached(sql)?.execute([job.0 as i64])?;
        }
        let ended = state.is_terminal().then_some(us(now));
        let sql = "UPDATE jobs SET state = ?2, ended_us = ?3, message = ?4, swept = ?5 WHERE id = ?1";
        let swept = step == JobStep::Finish;
        self.sql.prepare_cached(sql)?.execute(params![
            job.0 as i64,
            state.as_str(),
            ended,
            message,
            swept
        ])?;
        Ok(self.job(job)?.map_or(Stepped::Missing, Stepped::Yes))
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
    pub(super) fn sweep(&self, job: JobId, limit: u32, now: Timestamp) -> rusqlite::Result<bool> {
        let id = job.0 as i64;
        let sql = "SELECT state, swept FROM jobs WHERE id = ?1";
        let row = self.sql.prepare_cached(sql)?.query_row([id], |row| {
            Ok((row.get::<_, String>(0)? == JobState::Running.as_str(), row.get::<_, bool>(1)?))
        });
        let changed = match row.optional()? {
            None | Some((_, true)) => return Ok(false),
            Some((true, false)) => self.revive(id, limit, now)?,
            Some((false, false)) => self.skip_waiting(id, limit, now)?,
        };
        let more = changed == limit as usize && limit > 0;
        if !more {
            self.sql.prepare_cached("UPDATE jobs SET swept = 1 WHERE id = ?1")?.execute([id])?;
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

    /// Those that failed, or were skipped because the job ended or gave their domain up, wait again; what robots.txt
    /// forbids stays so.
    fn revive(&self, job: i64, limit: u32, now: Timestamp) -> rusqlite::Result<usize> {
        let mut revived = 0;
        let gave_up = format!("{GAVE_UP}*");
        for (state, only) in [("failed", "*"), ("skipped", JOB_ENDED), ("skipped", &gave_up)] {
            let sql =
                "UPDATE tasks SET state = 'waiting', retries = 0, forgiven = 0, hops = 0, at_url = NULL, ready_us = ?4,
                lane_id = coalesce(home_lane_id, lane_id), home_lane_id = NULL
                WHERE id IN (SELECT id FROM tasks WHERE job_id = ?1 AND state = ?2
                    AND state IN ('failed', 'skipped') AND coalesce(error, '') GLOB ?5 LIMIT ?3)";
            let left = limit - revived as u32;
            let changed = self.sql.prepare_cached(sql)?.execute(params![job, state, left, us(now), only])?;
            let sql = format!("UPDATE jobs SET {state} = {state} - ?2 WHERE id = ?1");
            self.sql.prepare_cached(&sql)?.execute(params![job, changed as i64])?;
            revived += changed;
        }
        let sql = "UPDATE lanes SET due_us = ?2 WHERE job_id = ?1 AND holder IS NULL AND due_us IS NULL";
        self.sql.prepare_cached(sql)?.execute(params![job, us(now)])?;
        Ok(revived)
    }

    fn job_where(&self, what: &str, value: impl rusqlite::ToSql) -> rusqlite::Result<Option<Job>> {
        let sql = format!("{JOBS} WHERE {what}");
        self.sql.prepare_cached(&sql)?.query_row([value], job_of).optional()
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

//! Tasks that no claim returns, because a row was damaged: its state is no state, or its lane or domain is gone. Their job
//! would wait for them for ever.

use comity_core::task::JobId;
use comity_core::time::Timestamp;
use rusqlite::params;

use super::us;
use super::writer::Tx;

impl Tx<'_> {
    pub(super) fn set_aside_stranded(&mut self, job: JobId, now: Timestamp) -> rusqlite::Result<u64> {
        let job = job.0 as i64;
        let sql = "SELECT 1 FROM jobs WHERE id = ?1 AND state = 'running' AND tasks > done + failed + skipped
            AND NOT EXISTS (SELECT 1 FROM fillers WHERE job_id = jobs.id)
            AND NOT EXISTS (SELECT 1 FROM lanes WHERE job_id = jobs.id AND (holder IS NOT NULL OR due_us IS NOT NULL))";
        if !self.sql.prepare_cached(sql)?.exists([job])? {
            return Ok(0);
        }
        let sql = "UPDATE lanes SET due_us = ?2 WHERE job_id = ?1
            AND EXISTS (SELECT 1 FROM tasks WHERE lane_id = lanes.id AND state = 'waiting')";
        let forgotten = self.sql.prepare_cached(sql)?.execute(params![job, us(now)])?;
        if forgotten > 0 {
            return Ok(forgotten as u64);
        }
        let sql = "UPDATE tasks SET state = 'failed', error = ?2, settled_us = ?3 WHERE id IN (
                SELECT id FROM tasks WHERE job_id = ?1 AND state NOT IN ('done', 'failed', 'skipped') LIMIT ?4)
            RETURNING id";
        let mut statement = self.sql.prepare_cached(sql)?;
        let set_aside = statement.query_map(params![job, UNREADABLE, us(now), PART], |row| row.get(0))?;
        let set_aside = set_aside.collect::<rusqlite::Result<Vec<i64>>>()?;
        set_aside.iter().for_each(|task| self.cache.reported.report("tasks", task.to_string(), UNREADABLE));
        let sql = match set_aside.is_empty() {
            // Nothing is left, so the counts are wrong.
            true => "UPDATE jobs SET tasks = done + failed + skipped + ?2 WHERE id = ?1",
            false => "UPDATE jobs SET failed = failed + ?2 WHERE id = ?1",
        };
        self.sql.prepare_cached(sql)?.execute(params![job, set_aside.len() as i64])?;
        Ok(set_aside.len().max(1) as u64)
    }
}

const UNREADABLE: &str = "its row in the store cannot be read";
/// The maximum number of tasks that are set aside in one transaction.
const PART: i64 = 1_000;

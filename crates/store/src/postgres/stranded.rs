//! Tasks that no claim returns, because a row was damaged: its state is no state, or its lane or domain is gone. Their job
//! would wait for them for ever.

use comity_core::task::JobId;
use comity_core::time::Timestamp;

use super::failure::Result;
use super::tx::Tx;
use super::us;

impl Tx<'_> {
    pub(super) fn set_aside_stranded(&mut self, job: JobId, now: Timestamp) -> Result<u64> {
        let job = job.0 as i64;
        // Nobody adds or settles tasks meanwhile, so what follows sees all of them.
        let sql = "SELECT 1 FROM job WHERE id = $1 AND state = 'running' AND tasks > done + failed + skipped FOR UPDATE";
        if !self.exists(sql, &[&job])? {
            return Ok(0);
        }
        let sql = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM filler JOIN holder ON holder.id = filler.holder
                WHERE job_id = $1 AND holder.died_us IS NULL)
            AND NOT EXISTS (SELECT 1 FROM lane WHERE job_id = $1 AND (holder IS NOT NULL OR due_us IS NOT NULL))";
        if !self.exists(sql, &[&job])? {
            return Ok(0);
        }
        let sql = "UPDATE lane SET due_us = $2 WHERE job_id = $1
            AND EXISTS (SELECT 1 FROM task WHERE lane_id = lane.id AND state = 'waiting')";
        let forgotten = self.change(sql, &[&job, &us(now)])?;
        if forgotten > 0 {
            return Ok(forgotten);
        }
        let sql = "UPDATE task SET state = 'failed', error = $2, settled_us = $3 WHERE id IN (
                SELECT id FROM task WHERE job_id = $1 AND state NOT IN ('done', 'failed', 'skipped') ORDER BY id LIMIT $4)
            RETURNING id";
        let set_aside = self.change_rows(sql, &[&job, &UNREADABLE, &us(now), &PART])?;
        for row in &set_aside {
            let key: i64 = row.get(0);
            tracing::warn!(table = "task", key, why = UNREADABLE, "skipped a row of the store");
        }
        let sql = match set_aside.is_empty() {
            // Nothing is left, so the counts are wrong.
            true => "UPDATE job SET tasks = done + failed + skipped + $2 WHERE id = $1",
            false => "UPDATE job SET failed = failed + $2 WHERE id = $1",
        };
        self.change(sql, &[&job, &(set_aside.len() as i64)])?;
        Ok(set_aside.len().max(1) as u64)
    }
}

const UNREADABLE: &str = "its row in the store cannot be read";
/// The maximum number of tasks that are set aside in one transaction.
const PART: i64 = 1_000;

//! Deletes old rows, a few per transaction. Domains are in `idle_domains`.

use comity_core::time::Timestamp;

use super::failure::Result;
use super::{Postgres, Tx, us};
use crate::Reply;
use crate::retention::{PruneFrom, Pruned, RetentionStore};

impl RetentionStore for Postgres {
    fn prune(
        &self,
        from: PruneFrom,
        before: Timestamp,
        limit: u32,
    ) -> Reply<'_, (Pruned, Option<PruneFrom>)> {
        self.write(move |tx| match from {
            PruneFrom::Jobs => tx.prune_a_job(before, limit),
            PruneFrom::Scrapes(after) => {
                let (scrapes, next) = tx.prune_log(&SCRAPES, after, before, limit)?;
                let pruned = Pruned { scrapes, ..Pruned::default() };
                Ok((pruned, Some(next.map_or(PruneFrom::Fetches(0), PruneFrom::Scrapes))))
            }
            PruneFrom::Fetches(after) => {
                let (fetches, next) = tx.prune_log(&FETCHES, after, before, limit)?;
                Ok((
                    Pruned { fetches, ..Pruned::default() },
                    Some(next.map_or(PruneFrom::Audit(0), PruneFrom::Fetches)),
                ))
            }
            PruneFrom::Audit(after) => {
                let (changes, next) = tx.prune_log(&AUDIT, after, before, limit)?;
                Ok((Pruned { changes, ..Pruned::default() }, next.map(PruneFrom::Audit)))
            }
        })
    }

    fn count_prunable(&self, before: Timestamp) -> Reply<'_, Pruned> {
        self.read(move |tx| tx.count_prunable(before))
    }
}

/// A log. Of some, the last row per source stays.
struct Log {
    table: &'static str,
    /// The column with the time of a row.
    time: &'static str,
    /// The condition under which a row may be deleted, apart from its age.
    over: &'static str,
}

const SCRAPES: Log = Log {
    table: "scrape_log",
    time: "started_us",
    over: "ended_us IS NOT NULL AND started_us <
        (SELECT max(started_us) FROM scrape_log AS latest WHERE latest.source_id = scrape_log.source_id)",
};
const FETCHES: Log = Log {
    table: "fetch_run",
    time: "started_us",
    over: "id < (SELECT max(id) FROM fetch_run AS latest WHERE latest.source_id = fetch_run.source_id)",
};
const AUDIT: Log = Log { table: "audit_entry", time: "at_us", over: "true" };

impl Tx<'_> {
    /// Deletes some tasks of one job that ended, or its lanes once it has no tasks left.
    fn prune_a_job(&mut self, before: Timestamp, limit: u32) -> Result<(Pruned, Option<PruneFrom>)> {
        let sql = format!("SELECT id FROM job WHERE {ENDED} ORDER BY id LIMIT 1");
        let Some(row) = self.row(&sql, &[&us(before)])? else {
            return Ok((Pruned::default(), Some(PruneFrom::Scrapes(0))));
        };
        let job: i64 = row.get(0);
        // It may have been reopened, or pruned by another process, meanwhile. Nobody adds tasks from here on.
        let sql = format!("SELECT 1 FROM job WHERE {ENDED} AND id = $2 FOR UPDATE");
        if !self.exists(&sql, &[&us(before), &job])? {
            return Ok((Pruned::default(), Some(PruneFrom::Jobs)));
        }
        let mut pruned = self.prune_tasks(job, limit)?;
        if pruned.tasks < u64::from(limit) && self.prune_lanes(job, limit)? < u64::from(limit) {
            self.change("UPDATE job SET pruned_us = ended_us WHERE id = $1", &[&job])?;
            pruned.jobs = 1;
        } else if pruned.tasks > 0 {
            // Before its end, whenever that was: it is looked at again for the rest.
            self.change("UPDATE job SET pruned_us = coalesce(pruned_us, -1) WHERE id = $1", &[&job])?;
        }
        Ok((pruned, Some(PruneFrom::Jobs)))
    }

    /// Deletes tasks of a job, and counts them and their attempts.
    fn prune_tasks(&mut self, job: i64, limit: u32) -> Result<Pruned> {
        let sql = "WITH batch AS MATERIALIZED (
                SELECT id, requests, last_us FROM task WHERE job_id = $1 ORDER BY id LIMIT $2),
            logged AS (DELETE FROM logged_attempt USING batch WHERE task_id = batch.id RETURNING task_id, started_us),
            gone AS (DELETE FROM task USING batch WHERE task.id = batch.id RETURNING task.id)
            SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM logged) + (SELECT count(*) FROM batch
                WHERE requests = 1 AND last_us IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM logged WHERE task_id = batch.id AND started_us = batch.last_us))";
        let rows = self.change_rows(sql, &[&job, &i64::from(limit)])?;
        let count = |nth: usize| rows.first().map_or(0, |row| row.get::<_, i64>(nth).max(0) as u64);
        Ok(Pruned { tasks: count(0), attempts: count(1), ..Pruned::default() })
    }

    /// Deletes lanes of a job without tasks, because a lane keeps its domain from being deleted.
    fn prune_lanes(&mut self, job: i64, limit: u32) -> Result<u64> {
        let sql =
            "DELETE FROM lane WHERE id = ANY (ARRAY(SELECT id FROM lane WHERE job_id = $1 AND holder IS NULL
                AND NOT EXISTS (SELECT 1 FROM task WHERE job_id = $1) ORDER BY id LIMIT $2))
            AND holder IS NULL";
        self.change(sql, &[&job, &i64::from(limit)])
    }

    /// Deletes old rows of a log. Ids increase with time, so it stops where rows are recent.
    fn prune_log(
        &mut self,
        log: &Log,
        after: i64,
        before: Timestamp,
        limit: u32,
    ) -> Result<(u64, Option<i64>)> {
        let Log { table, time, over } = log;
        let sql = format!(
            "SELECT max(id), count(*), count(*) FILTER (WHERE {time} < $3) FROM
            (SELECT id, {time} FROM {table} WHERE id > $1 ORDER BY id LIMIT $2) AS batch"
        );
        let row = self.one(&sql, &[&after, &i64::from(limit), &us(before)])?;
        let (Some(last), count, old): (Option<i64>, i64, i64) = (row.get(0), row.get(1), row.get(2)) else {
            return Ok((0, None));
        };
        let sql = format!("DELETE FROM {table} WHERE id > $1 AND id <= $2 AND {time} < $3 AND {over}");
        let gone = if old > 0 { self.change(&sql, &[&after, &last, &us(before)])? } else { 0 };
        Ok((gone, (count == i64::from(limit) && old > 0).then_some(last)))
    }

    fn count_prunable(&mut self, before: Timestamp) -> Result<Pruned> {
        let before = us(before);
        let mut count = |sql: &str| -> Result<u64> {
            let row = self.one(&format!("SELECT count(*) FROM {sql}"), &[&before])?;
            Ok(row.get::<_, i64>(0).max(0) as u64)
        };
        let tasks = format!("task WHERE job_id IN (SELECT id FROM job WHERE {ENDED})");
        let log = |log: &Log| format!("{} WHERE {} < $1 AND {}", log.table, log.time, log.over);
        Ok(Pruned {
            jobs: count(&format!("job WHERE {ENDED}"))?,
            tasks: count(&tasks)?,
            attempts: count(&format!("attempts WHERE task_id IN (SELECT id FROM {tasks})"))?,
            scrapes: count(&log(&SCRAPES))?,
            fetches: count(&log(&FETCHES))?,
            changes: count(&log(&AUDIT))?,
        })
    }
}

/// The condition for a job that ended before $1 and was not pruned since. Excludes jobs that are running or stopped, or
/// that still have tasks to skip.
const ENDED: &str =
    "state <> 'running' AND swept AND ended_us < $1 AND (pruned_us IS NULL OR pruned_us < ended_us)";

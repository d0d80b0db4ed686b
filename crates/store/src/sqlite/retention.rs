//! Deletes old rows, a few per transaction. Domains are in `idle_domains`.

use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::writer::Tx;
use super::{Sqlite, us};
use crate::Reply;
use crate::retention::{PruneFrom, Pruned, RetentionStore};

impl RetentionStore for Sqlite {
    fn prune(
        &self,
        from: PruneFrom,
        before: Timestamp,
        limit: u32,
    ) -> Reply<'_, (Pruned, Option<PruneFrom>)> {
        self.writer.run(move |tx| match from {
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
    table: "scrape_logs",
    time: "started_us",
    over: "ended_us IS NOT NULL AND started_us <
        (SELECT max(started_us) FROM scrape_logs AS latest WHERE latest.source_id = scrape_logs.source_id)",
};
const FETCHES: Log = Log {
    table: "fetch_runs",
    time: "started_us",
    over: "id < (SELECT max(id) FROM fetch_runs AS latest WHERE latest.source_id = fetch_runs.source_id)",
};
const AUDIT: Log = Log { table: "audit", time: "at_us", over: "1" };

impl Tx<'_> {
    /// Deletes some tasks of one job that ended, or its lanes once it has no tasks left.
    fn prune_a_job(
        &mut self,
        before: Timestamp,
        limit: u32,
    ) -> rusqlite::Result<(Pruned, Option<PruneFrom>)> {
        let sql = format!("SELECT id FROM jobs WHERE {ENDED} ORDER BY id LIMIT 1");
        let job = self.sql.prepare_cached(&sql)?.query_row([us(before)], |row| row.get(0)).optional()?;
        let Some(job): Option<i64> = job else { return Ok((Pruned::default(), Some(PruneFrom::Scrapes(0)))) };
        let mut pruned = Pruned::default();
        self.note_used_ids()?;
        let tasks: Vec<i64> = self
            .sql
            .prepare_cached("SELECT id FROM tasks WHERE job_id = ?1 LIMIT ?2")?
            .query_map(params![job, limit], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut attempts = self.sql.prepare_cached("SELECT count(*) FROM attempts WHERE task_id = ?1")?;
        let mut forget = self.sql.prepare_cached("DELETE FROM logged_attempts WHERE task_id = ?1")?;
        let mut delete = self.sql.prepare_cached("DELETE FROM tasks WHERE id = ?1")?;
        for task in tasks {
            pruned.attempts += attempts.query_row([task], |row| row.get::<_, i64>(0))? as u64;
            forget.execute([task])?;
            pruned.tasks += delete.execute([task])? as u64;
        }
        drop((attempts, forget, delete));
        if pruned.tasks > 0 {
            // Before its end, whenever that was: it is looked at again for the rest.
            let sql = "UPDATE jobs SET pruned_us = coalesce(pruned_us, -1) WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute([job])?;
        }
        if pruned.tasks < u64::from(limit) && self.prune_lanes(job, limit)? < u64::from(limit) {
            let sql = "UPDATE jobs SET pruned_us = ended_us WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute([job])?;
            pruned.jobs = 1;
        }
        Ok((pruned, Some(PruneFrom::Jobs)))
    }

    /// Drops deleted tasks from the counts of a job that gets new ones: a URL that is added again must not count twice.
    /// `new` tasks were inserted and are not counted yet.
    pub(super) fn forget_pruned(&self, job: i64, new: u64) -> rusqlite::Result<()> {
        let sql = "SELECT 1 FROM jobs WHERE id = ?1 AND pruned_us IS NOT NULL";
        if !self.sql.prepare_cached(sql)?.exists([job])? {
            return Ok(());
        }
        let sql = "UPDATE jobs SET pruned_us = NULL, tasks = left.tasks - ?2, done = left.done, failed = left.failed,
            skipped = left.skipped, rate_limited = iif(left.tasks > ?2, rate_limited, 0),
            retries = iif(left.tasks > ?2, retries, 0)
            FROM (SELECT count(*) AS tasks, coalesce(sum(state = 'done'), 0) AS done,
                coalesce(sum(state = 'failed'), 0) AS failed, coalesce(sum(state = 'skipped'), 0) AS skipped
                FROM tasks WHERE job_id = ?1) AS left WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![job, new as i64])?;
        Ok(())
    }

    /// Deletes lanes without tasks, because a lane keeps its domain from being deleted.
    fn prune_lanes(&mut self, job: i64, limit: u32) -> rusqlite::Result<u64> {
        let sql = "DELETE FROM lanes WHERE id IN (SELECT id FROM lanes WHERE job_id = ?1 AND holder IS NULL
            AND id NOT IN (SELECT lane_id FROM tasks WHERE job_id = ?1)
            AND id NOT IN (SELECT home_lane_id FROM tasks WHERE job_id = ?1 AND home_lane_id IS NOT NULL) LIMIT ?2)";
        let gone = self.sql.prepare_cached(sql)?.execute(params![job, limit])? as u64;
        if gone > 0 {
            // Other processes cache ids too.
            self.sql.prepare_cached("UPDATE identity SET forgotten = forgotten + 1")?.execute([])?;
            self.cache.lane_ids.clear();
        }
        Ok(gone)
    }

    /// Deletes old rows of a log. Ids increase with time, so it stops where rows are recent.
    fn prune_log(
        &self,
        log: &Log,
        after: i64,
        before: Timestamp,
        limit: u32,
    ) -> rusqlite::Result<(u64, Option<i64>)> {
        let Log { table, time, over } = log;
        let sql = format!(
            "SELECT max(id), count(*), sum({time} < ?3) FROM
            (SELECT id, {time} FROM {table} WHERE id > ?1 ORDER BY id LIMIT ?2)"
        );
        let seen = self.sql.prepare_cached(&sql)?.query_row(params![after, limit, us(before)], |row| {
            Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?))
        })?;
        let (Some(last), count, old) = seen else { return Ok((0, None)) };
        let sql = format!("DELETE FROM {table} WHERE id > ?1 AND id <= ?2 AND {time} < ?3 AND {over}");
        let gone = self.sql.prepare_cached(&sql)?.execute(params![after, last, us(before)])?;
        let more = count == i64::from(limit) && old.is_some_and(|old| old > 0);
        Ok((gone as u64, more.then_some(last)))
    }

    fn count_prunable(&self, before: Timestamp) -> rusqlite::Result<Pruned> {
        let count = |sql: &str| -> rusqlite::Result<u64> {
            let count: i64 = self.sql.prepare_cached(sql)?.query_row([us(before)], |row| row.get(0))?;
            Ok(count.max(0) as u64)
        };
        let jobs = format!("SELECT id FROM jobs WHERE {ENDED}");
        let tasks = format!("FROM tasks WHERE job_id IN ({jobs})");
        let log = |log: &Log| {
            let Log { table, time, over } = log;
            count(&format!("SELECT count(*) FROM {table} WHERE {time} < ?1 AND {over}"))
        };
        Ok(Pruned {
            jobs: count(&format!("SELECT count(*) FROM jobs WHERE {ENDED}"))?,
            tasks: count(&format!("SELECT count(*) {tasks}"))?,
            attempts: count(&format!("SELECT count(*) FROM attempts WHERE task_id IN (SELECT id {tasks})"))?,
            scrapes: log(&SCRAPES)?,
            fetches: log(&FETCHES)?,
            changes: log(&AUDIT)?,
        })
    }
}

/// The condition for a job that ended before ?1 and was not pruned since. Excludes jobs that are running or stopped, or
/// that still have tasks to skip.
const ENDED: &str =
    "state <> 'running' AND swept AND ended_us < ?1 AND (pruned_us IS NULL OR pruned_us < ended_us)";

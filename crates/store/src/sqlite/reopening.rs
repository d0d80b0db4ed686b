//! Jobs that are reopened, with those of their tasks that wait again, and jobs that are removed.

use comity_core::task::{JobId, JobState};
use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};
use serde_json::{Value, json};

use super::holders::Living;
use super::writer::Tx;
use super::{at, us};
use crate::jobs::{Removed, Revival, Stepped, Trouble};
use crate::tasks::{GAVE_UP, JOB_ENDED};

impl Tx<'_> {
    pub(super) fn reopen_job(
        &mut self,
        living: &Living,
        job: JobId,
        revival: &Revival,
    ) -> rusqlite::Result<Stepped> {
        let Some(found) = self.job(living, job)? else { return Ok(Stepped::Missing) };
        let refreshes = revival.done_before.is_some();
        if found.state == JobState::Running && !refreshes {
            return Ok(Stepped::No(found));
        }
        if !refreshes && (revival.matching.is_some() || !revival.troubles.is_empty()) {
            let wanted: Vec<String> = revival.troubles.iter().map(word).collect();
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            if !self.has_troubles(job, &wanted, revival.matching.as_deref())? {
                return Ok(Stepped::No(found));
            }
        }
        // Where an earlier revival is not swept yet, both are: whatever either names waits again.
        let earlier = self.revival(job)?;
        if !refreshes {
            let sql = "UPDATE lanes SET given_up = NULL WHERE job_id = ?1 AND given_up IS NOT NULL";
            self.sql.prepare_cached(sql)?.execute([job.0 as i64])?;
        }
        let wanted = json!({
            "troubles": revival.troubles.iter().map(word).collect::<Vec<_>>(),
            "matching": revival.matching,
            "done_before": revival.done_before.map(us),
            "then": earlier,
        });
        let sql =
            "UPDATE jobs SET state = 'running', ended_us = NULL, message = NULL, swept = 0, revival = ?2
            WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![job.0 as i64, wanted.to_string()])?;
        Ok(self.job(living, job)?.map_or(Stepped::Missing, Stepped::Yes))
    }

    /// What waits again of a job that is running and not swept.
    fn revival(&self, job: JobId) -> rusqlite::Result<Option<Value>> {
        let sql = "SELECT revival FROM jobs WHERE id = ?1 AND NOT swept AND state = 'running'";
        let found = self.sql.prepare_cached(sql)?.query_row([job.0 as i64], |row| row.get(0)).optional()?;
        Ok(found.flatten().and_then(|text: String| serde_json::from_str(&text).ok()))
    }

    /// Brings tasks back to waiting; how many, at most `limit`. Fewer are the last.
    pub(super) fn revive(&mut self, job: JobId, limit: u32, now: Timestamp) -> rusqlite::Result<usize> {
        let revival = self.revival(job)?.unwrap_or(Value::Null);
        let mut revived = match revival["done_before"].as_i64() {
            Some(before) => self.revive_done(job, at(before), &revival, limit, now)?,
            None => self.revive_troubles(job, &revival, limit, now)?,
        };
        if revived < limit as usize && !revival["then"].is_null() {
            let sql = "UPDATE jobs SET revival = ?2 WHERE id = ?1";
            let row = params![job.0 as i64, revival["then"].to_string()];
            self.sql.prepare_cached(sql)?.execute(row)?;
            revived = limit as usize;
        }
        let sql = "UPDATE lanes SET due_us = ?2 WHERE job_id = ?1 AND holder IS NULL AND due_us IS NULL";
        self.sql.prepare_cached(sql)?.execute(params![job.0 as i64, us(now)])?;
        Ok(revived)
    }

    /// Those that failed, or were skipped because the job ended or gave their domain up, wait again; what robots.txt
    /// forbids stays so.
    fn revive_troubles(
        &self,
        job: JobId,
        revival: &Value,
        limit: u32,
        now: Timestamp,
    ) -> rusqlite::Result<usize> {
        let wanted: Vec<&str> =
            revival["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let matching = revival["matching"].as_str();
        let mut revived = 0;
        for (state, only, like) in kinds(&wanted, matching) {
            let sql = format!(
                "UPDATE tasks SET {WAITS}, status = NULL, error = NULL WHERE id IN (
                    SELECT id FROM tasks WHERE job_id = ?1 AND state = ?2 AND state IN ('failed', 'skipped')
                    AND coalesce(error, '') GLOB ?5 AND url GLOB ?6 AND {like} LIMIT ?3)"
            );
            let left = limit - revived as u32;
            let id = job.0 as i64;
            let row = params![id, state, left, us(now), only, matching.unwrap_or("*")];
            let changed = self.sql.prepare_cached(&sql)?.execute(row)?;
            let sql = format!("UPDATE jobs SET {state} = {state} - ?2 WHERE id = ?1");
            self.sql.prepare_cached(&sql)?.execute(params![id, changed as i64])?;
            revived += changed;
        }
        Ok(revived)
    }

    /// Whether anything would wait again.
    fn has_troubles(&self, job: JobId, wanted: &[&str], matching: Option<&str>) -> rusqlite::Result<bool> {
        for (state, only, like) in kinds(wanted, matching) {
            let sql = format!(
                "SELECT 1 FROM tasks WHERE job_id = ?1 AND state = ?2 AND state IN ('failed', 'skipped')
                AND coalesce(error, '') GLOB ?3 AND url GLOB ?4 AND {like}"
            );
            let row = params![job.0 as i64, state, only, matching.unwrap_or("*")];
            if self.sql.prepare_cached(&sql)?.exists(row)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Those that were done before then wait again, in the order of their numbers; how far it got is kept, so that none
    /// is looked at twice.
    fn revive_done(
        &self,
        job: JobId,
        before: Timestamp,
        revival: &Value,
        limit: u32,
        now: Timestamp,
    ) -> rusqlite::Result<usize> {
        let id = job.0 as i64;
        let sql = "SELECT min(id), max(id) FROM tasks WHERE job_id = ?1";
        let (first, last): (Option<i64>, Option<i64>) =
            self.sql.prepare_cached(sql)?.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(0) };
        let after = revival["after"].as_i64().unwrap_or(first - 1);
        let sql = "SELECT id FROM tasks WHERE id > ?2 AND id <= ?3 AND +job_id = ?1 AND state = 'done'
            AND settled_us < ?4 ORDER BY id LIMIT ?5";
        let ids: Vec<i64> = self
            .sql
            .prepare_cached(sql)?
            .query_map(params![id, after, last, us(before), limit], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let Some(furthest) = ids.last() else { return Ok(0) };
        let sql = format!("UPDATE tasks SET {WAITS} WHERE id = ?1");
        let mut statement = self.sql.prepare_cached(&sql)?;
        for task in &ids {
            statement.execute(params![task, None::<i64>, None::<i64>, us(now)])?;
        }
        let mut further = revival.clone();
        further["after"] = json!(furthest);
        let sql = "UPDATE jobs SET done = done - ?2, revival = ?3 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![id, ids.len() as i64, further.to_string()])?;
        Ok(ids.len())
    }

    pub(super) fn remove_job(
        &mut self,
        living: &Living,
        job: JobId,
        limit: u32,
        now: Timestamp,
    ) -> rusqlite::Result<Removed> {
        let id = job.0 as i64;
        if self.job(living, job)?.is_none() {
            return Ok(Removed::Gone);
        }
        if self.attendance(living, job)?.0 {
            return Ok(Removed::Busy);
        }
        // From now on nobody can begin to work on it.
        let sql = "UPDATE jobs SET state = 'cancelled', message = 'it is being removed', swept = 1,
            ended_us = coalesce(ended_us, ?2) WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([id, us(now)])?;
        let some = "SELECT id FROM tasks WHERE job_id = ?1 LIMIT ?2";
        let sql = format!("DELETE FROM attempts WHERE task_id IN ({some})");
        self.sql.prepare_cached(&sql)?.execute(params![id, limit])?;
        let sql = format!("DELETE FROM tasks WHERE id IN ({some})");
        if self.sql.prepare_cached(&sql)?.execute(params![id, limit])? == limit as usize {
            return Ok(Removed::More);
        }
        for table in ["lanes", "fillers", "workers"] {
            let sql = format!("DELETE FROM {table} WHERE job_id = ?1");
            self.sql.prepare_cached(&sql)?.execute([id])?;
        }
        self.sql.prepare_cached("DELETE FROM jobs WHERE id = ?1")?.execute([id])?;
        let sql = "UPDATE identity SET removed_job = max(removed_job, ?1)";
        self.sql.prepare_cached(sql)?.execute([id])?;
        self.memory.lane_ids.retain(|(of, _), _| *of != id);
        Ok(Removed::Gone)
    }
}

/// The kinds of tasks that may wait again: their state, what their error looks like, and which of them, in SQL.
fn kinds(wanted: &[&str], matching: Option<&str>) -> [(&'static str, String, String); 3] {
    let skipped = wanted.is_empty() || wanted.iter().any(|word| matches!(*word, "any" | "skipped"));
    let ended = if skipped { "1" } else { "0" };
    [
        ("failed", "*".to_owned(), failed_like(wanted, matching)),
        ("skipped", JOB_ENDED.to_owned(), ended.to_owned()),
        ("skipped", format!("{GAVE_UP}*"), ended.to_owned()),
    ]
}

/// Which of the tasks that failed wait again, in SQL.
fn failed_like(wanted: &[&str], matching: Option<&str>) -> String {
    if wanted.is_empty() {
        // The list is stale there, and asking again does not help; unless somebody says which URLs.
        return if matching.is_some() { "1" } else { "coalesce(status, 0) NOT IN (404, 410)" }.to_owned();
    }
    let parts: Vec<String> = wanted
        .iter()
        .filter_map(|word| match word.split_once(' ') {
            None => (*word == "any").then(|| "1".to_owned()),
            Some(("status", status)) => Some(format!("status = {}", status.parse::<u16>().ok()?)),
            Some(("class", class)) => Some(format!("status / 100 = {}", class.parse::<u8>().ok()?)),
            Some((_, outcome)) => {
                let outcome: comity_core::outcome::Outcome = outcome.parse().ok()?;
                Some(format!("last_outcome = '{outcome}'"))
            }
        })
        .collect();
    if parts.is_empty() { "0".to_owned() } else { format!("({})", parts.join(" OR ")) }
}

/// How a trouble stands in the store.
fn word(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Any => "any".to_owned(),
        Trouble::Skipped => "skipped".to_owned(),
        Trouble::Status(status) => format!("status {status}"),
        Trouble::Class(class) => format!("class {class}"),
        Trouble::Outcome(outcome) => format!("outcome {outcome}"),
    }
}

/// What makes a task wait again as if it had never been tried, from `?4` on.
const WAITS: &str =
    "state = 'waiting', retries = 0, forgiven = 0, hops = 0, bodiless = 0, at_url = NULL, ready_us = ?4,
    lane_id = coalesce(home_lane_id, lane_id), home_lane_id = NULL, requests = 0, last_us = NULL,
    last_took_us = NULL, last_outcome = NULL";

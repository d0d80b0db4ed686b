//! Reopens jobs and makes their tasks wait again, and removes jobs.

use comity_core::domain::Domain;
use comity_core::task::{JobId, JobState};
use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::{Value, json};

use super::holders::Liveness;
use super::writer::Tx;
use super::{at, us};
use crate::jobs::{FailureKind, Job, Removed, RetryFilter, Stepped};
use crate::tasks::{FORBIDDEN, GAVE_UP, JOB_ENDED};

impl Tx<'_> {
    /// Makes the retries of a domain ready. Tasks that were only deferred stay as they are.
    pub(super) fn retry_now(&self, domain: &Domain, now: Timestamp) -> rusqlite::Result<u64> {
        let lanes = "SELECT lanes.id FROM lanes JOIN domains ON domains.id = domain_id WHERE domain = ?1";
        let sql = format!(
            "UPDATE tasks SET ready_us = ?2 WHERE lane_id IN ({lanes}) AND state = 'waiting' AND ready_us > ?2
            AND (retries > 0 OR forgiven > 0)"
        );
        let ready = self.sql.prepare_cached(&sql)?.execute(params![domain.as_str(), us(now)])?;
        let sql =
            format!("UPDATE lanes SET due_us = min(due_us, ?2) WHERE id IN ({lanes}) AND holder IS NULL");
        self.sql.prepare_cached(&sql)?.execute(params![domain.as_str(), us(now)])?;
        Ok(ready as u64)
    }

    pub(super) fn reopen_job(
        &mut self,
        liveness: &Liveness,
        job: JobId,
        filter: &RetryFilter,
    ) -> rusqlite::Result<Stepped> {
        let Some(found) = self.job(liveness, job)? else { return Ok(Stepped::Missing) };
        if filter.done_before.is_none() && !self.may_reopen(&found, filter)? {
            return Ok(Stepped::No(found));
        }
        self.reopen(liveness, job, filter)
    }

    /// Whether a retry would change anything: nobody works on the job, and some of its tasks would wait again.
    fn may_reopen(&self, found: &Job, filter: &RetryFilter) -> rusqlite::Result<bool> {
        let is_stopped = found.state == JobState::Running;
        if is_stopped && found.worked_on {
            return Ok(false);
        }
        let named = filter.matching.is_some() || !filter.failures.is_empty();
        // Tasks that the job's end has not skipped yet are still waiting and would otherwise be skipped.
        if !is_stopped && !named && !self.is_swept(found.id)? {
            return Ok(true);
        }
        self.can_retry(found.id, filter)
    }

    /// Whether any task would wait again.
    pub(super) fn can_retry(&self, job: JobId, filter: &RetryFilter) -> rusqlite::Result<bool> {
        let wanted: Vec<String> = filter.failures.iter().map(stored_form).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let matching = filter.matching.as_deref();
        for (state, only, like) in kinds(&wanted, matching) {
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

    /// Sets a job to running, and records which of its tasks wait again.
    pub(super) fn reopen(
        &mut self,
        liveness: &Liveness,
        job: JobId,
        filter: &RetryFilter,
    ) -> rusqlite::Result<Stepped> {
        // If an earlier reopening is not swept yet, both are applied: tasks that either of them selects wait again.
        let earlier = self.revival(job)?;
        if filter.done_before.is_none() {
            let sql = "UPDATE lanes SET given_up = NULL WHERE job_id = ?1 AND given_up IS NOT NULL";
            self.sql.prepare_cached(sql)?.execute([job.0 as i64])?;
        }
        let wanted = json!({
            "troubles": filter.failures.iter().map(stored_form).collect::<Vec<_>>(),
            "matching": filter.matching,
            "done_before": filter.done_before.map(us),
            "then": earlier,
        });
        let sql =
            "UPDATE jobs SET state = 'running', ended_us = NULL, message = NULL, swept = 0, revival = ?2
            WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![job.0 as i64, wanted.to_string()])?;
        Ok(self.job(liveness, job)?.map_or(Stepped::Missing, Stepped::Yes))
    }

    /// What is recorded about which tasks wait again, for a running job that is not swept.
    fn revival(&self, job: JobId) -> rusqlite::Result<Option<Value>> {
        let sql = "SELECT revival FROM jobs WHERE id = ?1 AND NOT swept AND state = 'running'";
        let found = self.sql.prepare_cached(sql)?.query_row([job.0 as i64], |row| row.get(0)).optional()?;
        Ok(found.flatten().and_then(|text: String| serde_json::from_str(&text).ok()))
    }

    /// Makes at most `limit` tasks wait again and returns how many. If it is fewer, there are no more.
    pub(super) fn revive(&mut self, job: JobId, limit: u32, now: Timestamp) -> rusqlite::Result<usize> {
        let revival = self.revival(job)?.unwrap_or(Value::Null);
        let mut revived = match revival["done_before"].as_i64() {
            Some(before) => self.revive_done(job, at(before), &revival, limit, now)?,
            None => self.revive_failures(job, &revival, limit, now)?,
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

    /// Makes tasks wait again that failed, or were skipped because the job ended or gave up on their domain. Tasks that
    /// robots.txt forbade stay skipped unless they are named.
    fn revive_failures(
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
            let (left, id) = (limit - revived as u32, job.0 as i64);
            let some = format!(
                "SELECT id FROM tasks WHERE job_id = ?1 AND state = ?6 AND state IN ('failed', 'skipped')
                AND coalesce(error, '') GLOB ?4 AND url GLOB ?5 AND {like} LIMIT ?3"
            );
            let row = params![id, None::<i64>, left, only, matching.unwrap_or("*"), state];
            self.sql.prepare_cached(&log_attempts_of(&some))?.execute(row)?;
            let sql = format!("UPDATE tasks SET {WAITS}, status = NULL, error = NULL WHERE id IN ({some})");
            let row = params![id, us(now), left, only, matching.unwrap_or("*"), state];
            let changed = self.sql.prepare_cached(&sql)?.execute(row)?;
            let sql = format!("UPDATE jobs SET {state} = {state} - ?2 WHERE id = ?1");
            self.sql.prepare_cached(&sql)?.execute(params![id, changed as i64])?;
            revived += changed;
        }
        Ok(revived)
    }

    /// Makes tasks wait again whose pages were fetched before `before`, by id, also if a later fetch failed. Progress is
    /// recorded, so that no task is looked at twice.
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
        let sql = "SELECT id, state FROM tasks WHERE id > ?2 AND id <= ?3 AND +job_id = ?1
            AND (state = 'done' OR state IN ('failed', 'skipped') AND bytes IS NOT NULL)
            AND settled_us < ?4 ORDER BY id LIMIT ?5";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found = params![id, after, last, us(before), limit];
        let found: Vec<(i64, String)> =
            self.sql.prepare_cached(sql)?.query_map(found, read)?.collect::<rusqlite::Result<_>>()?;
        let Some((furthest, _)) = found.last() else { return Ok(0) };
        let sql = format!("UPDATE tasks SET {WAITS}, error = NULL WHERE id = ?1");
        let mut log = self.sql.prepare_cached(&log_attempts_of("?1"))?;
        let mut statement = self.sql.prepare_cached(&sql)?;
        for (task, _) in &found {
            log.execute([task])?;
            statement.execute(params![task, us(now)])?;
        }
        let count = |of: &str| found.iter().filter(|(_, state)| state == of).count() as i64;
        let mut further = revival.clone();
        further["after"] = json!(furthest);
        let sql =
            "UPDATE jobs SET done = done - ?2, failed = failed - ?3, skipped = skipped - ?4, revival = ?5
            WHERE id = ?1";
        let row = params![id, count("done"), count("failed"), count("skipped"), further.to_string()];
        self.sql.prepare_cached(sql)?.execute(row)?;
        Ok(found.len())
    }

    pub(super) fn remove_job(
        &mut self,
        liveness: &Liveness,
        job: JobId,
        limit: u32,
        now: Timestamp,
    ) -> rusqlite::Result<Removed> {
        let id = job.0 as i64;
        if self.job(liveness, job)?.is_none() {
            return Ok(Removed::Gone);
        }
        if self.activity(liveness, job)?.0 {
            return Ok(Removed::Busy);
        }
        // From now on nobody can start working on it.
        let sql = "UPDATE jobs SET state = 'cancelled', message = 'it is being removed', swept = 1,
            ended_us = coalesce(ended_us, ?2) WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([id, us(now)])?;
        self.note_used_ids()?;
        let some = "SELECT id FROM tasks WHERE job_id = ?1 LIMIT ?2";
        let sql = format!("DELETE FROM logged_attempts WHERE task_id IN ({some})");
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
        self.cache.lane_ids.retain(|(of, _), _| *of != id);
        Ok(Removed::Gone)
    }
}

/// Logs the only attempt of tasks whose rows are about to forget it.
fn log_attempts_of(tasks: &str) -> String {
    format!(
        "INSERT OR IGNORE INTO logged_attempts (task_id, started_us, took_us, outcome, status)
        SELECT id, last_us, last_took_us, last_outcome, status FROM tasks
        WHERE id IN ({tasks}) AND requests = 1 AND last_us IS NOT NULL AND last_outcome IS NOT NULL"
    )
}

/// The kinds of tasks that may wait again: state, error pattern, and a condition in SQL.
pub(super) fn kinds(wanted: &[&str], matching: Option<&str>) -> [(&'static str, String, String); 4] {
    let names = |kind: &str| wanted.iter().any(|word| ["any", kind].contains(word));
    let condition = |is_wanted: bool| if is_wanted { "1" } else { "0" }.to_owned();
    let ended = condition(wanted.is_empty() || names("skipped"));
    [
        ("failed", "*".to_owned(), failed_like(wanted, matching)),
        ("skipped", JOB_ENDED.to_owned(), ended.clone()),
        ("skipped", format!("{GAVE_UP}*"), ended),
        ("skipped", FORBIDDEN.to_owned(), condition(names("robots"))),
    ]
}

/// The SQL condition for failed tasks that wait again.
fn failed_like(wanted: &[&str], matching: Option<&str>) -> String {
    if wanted.is_empty() {
        // With 404 and 410 the list is out of date and a retry does not help, unless somebody asks for these URLs.
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

/// How a failure kind is stored.
pub(super) fn stored_form(kind: &FailureKind) -> String {
    match kind {
        FailureKind::Any => "any".to_owned(),
        FailureKind::Skipped => "skipped".to_owned(),
        FailureKind::Robots => "robots".to_owned(),
        FailureKind::Status(status) => format!("status {status}"),
        FailureKind::Class(class) => format!("class {class}"),
        FailureKind::Outcome(outcome) => format!("outcome {outcome}"),
    }
}

/// Resets a task as if it had never been tried, ready from `?4` on.
const WAITS: &str =
    "state = 'waiting', retries = 0, forgiven = 0, hops = 0, bodiless = 0, at_url = NULL, ready_us = ?2,
    lane_id = coalesce(home_lane_id, lane_id), home_lane_id = NULL, requests = 0, last_us = NULL,
    last_took_us = NULL, last_outcome = NULL";

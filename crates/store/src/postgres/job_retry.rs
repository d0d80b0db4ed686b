//! Reopens jobs and makes their tasks wait again, and removes jobs.

use std::iter::Peekable;
use std::str::Chars;

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, JobState};
use comity_core::time::Timestamp;
use serde_json::{Value, json};

use super::failure::Result;
use super::jobs::id_of;
use super::param::{Param, text};
use super::{Tx, us};
use crate::jobs::{FailureKind, Job, Removed, RetryFilter, Stepped};
use crate::tasks::{FORBIDDEN, GAVE_UP, JOB_ENDED};

/// How many tasks wait again, by the state that they were in.
#[derive(Debug, Clone, Copy, Default)]
struct Revived {
    done: i64,
    failed: i64,
    skipped: i64,
    /// The last of them.
    last: Option<i64>,
}

impl Revived {
    fn all(self) -> u64 {
        (self.done + self.failed + self.skipped).max(0) as u64
    }
}

impl Tx<'_> {
    pub(super) fn reopen_job(&mut self, job: JobId, filter: &RetryFilter) -> Result<Stepped> {
        self.lock_job(id_of(job))?;
        let Some(found) = self.job(job)? else { return Ok(Stepped::Missing) };
        if filter.done_before.is_none() && !self.may_reopen(&found, filter)? {
            return Ok(Stepped::No(found));
        }
        self.reopen(job, filter)
    }

    /// Whether a retry would change anything: nobody works on the job, and some of its tasks would wait again.
    fn may_reopen(&mut self, found: &Job, filter: &RetryFilter) -> Result<bool> {
        let is_stopped = found.state == JobState::Running;
        if is_stopped && found.worked_on {
            return Ok(false);
        }
        let named = filter.matching.is_some() || !filter.failures.is_empty();
        // Tasks that the job's end has not skipped yet are still waiting and would otherwise be skipped.
        if !is_stopped && !named && !self.is_swept(id_of(found.id))? {
            return Ok(true);
        }
        self.can_retry(found.id, filter)
    }

    /// Whether any task would wait again.
    pub(super) fn can_retry(&mut self, job: JobId, filter: &RetryFilter) -> Result<bool> {
        let wanted: Vec<String> = filter.failures.iter().map(stored_form).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let Some(selected) = selected(&wanted, filter.matching.as_deref()) else { return Ok(false) };
        let sql = format!("SELECT 1 FROM task WHERE job_id = $1 AND {} LIMIT 1", selected.condition("$2"));
        self.exists(&sql, &[&id_of(job), &selected.url])
    }

    /// Sets a job to running, and records which of its tasks wait again. The job is locked.
    pub(super) fn reopen(&mut self, job: JobId, filter: &RetryFilter) -> Result<Stepped> {
        let id = id_of(job);
        // If an earlier reopening is not swept yet, both are applied: tasks that either of them selects wait again.
        let earlier = self.revival(id)?;
        if filter.done_before.is_none() {
            let sql = "UPDATE lane SET given_up = NULL WHERE job_id = $1 AND given_up IS NOT NULL";
            self.change(sql, &[&id])?;
        }
        let wanted = json!({
            "troubles": filter.failures.iter().map(stored_form).collect::<Vec<_>>(),
            "matching": filter.matching,
            "done_before": filter.done_before.map(us),
            "then": earlier,
        });
        let sql =
            "UPDATE job SET state = 'running', ended_us = NULL, message = NULL, swept = false, revival = $2
            WHERE id = $1";
        self.change(sql, &[&id, &wanted.to_string()])?;
        self.tell();
        Ok(self.job(job)?.map_or(Stepped::Missing, Stepped::Yes))
    }

    /// What is recorded about which tasks wait again, for a running job that is not swept.
    fn revival(&mut self, job: i64) -> Result<Option<Value>> {
        let sql = "SELECT revival FROM job WHERE id = $1 AND NOT swept AND state = 'running'";
        let found: Option<String> = self.row(sql, &[&job])?.and_then(|row| row.get(0));
        Ok(found.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Makes at most `limit` tasks of a locked job wait again and returns how many. If it is fewer, there are no more.
    pub(super) fn revive(&mut self, job: i64, limit: u32, now: Timestamp) -> Result<u64> {
        let mut revival = self.revival(job)?.unwrap_or(Value::Null);
        let revived = match revival["done_before"].as_i64() {
            Some(before) => self.revive_done(job, before, &revival, limit, now)?,
            None => self.revive_failures(job, &revival, limit, now)?,
        };
        let mut more = revived.all() >= u64::from(limit);
        match (more, revived.last) {
            // Progress is recorded, so that no task is looked at twice.
            (true, Some(last)) => revival["after"] = json!(last),
            (false, _) if !revival["then"].is_null() => {
                revival = revival["then"].take();
                more = true;
            }
            _ => {}
        }
        let sql =
            "UPDATE job SET done = done - $2, failed = failed - $3, skipped = skipped - $4, revival = $5
            WHERE id = $1";
        let Revived { done, failed, skipped, .. } = revived;
        self.change(sql, &[&job, &done, &failed, &skipped, &text(&revival.to_string())])?;
        if more {
            return Ok(u64::from(limit));
        }
        // Those that were not skipped yet when the job was reopened.
        let sql = "UPDATE lane SET due_us = $2 WHERE job_id = $1 AND holder IS NULL AND due_us IS NULL
            AND EXISTS (SELECT 1 FROM task WHERE lane_id = lane.id AND state = 'waiting')";
        self.change(sql, &[&job, &us(now)])?;
        Ok(revived.all())
    }

    /// Makes tasks wait again that failed, or were skipped because the job ended or gave up on their domain. Tasks that
    /// robots.txt forbade stay skipped unless they are named.
    fn revive_failures(&mut self, job: i64, revival: &Value, limit: u32, now: Timestamp) -> Result<Revived> {
        let wanted: Vec<&str> =
            revival["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(selected) = selected(&wanted, revival["matching"].as_str()) else {
            return Ok(Revived::default());
        };
        let some =
            format!("SELECT id, state FROM task WHERE job_id = $1 AND {} LIMIT $3", selected.condition("$4"));
        let sql = revive_sql(&some, "status = NULL, error = NULL");
        let params: [&dyn Param; 4] = [&job, &us(now), &i64::from(limit), &selected.url];
        let revived = self.revive_some(&sql, &params, now)?;
        Ok(Revived { last: None, ..revived })
    }

    /// Makes tasks wait again whose pages were fetched before `before`, by id, also if a later fetch failed.
    fn revive_done(
        &mut self,
        job: i64,
        before: i64,
        revival: &Value,
        limit: u32,
        now: Timestamp,
    ) -> Result<Revived> {
        let after = revival["after"].as_i64().unwrap_or(i64::MIN);
        let some = "SELECT id, state FROM task WHERE job_id = $1 AND id > $5 AND settled_us < $4
            AND (state = 'done' OR state IN ('failed', 'skipped') AND bytes IS NOT NULL) ORDER BY id LIMIT $3";
        let sql = revive_sql(some, "error = NULL");
        self.revive_some(&sql, &[&job, &us(now), &i64::from(limit), &before, &after], now)
    }

    /// Runs a statement of [`revive_sql`], and makes the lanes of its tasks due.
    fn revive_some(&mut self, sql: &str, params: &[&dyn Param], now: Timestamp) -> Result<Revived> {
        let (mut revived, mut lanes) = (Revived::default(), Vec::new());
        for row in self.change_rows(sql, params)? {
            lanes.push(row.get(0));
            revived.done += row.get::<_, i64>(1);
            revived.failed += row.get::<_, i64>(2);
            revived.skipped += row.get::<_, i64>(3);
            revived.last = revived.last.max(row.get(4));
        }
        if !lanes.is_empty() {
            self.make_due(&lanes, now)?;
        }
        Ok(revived)
    }

    pub(super) fn remove_job(&mut self, job: JobId, limit: u32, now: Timestamp) -> Result<Removed> {
        let id = id_of(job);
        self.check_holders_of(id, now)?;
        self.lock_job(id)?;
        match self.job(job)? {
            None => return Ok(Removed::Gone),
            Some(found) if found.worked_on => return Ok(Removed::Busy),
            Some(_) => {}
        }
        // From now on nobody can start working on it.
        let sql = "UPDATE job SET state = 'cancelled', message = 'it is being removed', swept = true,
            ended_us = coalesce(ended_us, $2) WHERE id = $1";
        self.change(sql, &[&id, &us(now)])?;
        self.tell();
        let sql = "WITH batch AS MATERIALIZED (SELECT id FROM task WHERE job_id = $1 ORDER BY id LIMIT $2),
                attempts AS (DELETE FROM logged_attempt USING batch WHERE task_id = batch.id)
            DELETE FROM task USING batch WHERE task.id = batch.id";
        if self.change(sql, &[&id, &i64::from(limit)])? == u64::from(limit) {
            return Ok(Removed::More);
        }
        let sql = "WITH lanes AS (DELETE FROM lane WHERE job_id = $1), fillers AS (DELETE FROM filler WHERE job_id = $1),
                workers AS (DELETE FROM worker WHERE job_id = $1), origins AS (DELETE FROM origin WHERE job_id = $1),
                used AS (UPDATE identity SET removed_job = $1 WHERE removed_job < $1)
            DELETE FROM job WHERE id = $1";
        self.change(sql, &[&id])?;
        Ok(Removed::Gone)
    }
}

/// Which tasks of a job wait again.
pub(super) struct Selected {
    /// The condition for a task's failure, in SQL.
    failure: String,
    /// The regular expression for its URL.
    pub(super) url: Option<String>,
}

impl Selected {
    /// The condition for a task in SQL, where `url` is the parameter with [`Self::url`].
    pub(super) fn condition(&self, url: &str) -> String {
        // The states are those of the partial index.
        let Self { failure, .. } = self;
        format!("state IN ('failed', 'skipped') AND ({failure}) AND ({url}::text IS NULL OR url ~ {url})")
    }
}

/// Which tasks wait again; `None` if no URL matches.
pub(super) fn selected(wanted: &[&str], matching: Option<&str>) -> Option<Selected> {
    let names = |kind: &str| wanted.iter().any(|word| ["any", kind].contains(word));
    let mut failures = vec![format!("state = 'failed' AND {}", failed_like(wanted, matching))];
    if wanted.is_empty() || names("skipped") {
        failures.push(format!(
            "state = 'skipped' AND (error = '{JOB_ENDED}' OR starts_with(error, '{GAVE_UP}'))"
        ));
    }
    if names("robots") {
        failures.push(format!("state = 'skipped' AND error = '{FORBIDDEN}'"));
    }
    let url = match matching {
        Some(glob) => Some(regex_of(glob)?),
        None => None,
    };
    Some(Selected { failure: failures.join(" OR "), url })
}

/// The SQL condition for failed tasks that wait again.
fn failed_like(wanted: &[&str], matching: Option<&str>) -> String {
    if wanted.is_empty() {
        // With 404 and 410 the list is out of date and a retry does not help, unless somebody asks for these URLs.
        return if matching.is_some() { "true" } else { "coalesce(status, 0) NOT IN (404, 410)" }.to_owned();
    }
    let parts: Vec<String> = wanted
        .iter()
        .filter_map(|word| match word.split_once(' ') {
            None => (*word == "any").then(|| "true".to_owned()),
            Some(("status", status)) => Some(format!("status = {}", status.parse::<u16>().ok()?)),
            Some(("class", class)) => Some(format!("status / 100 = {}", class.parse::<u8>().ok()?)),
            Some((_, outcome)) => {
                let outcome: Outcome = outcome.parse().ok()?;
                Some(format!("last_outcome = '{outcome}'"))
            }
        })
        .collect();
    if parts.is_empty() { "false".to_owned() } else { format!("({})", parts.join(" OR ")) }
}

/// A statement that makes tasks wait again from `$2` on as if they had never been tried: those that the query `some` returns
/// with their states. `fields` are set besides. Returns their lanes, and for each how many there were, by state, and the last.
fn revive_sql(some: &str, fields: &str) -> String {
    format!(
        "WITH batch AS MATERIALIZED ({some}),
            -- The only attempt of a task is in its row, which is about to forget it.
            logged AS (INSERT INTO logged_attempt (task_id, started_us, took_us, outcome, status)
                SELECT id, last_us, coalesce(last_took_us, 0), last_outcome, status FROM task
                WHERE id IN (SELECT id FROM batch) AND requests = 1 AND last_us IS NOT NULL AND last_outcome IS NOT NULL
                ON CONFLICT DO NOTHING),
            waits AS (UPDATE task SET state = 'waiting', retries = 0, forgiven = 0, hops = 0, bodiless = false, at_url = NULL,
                    ready_us = $2, lane_id = coalesce(home_lane_id, lane_id), home_lane_id = NULL, requests = 0,
                    last_us = NULL, last_took_us = NULL, last_outcome = NULL, {fields}
                FROM batch WHERE task.id = batch.id AND task.state = batch.state
                RETURNING task.id, task.lane_id, batch.state)
        SELECT lane_id, count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'failed'),
            count(*) FILTER (WHERE state = 'skipped'), max(id) FROM waits GROUP BY lane_id ORDER BY lane_id"
    )
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

/// The regular expression of PostgreSQL that matches what a glob of SQLite matches; `None` if that is nothing, because a set
/// is not closed.
fn regex_of(glob: &str) -> Option<String> {
    let mut regex = "^".to_owned();
    // SQLite reads no further than the first NUL.
    let mut rest = glob.split('\0').next().unwrap_or_default().chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '[' => set_of(&mut rest, &mut regex)?,
            c => push_literal(c, &mut regex),
        }
    }
    regex.push('$');
    Some(regex)
}

/// Translates what follows a `[`.
fn set_of(rest: &mut Peekable<Chars<'_>>, regex: &mut String) -> Option<()> {
    regex.push('[');
    if rest.next_if_eq(&'^').is_some() {
        regex.push('^');
    }
    // Only the first character may be a `]`, and it starts no range.
    if rest.next_if_eq(&']').is_some() {
        push_literal(']', regex);
    }
    let mut from = None;
    loop {
        match (rest.next()?, from.take(), rest.peek()) {
            (']', ..) => break,
            ('-', Some(first), Some(&last)) if last != ']' => {
                rest.next();
                // The first character is in the set already, even if the range is empty.
                if first <= last {
                    push_literal(first, regex);
                    regex.push('-');
                    push_literal(last, regex);
                }
            }
            (c, ..) => {
                push_literal(c, regex);
                from = Some(c);
            }
        }
    }
    regex.push(']');
    Some(())
}

/// Adds a character that stands for itself.
fn push_literal(c: char, regex: &mut String) {
    if c.is_ascii() && !c.is_ascii_alphanumeric() {
        regex.push('\\');
    }
    regex.push(c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_becomes_an_anchored_regular_expression() {
        for (glob, regex) in [
            ("", "^$"),
            ("*", "^.*$"),
            ("a?c*", "^a.c.*$"),
            ("https://a.example/x", r"^https\:\/\/a\.example\/x$"),
            ("(a|b)+{2}\\d$^", r"^\(a\|b\)\+\{2\}\\d\$\^$"),
            ("ä?", "^ä.$"),
            ("a\0b", "^a$"),
            ("[a-c]", "^[aa-c]$"),
            ("[^a-c]x", "^[^aa-c]x$"),
            ("[z-a]", "^[z]$"),
            ("[]a]", r"^[\]a]$"),
            ("[^]]", r"^[^\]]$"),
            ("[]-a]", r"^[\]\-a]$"),
            ("[-a]", r"^[\-a]$"),
            ("[a-]", r"^[a\-]$"),
            ("[a-c-e]", r"^[aa-c\-e]$"),
            ("[--/]", r"^[\-\--\/]$"),
            ("[*?[]", r"^[\*\?\[]$"),
            ("[:alpha:]", r"^[\:alpha\:]$"),
            ("[a^]", r"^[a\^]$"),
            ("a]", r"^a\]$"),
        ] {
            assert_eq!(regex_of(glob).as_deref(), Some(regex), "{glob}");
        }
    }

    #[test]
    fn a_glob_with_a_set_that_is_not_closed_matches_nothing() {
        for glob in ["[", "[a", "[]", "[^]", "*[a-", "a[^"] {
            assert_eq!(regex_of(glob), None, "{glob}");
        }
    }
}

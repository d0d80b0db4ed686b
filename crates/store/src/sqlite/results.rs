//! Results of tasks: written when tasks are settled, and read in pages for people.

use std::path::Path;
use std::sync::Arc;

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};
use rusqlite::{Row, params};

use super::request_parts::request_of;
use super::tasks::{lead_of, micros};
use super::writer::Tx;
use super::{at, us};
use crate::items::ItemId;
use crate::sources::SourceId;
use crate::tasks::{Attempt, FORBIDDEN, PageFacts, PreviousPage, Settle, TaskFilter, TaskRow, TaskView};

/// How a task ended that was not fetched.
pub(super) struct Ended<'a> {
    pub(super) state: &'static str,
    pub(super) status: Option<u16>,
    pub(super) error: &'a str,
}

impl Tx<'_> {
    /// Marks a task as done; returns how many were changed.
    pub(super) fn end_done(
        &self,
        settle: &Settle,
        status: u16,
        bytes: u64,
        content_type: Option<&str>,
        now: Timestamp,
    ) -> rusqlite::Result<usize> {
        let PageFacts { final_url, fetched_at, sha256, file, etag, last_modified } = &*settle.facts;
        let last = settle.attempts.last();
        let sql = "UPDATE tasks SET state = 'done', status = ?2, bytes = ?3, error = NULL, settled_us = ?4,
            requests = requests + ?5, last_us = coalesce(?6, last_us), last_took_us = coalesce(?7, last_took_us),
            last_outcome = coalesce(?8, last_outcome), fetched_us = ?9, final_url = ?10, content_type = ?11,
            changed = NOT (?2 = 304 OR sha256 IS NOT NULL AND sha256 IS ?12), sha256 = ?12,
            file = ?13, etag = ?14, last_modified = ?15 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![
            settle.task.0 as i64,
            status,
            bytes as i64,
            us(now),
            settle.attempts.len() as i64,
            last.map(|attempt| us(attempt.started_at)),
            last.map(|attempt| micros(attempt.took)),
            last.map(|attempt| attempt.outcome.as_str()),
            fetched_at.map(us),
            final_url,
            content_type,
            sha256,
            file,
            etag,
            last_modified,
        ])
    }

    /// Marks a task as failed or skipped. What is stored of an earlier fetch stays.
    pub(super) fn end_otherwise(
        &self,
        settle: &Settle,
        ended: Ended<'_>,
        now: Timestamp,
    ) -> rusqlite::Result<usize> {
        let robots = settle.robots.as_ref();
        let last = settle.attempts.last().or(robots.map(|robots| &robots.last));
        let requests = settle.attempts.len() as i64 + robots.map_or(0, |robots| i64::from(robots.count));
        // A redirect counts as a success, but one that led nowhere has only been answered.
        let sql = "UPDATE tasks SET state = ?2, status = ?3, error = ?4, settled_us = ?5, requests = requests + ?6,
            last_us = coalesce(?7, last_us), last_took_us = coalesce(?8, last_took_us),
            last_outcome = replace(coalesce(?9, last_outcome), 'success', 'answered'), fetched_us = ?10, final_url = ?11 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![
            settle.task.0 as i64,
            ended.state,
            ended.status,
            ended.error,
            us(now),
            requests,
            last.map(|attempt| us(attempt.started_at)),
            last.map(|attempt| micros(attempt.took)),
            last.map(|attempt| attempt.outcome.as_str()),
            settle.facts.fetched_at.map(us),
            settle.facts.final_url,
        ])
    }

    /// Adds the page as fetched before, if it was saved or has validators for a conditional request.
    pub(super) fn with_page(&self, (task, was_fetched): (TaskRow, bool)) -> rusqlite::Result<TaskRow> {
        if !was_fetched {
            return Ok(task);
        }
        let sql = format!("SELECT {FACTS}, bytes, content_type FROM tasks WHERE id = ?1");
        let mut statement = self.sql.prepare_cached(&sql)?;
        let read = statement.query_row([task.id.0 as i64], |row| {
            let bytes = row.get::<_, Option<i64>>(6)?.unwrap_or_default().max(0) as u64;
            Ok(PreviousPage { bytes, content_type: row.get(7)?, facts: Arc::new(facts_of(row, 0)?) })
        });
        // If it cannot be read, the page is fetched as if for the first time.
        Ok(TaskRow { previous: read.ok().map(Box::new), ..task })
    }

    /// Names the files of a batch of tasks by their whole path. Those of some may be named so already.
    pub(super) fn name_files_in_full(
        &self,
        job: JobId,
        folder: &str,
        after: Option<TaskId>,
        limit: u32,
    ) -> rusqlite::Result<Option<TaskId>> {
        let id = job.0 as i64;
        let sql =
            "SELECT id, file FROM tasks WHERE id > ?2 AND id <= (SELECT max(id) FROM tasks WHERE job_id = ?1)
            AND +job_id = ?1 AND file IS NOT NULL ORDER BY id LIMIT ?3";
        let after = match after {
            Some(after) => after.0 as i64,
            None => {
                let sql = "SELECT coalesce(min(id), 0) - 1 FROM tasks WHERE job_id = ?1";
                self.sql.prepare_cached(sql)?.query_row([id], |row| row.get(0))?
            }
        };
        let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
        let (files, unreadable) =
            self.readable_and_unreadable("tasks", sql, params![id, after, limit], read)?;
        let mut update = self.sql.prepare_cached("UPDATE tasks SET file = ?2 WHERE id = ?1")?;
        for (task, file) in &files {
            // A whole path stays as it is.
            let path = Path::new(folder).join(file);
            update.execute(params![task, path.to_string_lossy()])?;
        }
        let is_full = files.len() + unreadable.len() == limit as usize;
        let ids = files.iter().map(|(task, _)| *task).chain(unreadable.iter().map(|(task, _)| *task));
        Ok(ids.max().filter(|_| is_full).map(|task| TaskId(task as u64)))
    }

    pub(super) fn views(&self, job: JobId, state: &str, limit: u32) -> rusqlite::Result<Vec<TaskView>> {
        // Repeats the condition of the partial index, so that SQLite uses it and does not scan a large job.
        let trouble = matches!(state, "failed" | "skipped");
        let only = if trouble { "AND state IN ('failed', 'skipped')" } else { "" };
        let sql = format!(
            "SELECT {VIEW} FROM tasks WHERE job_id = ?1 AND state = ?2 {only} ORDER BY settled_us DESC LIMIT ?3"
        );
        self.readable("tasks", &sql, params![job.0 as i64, state, limit], view_of)
    }

    /// Tasks by id, which is the order in which they were added. The tasks of a job have adjacent ids, so they are read
    /// in one range scan that skips the tasks of other jobs in between.
    pub(super) fn page(
        &self,
        job: JobId,
        which: &TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> rusqlite::Result<Vec<TaskView>> {
        let id = job.0 as i64;
        // The index on a job's URLs contains the ids too, so this reads no task.
        let ends = "SELECT min(id), max(id) FROM tasks WHERE job_id = ?1";
        let (first, last): (Option<i64>, Option<i64>) =
            self.sql.prepare_cached(ends)?.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
        let after = after.map_or(first - 1, |after| (after.0 as i64).max(first - 1));
        let state = if which.state.is_some() { "state = ?4" } else { "?4 IS NULL" };
        let since = match which.settled_since {
            Some(_) => "AND settled_us >= ?5 AND state <> 'waiting'",
            None => "AND ?5 IS NULL",
        };
        let sql = format!(
            "SELECT {VIEW} FROM tasks WHERE id > ?2 AND id <= ?3 AND +job_id = ?1 AND {state} {since}
            ORDER BY id LIMIT ?6"
        );
        let since = which.settled_since.map(us);
        self.readable("tasks", &sql, params![id, after, last, which.state, since, limit], view_of)
    }
}

/// Reads a task, and whether its page was fetched before and was saved or has validators.
pub(super) fn task_of(row: &Row<'_>) -> rusqlite::Result<(TaskRow, bool)> {
    let lead: String = row.get(2)?;
    let last = match (row.get::<_, Option<i64>>(11)?, outcome_of(row, 13)?) {
        (Some(started), Some(outcome)) => Some(Attempt {
            started_at: at(started),
            took: Span::from_micros(row.get::<_, Option<i64>>(12)?.unwrap_or_default().max(0) as u64),
            outcome,
            status: row.get(14)?,
        }),
        _ => None,
    };
    let task = TaskRow {
        id: TaskId(row.get::<_, i64>(0)? as u64),
        url: row.get(1)?,
        url_key: None,
        lead: lead_of(&lead),
        at_url: row.get(3)?,
        hops: row.get(4)?,
        retries: row.get(5)?,
        forgiven: row.get(9)?,
        ready_at: at(row.get(6)?),
        scrapes: row
            .get::<_, Option<i64>>(7)?
            .zip(row.get::<_, Option<i64>>(8)?)
            .map(|(item, source)| (ItemId(item), SourceId(source))),
        attempts: row.get(10)?,
        last,
        previous: None,
        sends: request_of(row)?,
    };
    Ok((task, row.get(15)?))
}

pub(super) fn view_of(row: &Row<'_>) -> rusqlite::Result<TaskView> {
    let state: String = row.get(2)?;
    let is_done = state == "done";
    let facts = facts_of(row, 12)?;
    let micros = |nth| row.get::<_, Option<i64>>(nth);
    Ok(TaskView {
        id: TaskId(row.get::<_, i64>(0)? as u64),
        url: row.get(1)?,
        state,
        status: row.get(3)?,
        // That of a page whose refresh was cancelled only says so.
        error: error_of(row, 4)?.filter(|_| !is_done),
        settled_at: micros(5)?.map(at),
        attempts: row.get(6)?,
        started_at: micros(7)?.map(at),
        took: micros(8)?.map(|took| Span::from_micros(took.max(0) as u64)),
        outcome: outcome_of(row, 9)?.or(is_done.then_some(Outcome::Success)),
        bytes: micros(10)?.map(|bytes| bytes.max(0) as u64),
        content_type: row.get(11)?,
        changed: row.get::<_, Option<bool>>(18)?.filter(|_| is_done),
        facts: Arc::new(facts),
    })
}

/// Reads what is known about the last response, from column `first` on.
pub(super) fn facts_of(row: &Row<'_>, first: usize) -> rusqlite::Result<PageFacts> {
    Ok(PageFacts {
        final_url: row.get(first)?,
        fetched_at: row.get::<_, Option<i64>>(first + 1)?.map(at),
        sha256: row.get::<_, Option<Vec<u8>>>(first + 2)?.and_then(|hash| hash.try_into().ok()),
        file: row.get(first + 3)?,
        etag: row.get(first + 4)?,
        last_modified: row.get(first + 5)?,
    })
}

/// Reads an error. Older versions stored `robots` for what is [`FORBIDDEN`].
pub(super) fn error_of(row: &Row<'_>, nth: usize) -> rusqlite::Result<Option<String>> {
    let error: Option<String> = row.get(nth)?;
    Ok(error.map(|error| if error == "robots" { FORBIDDEN.to_owned() } else { error }))
}

/// Reads an outcome; `None` if its name is unknown.
pub(super) fn outcome_of(row: &Row<'_>, nth: usize) -> rusqlite::Result<Option<Outcome>> {
    Ok(row.get::<_, Option<String>>(nth)?.and_then(|word| word.parse().ok()))
}

/// The columns that [`facts_of`] reads.
pub(super) const FACTS: &str = "final_url, fetched_us, sha256, file, etag, last_modified";
/// The columns of a [`TaskView`]. For tasks settled by an older version, attempts are only in the table of attempts.
pub(super) const VIEW: &str = "id, url, state, status, error, settled_us,
    iif(requests = 0 AND last_outcome IS NULL AND status IS NOT NULL,
        (SELECT count(*) FROM attempts WHERE task_id = tasks.id), requests),
    last_us, last_took_us, last_outcome, bytes, content_type, final_url, fetched_us, sha256, file, etag, last_modified,
    changed";

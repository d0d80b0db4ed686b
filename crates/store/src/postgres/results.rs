//! Results of tasks, read in pages for people, and tasks as those who work on them read them. Results are written in
//! `settled_rows`.

use std::path::Path;
use std::sync::Arc;

use comity_core::outcome::Outcome;
use comity_core::task::{JobId, TaskId};
use comity_core::time::Span;
use tokio_postgres::Row;

use super::failure::Result;
use super::param::{opt_text, text};
use super::request_parts::request_of;
use super::tx::Tx;
use super::{at, us};
use crate::items::ItemId;
use crate::sources::SourceId;
use crate::tasks::{Attempt, FORBIDDEN, Lead, PageFacts, PreviousPage, TaskFilter, TaskRow, TaskView};

impl Tx<'_> {
    pub(super) fn views(&mut self, job: JobId, state: &str, limit: u32) -> Result<Vec<TaskView>> {
        // Repeats the condition of the partial index, which has them in this order.
        let (only, last) = match state {
            "failed" | "skipped" => ("AND state IN ('failed', 'skipped')", ""),
            _ => ("", "NULLS LAST"),
        };
        let sql = format!(
            "SELECT {VIEW} FROM task WHERE job_id = $1 AND state = $2 {only} ORDER BY settled_us DESC {last} LIMIT $3"
        );
        let rows = self.rows(&sql, &[&(job.0 as i64), &text(state), &i64::from(limit)])?;
        Ok(rows.iter().map(view_of).collect())
    }

    /// Tasks by id, which is the order in which they were added.
    pub(super) fn page(
        &mut self,
        job: JobId,
        which: &TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<TaskView>> {
        let after = after.map_or(i64::MIN, |after| after.0 as i64);
        let state = if which.state.is_some() { "state = $3" } else { "$3 IS NULL" };
        let since = match which.settled_since {
            Some(_) => "AND settled_us >= $4 AND state <> 'waiting'",
            None => "AND $4 IS NULL",
        };
        let sql = format!(
            "SELECT {VIEW} FROM task WHERE job_id = $1 AND id > $2 AND {state} {since} ORDER BY id LIMIT $5"
        );
        let which_state = opt_text(which.state.as_deref());
        let since = which.settled_since.map(us);
        let rows = self.rows(&sql, &[&(job.0 as i64), &after, &which_state, &since, &i64::from(limit)])?;
        Ok(rows.iter().map(view_of).collect())
    }

    /// Names the files of a batch of tasks by their whole path. Those of some may be named so already.
    pub(super) fn name_files_in_full(
        &mut self,
        job: JobId,
        folder: &str,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Option<TaskId>> {
        let sql = "SELECT id, file FROM task WHERE job_id = $1 AND id > $2 AND file IS NOT NULL ORDER BY id LIMIT $3
            FOR NO KEY UPDATE";
        let after = after.map_or(i64::MIN, |after| after.0 as i64);
        let rows = self.rows(sql, &[&(job.0 as i64), &after, &i64::from(limit)])?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        // A whole path stays as it is.
        let files: Vec<String> = rows
            .iter()
            .map(|row| Path::new(folder).join(row.get::<_, &str>(1)).to_string_lossy().into_owned())
            .collect();
        let files: Vec<_> = files.iter().map(|file| text(file)).collect();
        let sql = "UPDATE task SET file = named.file FROM unnest($1, $2) AS named (id, file)
            WHERE task.id = named.id AND task.file <> named.file";
        self.change(sql, &[&ids, &files])?;
        let is_full = rows.len() == limit as usize;
        Ok(ids.last().filter(|_| is_full).map(|task| TaskId(*task as u64)))
    }
}

/// Reads the columns of [`TASK`], from column `first` on. The error says what cannot be read.
pub(super) fn task_of(row: &Row, first: usize) -> std::result::Result<TaskRow, String> {
    let optional = |nth: usize| row.get::<_, Option<i64>>(first + nth);
    let last = match (optional(11), outcome_of(row, first + 13)) {
        (Some(started), Some(outcome)) => Some(Attempt {
            started_at: at(started),
            took: Span::from_micros(optional(12).unwrap_or_default().max(0) as u64),
            outcome,
            status: status_of(row, first + 14),
        }),
        _ => None,
    };
    let number = |nth: usize, name: &str| {
        let value: i64 = row.get(first + nth);
        u32::try_from(value).map_err(|_| format!("{name}: expected a small number, not {value}"))
    };
    let was_fetched: bool = row.get(first + 15);
    let previous = was_fetched.then(|| {
        Box::new(PreviousPage {
            bytes: optional(19).unwrap_or_default().max(0) as u64,
            content_type: row.get(first + 20),
            facts: Arc::new(facts_of(row, first + 21)),
        })
    });
    Ok(TaskRow {
        id: TaskId(row.get::<_, i64>(first) as u64),
        url: row.get(first + 1),
        url_key: row.get(first + 27),
        lead: lead_of(row.get(first + 2)),
        at_url: row.get(first + 3),
        hops: number(4, "hops")?,
        retries: number(5, "retries")?,
        forgiven: number(9, "forgiven")?,
        ready_at: at(row.get(first + 6)),
        scrapes: optional(7).zip(optional(8)).map(|(item, source)| (ItemId(item), SourceId(source))),
        attempts: number(10, "requests")?,
        last,
        previous,
        sends: request_of(row.get(first + 16), row.get(first + 17), row.get(first + 18))?,
    })
}

pub(super) fn view_of(row: &Row) -> TaskView {
    let micros = |nth: usize| row.get::<_, Option<i64>>(nth);
    let state: String = row.get(2);
    let is_done = state == "done";
    TaskView {
        id: TaskId(row.get::<_, i64>(0) as u64),
        url: row.get(1),
        state,
        status: status_of(row, 3),
        // That of a page whose refresh was cancelled only says so.
        error: error_of(row.get(4)).filter(|_| !is_done),
        settled_at: micros(5).map(at),
        attempts: row.get::<_, i64>(6).clamp(0, i64::from(u32::MAX)) as u32,
        started_at: micros(7).map(at),
        took: micros(8).map(|took| Span::from_micros(took.max(0) as u64)),
        outcome: outcome_of(row, 9).or(is_done.then_some(Outcome::Success)),
        bytes: micros(10).map(|bytes| bytes.max(0) as u64),
        content_type: row.get(11),
        changed: row.get::<_, Option<bool>>(18).filter(|_| is_done),
        facts: Arc::new(facts_of(row, 12)),
    }
}

/// Reads what is known about the last response, from column `first` on.
pub(super) fn facts_of(row: &Row, first: usize) -> PageFacts {
    PageFacts {
        final_url: row.get(first),
        fetched_at: row.get::<_, Option<i64>>(first + 1).map(at),
        sha256: row.get::<_, Option<&[u8]>>(first + 2).and_then(|hash| hash.try_into().ok()),
        file: row.get(first + 3),
        etag: row.get(first + 4),
        last_modified: row.get(first + 5),
    }
}

/// An error as people read it. Older versions stored `robots` for what is [`FORBIDDEN`].
pub(super) fn error_of(error: Option<String>) -> Option<String> {
    error.map(|error| if error == "robots" { FORBIDDEN.to_owned() } else { error })
}

/// Reads an outcome; `None` if its name is unknown.
pub(super) fn outcome_of(row: &Row, nth: usize) -> Option<Outcome> {
    row.get::<_, Option<&str>>(nth).and_then(|word| word.parse().ok())
}

/// Reads an HTTP status; `None` if it is none.
pub(super) fn status_of(row: &Row, nth: usize) -> Option<u16> {
    row.get::<_, Option<i64>>(nth).and_then(|status| u16::try_from(status).ok())
}

/// Anything not known to be listed is not trusted.
pub(super) fn lead_of(word: &str) -> Lead {
    if word == Lead::Listed.as_str() { Lead::Listed } else { Lead::Remote }
}

/// The columns that [`task_of`] reads.
pub(super) const TASK: &str = "task.id, task.url, task.lead, task.at_url, task.hops, task.retries, task.ready_us,
    task.item_id, task.source_id, task.forgiven, task.requests, task.last_us, task.last_took_us, task.last_outcome,
    task.status, task.sha256 IS NOT NULL OR task.etag IS NOT NULL OR task.last_modified IS NOT NULL,
    CASE WHEN task.bodiless THEN NULL ELSE task.method END, task.body, task.headers, task.bytes, task.content_type,
    task.final_url, task.fetched_us, task.sha256, task.file, task.etag, task.last_modified, task.url_key";
/// The columns of a [`TaskView`]. For tasks settled by an older version, attempts are only in the table of attempts.
pub(super) const VIEW: &str = "id, url, state, status, error, settled_us,
    CASE WHEN requests = 0 AND last_outcome IS NULL AND status IS NOT NULL
        THEN (SELECT count(*) FROM logged_attempt WHERE task_id = task.id) ELSE requests END,
    last_us, last_took_us, last_outcome, bytes, content_type, final_url, fetched_us, sha256, file, etag, last_modified,
    changed";

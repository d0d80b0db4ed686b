//! Scrapes of items: whether one may start, and what its end means for its item. Each has a row in the log from its start,
//! which is committed together with the check of the interval. Enqueueing is in `scrapes`.

use comity_core::interval::{self, Deferred};
use comity_core::time::{Span, Timestamp};

use super::failure::Result;
use super::param::{opt_text, text};
use super::tx::Tx;
use super::{at, us};
use crate::domains::HolderId;
use crate::items::{ItemId, LogId, Start, StartStep, Started};
use crate::sources::SourceId;
use crate::tasks::{Settle, Step};

impl Tx<'_> {
    pub(super) fn start_scrape(&mut self, holder: HolderId, start: Start, now: Timestamp) -> Result<Started> {
        let task = start.task.0 as i64;
        // Of two tasks of a source, only one starts.
        let locked = self.lock_sources_of(task)?;
        if self.hold(holder, &[start.tenure])? != [true] {
            return Ok(Started::Fenced);
        }
        let sql = "SELECT item_id IS NOT NULL, hops > 0, job.state = 'running' FROM task
            JOIN lane ON lane.id = lane_id JOIN job ON job.id = task.job_id
            WHERE task.id = $1 AND task.state = 'waiting' AND domain_id = $2 FOR NO KEY UPDATE OF task";
        let row = self.row(sql, &[&task, &start.tenure.key.0])?;
        let row = row.map(|row| (row.get(0), row.get(1), row.get(2)));
        let Some::<(bool, bool, bool)>((true, hopped, job_runs)) = row else { return Ok(Started::Fenced) };
        if !job_runs {
            return Ok(Started::Gone("the job ended"));
        }
        let (item, source) = match self.scraped_by(task, &locked)? {
            Ok(found) => found,
            Err(why) => return Ok(Started::Gone(why)),
        };
        let sql =
            "SELECT id FROM scrape_log WHERE task_id = $1 AND ended_us IS NULL ORDER BY id DESC LIMIT 1";
        let open = self.row(sql, &[&task])?.map(|row| LogId(row.get(0)));
        if let Some(log) = open.filter(|_| hopped) {
            // A redirect belongs to the scrape that started it.
            let may_join = start.step == StartStep::Ask;
            return Ok(if may_join { Started::MayJoin } else { Started::Continues(log) });
        }
        if open.is_some() {
            // Whoever started it did not finish. It may have been sent, so it counts.
            let sql = "UPDATE scrape_log SET ended_us = $2, status = 'interrupted'
                WHERE task_id = $1 AND ended_us IS NULL";
            self.change(sql, &[&task, &us(now)])?;
        }
        self.start_checked(item, source, start, now)
    }

    /// Checks the interval, and starts or defers the scrape.
    fn start_checked(
        &mut self,
        item: ItemId,
        source: SourceId,
        start: Start,
        now: Timestamp,
    ) -> Result<Started> {
        let times = self.times(source, item, start.interval, now)?;
        if let Err(early) = interval::check_running(times.interval, times.last_scrape_at, now) {
            let due_at = times.last_scrape_at.unwrap_or(now) + early.interval;
            if due_at.since(now) <= start.patience {
                return Ok(Started::Soon(due_at));
            }
            // Other items of the source may have reserved wake times: this one comes after them.
            let deferred = interval::check(times.interval, times.last_scrape_at, times.last_wake, now);
            let deferred = deferred.err().unwrap_or(early);
            return self.defer(item, start.task.0 as i64, deferred).map(Started::Deferred);
        }
        if start.step == StartStep::Ask {
            return Ok(Started::MayJoin);
        }
        let sql = "WITH begun AS (INSERT INTO scrape_log (source_id, item_id, task_id, started_us)
                VALUES ($1, $2, $3, $4) RETURNING id),
            running AS (UPDATE item SET state = 'running', wake_us = NULL WHERE id = $2)
            SELECT id FROM begun";
        let task = start.task.0 as i64;
        let begun = self.change_rows(sql, &[&source.0, &item.0, &task, &us(now)])?;
        Ok(begun.first().map_or(Started::Fenced, |row| Started::Begun(LogId(row.get(0)))))
    }

    /// Defers a task: its item stops running, and its wake time is reserved.
    fn defer(&mut self, item: ItemId, task: i64, deferred: Deferred) -> Result<Deferred> {
        // Never earlier than it was ready anyway: it may be a retry.
        let sql = "WITH later AS (UPDATE task SET ready_us = greatest(ready_us, $2) WHERE id = $1
                RETURNING ready_us),
            deferred AS (UPDATE item SET state = 'waiting', wake_us = ready_us FROM later WHERE item.id = $3)
            SELECT ready_us FROM later";
        let rows = self.change_rows(sql, &[&task, &us(deferred.wake_at), &item.0])?;
        let wake_at = rows.first().map_or(deferred.wake_at, |row| at(row.get(0)));
        let now = deferred.wake_at - Span::from_secs(deferred.wait_seconds);
        Ok(Deferred { wake_at, wait_seconds: wake_at.since(now).as_secs_up(), ..deferred })
    }

    pub(super) fn cancel_scrape(&mut self, log: LogId) -> Result<()> {
        // The item before the log, as everybody does who changes both.
        let sql = "UPDATE item SET state = 'waiting' WHERE state = 'running'
            AND id = (SELECT item_id FROM scrape_log WHERE id = $1 AND ended_us IS NULL)";
        self.change(sql, &[&log.0])?;
        self.change("DELETE FROM scrape_log WHERE id = $1 AND ended_us IS NULL", &[&log.0]).map(|_| ())
    }

    /// Applies the results of tasks to their items, and to those that share the tasks. To be called with the items that the
    /// tasks have, after their rows were changed: a trigger has updated the items' states then (see `migrations/001.sql`).
    /// Each task may be among them once.
    pub(super) fn settle_items(&mut self, settled: &[(i64, &Settle)], now: Timestamp) -> Result<()> {
        if settled.is_empty() {
            return Ok(());
        }
        let mut pages = Saved::default();
        let (mut retried, mut ended) = (Vec::new(), Ended::default());
        for (item, settle) in settled {
            match &settle.step {
                Step::Done { .. } => pages.add(*item, settle),
                Step::Retry { .. } => retried.push(*item),
                Step::Failed { .. } | Step::Skipped { .. } => {}
                // It continues elsewhere.
                Step::Moved { .. } => continue,
            }
            ended.add(*item, settle);
        }
        self.save_results(&pages, now)?;
        if !retried.is_empty() {
            let sql = "UPDATE item SET state = 'waiting' WHERE id = ANY($1) AND state = 'running'";
            self.change(sql, &[&retried])?;
        }
        self.end_log(&ended, now)
    }

    fn save_results(&mut self, pages: &Saved<'_>, now: Timestamp) -> Result<()> {
        let Saved { tasks, items, statuses, bytes, files, content_types } = pages;
        if items.is_empty() {
            return Ok(());
        }
        let sql =
            "UPDATE item SET scraped_us = $1, status = given.status, bytes = given.bytes, file = given.file,
                content_type = given.content_type, scraped_as = NULL
            FROM unnest($2, $3, $4, $5, $6) AS given (id, status, bytes, file, content_type)
            WHERE item.id = given.id";
        self.change(sql, &[&us(now), items, statuses, bytes, files, content_types])?;
        self.share_results(tasks, items)
    }

    /// Ends the rows of scrapes in the log. An attempt that failed before its request was sent has none yet.
    fn end_log(&mut self, ended: &Ended<'_>, now: Timestamp) -> Result<()> {
        let Ended { tasks, items, started, states, statuses, bytes, errors } = ended;
        if tasks.is_empty() {
            return Ok(());
        }
        // Whoever removes a source deletes its items before its log, and waits for these locks.
        let sql = "WITH given AS (
                SELECT * FROM unnest($2, $3, $4, $5, $6, $7, $8)
                    AS given (task_id, item_id, started_us, status, http_status, bytes, error)
            ), closed AS (
                UPDATE scrape_log SET ended_us = $1, status = given.status, http_status = given.http_status,
                    bytes = given.bytes, error = given.error
                FROM given WHERE scrape_log.task_id = given.task_id AND ended_us IS NULL RETURNING given.task_id
            ), lacking AS (
                SELECT source_id, item.id AS item_id, given.task_id, started_us, given.status, http_status,
                    given.bytes, given.error
                FROM given JOIN item ON item.id = given.item_id
                WHERE started_us IS NOT NULL AND given.task_id NOT IN (SELECT task_id FROM closed)
                ORDER BY item.id FOR KEY SHARE OF item
            )
            INSERT INTO scrape_log (source_id, item_id, task_id, started_us, ended_us, status, http_status, bytes, error)
            SELECT source_id, item_id, task_id, started_us, $1, status, http_status, bytes, error FROM lacking";
        self.change(sql, &[&us(now), tasks, items, started, states, statuses, bytes, errors]).map(|_| ())
    }
}

/// Columns of items whose pages were saved.
#[derive(Default)]
struct Saved<'a> {
    tasks: Vec<i64>,
    items: Vec<i64>,
    statuses: Vec<i64>,
    bytes: Vec<i64>,
    files: Vec<Option<std::borrow::Cow<'a, str>>>,
    content_types: Vec<Option<std::borrow::Cow<'a, str>>>,
}

impl<'a> Saved<'a> {
    fn add(&mut self, item: i64, settle: &'a Settle) {
        let Step::Done { status, bytes, file, content_type } = &settle.step else { return };
        self.tasks.push(settle.task.0 as i64);
        self.items.push(item);
        self.statuses.push(i64::from(*status));
        self.bytes.push(*bytes as i64);
        self.files.push(opt_text(file.as_deref()));
        self.content_types.push(opt_text(content_type.as_deref()));
    }
}

/// Columns of scrapes that ended.
#[derive(Default)]
struct Ended<'a> {
    tasks: Vec<i64>,
    items: Vec<i64>,
    started: Vec<Option<i64>>,
    states: Vec<&'static str>,
    statuses: Vec<Option<i64>>,
    bytes: Vec<Option<i64>>,
    errors: Vec<Option<std::borrow::Cow<'a, str>>>,
}

impl<'a> Ended<'a> {
    fn add(&mut self, item: i64, settle: &'a Settle) {
        let last = settle.attempts.last();
        let (state, status, bytes, error) = match &settle.step {
            Step::Done { status, bytes, .. } => {
                (if *bytes == 0 { "partial" } else { "ok" }, Some(*status), Some(*bytes as i64), None)
            }
            Step::Failed { error, status } => ("failed", *status, None, Some(text(error))),
            Step::Skipped { reason } => ("skipped", None, None, Some(text(reason))),
            Step::Retry { error, .. } => {
                ("retry", last.and_then(|attempt| attempt.status), None, Some(text(error)))
            }
            Step::Moved { .. } => return,
        };
        self.tasks.push(settle.task.0 as i64);
        self.items.push(item);
        self.started.push(last.map(|attempt| us(attempt.started_at)));
        self.states.push(state);
        self.statuses.push(status.map(i64::from));
        self.bytes.push(bytes);
        self.errors.push(error);
    }
}

//! Scraping items: whether an item is enqueued, whether its scrape may start, and the result. Reading items is in
//! `items`.

use std::collections::HashMap;

use comity_core::enqueue::{Enqueued, Facts, SourceFacts, Trigger, enqueue};
use comity_core::interval::{self, Deferred};
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, params};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::used_ids::Ids;
use super::writer::Tx;
use super::{at, us};
use crate::domains::HolderId;
use crate::items::{Item, ItemId, LogId, ScrapeRequest, ScrapeTerms, Start, StartStep, Started};
use crate::sources::{Source, SourceId};
use crate::tasks::{Attempt, Lead, Settle, Step, origin_of};

impl Tx<'_> {
    pub(super) fn enqueue_items(
        &mut self,
        job: JobId,
        requests: &[ScrapeRequest],
        trigger: Trigger,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> rusqlite::Result<Vec<Enqueued>> {
        let mut sources: HashMap<SourceId, Option<SourceFacts>> = HashMap::new();
        let mut results = Vec::with_capacity(requests.len());
        let mut made = 0;
        for request in requests {
            let item = self.item(request.item)?;
            let source = match &item {
                None => None,
                Some(item) => match sources.get(&item.source) {
                    Some(known) => *known,
                    None => {
                        let facts = self.source_facts(item.source, terms, now)?;
                        sources.insert(item.source, facts);
                        facts
                    }
                },
            };
            let facts = Facts {
                item_exists: item.is_some(),
                source,
                item_in_flight: item.as_ref().is_some_and(|item| item.state.is_in_flight()),
                trigger,
            };
            let result = enqueue(&facts, now);
            let wake_at = match &result {
                Enqueued::Enqueued => Some(None),
                Enqueued::Deferred(deferred) => Some(Some(deferred.wake_at)),
                Enqueued::Already | Enqueued::Refused(_) => None,
            };
            if let (Some(wake_at), Some(item)) = (wake_at, &item) {
                if self.share(job, item, trigger, now)? {
                    results.push(Enqueued::Already);
                    continue;
                }
                if let Some(Some(facts)) = sources.get_mut(&item.source) {
                    match wake_at {
                        None => facts.in_flight += 1,
                        Some(_) => facts.last_wake = wake_at,
                    }
                }
                self.make_task(job, request, item, wake_at, now)?;
                made += 1;
            }
            results.push(result);
        }
        let sql = "UPDATE jobs SET tasks = tasks + ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([job.0 as i64, made])?;
        Ok(results)
    }

    /// What is known about a source when one of its items is to be enqueued.
    fn source_facts(
        &self,
        id: SourceId,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> rusqlite::Result<Option<SourceFacts>> {
        let Some(source) = self.source(id)? else { return Ok(None) };
        let in_flight = match terms.in_flight_max {
            None => 0,
            Some(_) => {
                let sql = "SELECT count(*) FROM items WHERE source_id = ?1
                    AND state IN ('waiting', 'running') AND (wake_us IS NULL OR wake_us <= ?2)
                    AND id NOT IN (SELECT item_id FROM sharers)";
                self.sql.prepare_cached(sql)?.query_row([id.0, us(now)], |row| row.get(0))?
            }
        };
        Ok(Some(SourceFacts {
            scraping: source.enabled && source.scraping,
            auto_scrape: source.auto_scrape,
            in_flight,
            in_flight_max: terms.in_flight_max,
            interval: source.interval.effective(terms.interval),
            last_scrape_at: self.last_scrape(id, now)?,
            last_wake: self.last_wake(id, None, source.interval.effective(terms.interval), now)?,
        }))
    }

    /// The last scrape of a source, from its log. A time in the future counts as now, and is corrected to that.
    fn last_scrape(&self, source: SourceId, now: Timestamp) -> rusqlite::Result<Option<Timestamp>> {
        let sql = "SELECT max(started_us) FROM scrape_logs WHERE source_id = ?1";
        let last: Option<i64> = self.sql.prepare_cached(sql)?.query_row([source.0], |row| row.get(0))?;
        if last.is_none_or(|last| at(last) <= now) {
            return Ok(last.map(at));
        }
        let sql = "UPDATE scrape_logs SET started_us = ?2 WHERE source_id = ?1 AND started_us > ?2";
        self.sql.prepare_cached(sql)?.execute([source.0, us(now)])?;
        Ok(Some(now))
    }

    /// The latest wake time reserved for a source, ignoring one item.
    fn last_wake(
        &self,
        source: SourceId,
        except: Option<ItemId>,
        interval: Option<Span>,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Timestamp>> {
        let sql = "SELECT wake_us FROM items WHERE source_id = ?1 AND state IN ('waiting', 'running')
            AND wake_us IS NOT NULL AND id IS NOT ?2 ORDER BY wake_us DESC LIMIT 1";
        let mut statement = self.sql.prepare_cached(sql)?;
        let last: Option<i64> =
            statement.query_row(params![source.0, except.map(|id| id.0)], |row| row.get(0)).optional()?;
        let (Some(last), Some(interval)) = (last.map(at), interval) else { return Ok(last.map(at)) };
        // Usually there is no need to count.
        if last.since(now) <= SOON {
            return Ok(Some(last));
        }
        let sql = "SELECT count(*) FROM items WHERE source_id = ?1 AND state IN ('waiting', 'running')
            AND wake_us IS NOT NULL";
        let deferred: i64 = self.sql.prepare_cached(sql)?.query_row([source.0], |row| row.get(0))?;
        Ok(Some(last.min(interval::latest_wake(interval, deferred.max(0) as u64, now))))
    }

    fn make_task(
        &mut self,
        job: JobId,
        request: &ScrapeRequest,
        item: &Item,
        wake_at: Option<Timestamp>,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let job = job.0 as i64;
        let lane = self.lane_id(job, request.domain.as_str())?;
        let ready = us(wake_at.unwrap_or(now));
        let mut key = xxh3_64_with_seed(&item.id.0.to_le_bytes(), us(now) as u64) as i64;
        let task = self.unused_id(Ids::Tasks)?;
        let sql = "INSERT INTO tasks (id, job_id, lane_id, url, url_key, lead, ready_us, item_id, source_id)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (job_id, url_key) DO NOTHING";
        let mut insert = self.sql.prepare_cached(sql)?;
        let (lead, of, source) = (item.lead.as_str(), item.id.0, item.source.0);
        while insert.execute(params![task, job, lane, item.url, key, lead, ready, of, source])? == 0 {
            key = key.wrapping_add(1);
        }
        drop(insert);
        if item.lead == Lead::Listed {
            self.list_origins(job, [origin_of(&item.url)].into())?;
        }
        self.forget_task(item.id)?;
        let sql =
            "UPDATE items SET state = 'waiting', wake_us = ?2, task_id = ?3, error = NULL WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![item.id.0, wake_at.map(us), task])?;
        self.make_due(lane, at(ready))
    }

    pub(super) fn start_scrape(
        &mut self,
        holder: HolderId,
        start: Start,
        now: Timestamp,
    ) -> rusqlite::Result<Started> {
        let Start { task, tenure, interval, patience, step } = start;
        let sql = "SELECT item_id IS NOT NULL, hops > 0, jobs.state = 'running' FROM tasks
            JOIN lanes ON lanes.id = lane_id JOIN jobs ON jobs.id = tasks.job_id
            WHERE tasks.id = ?1 AND tasks.state = 'waiting' AND domain_id = ?2";
        let mut statement = self.sql.prepare_cached(sql)?;
        let row = statement.query_row([task.0 as i64, tenure.key.0], |row| {
            Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?, row.get::<_, bool>(2)?))
        });
        let row = row.optional()?;
        drop(statement);
        let Some((true, hopped, job_runs)) = row else { return Ok(Started::Fenced) };
        if !self.is_holder(holder)? || !self.holds(holder, tenure)? {
            return Ok(Started::Fenced);
        }
        if !job_runs {
            return Ok(Started::Gone("the job ended"));
        }
        let (item, source) = loop {
            match self.scraped_by(task)? {
                Ok(found) => break found,
                // Other items may be waiting for the same page.
                Err(why) if !self.pass_on(task)? => return Ok(Started::Gone(why)),
                Err(_) => {}
            }
        };
        let open = self.open_log(task)?;
        if let Some(log) = open.filter(|_| hopped) {
            // A redirect belongs to the scrape that started it.
            return Ok(if step == StartStep::Ask { Started::MayJoin } else { Started::Continues(log) });
        }
        if let Some(log) = open {
            // Whoever started it did not finish. It may have been sent, so it counts.
            let sql = "UPDATE scrape_logs SET ended_us = ?2, status = 'interrupted' WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute([log.0, us(now)])?;
        }
        self.start_checked(&item, &source, task, interval, patience, step, now)
    }

    /// Checks the interval, and starts or defers the scrape.
    #[expect(clippy::too_many_arguments, reason = "the rows that were read, and what was asked")]
    fn start_checked(
        &self,
        item: &Item,
        source: &Source,
        task: TaskId,
        interval: Option<Span>,
        patience: Span,
        step: StartStep,
        now: Timestamp,
    ) -> rusqlite::Result<Started> {
        let interval = source.interval.effective(interval);
        let last_scrape = self.last_scrape(source.id, now)?;
        if let Err(early) = interval::check_running(interval, last_scrape, now) {
            let due_at = last_scrape.unwrap_or(now) + early.interval;
            if due_at.since(now) <= patience {
                return Ok(Started::Soon(due_at));
            }
            // Other items of the source may have reserved wake times: this one comes after them.
            let others = self.last_wake(source.id, Some(item.id), interval, now)?;
            let deferred = interval::check(interval, last_scrape, others, now).err().unwrap_or(early);
            return self.defer(item, task, deferred).map(Started::Deferred);
        }
        if step == StartStep::Ask {
            return Ok(Started::MayJoin);
        }
        let sql = "INSERT INTO scrape_logs (source_id, item_id, task_id, started_us) VALUES (?1, ?2, ?3, ?4)";
        self.sql.prepare_cached(sql)?.execute([source.id.0, item.id.0, task.0 as i64, us(now)])?;
        let log = LogId(self.sql.last_insert_rowid());
        let sql = "UPDATE items SET state = 'running', wake_us = NULL WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([item.id.0])?;
        Ok(Started::Begun(log))
    }

    /// Defers a task: its item stops running, and its wake time is reserved.
    fn defer(&self, item: &Item, task: TaskId, deferred: Deferred) -> rusqlite::Result<Deferred> {
        // Never earlier than it was ready anyway: it may be a retry.
        let sql = "UPDATE tasks SET ready_us = max(ready_us, ?2) WHERE id = ?1 RETURNING ready_us";
        let mut statement = self.sql.prepare_cached(sql)?;
        let wake = statement.query_row([task.0 as i64, us(deferred.wake_at)], |row| row.get(0))?;
        let sql = "UPDATE items SET state = 'waiting', wake_us = ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([item.id.0, wake])?;
        let now = deferred.wake_at - Span::from_secs(deferred.wait_seconds);
        Ok(Deferred { wake_at: at(wake), wait_seconds: at(wake).since(now).as_secs_up(), ..deferred })
    }

    fn open_log(&self, task: TaskId) -> rusqlite::Result<Option<LogId>> {
        let sql = "SELECT id FROM scrape_logs WHERE task_id = ?1 AND ended_us IS NULL";
        self.sql.prepare_cached(sql)?.query_row([task.0 as i64], |row| row.get(0).map(LogId)).optional()
    }

    pub(super) fn cancel_scrape(&self, log: LogId) -> rusqlite::Result<()> {
        let sql = "UPDATE items SET state = 'waiting' WHERE state = 'running'
            AND id = (SELECT item_id FROM scrape_logs WHERE id = ?1 AND ended_us IS NULL)";
        self.sql.prepare_cached(sql)?.execute([log.0])?;
        let sql = "DELETE FROM scrape_logs WHERE id = ?1 AND ended_us IS NULL";
        self.sql.prepare_cached(sql)?.execute([log.0])?;
        Ok(())
    }

    /// Applies the result of a task to its item. A trigger updates the item's state (see `schema`).
    pub(super) fn settle_item(&self, item: i64, settle: &Settle, now: Timestamp) -> rusqlite::Result<()> {
        let (status, http_status, bytes, error) = match &settle.step {
            Step::Done { status, bytes, .. } => {
                (if *bytes == 0 { "partial" } else { "ok" }, Some(*status), Some(*bytes as i64), None)
            }
            Step::Failed { error, status } => ("failed", *status, None, Some(error.as_str())),
            Step::Skipped { reason } => ("skipped", None, None, Some(reason.as_str())),
            Step::Retry { error, .. } => {
                let last = settle.attempts.last().and_then(|attempt| attempt.status);
                ("retry", last, None, Some(error.as_str()))
            }
            Step::Moved { .. } => return Ok(()),
        };
        if let Step::Done { file, content_type, status, bytes } = &settle.step {
            let sql =
                "UPDATE items SET scraped_us = ?2, status = ?3, bytes = ?4, file = ?5, content_type = ?6, scraped_as = NULL
                WHERE id = ?1";
            let mut statement = self.sql.prepare_cached(sql)?;
            statement.execute(params![item, us(now), status, *bytes as i64, file, content_type])?;
            self.share_result(settle.task, item)?;
        }
        if let Step::Retry { .. } = settle.step {
            let sql = "UPDATE items SET state = 'waiting' WHERE id = ?1 AND state = 'running'";
            self.sql.prepare_cached(sql)?.execute([item])?;
        }
        let task = settle.task.0 as i64;
        let sql =
            "UPDATE scrape_logs SET ended_us = ?2, status = ?3, http_status = ?4, bytes = ?5, error = ?6
            WHERE task_id = ?1 AND ended_us IS NULL";
        let mut statement = self.sql.prepare_cached(sql)?;
        let closed = statement.execute(params![task, us(now), status, http_status, bytes, error])?;
        // An attempt that failed before its request was sent has no log row yet.
        if closed == 0
            && let Some(Attempt { started_at, .. }) = settle.attempts.last()
        {
            let sql = "INSERT INTO scrape_logs (source_id, item_id, task_id, started_us, ended_us, status,
                http_status, bytes, error) SELECT source_id, id, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM items WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute(params![
                item,
                task,
                us(*started_at),
                us(now),
                status,
                http_status,
                bytes,
                error
            ])?;
        }
        Ok(())
    }
}

/// A wake time within this span may well have been reserved by items that are waiting.
const SOON: Span = Span::from_hours(1);

//! Items of several sources that point to the same page share one task and its result.
//!
//! A task belongs to one item, whose source and interval apply. Other items that wait for it are its sharers: they have
//! the same `task_id`, and the same trigger updates their state (see `migrations/001.sql`). Whoever adds a sharer has locked
//! the task, so that its result does not come in between.

use std::collections::HashMap;

use comity_core::task::JobId;
use comity_core::time::Timestamp;
use tokio_postgres::Row;

use super::failure::Result;
use super::jobs::id_of;
use super::results::lead_of;
use super::tx::Tx;
use super::{at, us};
use crate::items::{Item, ItemId, SHARED_FOR};
use crate::sources::SourceId;
use crate::tasks::Lead;

/// A task that fetches a page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shared {
    /// One that exists.
    Task(i64),
    /// One that is about to be made, by its place among those.
    New(usize),
}

/// What is known of pages, by their key and the lead of their items.
pub(super) struct Pages {
    /// Tasks that are about to fetch them.
    tasks: HashMap<(Vec<u8>, Lead), Shared>,
    /// Items whose pages were fetched a short while ago, and when.
    fetched: HashMap<(Vec<u8>, Lead), (i64, Timestamp)>,
}

impl Pages {
    /// The task that is about to fetch a page.
    pub(super) fn task(&self, key: Option<&[u8]>, lead: Lead) -> Option<Shared> {
        self.tasks.get(&(key?.to_vec(), lead)).copied()
    }

    pub(super) fn add(&mut self, key: Option<&[u8]>, lead: Lead, task: Shared) {
        if let Some(key) = key {
            self.tasks.insert((key.to_vec(), lead), task);
        }
    }

    /// The item that an item's page was fetched for, if it has not changed since.
    pub(super) fn fetched(&self, key: Option<&[u8]>, item: &Item) -> Option<i64> {
        let (other, scraped_at) = self.fetched.get(&(key?.to_vec(), item.lead))?;
        item.changed_at.is_none_or(|changed_at| *scraped_at >= changed_at).then_some(*other)
    }
}

impl Tx<'_> {
    /// Locks the pages of items, so that no item of another source is enqueued for one of them meanwhile. The sources are
    /// locked already. Returns the keys of the pages.
    pub(super) fn lock_pages(&mut self, items: &[i64]) -> Result<Vec<Vec<u8>>> {
        let sql = "SELECT page_key, pg_advisory_xact_lock(
                hashtextextended(current_schema() || ' page ' || encode(page_key, 'hex'), 0))
            FROM (SELECT DISTINCT page_key FROM item WHERE id = ANY($1) AND page_key IS NOT NULL
                ORDER BY page_key) AS pages";
        Ok(self.rows(sql, &[&items])?.iter().map(|row| row.get(0)).collect())
    }

    /// Locks the last tasks of those items that are not in flight, and the tasks that are about to fetch these pages; returns
    /// what is known of the pages. Items that follow these tasks stay as they are until the end of the transaction.
    pub(super) fn known_pages(
        &mut self,
        job: JobId,
        items: &[i64],
        keys: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<Pages> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let sql = "SELECT id FROM task WHERE id IN (
                SELECT task_id FROM item WHERE id = ANY($1) AND state NOT IN ('waiting', 'running')
                UNION SELECT task_id FROM item WHERE page_key = ANY($2) AND state IN ('waiting', 'running'))
            ORDER BY id FOR UPDATE";
        let locked: Vec<i64> = self.rows(sql, &[&items, &keys])?.iter().map(|row| row.get(0)).collect();
        let mut pages = Pages { tasks: HashMap::new(), fetched: HashMap::new() };
        if keys.is_empty() {
            return Ok(pages);
        }
        // A task that is not locked began to wait only now. It is left alone: it may be settled at any time.
        let sql = "SELECT page_key, item.lead, item.id, task.id, scraped_us
            FROM item LEFT JOIN task ON task.id = item.task_id AND task.id = ANY($2) AND task.state = 'waiting'
                AND task.job_id = $3 AND item.state IN ('waiting', 'running')
            WHERE page_key = ANY($1) AND (task.id IS NOT NULL OR item.state = 'done' AND scraped_us >= $4
                AND (changed_us IS NULL OR changed_us <= scraped_us))
            ORDER BY scraped_us NULLS FIRST, item.id";
        for row in self.rows(sql, &[&keys, &locked, &id_of(job), &us(now - SHARED_FOR)])? {
            let page = (row.get(0), lead_of(row.get(1)));
            match row.get(3) {
                Some(task) => drop(pages.tasks.insert(page, Shared::Task(task))),
                None => {
                    let scraped_at = row.get::<_, Option<i64>>(4).map_or(now, at);
                    pages.fetched.insert(page, (row.get(2), scraped_at));
                }
            }
        }
        Ok(pages)
    }

    /// Makes items sharers of tasks; `new` are those that were just made.
    pub(super) fn share_tasks(&mut self, sharing: &[(i64, Shared)], new: &[i64]) -> Result<()> {
        if sharing.is_empty() {
            return Ok(());
        }
        let task = |shared: Shared| match shared {
            Shared::Task(task) => Some(task),
            Shared::New(nth) => new.get(nth).copied(),
        };
        let pairs = sharing.iter().filter_map(|(item, shared)| Some((task(*shared)?, *item)));
        let (tasks, items): (Vec<i64>, Vec<i64>) = pairs.unzip();
        let sql = "WITH given AS (SELECT * FROM unnest($1, $2) AS given (task_id, item_id)),
                added AS (INSERT INTO sharer (task_id, item_id) SELECT task_id, item_id FROM given)
            UPDATE item SET state = 'waiting', wake_us = NULL, task_id = given.task_id, error = NULL
            FROM given WHERE item.id = given.item_id";
        self.change(sql, &[&tasks, &items]).map(|_| ())
    }

    /// Gives items the results of others.
    pub(super) fn take_results(&mut self, pairs: &[(i64, i64)]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let (items, others): (Vec<i64>, Vec<i64>) = pairs.iter().copied().unzip();
        let sql = format!(
            "UPDATE item SET {RESULT} FROM unnest($1, $2) AS given (item_id, other_id)
            JOIN item AS other ON other.id = other_id WHERE item.id = given.item_id"
        );
        self.change(&sql, &[&items, &others]).map(|_| ())
    }

    /// Copies the results of items to those that shared their tasks.
    pub(super) fn share_results(&mut self, tasks: &[i64], items: &[i64]) -> Result<()> {
        let sql = format!(
            "WITH shared AS (DELETE FROM sharer USING unnest($1, $2) AS done (task_id, item_id)
                WHERE sharer.task_id = done.task_id
                RETURNING sharer.task_id, sharer.item_id, done.item_id AS other_id)
            UPDATE item SET {RESULT} FROM shared JOIN item AS other ON other.id = other_id
            WHERE item.id = shared.item_id AND item.task_id = shared.task_id"
        );
        self.change(&sql, &[&tasks, &items]).map(|_| ())
    }

    /// Removes the tasks of the items' last scrapes, and stops sharing tasks of others: an item has one task at a time.
    pub(super) fn forget_tasks(&mut self, items: &[i64]) -> Result<()> {
        let sql =
            "WITH gone AS (DELETE FROM task USING item WHERE item.id = ANY($1) AND task.id = item.task_id
                AND task.item_id = item.id RETURNING task.id),
            logged AS (DELETE FROM logged_attempt WHERE task_id IN (SELECT id FROM gone))
            DELETE FROM sharer WHERE item_id = ANY($1)";
        self.change(sql, &[&items]).map(|_| ())
    }

    /// Locks the sources that decide whether a task may be started: that of its item or, if that must not be scraped any more,
    /// those of the items that share it too. Returns their ids.
    pub(super) fn lock_sources_of(&mut self, task: i64) -> Result<Vec<i64>> {
        let which = "SELECT source_id FROM item WHERE id = (SELECT item_id FROM task WHERE id = $1)
            UNION ALL SELECT source_id FROM sharer JOIN item ON item.id = item_id WHERE sharer.task_id = $1
                AND NOT EXISTS (SELECT 1 FROM task JOIN item AS own ON own.id = task.item_id AND own.task_id = task.id
                    JOIN source ON source.id = own.source_id WHERE task.id = $1 AND enabled AND scraping)";
        self.lock_sources(which, &task)
    }

    /// The item that a task scrapes and its source, or why there is none. If the item must not be scraped any more, it is reset
    /// as if it had never been enqueued, and the task passes to the next item that shares it. The task is locked, and so are
    /// these sources.
    pub(super) fn scraped_by(
        &mut self,
        task: i64,
        locked: &[i64],
    ) -> Result<std::result::Result<(ItemId, SourceId), &'static str>> {
        let mut rows = self.rows(CANDIDATES, &[&task])?;
        let mut choice = Choice::of(&rows);
        if choice.sources.iter().any(|source| !locked.contains(source)) {
            // They matter only since the others were locked. No more items can come to share the task now.
            let all = rows.iter().filter_map(|row| row.get::<_, Option<i64>>(1));
            let missing: Vec<i64> = all.filter(|source| !locked.contains(source)).collect();
            self.lock_sources("SELECT unnest($1) AS source_id", &missing)?;
            rows = self.rows(CANDIDATES, &[&task])?;
            choice = Choice::of(&rows);
        }
        let Choice { found, reset, passed, .. } = choice;
        if !reset.is_empty() {
            let sql = "UPDATE item SET state = 'none', wake_us = NULL, task_id = NULL WHERE id = ANY($1)";
            self.change(sql, &[&reset])?;
        }
        if let Some(last) = passed.last() {
            let sql = "WITH passed AS (DELETE FROM sharer WHERE task_id = $1 AND item_id = ANY($2))
                UPDATE task SET item_id = item.id, source_id = item.source_id FROM item
                WHERE task.id = $1 AND item.id = $3";
            self.change(sql, &[&task, &passed, last])?;
        }
        Ok(found)
    }
}

/// Which item a task scrapes.
struct Choice {
    found: std::result::Result<(ItemId, SourceId), &'static str>,
    /// Items that must not be scraped any more.
    reset: Vec<i64>,
    /// Items that the task passes to, one after the other.
    passed: Vec<i64>,
    /// The sources that it depends on.
    sources: Vec<i64>,
}

impl Choice {
    /// Chooses from the rows of [`CANDIDATES`].
    fn of(rows: &[Row]) -> Self {
        let (mut reset, mut passed, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = Err("the item is gone");
        for row in rows {
            let (item, source): (Option<i64>, Option<i64>) = (row.get(0), row.get(1));
            if row.get(5) {
                passed.extend(item);
            }
            let (Some(item), Some(source)) = (item, source) else { continue };
            let (has_task, enabled, scraping): (bool, Option<bool>, Option<bool>) =
                (row.get(2), row.get(3), row.get(4));
            if !has_task {
                found = Err("the item has another task, or none");
                continue;
            }
            sources.push(source);
            found = match (enabled, scraping) {
                (None, _) => Err("the source is gone"),
                (Some(false), _) => Err("the source is disabled"),
                (Some(true), Some(false)) => Err("scraping is disabled for the source"),
                (Some(true), _) => Ok((ItemId(item), SourceId(source))),
            };
            if found.is_ok() {
                break;
            }
            reset.push(item);
        }
        Self { found, reset, passed, sources }
    }
}

/// The item of a task, if it is still there, and then those that share it.
const CANDIDATES: &str = "SELECT item.id, item.source_id, item.task_id IS NOT DISTINCT FROM $1,
        source.enabled, source.scraping, is_sharer
    FROM (SELECT item_id, false AS is_sharer FROM task WHERE id = $1
        UNION ALL SELECT item_id, true FROM sharer WHERE task_id = $1) AS named
    LEFT JOIN item ON item.id = named.item_id LEFT JOIN source ON source.id = item.source_id
    WHERE NOT is_sharer OR item.task_id = $1 ORDER BY is_sharer, item.id";
/// What an item gets from another one whose page it shares. The state is that of the page: the other item may be waiting
/// again.
const RESULT: &str = "state = CASE WHEN coalesce(other.bytes, 0) = 0 THEN 'partial' ELSE 'done' END, scraped_us = other.scraped_us, status = other.status, bytes = other.bytes,
    file = other.file, content_type = other.content_type, scraped_as = other.id, error = NULL, wake_us = NULL";

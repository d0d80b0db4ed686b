//! Items of several sources that point to the same page share one task and its result.
//!
//! A task belongs to one item, whose source and interval apply. Other items that wait for it are its sharers: they have
//! the same `task_id`, and the same trigger updates their state (see `schema`).

use comity_core::enqueue::Trigger;
use comity_core::task::{JobId, TaskId};
use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::us;
use super::writer::Tx;
use crate::items::{Item, ItemId, SHARED_FOR};
use crate::sources::Source;

impl Tx<'_> {
    /// Whether an item needs no task of its own, because another item has, or had, one for the same page.
    pub(super) fn share(
        &self,
        job: JobId,
        item: &Item,
        trigger: Trigger,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let sql = "SELECT page_key FROM items WHERE id = ?1 AND page_key IS NOT NULL";
        let key = self.sql.prepare_cached(sql)?.query_row([item.id.0], |row| row.get(0)).optional()?;
        let Some(key): Option<Vec<u8>> = key else { return Ok(false) };
        let lead = item.lead.as_str();
        let sql = "SELECT tasks.id FROM items AS other JOIN tasks ON tasks.id = other.task_id
            WHERE other.page_key = ?1 AND other.id <> ?2 AND other.lead = ?3 AND other.state IN ('waiting', 'running')
            AND tasks.state = 'waiting' AND tasks.job_id = ?4 LIMIT 1";
        let found = params![key, item.id.0, lead, job.0 as i64];
        let task = self.sql.prepare_cached(sql)?.query_row(found, |row| row.get::<_, i64>(0)).optional()?;
        if let Some(task) = task {
            self.forget_task(item.id)?;
            let sql = "INSERT INTO sharers (task_id, item_id) VALUES (?1, ?2)";
            self.sql.prepare_cached(sql)?.execute([task, item.id.0])?;
            let sql = "UPDATE items SET state = 'waiting', wake_us = NULL, task_id = ?2, error = NULL WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute([item.id.0, task])?;
            return Ok(true);
        }
        // A manual request means that it is to be fetched, and so does a page that changed since.
        if trigger == Trigger::Manual || item.scraped_at.is_some() {
            return Ok(false);
        }
        let sql =
            "SELECT id FROM items AS other WHERE page_key = ?1 AND id <> ?2 AND lead = ?3 AND state = 'done'
            AND scraped_us >= ?4 AND (changed_us IS NULL OR changed_us <= scraped_us)
            AND scraped_us >= coalesce(?5, scraped_us) ORDER BY scraped_us DESC LIMIT 1";
        let found = params![key, item.id.0, lead, us(now - SHARED_FOR), item.changed_at.map(us)];
        let other = self.sql.prepare_cached(sql)?.query_row(found, |row| row.get::<_, i64>(0)).optional()?;
        let Some(other) = other else { return Ok(false) };
        self.forget_task(item.id)?;
        self.take_result(item.id, other)?;
        Ok(true)
    }

    /// The item of a task and its source, if it may still be scraped. Otherwise the item is reset as if it had never
    /// been enqueued.
    pub(super) fn scraped_by(&self, task: TaskId) -> rusqlite::Result<Result<(Item, Source), &'static str>> {
        let sql = "SELECT item_id FROM tasks WHERE id = ?1";
        let item = self.sql.prepare_cached(sql)?.query_row([task.0 as i64], |row| row.get(0).map(ItemId))?;
        let Some(item) = self.item(item)? else { return Ok(Err("the item is gone")) };
        let sql = "SELECT 1 FROM items WHERE id = ?1 AND task_id = ?2";
        if !self.sql.prepare_cached(sql)?.exists([item.id.0, task.0 as i64])? {
            return Ok(Err("the item has another task, or none"));
        }
        let why = match self.source(item.source)? {
            None => "the source is gone",
            Some(source) if !source.enabled => "the source is disabled",
            Some(source) if !source.scraping => "scraping is disabled for the source",
            Some(source) => return Ok(Ok((item, source))),
        };
        let sql = "UPDATE items SET state = 'none', wake_us = NULL, task_id = NULL WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([item.id.0])?;
        Ok(Err(why))
    }

    /// Passes a task to the next item that shares it; false if there is none.
    pub(super) fn pass_on(&self, task: TaskId) -> rusqlite::Result<bool> {
        let task = task.0 as i64;
        let sql = "SELECT items.id, items.source_id FROM sharers JOIN items ON items.id = sharers.item_id
            WHERE sharers.task_id = ?1 AND items.task_id = ?1 ORDER BY items.id LIMIT 1";
        let next = self.sql.prepare_cached(sql)?.query_row([task], |row| Ok((row.get(0)?, row.get(1)?)));
        let Some((item, source)): Option<(i64, i64)> = next.optional()? else { return Ok(false) };
        let sql = "UPDATE tasks SET item_id = ?2, source_id = ?3 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([task, item, source])?;
        let sql = "DELETE FROM sharers WHERE task_id = ?1 AND item_id = ?2";
        self.sql.prepare_cached(sql)?.execute([task, item])?;
        Ok(true)
    }

    /// Copies the result of a task's item to the items that shared the task.
    pub(super) fn share_result(&self, task: TaskId, item: i64) -> rusqlite::Result<()> {
        let task = task.0 as i64;
        let sql = "SELECT items.id FROM sharers JOIN items ON items.id = sharers.item_id
            WHERE sharers.task_id = ?1 AND items.task_id = ?1";
        let mut statement = self.sql.prepare_cached(sql)?;
        let sharers: Vec<i64> =
            statement.query_map([task], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        if sharers.is_empty() {
            return Ok(());
        }
        sharers.iter().try_for_each(|sharer| self.take_result(ItemId(*sharer), item))?;
        self.sql.prepare_cached("DELETE FROM sharers WHERE task_id = ?1")?.execute([task]).map(|_| ())
    }

    fn take_result(&self, item: ItemId, other: i64) -> rusqlite::Result<()> {
        let sql = "UPDATE items SET (state, scraped_us, status, bytes, file, content_type) =
                (SELECT state, scraped_us, status, bytes, file, content_type FROM items AS other WHERE other.id = ?2),
            scraped_as = ?2, error = NULL, wake_us = NULL WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute([item.0, other]).map(|_| ())
    }

    /// Removes the task of an item's last scrape, and stops sharing another item's task: an item has one task at a
    /// time.
    pub(super) fn forget_task(&self, item: ItemId) -> rusqlite::Result<()> {
        let old =
            "SELECT tasks.id FROM items JOIN tasks ON tasks.id = items.task_id AND tasks.item_id = items.id
            WHERE items.id = ?1";
        self.note_used_ids()?;
        let sql = format!("DELETE FROM logged_attempts WHERE task_id = ({old})");
        self.sql.prepare_cached(&sql)?.execute([item.0])?;
        let sql = format!("DELETE FROM tasks WHERE id = ({old})");
        self.sql.prepare_cached(&sql)?.execute([item.0])?;
        self.sql.prepare_cached("DELETE FROM sharers WHERE item_id = ?1")?.execute([item.0]).map(|_| ())
    }
}

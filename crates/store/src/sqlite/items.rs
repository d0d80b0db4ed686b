//! Reads items. Scraping them is in `scrapes`.

use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use rusqlite::types::Value as Sql;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::json;

use super::holders::Liveness;
use super::results::error_of;
use super::tasks::lead_of;
use super::unreadable_rows::in_table;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::items::{
    Item, ItemCounts, ItemId, ItemQuery, ItemState, ItemStore, LogId, Order, SCRAPE_JOB, ScrapeLog,
    ScrapeRequest, ScrapeTerms, SourceScope, Start, Started,
};
use crate::jobs::Job;
use crate::sources::SourceId;

impl ItemStore for Sqlite {
    fn find_item(&self, id: ItemId) -> Reply<'_, Option<Item>> {
        self.read(move |tx| tx.item(id))
    }

    fn list_items(&self, items: ItemQuery) -> Reply<'_, Vec<Item>> {
        self.read(move |tx| tx.items(items))
    }

    fn count_items(&self, source: SourceId) -> Reply<'_, ItemCounts> {
        self.read(move |tx| tx.count_items(source))
    }

    fn sources_with_unscraped(&self) -> Reply<'_, Vec<SourceId>> {
        self.writer.run(|tx| tx.sources_with_unscraped())
    }

    fn scrape_job(&self, now: Timestamp) -> Reply<'_, Job> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.scrape_job(&liveness, now))
    }

    fn enqueue_items(
        &self,
        job: JobId,
        requests: Vec<ScrapeRequest>,
        trigger: Trigger,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Reply<'_, Vec<Enqueued>> {
        self.writer.run(move |tx| tx.enqueue_items(job, &requests, trigger, terms, now))
    }

    fn start_scrape(&self, holder: HolderId, start: Start, now: Timestamp) -> Reply<'_, Started> {
        self.writer.run(move |tx| tx.start_scrape(holder, start, now))
    }

    fn cancel_scrape(&self, log: LogId) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.cancel_scrape(log))
    }

    fn list_scrapes(&self, item: ItemId, limit: u32) -> Reply<'_, Vec<ScrapeLog>> {
        self.read(move |tx| tx.scrapes(item, limit))
    }
}

impl Tx<'_> {
    pub(super) fn item(&self, id: ItemId) -> rusqlite::Result<Option<Item>> {
        let sql = format!("{ITEMS} WHERE id = ?1");
        in_table("items", self.sql.prepare_cached(&sql)?.query_row([id.0], item_of)).optional()
    }

    pub(super) fn items(&self, items: ItemQuery) -> rusqlite::Result<Vec<Item>> {
        let mut wheres = vec!["1 = 1".to_owned()];
        let mut values: Vec<Sql> = Vec::new();
        let mut only = |what: &str, value: Sql| {
            values.push(value);
            wheres.push(format!("{what} ?{}", values.len()));
        };
        if let Some(source) = items.source {
            only("source_id =", source.0.into());
        }
        if let Order::After(after) = items.order {
            only("id >", after.0.into());
        }
        if let Some(since) = items.since {
            only("seen_us >=", us(since).into());
        }
        if items.sources == SourceScope::Scrapable {
            wheres.push("source_id IN (SELECT id FROM sources WHERE enabled AND scraping)".to_owned());
        }
        // A literal, so that SQLite can use the partial index on unscraped items.
        if let Some(state) = items.state {
            wheres.push(format!("state = '{}'", state.as_str()));
        }
        // Each attempt gets a task with a higher id than the one before.
        let order = match items.order {
            Order::Newest => "id DESC",
            Order::After(_) => "id",
            Order::LeastTried => "task_id, id",
        };
        let sql = format!("{ITEMS} WHERE {} ORDER BY {order} LIMIT {}", wheres.join(" AND "), items.limit);
        self.readable("items", &sql, rusqlite::params_from_iter(values), item_of)
    }

    pub(super) fn count_items(&self, source: SourceId) -> rusqlite::Result<ItemCounts> {
        let sql = "SELECT state, count(*) FROM items WHERE source_id = ?1 GROUP BY state";
        let mut counts = ItemCounts::default();
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query([source.0])?;
        while let Some(row) = rows.next()? {
            let (state, count): (String, i64) = (row.get(0)?, row.get(1)?);
            let count = count.max(0) as u64;
            counts.items += count;
            match ItemState::parse(&state) {
                Some(ItemState::Waiting | ItemState::Running) => counts.in_flight += count,
                Some(ItemState::Done | ItemState::Partial) => counts.done += count,
                Some(ItemState::Failed) => counts.failed += count,
                Some(ItemState::None) | None => counts.none += count,
            }
        }
        Ok(counts)
    }

    pub(super) fn sources_with_unscraped(&self) -> rusqlite::Result<Vec<SourceId>> {
        let sql = "SELECT id FROM sources WHERE enabled AND scraping AND auto_scrape
            AND EXISTS (SELECT 1 FROM items WHERE source_id = sources.id AND state = 'none') ORDER BY id";
        self.sql.prepare_cached(sql)?.query_map([], |row| row.get(0).map(SourceId))?.collect()
    }

    pub(super) fn scrape_job(&mut self, liveness: &Liveness, now: Timestamp) -> rusqlite::Result<Job> {
        let options = json!({ "kind": SCRAPE_JOB });
        let mut name = SCRAPE_JOB.to_owned();
        for nth in 2.. {
            let (job, _) = self.open_job(liveness, &name, &options, now)?;
            if job.options != options {
                // Somebody else's job has that name.
                name = format!("{SCRAPE_JOB}-{nth}");
                continue;
            }
            // The tasks of a job that ended stay settled; only new work is added.
            self.sweep(job.id, u32::MAX, now)?;
            let sql = "UPDATE jobs SET state = 'running', ended_us = NULL, message = NULL, swept = 1
                WHERE id = ?1 AND state <> 'running'";
            self.sql.prepare_cached(sql)?.execute([job.id.0 as i64])?;
            return Ok(self.job(liveness, job.id)?.unwrap_or(job));
        }
        Err(rusqlite::Error::QueryReturnedNoRows)
    }

    pub(super) fn scrapes(&self, item: ItemId, limit: u32) -> rusqlite::Result<Vec<ScrapeLog>> {
        let sql = "SELECT id, started_us, ended_us, status, http_status, bytes, error FROM scrape_logs
            WHERE item_id = ?1 ORDER BY id DESC LIMIT ?2";
        self.readable("scrape_logs", sql, params![item.0, limit], |row| {
            Ok(ScrapeLog {
                item,
                started_at: at(row.get(1)?),
                ended_at: row.get::<_, Option<i64>>(2)?.map(at),
                status: row.get(3)?,
                http_status: row.get(4)?,
                bytes: row.get::<_, Option<i64>>(5)?.map(|bytes| bytes.max(0) as u64),
                error: error_of(row, 6)?,
            })
        })
    }
}

fn item_of(row: &Row<'_>) -> rusqlite::Result<Item> {
    let (lead, state): (String, String) = (row.get(4)?, row.get(7)?);
    let moment = |nth| row.get::<_, Option<i64>>(nth).map(|moment| moment.map(at));
    Ok(Item {
        id: ItemId(row.get(0)?),
        source: SourceId(row.get(1)?),
        identity: row.get(2)?,
        url: row.get(3)?,
        lead: lead_of(&lead),
        title: row.get(5)?,
        published_at: moment(6)?,
        state: ItemState::parse(&state).unwrap_or(ItemState::None),
        content_hash: row.get::<_, i64>(8)? as u64,
        seen_at: at(row.get(9)?),
        changed_at: moment(10)?,
        wake_at: moment(11)?,
        scraped_at: moment(12)?,
        status: row.get(13)?,
        bytes: row.get::<_, Option<i64>>(14)?.map(|bytes| bytes.max(0) as u64),
        file: row.get(15)?,
        error: error_of(row, 16)?,
        content_type: row.get(17)?,
        scraped_as: row.get::<_, Option<i64>>(18)?.map(ItemId),
    })
}

const ITEMS: &str =
    "SELECT id, source_id, identity, url, lead, title, published_us, state, content_hash, seen_us,
    changed_us, wake_us, scraped_us, status, bytes, file, error, content_type, scraped_as FROM items";

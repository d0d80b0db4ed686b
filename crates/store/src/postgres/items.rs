//! Reads items, and opens the job that scrapes them. Enqueueing them is in `scrapes`, scraping them in `scrape_log`.

use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::task::{JobId, JobState};
use comity_core::time::Timestamp;
use serde_json::json;
use tokio_postgres::Row;

use super::failure::{Failure, Result};
use super::jobs::id_of;
use super::results::{error_of, lead_of, status_of};
use super::tx::Tx;
use super::{Postgres, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::items::{
    Item, ItemCounts, ItemId, ItemQuery, ItemState, ItemStore, LogId, Order, SCRAPE_JOB, ScrapeLog,
    ScrapeRequest, ScrapeTerms, SourceScope, Start, Started,
};
use crate::jobs::Job;
use crate::sources::SourceId;

impl ItemStore for Postgres {
    fn find_item(&self, id: ItemId) -> Reply<'_, Option<Item>> {
        self.read(move |tx| {
            let row = tx.row(&format!("SELECT {ITEM} FROM item WHERE id = $1"), &[&id.0])?;
            Ok(row.as_ref().map(item_of))
        })
    }

    fn list_items(&self, items: ItemQuery) -> Reply<'_, Vec<Item>> {
        self.read(move |tx| {
            let rows = tx.rows(&list(&items), &[])?;
            Ok(rows.iter().map(item_of).collect())
        })
    }

    fn count_items(&self, source: SourceId) -> Reply<'_, ItemCounts> {
        self.read(move |tx| tx.count_items(source))
    }

    fn sources_with_unscraped(&self) -> Reply<'_, Vec<SourceId>> {
        self.read(|tx| {
            let sql = "SELECT id FROM source WHERE enabled AND scraping AND auto_scrape
                AND EXISTS (SELECT 1 FROM item WHERE source_id = source.id AND state = 'none') ORDER BY id";
            Ok(tx.rows(sql, &[])?.iter().map(|row| SourceId(row.get(0))).collect())
        })
    }

    fn scrape_job(&self, now: Timestamp) -> Reply<'_, Job> {
        self.write(move |tx| tx.scrape_job(now))
    }

    fn enqueue_items(
        &self,
        job: JobId,
        requests: Vec<ScrapeRequest>,
        trigger: Trigger,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Reply<'_, Vec<Enqueued>> {
        self.write(move |tx| tx.enqueue_items(job, &requests, trigger, terms, now))
    }

    fn start_scrape(&self, holder: HolderId, start: Start, now: Timestamp) -> Reply<'_, Started> {
        self.write(move |tx| tx.start_scrape(holder, start, now))
    }

    fn cancel_scrape(&self, log: LogId) -> Reply<'_, ()> {
        self.write(move |tx| tx.cancel_scrape(log))
    }

    fn list_scrapes(&self, item: ItemId, limit: u32) -> Reply<'_, Vec<ScrapeLog>> {
        self.read(move |tx| tx.scrapes(item, limit))
    }
}

impl Tx<'_> {
    fn count_items(&mut self, source: SourceId) -> Result<ItemCounts> {
        let sql = "SELECT state, count(*) FROM item WHERE source_id = $1 GROUP BY state";
        let mut counts = ItemCounts::default();
        for row in self.rows(sql, &[&source.0])? {
            let count = row.get::<_, i64>(1).max(0) as u64;
            counts.items += count;
            match ItemState::parse(row.get(0)) {
                Some(ItemState::Waiting | ItemState::Running) => counts.in_flight += count,
                Some(ItemState::Done | ItemState::Partial) => counts.done += count,
                Some(ItemState::Failed) => counts.failed += count,
                Some(ItemState::None) | None => counts.none += count,
            }
        }
        Ok(counts)
    }

    fn scrape_job(&mut self, now: Timestamp) -> Result<Job> {
        let options = json!({ "kind": SCRAPE_JOB });
        let mut name = SCRAPE_JOB.to_owned();
        for nth in 2..NAMES_MAX {
            let (job, _) = self.open_job(&name, &options, now)?;
            if job.options != options {
                // Somebody else's job has that name.
                name = format!("{SCRAPE_JOB}-{nth}");
                continue;
            }
            let is_running = job.state == JobState::Running;
            if !is_running {
                self.lock_job(id_of(job.id))?;
            }
            // The tasks of a job that ended stay settled; only new work is added.
            self.sweep(job.id, u32::MAX, now)?;
            let sql = "UPDATE job SET state = 'running', ended_us = NULL, message = NULL, swept = true
                WHERE id = $1 AND state <> 'running'";
            if !is_running && self.change(sql, &[&id_of(job.id)])? > 0 {
                self.tell();
            }
            return Ok(self.job(job.id)?.unwrap_or(job));
        }
        Err(Failure::Rejected(format!("all names for the job {SCRAPE_JOB} are taken by other jobs")))
    }

    fn scrapes(&mut self, item: ItemId, limit: u32) -> Result<Vec<ScrapeLog>> {
        let sql = "SELECT started_us, ended_us, status, http_status, bytes, error FROM scrape_log
            WHERE item_id = $1 ORDER BY id DESC LIMIT $2";
        let rows = self.rows(sql, &[&item.0, &i64::from(limit)])?;
        let logs = rows.iter().map(|row| ScrapeLog {
            item,
            started_at: at(row.get(0)),
            ended_at: row.get::<_, Option<i64>>(1).map(at),
            status: row.get(2),
            http_status: status_of(row, 3),
            bytes: row.get::<_, Option<i64>>(4).map(|bytes| bytes.max(0) as u64),
            error: error_of(row.get(5)),
        });
        Ok(logs.collect())
    }
}

/// The statement that lists items. It contains the numbers themselves, so that PostgreSQL knows which partial index fits.
fn list(items: &ItemQuery) -> String {
    let mut wheres = vec!["true".to_owned()];
    if let Some(source) = items.source {
        wheres.push(format!("source_id = {}", source.0));
    }
    if let Order::After(after) = items.order {
        wheres.push(format!("id > {}", after.0));
    }
    if let Some(since) = items.since {
        wheres.push(format!("seen_us >= {}", us(since)));
    }
    if items.sources == SourceScope::Scrapable {
        wheres.push("source_id IN (SELECT id FROM source WHERE enabled AND scraping)".to_owned());
    }
    if let Some(state) = items.state {
        wheres.push(format!("state = '{}'", state.as_str()));
    }
    // Each attempt gets a task with a higher id than the one before. An item that failed always had one.
    let order = match (items.order, items.state) {
        (Order::Newest, _) => "id DESC",
        (Order::After(_), _) => "id",
        (Order::LeastTried, Some(ItemState::Failed)) => "task_id, id",
        (Order::LeastTried, _) => "task_id NULLS FIRST, id",
    };
    format!("SELECT {ITEM} FROM item WHERE {} ORDER BY {order} LIMIT {}", wheres.join(" AND "), items.limit)
}

/// Reads an item from the columns of [`ITEM`], which come first.
pub(super) fn item_of(row: &Row) -> Item {
    let moment = |nth: usize| row.get::<_, Option<i64>>(nth).map(at);
    Item {
        id: ItemId(row.get(0)),
        source: SourceId(row.get(1)),
        identity: row.get(2),
        url: row.get(3),
        lead: lead_of(row.get(4)),
        title: row.get(5),
        published_at: moment(6),
        state: ItemState::parse(row.get(7)).unwrap_or(ItemState::None),
        content_hash: row.get::<_, i64>(8) as u64,
        seen_at: at(row.get(9)),
        changed_at: moment(10),
        wake_at: moment(11),
        scraped_at: moment(12),
        status: status_of(row, 13),
        bytes: row.get::<_, Option<i64>>(14).map(|bytes| bytes.max(0) as u64),
        file: row.get(15),
        error: error_of(row.get(16)),
        content_type: row.get(17),
        scraped_as: row.get::<_, Option<i64>>(18).map(ItemId),
    }
}

pub(super) const ITEM: &str =
    "id, source_id, identity, url, lead, title, published_us, state, content_hash, seen_us,
    changed_us, wake_us, scraped_us, status, bytes, file, error, content_type, scraped_as";
/// The number of names that are tried for the scrape job.
const NAMES_MAX: u32 = 1_000;

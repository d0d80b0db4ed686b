//! Stores sources, and the results of fetching them.

use comity_core::cadence::Cadence;
use comity_core::interval::SourceInterval;
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, Row, params};
use serde_json::{Map, Value};

use super::holders::{HolderState, Liveness};
use super::tasks::lead_of;
use super::unreadable_rows::in_table;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::domains::HolderId;
use crate::sources::{
    Changed, FetchEnd, FetchResult, FetchRun, ItemChanges, Kind, NewItem, NewSource, Rename, Source,
    SourceChange, SourceClaim, SourceId, SourceStore, SourceTenure,
};
use crate::{Reply, StoreError};

impl SourceStore for Sqlite {
    fn add_source(&self, source: NewSource, now: Timestamp) -> Reply<'_, (Source, bool)> {
        self.writer.run(move |tx| tx.add_source(&source, now))
    }

    fn find_source(&self, id: SourceId) -> Reply<'_, Option<Source>> {
        self.read(move |tx| tx.source(id))
    }

    fn list_sources(&self) -> Reply<'_, Vec<Source>> {
        self.read(|tx| tx.sources())
    }

    fn change_source(&self, id: SourceId, change: SourceChange) -> Reply<'_, Changed> {
        self.writer.run(move |tx| tx.change_source(id, &change))
    }

    fn request_fetch(&self, id: SourceId, now: Timestamp) -> Reply<'_, bool> {
        self.writer.run(move |tx| {
            let sql = "UPDATE sources SET requested_us = ?2 WHERE id = ?1";
            Ok(tx.sql.prepare_cached(sql)?.execute([id.0, us(now)])? == 1)
        })
    }

    fn remove_source(&self, id: SourceId) -> Reply<'_, bool> {
        self.writer.run(move |tx| tx.remove_source(id))
    }

    fn keep_items(
        &self,
        tenure: SourceTenure,
        items: Vec<NewItem>,
        now: Timestamp,
    ) -> Reply<'_, ItemChanges> {
        let kept = self.writer.run(move |tx| match tx.is_claim_valid(tenure)? {
            true => tx.keep_items(tenure.source, &items, now).map(Some),
            false => Ok(None),
        });
        Box::pin(async move { kept.await?.ok_or(StoreError::Lost) })
    }

    fn claim_source(&self, id: SourceId, holder: HolderId, now: Timestamp) -> Reply<'_, SourceClaim> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.claim_source(&liveness, id, holder, now))
    }

    fn leave_source(&self, tenure: SourceTenure) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.leave_source(tenure))
    }

    fn end_fetch(&self, end: FetchEnd) -> Reply<'_, bool> {
        let ended = self.writer.run(move |tx| match tx.is_claim_valid(end.tenure)? {
            true => tx.end_fetch(&end).map(Some),
            false => Ok(None),
        });
        Box::pin(async move { ended.await?.ok_or(StoreError::Lost) })
    }

    fn list_fetches(&self, source: SourceId, limit: u32) -> Reply<'_, Vec<FetchRun>> {
        self.read(move |tx| tx.fetches(source, limit))
    }
}

impl Tx<'_> {
    pub(super) fn add_source(&self, new: &NewSource, now: Timestamp) -> rusqlite::Result<(Source, bool)> {
        let sql = "INSERT INTO sources (name, kind, url, listed_url, lead, enabled, scraping, auto_scrape,
            min_scrape_interval, config_json, added_us) VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (url) DO NOTHING";
        let added = self.sql.prepare_cached(sql)?.execute(params![
            new.name,
            new.kind.as_str(),
            new.url,
            new.lead.as_str(),
            new.enabled,
            new.scraping,
            new.auto_scrape,
            to_decimal(new.interval),
            Value::Object(new.config.clone()).to_string(),
            us(now),
        ])? == 1;
        let source = self.source_where("url = ?1", &new.url)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        Ok((source, added))
    }

    pub(super) fn source(&self, id: SourceId) -> rusqlite::Result<Option<Source>> {
        self.source_where("id = ?1", id.0)
    }

    pub(super) fn sources(&self) -> rusqlite::Result<Vec<Source>> {
        let sql = format!("{SOURCES} ORDER BY id");
        self.readable("sources", &sql, [], source_of)
    }

    pub(super) fn change_source(&self, id: SourceId, change: &SourceChange) -> rusqlite::Result<Changed> {
        let Some(old) = self.source(id)? else { return Ok(Changed::Missing) };
        if let Some(url) = &change.url {
            let taken = self.source_where("url = ?1", url)?.map(|other| other.id);
            if let Some(other) = taken.filter(|other| *other != id) {
                return Ok(Changed::Taken(other));
            }
            let sql = "UPDATE sources SET url = ?2, listed_url = ?2, lead = 'listed', cursor_json = '{}',
                failures = 0, retry_us = NULL, error = NULL WHERE id = ?1 AND url <> ?2";
            self.sql.prepare_cached(sql)?.execute(params![id.0, url])?;
            let sql = "UPDATE sources SET listed_url = ?2, lead = 'listed', failures = 0, retry_us = NULL, error = NULL
                WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute(params![id.0, url])?;
        }
        // The cursor of one kind is meaningless for another.
        let sql = "UPDATE sources SET cursor_json = '{}', failures = 0, retry_us = NULL, error = NULL
            WHERE id = ?1 AND kind <> ?2";
        if let Some(kind) = change.kind {
            self.sql.prepare_cached(sql)?.execute(params![id.0, kind.as_str()])?;
        }
        let sql = "UPDATE sources SET name = coalesce(?2, name), kind = coalesce(?3, kind),
            scraping = coalesce(?4, scraping), auto_scrape = coalesce(?5, auto_scrape),
            config_json = coalesce(?6, config_json) WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![
            id.0,
            change.name,
            change.kind.map(Kind::as_str),
            change.scraping,
            change.auto_scrape,
            change.config.clone().map(|config| Value::Object(config).to_string()),
        ])?;
        if let Some(Rename { from, to }) = &change.rename {
            let sql = "UPDATE sources SET name = ?3 WHERE id = ?1 AND name = ?2";
            self.sql.prepare_cached(sql)?.execute(params![id.0, from, to])?;
        }
        if let Some(interval) = change.interval {
            let sql = "UPDATE sources SET min_scrape_interval = ?2 WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute(params![id.0, to_decimal(interval)])?;
        }
        if let Some(enabled) = change.enabled {
            let sql = "UPDATE sources SET enabled = ?2 WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute(params![id.0, enabled])?;
        }
        let made_no_sense = |text: &str| {
            serde_json::from_str(text).map_or(true, |config| Cadence::of_config(&config).is_err())
        };
        if change.enabled == Some(true) || change.config.is_some() && made_no_sense(&old.config_json) {
            let sql = "UPDATE sources SET failures = 0, retry_us = NULL, error = NULL WHERE id = ?1";
            self.sql.prepare_cached(sql)?.execute([id.0])?;
        }
        // Whoever enables a source wants it fetched, whatever its server asked for last time.
        if change.enabled == Some(true) {
            let sql = "UPDATE sources SET cursor_json = json_remove(cursor_json, '$.not_before', '$.not_before_why')
                WHERE id = ?1 AND json_valid(cursor_json)";
            self.sql.prepare_cached(sql)?.execute([id.0])?;
        }
        Ok(self.source(id)?.map_or(Changed::Missing, Changed::Yes))
    }

    pub(super) fn remove_source(&self, id: SourceId) -> rusqlite::Result<bool> {
        // Waiting tasks stay and become no-ops; tasks of finished scrapes are deleted with their items.
        for (table, key) in [("logged_attempts", "task_id"), ("tasks", "id")] {
            let sql = format!(
                "DELETE FROM {table} WHERE {key} IN (SELECT tasks.id FROM items JOIN tasks ON tasks.id = items.task_id
                WHERE items.source_id = ?1 AND tasks.item_id = items.id AND tasks.state <> 'waiting')"
            );
            self.sql.prepare_cached(&sql)?.execute([id.0])?;
        }
        for table in ["items", "fetch_runs", "scrape_logs"] {
            let sql = format!("DELETE FROM {table} WHERE source_id = ?1");
            self.sql.prepare_cached(&sql)?.execute([id.0])?;
        }
        Ok(self.sql.prepare_cached("DELETE FROM sources WHERE id = ?1")?.execute([id.0])? == 1)
    }

    pub(super) fn keep_items(
        &self,
        source: SourceId,
        items: &[NewItem],
        now: Timestamp,
    ) -> rusqlite::Result<ItemChanges> {
        let mut kept = ItemChanges::default();
        let Some(of) = self.source(source)? else { return Ok(kept) };
        let find =
            "SELECT content_hash, id, page_key IS NULL FROM items WHERE source_id = ?1 AND identity = ?2";
        let insert =
            "INSERT INTO items (source_id, identity, url, lead, title, published_us, content_hash, seen_us, page_key)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let change = "UPDATE items SET url = ?3, lead = ?4, title = ?5, published_us = ?6, content_hash = ?7,
            changed_us = ?8, page_key = ?9, state = iif(?10 AND state IN ('done', 'partial', 'failed'), 'none', state)
            WHERE source_id = ?1 AND identity = ?2";
        let mut find = self.sql.prepare_cached(find)?;
        let (mut insert, mut change) = (self.sql.prepare_cached(insert)?, self.sql.prepare_cached(change)?);
        for item in items {
            let (published, hash) = (item.published_at.map(us), item.content_hash as i64);
            let NewItem { identity, url, title, .. } = item;
            let lead = item.lead.as_str();
            let key = item.page_key;
            let values = params![source.0, identity, url, lead, title, published, hash, us(now), key];
            // A page is followed for its changes, so it is scraped again.
            let is_page = of.kind == Kind::Page;
            let with_kind =
                params![source.0, identity, url, lead, title, published, hash, us(now), key, is_page];
            let known = find.query_row(params![source.0, item.identity], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?))
            });
            let known = known.optional()?;
            let id = match known {
                None => {
                    insert.execute(values)?;
                    kept.new += 1;
                    let id = self.sql.last_insert_rowid();
                    if item.wants_hook {
                        self.sql.prepare_cached("INSERT INTO hooks (item_id) VALUES (?1)")?.execute([id])?;
                    }
                    id
                }
                Some((hash, id, _)) if hash != item.content_hash as i64 => {
                    change.execute(with_kind)?;
                    kept.changed += 1;
                    id
                }
                Some((_, id, lacks_key)) => {
                    kept.known += 1;
                    if let (true, Some(key)) = (lacks_key, key) {
                        // The item was saved by a version without page keys.
                        let sql = "UPDATE items SET page_key = ?2 WHERE id = ?1";
                        self.sql.prepare_cached(sql)?.execute(params![id, key])?;
                    }
                    id
                }
            };
            // A new item without details has none to delete.
            if known.is_some() || !item.details.is_empty() {
                self.keep_details(id, &item.details)?;
            }
        }
        Ok(kept)
    }

    pub(super) fn end_fetch(&self, end: &FetchEnd) -> rusqlite::Result<bool> {
        let id = end.tenure.source.0;
        let Some(source) = self.source(end.tenure.source)? else { return Ok(false) };
        let mut moved = false;
        let mut cursor_out = source.cursor_json.clone();
        match &end.result {
            FetchResult::Read { cursor, moved_to, .. } => {
                cursor_out = self.advance(&source.cursor_json, end, cursor);
                let sql = "UPDATE sources SET cursor_json = ?2, failures = 0, retry_us = NULL, error = ?3
                    WHERE id = ?1";
                self.sql.prepare_cached(sql)?.execute(params![id, cursor_out, end.error])?;
                // If another source has the new URL already, this one keeps its own.
                if let Some((url, lead)) = moved_to {
                    let sql = "UPDATE OR IGNORE sources SET url = ?2, lead = ?3 WHERE id = ?1 AND url <> ?2";
                    moved = self.sql.prepare_cached(sql)?.execute(params![id, url, lead.as_str()])? == 1;
                }
            }
            FetchResult::Failed { retry_at } => {
                let sql =
                    "UPDATE sources SET failures = failures + 1, retry_us = ?2, error = ?3 WHERE id = ?1";
                self.sql.prepare_cached(sql)?.execute(params![id, us(*retry_at), end.error])?;
            }
            FetchResult::Gone => {
                let sql = "UPDATE sources SET enabled = 0, failures = failures + 1, error = ?2 WHERE id = ?1";
                self.sql.prepare_cached(sql)?.execute(params![id, end.error])?;
            }
            FetchResult::Held { .. } => {
                // Only one row records that a source is held, however often that was found.
                let sql = "DELETE FROM fetch_runs WHERE status = 'held'
                    AND id = (SELECT max(id) FROM fetch_runs WHERE source_id = ?1)";
                self.sql.prepare_cached(sql)?.execute([id])?;
            }
        }
        if !matches!(end.result, FetchResult::Held { .. }) {
            let sql = "UPDATE sources SET requested_us = NULL WHERE id = ?1 AND requested_us IS NOT NULL";
            self.sql.prepare_cached(sql)?.execute([id])?;
        }
        let until = match end.result {
            FetchResult::Failed { retry_at } => Some(retry_at),
            FetchResult::Held { until } => Some(until),
            FetchResult::Read { .. } | FetchResult::Gone => None,
        };
        let sql = "INSERT INTO fetch_runs (source_id, started_us, ended_us, status, window_end_us, cursor_in,
            cursor_out, http_status, found, new, changed, error, until_us)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
        self.sql.prepare_cached(sql)?.execute(params![
            id,
            us(end.started_at),
            us(end.ended_at),
            end.result.as_str(),
            us(end.window.end()),
            source.cursor_json,
            cursor_out,
            end.http_status,
            end.found as i64,
            end.changes.new as i64,
            end.changes.changed as i64,
            end.error,
            until.map(us),
        ])?;
        // The history of a source is for people to read: the latest rows are enough.
        let sql = "DELETE FROM fetch_runs WHERE source_id = ?1 AND id <= (
            SELECT id FROM fetch_runs WHERE source_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)";
        self.sql.prepare_cached(sql)?.execute([id, FETCHES_KEPT])?;
        // The same is true of its scrapes, except that the interval counts from the last one.
        let sql = "DELETE FROM scrape_logs WHERE source_id = ?1 AND started_us < ?2 AND ended_us IS NOT NULL
            AND started_us < (SELECT max(started_us) FROM scrape_logs WHERE source_id = ?1)";
        self.sql.prepare_cached(sql)?.execute([id, us(end.ended_at - SCRAPES_KEPT)])?;
        Ok(moved)
    }

    pub(super) fn claim_source(
        &mut self,
        liveness: &Liveness,
        id: SourceId,
        holder: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<SourceClaim> {
        let Some(source) = self.source(id)? else { return Ok(SourceClaim::Missing) };
        let sql = "SELECT asked_by FROM sources WHERE id = ?1";
        let asked_by: Option<i64> = self.sql.prepare_cached(sql)?.query_row([id.0], |row| row.get(0))?;
        if let Some(other) = asked_by.filter(|other| *other != holder.0)
            && self.check_holder(liveness, other, now)? == HolderState::Lives
        {
            return Ok(SourceClaim::Taken);
        }
        let sql = "UPDATE sources SET asked_by = ?2, epoch = epoch + 1 WHERE id = ?1 RETURNING epoch";
        let epoch = self.sql.prepare_cached(sql)?.query_row([id.0, holder.0], |row| row.get(0))?;
        Ok(SourceClaim::Ours(Box::new(source), SourceTenure { source: id, holder, epoch }))
    }

    /// Whether a claim is still valid. A claim of a source that is gone is: there is nothing left to write to.
    fn is_claim_valid(&self, tenure: SourceTenure) -> rusqlite::Result<bool> {
        let sql = "SELECT asked_by IS ?2 AND epoch = ?3
                AND EXISTS (SELECT 1 FROM holders WHERE holders.id = ?2 AND died_us IS NULL)
            FROM sources WHERE id = ?1";
        let SourceTenure { source, holder, epoch } = tenure;
        let valid = self.sql.prepare_cached(sql)?.query_row([source.0, holder.0, epoch], |row| row.get(0));
        Ok(valid.optional()?.unwrap_or(true))
    }

    fn leave_source(&self, tenure: SourceTenure) -> rusqlite::Result<()> {
        let sql = "UPDATE sources SET asked_by = NULL WHERE id = ?1 AND asked_by = ?2 AND epoch = ?3";
        let SourceTenure { source, holder, epoch } = tenure;
        self.sql.prepare_cached(sql)?.execute([source.0, holder.0, epoch]).map(|_| ())
    }

    /// The cursor after a successful fetch: the new fields replace those that were stored.
    fn advance(&self, cursor_json: &str, end: &FetchEnd, fields: &Map<String, Value>) -> String {
        let mut cursor: Map<String, Value> = serde_json::from_str(cursor_json).unwrap_or_default();
        for (key, value) in fields {
            match value {
                Value::Null => drop(cursor.remove(key)),
                value => drop(cursor.insert(key.clone(), value.clone())),
            }
        }
        Value::Object(end.window.advance(&cursor, end.result.status())).to_string()
    }

    pub(super) fn fetches(&self, source: SourceId, limit: u32) -> rusqlite::Result<Vec<FetchRun>> {
        let sql =
            "SELECT id, started_us, ended_us, status, window_end_us, cursor_in, cursor_out, http_status, found,
            new, changed, error FROM fetch_runs WHERE source_id = ?1 ORDER BY id DESC LIMIT ?2";
        self.readable("fetch_runs", sql, params![source.0, limit], |row| {
            let count = |nth| row.get::<_, i64>(nth).map(|count| count.max(0) as u64);
            let (found, new, changed) = (count(8)?, count(9)?, count(10)?);
            Ok(FetchRun {
                started_at: at(row.get(1)?),
                ended_at: at(row.get(2)?),
                status: row.get(3)?,
                window_end: at(row.get(4)?),
                cursor_in: row.get(5)?,
                cursor_out: row.get(6)?,
                http_status: row.get(7)?,
                found,
                changes: ItemChanges {
                    new,
                    changed,
                    known: found.saturating_sub(new.saturating_add(changed)),
                },
                error: row.get(11)?,
            })
        })
    }

    fn source_where(&self, what: &str, value: impl rusqlite::ToSql) -> rusqlite::Result<Option<Source>> {
        let sql = format!("{SOURCES} WHERE {what}");
        in_table("sources", self.sql.prepare_cached(&sql)?.query_row([value], source_of)).optional()
    }
}

fn source_of(row: &Row<'_>) -> rusqlite::Result<Source> {
    let (kind, lead): (String, String) = (row.get(2)?, row.get(5)?);
    Ok(Source {
        id: SourceId(row.get(0)?),
        name: row.get(1)?,
        kind: Kind::parse(&kind).unwrap_or(Kind::Feed),
        url: row.get(3)?,
        listed_url: row.get(4)?,
        lead: lead_of(&lead),
        enabled: row.get(6)?,
        scraping: row.get(7)?,
        auto_scrape: row.get(8)?,
        interval: of_decimal(row.get(9)?),
        config_json: row.get(10)?,
        cursor_json: row.get(11)?,
        added_at: at(row.get(12)?),
        failures: row.get(13)?,
        retry_at: row.get::<_, Option<i64>>(14)?.map(at),
        error: row.get(15)?,
        requested_at: row.get::<_, Option<i64>>(16)?.map(at),
    })
}

/// `min_scrape_interval` in seconds, with the two decimals of `numeric(10,2)`.
fn to_decimal(interval: SourceInterval) -> Option<f64> {
    match interval {
        SourceInterval::Default => None,
        SourceInterval::Off => Some(0.0),
        SourceInterval::Every(span) => Some((span.as_micros() / 10_000) as f64 / 100.0),
    }
}

fn of_decimal(seconds: Option<f64>) -> SourceInterval {
    match seconds {
        None => SourceInterval::Default,
        Some(seconds) if seconds > 0.0 => {
            SourceInterval::Every(Span::from_millis(((seconds * 100.0).round() as u64).saturating_mul(10)))
        }
        Some(_) => SourceInterval::Off,
    }
}

const SOURCES: &str = "SELECT id, name, kind, url, listed_url, lead, enabled, scraping, auto_scrape,
    min_scrape_interval, config_json, cursor_json, added_us, failures, retry_us, error, requested_us FROM sources";
/// For how long scrapes of a source are kept.
const SCRAPES_KEPT: Span = Span::from_hours(90 * 24);
/// How many fetches of a source are kept.
const FETCHES_KEPT: i64 = 200;

//! Stores sources: their settings, and who fetches them. What a fetch brings is in `fetches`.
//!
//! Whatever changes a source, or depends on several of its rows, first takes the lock `source` with its id.

use comity_core::cadence::Cadence;
use comity_core::interval::SourceInterval;
use comity_core::time::{Span, Timestamp};
use serde_json::{Map, Value};
use tokio_postgres::Row;
use xxhash_rust::xxh3::xxh3_64;

use super::failure::{Failure, Result};
use super::param::{opt_text, text};
use super::results::lead_of;
use super::tx::Tx;
use super::{Postgres, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::sources::{
    Changed, FetchEnd, FetchRun, ItemChanges, Kind, NewItem, NewSource, Source, SourceChange, SourceClaim,
    SourceId, SourceStore, SourceTenure,
};
use crate::tasks::Lead;

impl SourceStore for Postgres {
    fn add_source(&self, source: NewSource, now: Timestamp) -> Reply<'_, (Source, bool)> {
        self.write(move |tx| tx.add_source(&source, now))
    }

    fn find_source(&self, id: SourceId) -> Reply<'_, Option<Source>> {
        self.read(move |tx| tx.source(id))
    }

    fn list_sources(&self) -> Reply<'_, Vec<Source>> {
        self.read(|tx| {
            let rows = tx.rows(&format!("SELECT {SOURCE} FROM source ORDER BY id"), &[])?;
            Ok(rows.iter().map(source_of).collect())
        })
    }

    fn change_source(&self, id: SourceId, change: SourceChange) -> Reply<'_, Changed> {
        self.write(move |tx| tx.change_source(id, &change))
    }

    fn request_fetch(&self, id: SourceId, now: Timestamp) -> Reply<'_, bool> {
        self.write(move |tx| {
            tx.lock("source", id.0)?;
            let is_there =
                tx.change("UPDATE source SET requested_us = $2 WHERE id = $1", &[&id.0, &us(now)])? == 1;
            tx.tell();
            Ok(is_there)
        })
    }

    fn remove_source(&self, id: SourceId) -> Reply<'_, bool> {
        self.write(move |tx| tx.remove_source(id))
    }

    fn keep_items(
        &self,
        tenure: SourceTenure,
        items: Vec<NewItem>,
        now: Timestamp,
    ) -> Reply<'_, ItemChanges> {
        self.write(move |tx| tx.keep_items(tenure, &items, now))
    }

    fn claim_source(&self, id: SourceId, holder: HolderId, now: Timestamp) -> Reply<'_, SourceClaim> {
        self.write(move |tx| tx.claim_source(id, holder, now))
    }

    fn leave_source(&self, tenure: SourceTenure) -> Reply<'_, ()> {
        self.write(move |tx| {
            let SourceTenure { source, holder, epoch } = tenure;
            let sql = "UPDATE source SET asked_by = NULL WHERE id = $1 AND asked_by = $2 AND epoch = $3";
            tx.change(sql, &[&source.0, &holder.0, &epoch]).map(|_| ())
        })
    }

    fn end_fetch(&self, end: FetchEnd) -> Reply<'_, bool> {
        self.write(move |tx| tx.end_fetch(&end))
    }

    fn list_fetches(&self, source: SourceId, limit: u32) -> Reply<'_, Vec<FetchRun>> {
        self.read(move |tx| tx.fetches(source, limit))
    }
}

impl Tx<'_> {
    fn add_source(&mut self, new: &NewSource, now: Timestamp) -> Result<(Source, bool)> {
        self.lock_url(&new.url)?;
        let sql = "INSERT INTO source (name, kind, url, listed_url, lead, enabled, scraping, auto_scrape,
            min_scrape_interval, config_json, added_us) VALUES ($1, $2, $3, $3, $4, $5, $6, $7, $8, $9, $10)
            ON CONFLICT (hash_of(url)) DO NOTHING";
        let config = Value::Object(new.config.clone()).to_string();
        let added = self.change(
            sql,
            &[
                &text(&new.name),
                &new.kind.as_str(),
                &text(&new.url),
                &new.lead.as_str(),
                &new.enabled,
                &new.scraping,
                &new.auto_scrape,
                &to_decimal(new.interval),
                &text(&config),
                &us(now),
            ],
        )? == 1;
        if added {
            self.tell();
        }
        let source = self.source_with_url(&new.url)?;
        let source = source.ok_or_else(|| Failure::Rejected(format!("expected the source {}", new.url)))?;
        Ok((source, added))
    }

    pub(super) fn source(&mut self, id: SourceId) -> Result<Option<Source>> {
        let row = self.row(&format!("SELECT {SOURCE} FROM source WHERE id = $1"), &[&id.0])?;
        Ok(row.as_ref().map(source_of))
    }

    pub(super) fn source_with_url(&mut self, url: &str) -> Result<Option<Source>> {
        let sql = format!("SELECT {SOURCE} FROM source WHERE hash_of(url) = hash_of($1)");
        Ok(self.row(&sql, &[&text(url)])?.as_ref().map(source_of))
    }

    /// Makes sure that nobody else gives this URL to a source at the same time. Taken after the lock of a source.
    pub(super) fn lock_url(&mut self, url: &str) -> Result<()> {
        self.lock("source url", xxh3_64(url.as_bytes()) as i64)
    }

    /// Writes all columns of a source but those that tell who fetches it.
    pub(super) fn write_source(&mut self, source: &Source) -> Result<()> {
        let sql =
            "UPDATE source SET name = $2, kind = $3, url = $4, listed_url = $5, lead = $6, enabled = $7,
            scraping = $8, auto_scrape = $9, min_scrape_interval = $10, config_json = $11, cursor_json = $12,
            failures = $13, retry_us = $14, error = $15, requested_us = $16 WHERE id = $1";
        self.change(
            sql,
            &[
                &source.id.0,
                &text(&source.name),
                &source.kind.as_str(),
                &text(&source.url),
                &text(&source.listed_url),
                &source.lead.as_str(),
                &source.enabled,
                &source.scraping,
                &source.auto_scrape,
                &to_decimal(source.interval),
                &text(&source.config_json),
                &text(&source.cursor_json),
                &i64::from(source.failures),
                &source.retry_at.map(us),
                &opt_text(source.error.as_deref()),
                &source.requested_at.map(us),
            ],
        )
        .map(|_| ())
    }

    fn change_source(&mut self, id: SourceId, change: &SourceChange) -> Result<Changed> {
        self.lock("source", id.0)?;
        let Some(before) = self.source(id)? else { return Ok(Changed::Missing) };
        if let Some(url) = &change.url {
            self.lock_url(url)?;
            let taken = self.source_with_url(url)?.map(|other| other.id);
            if let Some(other) = taken.filter(|other| *other != id) {
                return Ok(Changed::Taken(other));
            }
        }
        let mut source = before.clone();
        apply(change, &mut source);
        if source == before {
            return Ok(Changed::Yes(source));
        }
        self.write_source(&source)?;
        self.tell();
        Ok(self.source(id)?.map_or(Changed::Missing, Changed::Yes))
    }

    fn remove_source(&mut self, id: SourceId) -> Result<bool> {
        self.lock("source", id.0)?;
        // Tasks that are being settled are finished with first, so that they are found to be settled.
        let sql = "SELECT count(*) FROM (SELECT 1 FROM item JOIN task ON task.id = item.task_id
            WHERE item.source_id = $1 ORDER BY task.id FOR UPDATE OF task) AS locked";
        self.one(sql, &[&id.0])?;
        // Waiting tasks stay and become no-ops; tasks of finished scrapes are deleted with their items.
        let sql =
            "WITH gone AS (DELETE FROM task USING item WHERE item.source_id = $1 AND task.id = item.task_id
                AND task.item_id = item.id AND task.state <> 'waiting' RETURNING task.id)
            DELETE FROM logged_attempt WHERE task_id IN (SELECT id FROM gone)";
        self.change(sql, &[&id.0])?;
        self.change("DELETE FROM item WHERE source_id = $1", &[&id.0])?;
        // After the items: whoever adds to the log locks its item.
        let sql = "WITH runs AS (DELETE FROM fetch_run WHERE source_id = $1)
            DELETE FROM scrape_log WHERE source_id = $1";
        self.change(sql, &[&id.0])?;
        Ok(self.change("DELETE FROM source WHERE id = $1", &[&id.0])? == 1)
    }

    fn claim_source(&mut self, id: SourceId, holder: HolderId, now: Timestamp) -> Result<SourceClaim> {
        self.lock("source", id.0)?;
        let sql = format!("SELECT {SOURCE}, asked_by FROM source WHERE id = $1");
        let Some(row) = self.row(&sql, &[&id.0])? else { return Ok(SourceClaim::Missing) };
        let asked_by: Option<i64> = row.get("asked_by");
        if let Some(other) = asked_by.filter(|other| *other != holder.0) {
            self.check_holders(&[other], now)?;
            if self.live_holders(&[other])?.contains(&other) {
                return Ok(SourceClaim::Taken);
            }
        }
        // If a failover loses this claim, the number of the next one is another one all the same.
        let sql =
            "UPDATE source SET asked_by = $2, epoch = greatest(epoch + 1, $3) WHERE id = $1 RETURNING epoch";
        let claimed = self.change_rows(sql, &[&id.0, &holder.0, &us(now)])?;
        let Some(epoch) = claimed.first().map(|row| row.get(0)) else { return Ok(SourceClaim::Missing) };
        let tenure = SourceTenure { source: id, holder, epoch };
        Ok(SourceClaim::Ours(Box::new(source_of(&row)), tenure))
    }

    /// Locks the source of a claim and returns it, if there still is one. A claim of a source that is gone is valid: there
    /// is nothing left to write to. [`Self::check_asker`] has to follow.
    pub(super) fn claimed_source(&mut self, tenure: SourceTenure) -> Result<Option<Source>> {
        self.lock("source", tenure.source.0)?;
        let sql = format!("SELECT {SOURCE}, asked_by = $2 AND epoch = $3 AS valid FROM source WHERE id = $1");
        let row = self.row(&sql, &[&tenure.source.0, &tenure.holder.0, &tenure.epoch])?;
        let Some(row) = row else { return Ok(None) };
        match row.get("valid") {
            Some(true) => Ok(Some(source_of(&row))),
            _ => Err(Failure::Lost),
        }
    }

    /// Makes sure that the process that fetches a source was not declared dead, and is not before the commit. To be called
    /// last: its heartbeats wait while its row is locked.
    pub(super) fn check_asker(&mut self, tenure: SourceTenure) -> Result<()> {
        if self.is_holder(tenure.holder)? { Ok(()) } else { Err(Failure::Lost) }
    }
}

/// Applies a change to a source.
fn apply(change: &SourceChange, source: &mut Source) {
    let is_broken =
        serde_json::from_str(&source.config_json).map_or(true, |config| Cadence::of_config(&config).is_err());
    let mut is_new_start = change.enabled == Some(true) || change.config.is_some() && is_broken;
    if let Some(url) = &change.url {
        if source.url != *url {
            source.cursor_json = "{}".to_owned();
        }
        (source.url, source.listed_url, source.lead) = (url.clone(), url.clone(), Lead::Listed);
        is_new_start = true;
    }
    if let Some(kind) = change.kind.filter(|kind| *kind != source.kind) {
        // The cursor of one kind is meaningless for another.
        (source.kind, source.cursor_json) = (kind, "{}".to_owned());
        is_new_start = true;
    }
    if let Some(name) = &change.name {
        source.name.clone_from(name);
    }
    if let Some(rename) = change.rename.as_ref().filter(|rename| rename.from == source.name) {
        source.name.clone_from(&rename.to);
    }
    if let Some(config) = &change.config {
        source.config_json = Value::Object(config.clone()).to_string();
    }
    source.enabled = change.enabled.unwrap_or(source.enabled);
    source.scraping = change.scraping.unwrap_or(source.scraping);
    source.auto_scrape = change.auto_scrape.unwrap_or(source.auto_scrape);
    source.interval = change.interval.unwrap_or(source.interval);
    if is_new_start {
        (source.failures, source.retry_at, source.error) = (0, None, None);
    }
    if change.enabled == Some(true) {
        fetch_anyway(source);
    }
}

/// Whoever enables a source wants it fetched, whatever its server asked for last time.
fn fetch_anyway(source: &mut Source) {
    let Ok(mut cursor) = serde_json::from_str::<Map<String, Value>>(&source.cursor_json) else { return };
    let held = [cursor.remove("not_before"), cursor.remove("not_before_why")];
    if held.iter().any(Option::is_some) {
        source.cursor_json = Value::Object(cursor).to_string();
    }
}

/// Reads a source from the columns of [`SOURCE`], which come first.
fn source_of(row: &Row) -> Source {
    Source {
        id: SourceId(row.get(0)),
        name: row.get(1),
        kind: Kind::parse(row.get(2)).unwrap_or(Kind::Feed),
        url: row.get(3),
        listed_url: row.get(4),
        lead: lead_of(row.get(5)),
        enabled: row.get(6),
        scraping: row.get(7),
        auto_scrape: row.get(8),
        interval: of_decimal(row.get(9)),
        config_json: row.get(10),
        cursor_json: row.get(11),
        added_at: at(row.get(12)),
        failures: u32::try_from(row.get::<_, i64>(13).max(0)).unwrap_or(u32::MAX),
        retry_at: row.get::<_, Option<i64>>(14).map(at),
        error: row.get(15),
        requested_at: row.get::<_, Option<i64>>(16).map(at),
    }
}

/// `min_scrape_interval` in seconds, with the two decimals of `numeric(10,2)`.
fn to_decimal(interval: SourceInterval) -> Option<f64> {
    match interval {
        SourceInterval::Default => None,
        SourceInterval::Off => Some(0.0),
        SourceInterval::Every(span) => Some((span.as_micros() / 10_000) as f64 / 100.0),
    }
}

pub(super) fn of_decimal(seconds: Option<f64>) -> SourceInterval {
    match seconds {
        None => SourceInterval::Default,
        Some(seconds) if seconds > 0.0 => {
            SourceInterval::Every(Span::from_millis(((seconds * 100.0).round() as u64).saturating_mul(10)))
        }
        Some(_) => SourceInterval::Off,
    }
}

const SOURCE: &str =
    "id, name, kind, url, listed_url, lead, enabled, scraping, auto_scrape, min_scrape_interval,
    config_json, cursor_json, added_us, failures, retry_us, error, requested_us";

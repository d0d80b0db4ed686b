//! What fetching a source brings: its items, and the end of the fetch with everything that it changes.
//!
//! The lock of the source is held throughout, so that nobody else adds items to it or moves its cursor.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use comity_core::time::{Span, Timestamp};
use serde_json::{Map, Value};

use super::details::Keep;
use super::failure::Result;
use super::param::{opt_text, text};
use super::tx::Tx;
use super::{at, us};
use crate::sources::{FetchEnd, FetchResult, FetchRun, ItemChanges, Kind, NewItem, SourceId, SourceTenure};

/// An item of a batch. One that is in it several times is as if each had come alone: the first one adds it, later ones may
/// change it, and the last one has the details.
struct Found<'a> {
    identity: Cow<'a, str>,
    /// Its row, unless it is new.
    id: Option<i64>,
    /// The hash of the details that are stored.
    details_hash: Option<i64>,
    content_hash: i64,
    page_key: Option<Vec<u8>>,
    /// What is written of it, if anything.
    row: Option<&'a NewItem>,
    is_changed: bool,
    /// Whether it was stored without the key of its page, which is known now.
    gets_key: bool,
    wants_hook: bool,
    last: &'a NewItem,
}

impl Tx<'_> {
    pub(super) fn keep_items(
        &mut self,
        tenure: SourceTenure,
        items: &[NewItem],
        now: Timestamp,
    ) -> Result<ItemChanges> {
        let Some(source) = self.claimed_source(tenure)? else { return Ok(ItemChanges::default()) };
        let (mut found, kept) = self.compare(source.id, items)?;
        self.add_items(source.id, &mut found, now)?;
        self.change_items(source.kind, &found, now)?;
        let details = found.iter().filter_map(|item| {
            Some(Keep { item: item.id?, details: &item.last.details, known: item.details_hash })
        });
        self.keep_details(details.collect())?;
        self.check_asker(tenure)?;
        Ok(kept)
    }

    /// Compares items with what is stored.
    fn compare<'a>(
        &mut self,
        source: SourceId,
        items: &'a [NewItem],
    ) -> Result<(Vec<Found<'a>>, ItemChanges)> {
        let identities: Vec<_> = items.iter().map(|item| text(&item.identity)).collect();
        let sql = "SELECT item.identity, item.id, content_hash, page_key, hash
            FROM unnest($2) AS given (identity)
            JOIN item ON source_id = $1 AND hash_of(item.identity) = hash_of(given.identity)
            LEFT JOIN item_details ON item_id = item.id";
        let rows = self.rows(sql, &[&source.0, &identities])?;
        let known: HashMap<&str, _> = rows.iter().map(|row| (row.get(0), row)).collect();
        let mut found: Vec<Found<'a>> = Vec::new();
        let mut places: HashMap<Cow<'a, str>, usize> = HashMap::new();
        let mut kept = ItemChanges::default();
        for (item, identity) in items.iter().zip(identities) {
            let place = match places.entry(identity.clone()) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(place) => {
                    let row = known.get(&*identity);
                    found.push(Found {
                        id: row.map(|row| row.get(1)),
                        details_hash: row.and_then(|row| row.get(4)),
                        content_hash: row.map_or(item.content_hash as i64, |row| row.get(2)),
                        page_key: row.map_or(item.page_key.map(Vec::from), |row| row.get(3)),
                        row: row.is_none().then_some(item),
                        is_changed: false,
                        gets_key: false,
                        wants_hook: row.is_none() && item.wants_hook,
                        last: item,
                        identity,
                    });
                    place.insert(found.len() - 1);
                    if row.is_none() {
                        kept.new += 1;
                        continue;
                    }
                    found.len() - 1
                }
            };
            found[place].add(item, &mut kept);
        }
        Ok((found, kept))
    }

    /// Adds those that are new, in the order given, and notes their ids.
    fn add_items(&mut self, source: SourceId, found: &mut [Found<'_>], now: Timestamp) -> Result<()> {
        let new: Vec<&Found<'_>> = found.iter().filter(|item| item.id.is_none()).collect();
        if new.is_empty() {
            return Ok(());
        }
        let identities: Vec<_> = new.iter().map(|item| &*item.identity).collect();
        let changed: Vec<_> = new.iter().map(|item| item.is_changed.then_some(us(now))).collect();
        let columns = Columns::of(&new);
        let sql =
            "INSERT INTO item (source_id, identity, seen_us, changed_us, url, lead, title, published_us,
                content_hash, page_key)
            SELECT $1, identity, $2, changed_us, url, lead, title, published_us, content_hash, page_key
            FROM unnest($3, $4, $5, $6, $7, $8, $9, $10) WITH ORDINALITY
                AS given (identity, changed_us, url, lead, title, published_us, content_hash, page_key, nth)
            ORDER BY nth RETURNING identity, id";
        let Columns { urls, leads, titles, published, hashes, keys } = &columns;
        let added = self.change_rows(
            sql,
            &[&source.0, &us(now), &identities, &changed, urls, leads, titles, published, hashes, keys],
        )?;
        let ids: HashMap<&str, i64> = added.iter().map(|row| (row.get(0), row.get(1))).collect();
        for item in found.iter_mut().filter(|item| item.id.is_none()) {
            item.id = ids.get(&*item.identity).copied();
        }
        let hooks: Vec<i64> =
            found.iter().filter(|item| item.wants_hook).filter_map(|item| item.id).collect();
        if !hooks.is_empty() {
            self.change("INSERT INTO hook (item_id) SELECT unnest($1)", &[&hooks])?;
        }
        // Those that are new are complete: nothing of them has to be changed.
        for item in found.iter_mut().filter(|item| ids.contains_key(&*item.identity)) {
            (item.row, item.gets_key) = (None, false);
        }
        Ok(())
    }

    /// Writes what changed of known items.
    fn change_items(&mut self, kind: Kind, found: &[Found<'_>], now: Timestamp) -> Result<()> {
        let mut changed: Vec<&Found<'_>> = found.iter().filter(|item| item.row.is_some()).collect();
        changed.sort_by_key(|item| item.id);
        if !changed.is_empty() {
            let ids: Vec<i64> = changed.iter().filter_map(|item| item.id).collect();
            let Columns { urls, leads, titles, published, hashes, keys } = &Columns::of(&changed);
            // A page is followed for its changes, so it is scraped again.
            let is_page = kind == Kind::Page;
            let sql = "UPDATE item SET url = given.url, lead = given.lead, title = given.title,
                    published_us = given.published_us, content_hash = given.content_hash, changed_us = $1,
                    page_key = given.page_key,
                    state = CASE WHEN $2 AND state IN ('done', 'partial', 'failed') THEN 'none' ELSE state END
                FROM unnest($3, $4, $5, $6, $7, $8, $9)
                    AS given (id, url, lead, title, published_us, content_hash, page_key)
                WHERE item.id = given.id";
            self.change(sql, &[&us(now), &is_page, &ids, urls, leads, titles, published, hashes, keys])?;
        }
        let lacking = found.iter().filter(|item| item.row.is_none() && item.gets_key);
        let (ids, keys): (Vec<i64>, Vec<Option<&[u8]>>) =
            lacking.filter_map(|item| Some((item.id?, item.page_key.as_deref()))).unzip();
        if !ids.is_empty() {
            let sql = "UPDATE item SET page_key = given.page_key
                FROM unnest($1, $2) AS given (id, page_key) WHERE item.id = given.id";
            self.change(sql, &[&ids, &keys])?;
        }
        Ok(())
    }

    pub(super) fn end_fetch(&mut self, end: &FetchEnd) -> Result<bool> {
        let Some(mut source) = self.claimed_source(end.tenure)? else { return Ok(false) };
        let (id, cursor_in) = (source.id.0, source.cursor_json.clone());
        let (mut moved, mut until) = (false, None);
        if !matches!(end.result, FetchResult::Held { .. }) {
            source.requested_at = None;
        }
        match &end.result {
            FetchResult::Read { cursor, moved_to, .. } => {
                source.cursor_json = advance(&cursor_in, end, cursor);
                (source.failures, source.retry_at) = (0, None);
                source.error.clone_from(&end.error);
                // If another source has the new URL already, this one keeps its own.
                if let Some((url, lead)) = moved_to.as_ref().filter(|(url, _)| source.url != *url) {
                    self.lock_url(url)?;
                    moved = self.source_with_url(url)?.is_none();
                    if moved {
                        (source.url, source.lead) = (url.clone(), *lead);
                    }
                }
                self.write_source(&source)?;
            }
            FetchResult::Failed { .. } | FetchResult::Gone => {
                if let FetchResult::Failed { retry_at } = end.result {
                    (source.retry_at, until) = (Some(retry_at), Some(retry_at));
                } else {
                    source.enabled = false;
                }
                source.failures = source.failures.saturating_add(1);
                source.error.clone_from(&end.error);
                self.write_source(&source)?;
            }
            FetchResult::Held { until: held_until } => {
                until = Some(*held_until);
                // Only one row records that a source is held, however often that was found.
                let sql = "DELETE FROM fetch_run WHERE status = 'held'
                    AND id = (SELECT max(id) FROM fetch_run WHERE source_id = $1)";
                self.change(sql, &[&id])?;
            }
        }
        self.log_fetch(end, &cursor_in, &source.cursor_json, until)?;
        self.check_asker(end.tenure)?;
        Ok(moved)
    }

    fn log_fetch(
        &mut self,
        end: &FetchEnd,
        cursor_in: &str,
        cursor_out: &str,
        until: Option<Timestamp>,
    ) -> Result<()> {
        let source = end.tenure.source.0;
        let sql = "INSERT INTO fetch_run (source_id, started_us, ended_us, status, window_end_us, cursor_in,
            cursor_out, http_status, found, new, changed, error, until_us)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
        self.change(
            sql,
            &[
                &source,
                &us(end.started_at),
                &us(end.ended_at),
                &end.result.as_str(),
                &us(end.window.end()),
                &text(cursor_in),
                &text(cursor_out),
                &end.http_status.map(i64::from),
                &(end.found as i64),
                &(end.changes.new as i64),
                &(end.changes.changed as i64),
                &opt_text(end.error.as_deref()),
                &until.map(us),
            ],
        )?;
        // The history of a source is for people to read: the latest rows are enough. The same is true of its scrapes, except
        // that the interval counts from the last one.
        let sql = "WITH runs AS (DELETE FROM fetch_run WHERE source_id = $1 AND id <= (
                SELECT id FROM fetch_run WHERE source_id = $1 ORDER BY id DESC OFFSET $2 LIMIT 1))
            DELETE FROM scrape_log WHERE source_id = $1 AND started_us < $3 AND ended_us IS NOT NULL
            AND started_us < (SELECT max(started_us) FROM scrape_log WHERE source_id = $1)";
        self.change(sql, &[&source, &FETCHES_KEPT, &us(end.ended_at - SCRAPES_KEPT)]).map(|_| ())
    }

    pub(super) fn fetches(&mut self, source: SourceId, limit: u32) -> Result<Vec<FetchRun>> {
        let sql =
            "SELECT started_us, ended_us, status, window_end_us, cursor_in, cursor_out, http_status, found,
            new, changed, error FROM fetch_run WHERE source_id = $1 ORDER BY id DESC LIMIT $2";
        let rows = self.rows(sql, &[&source.0, &i64::from(limit)])?;
        let runs = rows.iter().map(|row| {
            let count = |nth| row.get::<_, i64>(nth).max(0) as u64;
            let (found, new, changed) = (count(7), count(8), count(9));
            let known = found.saturating_sub(new.saturating_add(changed));
            FetchRun {
                started_at: at(row.get(0)),
                ended_at: at(row.get(1)),
                status: row.get(2),
                window_end: at(row.get(3)),
                cursor_in: row.get(4),
                cursor_out: row.get(5),
                http_status: row.get::<_, Option<i64>>(6).and_then(|status| status.try_into().ok()),
                found,
                changes: ItemChanges { new, changed, known },
                error: row.get(10),
            }
        });
        Ok(runs.collect())
    }
}

impl<'a> Found<'a> {
    /// Adds an item of the same identity, which is stored or will be.
    fn add(&mut self, item: &'a NewItem, kept: &mut ItemChanges) {
        self.last = item;
        if item.content_hash as i64 != self.content_hash {
            kept.changed += 1;
            (self.row, self.is_changed, self.content_hash) = (Some(item), true, item.content_hash as i64);
            self.page_key = item.page_key.map(Vec::from);
            return;
        }
        kept.known += 1;
        if self.page_key.is_none() && item.page_key.is_some() {
            (self.page_key, self.gets_key) = (item.page_key.map(Vec::from), true);
        }
    }
}

/// The columns of several items.
struct Columns<'a> {
    urls: Vec<Cow<'a, str>>,
    leads: Vec<&'static str>,
    titles: Vec<Option<Cow<'a, str>>>,
    published: Vec<Option<i64>>,
    hashes: Vec<i64>,
    keys: Vec<Option<&'a [u8]>>,
}

impl<'a> Columns<'a> {
    fn of(items: &[&'a Found<'a>]) -> Self {
        let rows = || items.iter().filter_map(|item| item.row);
        Self {
            urls: rows().map(|row| text(&row.url)).collect(),
            leads: rows().map(|row| row.lead.as_str()).collect(),
            titles: rows().map(|row| opt_text(row.title.as_deref())).collect(),
            published: rows().map(|row| row.published_at.map(us)).collect(),
            hashes: items.iter().map(|item| item.content_hash).collect(),
            keys: items.iter().map(|item| item.page_key.as_deref()).collect(),
        }
    }
}

/// The cursor after a successful fetch: the new fields replace those that were stored.
fn advance(cursor_json: &str, end: &FetchEnd, fields: &Map<String, Value>) -> String {
    let mut cursor: Map<String, Value> = serde_json::from_str(cursor_json).unwrap_or_default();
    for (key, value) in fields {
        match value {
            Value::Null => drop(cursor.remove(key)),
            value => drop(cursor.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(end.window.advance(&cursor, end.result.status())).to_string()
}

/// For how long scrapes of a source are kept.
const SCRAPES_KEPT: Span = Span::from_hours(90 * 24);
/// How many fetches of a source are kept.
const FETCHES_KEPT: i64 = 200;

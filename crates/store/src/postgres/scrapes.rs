//! Enqueues items: whether each gets a task, and when that is ready. Starting and ending scrapes is in `scrape_log`, reading
//! items in `items`.
//!
//! Everything that a decision depends on is locked first, in the order that `tasks` describes: the sources by id, so that
//! nobody else reserves times of theirs; the pages, so that no other source enqueues them; then the job, its lanes, and the
//! tasks whose items may follow them. Then all rows are read at once, decided on, and written at once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use comity_core::enqueue::{Enqueued, Facts, SourceFacts, Trigger, enqueue};
use comity_core::interval;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use tokio_postgres::Row;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::failure::{Failure, Result};
use super::items::{ITEM, item_of};
use super::jobs::id_of;
use super::param::{Param, text};
use super::sharing::{Pages, Shared};
use super::sources::of_decimal;
use super::tx::Tx;
use super::{at, us};
use crate::items::{Item, ItemId, ScrapeRequest, ScrapeTerms};
use crate::sources::SourceId;
use crate::tasks::{Lead, origin_of};

/// An item that gets a task.
struct NewScrape<'a> {
    item: &'a Item,
    domain: &'a str,
    wake_at: Option<Timestamp>,
}

/// What becomes of the items of a call.
#[derive(Default)]
struct Decided<'a> {
    new: Vec<NewScrape<'a>>,
    /// Items with the tasks of others that they share.
    sharing: Vec<(i64, Shared)>,
    /// Items with others whose page they get.
    fetched: Vec<(i64, i64)>,
    results: Vec<Enqueued>,
}

impl Tx<'_> {
    pub(super) fn enqueue_items(
        &mut self,
        job: JobId,
        requests: &[ScrapeRequest],
        trigger: Trigger,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Result<Vec<Enqueued>> {
        let ids: Vec<i64> = requests.iter().map(|request| request.item.0).collect();
        let pages = self.lock_for_enqueueing(job, requests, &ids, now)?;
        let rows = self.rows(&format!("SELECT {ITEM}, page_key FROM item WHERE id = ANY($1)"), &[&ids])?;
        let items: HashMap<ItemId, (Item, Option<Vec<u8>>)> =
            rows.iter().map(|row| (ItemId(row.get(0)), (item_of(row), row.get("page_key")))).collect();
        let of_items: HashSet<i64> = items.values().map(|(item, _)| item.source.0).collect();
        let sources = self.source_facts(of_items.into_iter().collect(), terms, now)?;
        let decided = decide(requests, &items, sources, pages, trigger, now);
        self.write_decided(job, &decided, now)?;
        Ok(decided.results)
    }

    /// Locks whatever decides about items, and returns what is known of their pages.
    fn lock_for_enqueueing(
        &mut self,
        job: JobId,
        requests: &[ScrapeRequest],
        ids: &[i64],
        now: Timestamp,
    ) -> Result<Pages> {
        // An item keeps its source.
        self.lock_sources("SELECT source_id FROM item WHERE id = ANY($1)", &ids)?;
        let keys = self.lock_pages(ids)?;
        if !self.exists("SELECT 1 FROM job WHERE id = $1 FOR KEY SHARE", &[&id_of(job)])? {
            return Err(Failure::Rejected("the job that scrapes items was removed".to_owned()));
        }
        let domains: Vec<&str> = requests.iter().map(|request| request.domain.as_str()).collect();
        let sql = "SELECT count(*) FROM (SELECT 1 FROM lane WHERE job_id = $1
            AND domain_id IN (SELECT id FROM domain WHERE domain = ANY($2))
            ORDER BY lane.id FOR NO KEY UPDATE) AS locked";
        self.rows(sql, &[&id_of(job), &domains])?;
        self.known_pages(job, ids, &keys, now)
    }

    /// Locks the sources that a query returns, in the order of their ids, so that two callers never wait for each other in a
    /// circle. Returns their ids.
    pub(super) fn lock_sources(&mut self, which: &str, value: &dyn Param) -> Result<Vec<i64>> {
        let sql = format!(
            "SELECT id, pg_advisory_xact_lock(hashtextextended(current_schema() || ' source', id))
            FROM (SELECT DISTINCT source_id AS id FROM ({which}) AS of_items ORDER BY source_id) AS ids"
        );
        Ok(self.rows(&sql, &[value])?.iter().map(|row| row.get(0)).collect())
    }

    /// What is known about sources when items of theirs are to be enqueued. Disabled ones are not scraped.
    fn source_facts(
        &mut self,
        mut ids: Vec<i64>,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> Result<HashMap<SourceId, SourceFacts>> {
        ids.sort_unstable();
        let sql = format!(
            "SELECT {TIMES}, source.id, enabled AND scraping AS scraping, auto_scrape, CASE WHEN $4 THEN (
                SELECT count(*) FROM item WHERE source_id = source.id AND state IN ('waiting', 'running')
                    AND (wake_us IS NULL OR wake_us <= $5)
                    AND NOT EXISTS (SELECT 1 FROM sharer WHERE item_id = item.id)) ELSE 0 END AS in_flight
            FROM source {LAST_WAKE} WHERE source.id = ANY($1)"
        );
        let limited = terms.in_flight_max.is_some();
        let rows = self.rows(&sql, &[&ids, &us(now + SOON), &None::<i64>, &limited, &us(now)])?;
        self.correct_log(&rows, now)?;
        let facts = rows.iter().map(|row| {
            let Times { interval, last_scrape_at, last_wake } = Times::of(row, terms.interval, now);
            let facts = SourceFacts {
                scraping: row.get("scraping"),
                auto_scrape: row.get("auto_scrape"),
                in_flight: u32::try_from(row.get::<_, i64>("in_flight")).unwrap_or(u32::MAX),
                in_flight_max: terms.in_flight_max,
                interval,
                last_scrape_at,
                last_wake,
            };
            (SourceId(row.get("id")), facts)
        });
        Ok(facts.collect())
    }

    /// When scrapes of a source may start, ignoring the time that is reserved for one item.
    pub(super) fn times(
        &mut self,
        source: SourceId,
        except: ItemId,
        interval: Option<Span>,
        now: Timestamp,
    ) -> Result<Times> {
        let sql = format!("SELECT {TIMES}, source.id FROM source {LAST_WAKE} WHERE source.id = $1");
        let rows = self.rows(&sql, &[&source.0, &us(now + SOON), &Some(except.0)])?;
        self.correct_log(&rows, now)?;
        let times = rows.first().map(|row| Times::of(row, interval, now));
        times.ok_or_else(|| Failure::Rejected("a source was removed while it was locked".to_owned()))
    }

    /// A scrape in the future counts as now, and is corrected to that.
    fn correct_log(&mut self, rows: &[Row], now: Timestamp) -> Result<()> {
        let is_ahead =
            |row: &&Row| row.get::<_, Option<i64>>("last_scrape_us").is_some_and(|last| at(last) > now);
        let ahead: Vec<i64> = rows.iter().filter(is_ahead).map(|row| row.get("id")).collect();
        if !ahead.is_empty() {
            let sql = "UPDATE scrape_log SET started_us = $2 WHERE source_id = ANY($1) AND started_us > $2";
            self.change(sql, &[&ahead, &us(now)])?;
        }
        Ok(())
    }

    fn write_decided(&mut self, job: JobId, decided: &Decided<'_>, now: Timestamp) -> Result<()> {
        let Decided { new, sharing, fetched, .. } = decided;
        let new_ids = new.iter().map(|scrape| scrape.item.id.0);
        let others = sharing.iter().map(|(item, _)| *item).chain(fetched.iter().map(|(item, _)| *item));
        let ids: Vec<i64> = new_ids.chain(others).collect();
        if ids.is_empty() {
            return Ok(());
        }
        self.forget_tasks(&ids)?;
        let tasks = self.make_tasks(job, new, now)?;
        self.share_tasks(sharing, &tasks)?;
        self.take_results(fetched)?;
        self.tell();
        if new.is_empty() {
            return Ok(());
        }
        let sql = "UPDATE job SET tasks = tasks + $2 WHERE id = $1";
        self.change(sql, &[&id_of(job), &(new.len() as i64)]).map(|_| ())
    }

    /// Makes a task for each of these items; returns the tasks in the same order.
    fn make_tasks(&mut self, job: JobId, new: &[NewScrape<'_>], now: Timestamp) -> Result<Vec<i64>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let domains: Vec<&str> = new.iter().map(|scrape| scrape.domain).collect();
        let lanes = self.lane_ids(id_of(job), &domains)?;
        let listed = new.iter().filter(|scrape| scrape.item.lead == Lead::Listed);
        self.list_origins(id_of(job), listed.map(|scrape| origin_of(&scrape.item.url)).collect())?;
        let ready = |scrape: &NewScrape<'_>| us(scrape.wake_at.unwrap_or(now));
        let mut tasks: HashMap<i64, i64> = HashMap::new();
        // A key that is taken already belongs to another task: the next one is tried.
        for round in 0.. {
            let left =
                || std::iter::zip(new, &lanes).filter(|(scrape, _)| !tasks.contains_key(&scrape.item.id.0));
            let ids: Vec<i64> = left().map(|(scrape, _)| scrape.item.id.0).collect();
            if ids.is_empty() {
                break;
            }
            let key =
                |id: &i64| (xxh3_64_with_seed(&id.to_le_bytes(), us(now) as u64) as i64).wrapping_add(round);
            let keys: Vec<i64> = ids.iter().map(key).collect();
            let urls: Vec<Cow<'_, str>> = left().map(|(scrape, _)| text(&scrape.item.url)).collect();
            let leads: Vec<&str> = left().map(|(scrape, _)| scrape.item.lead.as_str()).collect();
            let sources: Vec<i64> = left().map(|(scrape, _)| scrape.item.source.0).collect();
            let ready: Vec<i64> = left().map(|(scrape, _)| ready(scrape)).collect();
            let of_left: Vec<i64> = left().map(|(_, lane)| *lane).collect();
            let sql = "INSERT INTO task (job_id, lane_id, url, url_key, lead, ready_us, item_id, source_id)
                SELECT $1, lane_id, url, url_key, lead, ready_us, item_id, source_id
                FROM unnest($2, $3, $4, $5, $6, $7, $8) WITH ORDINALITY
                    AS given (lane_id, url, url_key, lead, ready_us, item_id, source_id, nth)
                ORDER BY nth ON CONFLICT (job_id, url_key) DO NOTHING RETURNING item_id, id";
            let made = self
                .change_rows(sql, &[&id_of(job), &of_left, &urls, &keys, &leads, &ready, &ids, &sources])?;
            tasks.extend(made.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))));
        }
        let ids: Vec<i64> = new.iter().map(|scrape| scrape.item.id.0).collect();
        let wakes: Vec<Option<i64>> = new.iter().map(|scrape| scrape.wake_at.map(us)).collect();
        let made: Vec<i64> = ids.iter().map(|id| tasks.get(id).copied().unwrap_or_default()).collect();
        let sql = "UPDATE item SET state = 'waiting', wake_us = given.wake_us, task_id = given.task_id, error = NULL
            FROM unnest($1, $2, $3) AS given (id, wake_us, task_id) WHERE item.id = given.id";
        self.change(sql, &[&ids, &wakes, &made])?;
        // Those that were there before are locked already.
        let due: Vec<i64> = new.iter().map(ready).collect();
        let sql = "UPDATE lane SET due_us = ready.due_us
            FROM (SELECT id, min(due_us) AS due_us FROM unnest($1, $2) AS given (id, due_us) GROUP BY id) AS ready
            WHERE lane.id = ready.id AND (lane.due_us IS NULL OR lane.due_us > ready.due_us)";
        self.change(sql, &[&lanes, &due])?;
        Ok(made)
    }
}

/// Decides about items one after the other, as if each were written before the next one is decided on.
fn decide<'a>(
    requests: &'a [ScrapeRequest],
    items: &'a HashMap<ItemId, (Item, Option<Vec<u8>>)>,
    mut sources: HashMap<SourceId, SourceFacts>,
    mut pages: Pages,
    trigger: Trigger,
    now: Timestamp,
) -> Decided<'a> {
    let mut decided = Decided::default();
    let mut done: HashSet<ItemId> = HashSet::new();
    for request in requests {
        let found = items.get(&request.item);
        let is_in_flight = |item: &Item| item.state.is_in_flight() || done.contains(&item.id);
        let facts = Facts {
            item_exists: found.is_some(),
            source: found.and_then(|(item, _)| sources.get(&item.source)).copied(),
            item_in_flight: found.is_some_and(|(item, _)| is_in_flight(item)),
            trigger,
        };
        let result = enqueue(&facts, now);
        let wake_at = match &result {
            Enqueued::Enqueued => Some(None),
            Enqueued::Deferred(deferred) => Some(Some(deferred.wake_at)),
            Enqueued::Already | Enqueued::Refused(_) => None,
        };
        let (Some(wake_at), Some((item, key))) = (wake_at, found) else {
            decided.results.push(result);
            continue;
        };
        done.insert(item.id);
        let key = key.as_deref();
        if let Some(task) = pages.task(key, item.lead) {
            decided.sharing.push((item.id.0, task));
            decided.results.push(Enqueued::Already);
            continue;
        }
        // A manual request means that it is to be fetched, and so does a page that changed since.
        let may_be_old = trigger == Trigger::Automatic && item.scraped_at.is_none();
        if let Some(other) = pages.fetched(key, item).filter(|_| may_be_old) {
            decided.fetched.push((item.id.0, other));
            decided.results.push(Enqueued::Already);
            continue;
        }
        if let Some(facts) = sources.get_mut(&item.source) {
            match wake_at {
                None => facts.in_flight += 1,
                Some(_) => facts.last_wake = wake_at,
            }
        }
        pages.add(key, item.lead, Shared::New(decided.new.len()));
        decided.new.push(NewScrape { item, domain: request.domain.as_str(), wake_at });
        decided.results.push(result);
    }
    decided
}

/// What the interval of a source is measured from.
pub(super) struct Times {
    pub(super) interval: Option<Span>,
    /// The last scrape, from the log.
    pub(super) last_scrape_at: Option<Timestamp>,
    /// The latest time that is reserved.
    pub(super) last_wake: Option<Timestamp>,
}

impl Times {
    /// Reads the columns of [`TIMES`].
    fn of(row: &Row, global: Option<Span>, now: Timestamp) -> Self {
        let moment = |name| row.get::<_, Option<i64>>(name).map(at);
        let interval = of_decimal(row.get("min_scrape_interval")).effective(global);
        let latest = |interval| {
            let deferred = row.get::<_, Option<i64>>("deferred")?;
            Some(interval::latest_wake(interval, deferred.max(0) as u64, now))
        };
        // Only for a time that is far away, those that are deferred were counted.
        let cap = interval.and_then(latest);
        let last_wake = moment("last_wake_us").map(|last| cap.map_or(last, |cap| last.min(cap)));
        Self { interval, last_scrape_at: moment("last_scrape_us").map(|last| last.min(now)), last_wake }
    }
}

/// The columns that [`Times::of`] reads.
const TIMES: &str = "min_scrape_interval, last.wake_us AS last_wake_us,
    (SELECT max(started_us) FROM scrape_log WHERE source_id = source.id) AS last_scrape_us,
    CASE WHEN last.wake_us > $2 THEN (SELECT count(*) FROM item WHERE source_id = source.id
        AND state IN ('waiting', 'running') AND wake_us IS NOT NULL) END AS deferred";
/// Joins a source with the latest time that is reserved for an item of it, but for the item `$3`.
const LAST_WAKE: &str =
    "LEFT JOIN LATERAL (SELECT max(wake_us) AS wake_us FROM item WHERE source_id = source.id
    AND state IN ('waiting', 'running') AND item.id IS DISTINCT FROM $3) AS last ON true";
/// A wake time within this span may well have been reserved by items that are waiting.
const SOON: Span = Span::from_hours(1);

//! Stores what happens on domains, and lists domains in the orders that people ask for.

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, Row, params};

use super::holders::Liveness;
use super::results::outcome_of;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::activity::{
    ActivityStore, COUNTED_MAX, DomainActivity, DomainCursor, DomainPage, DomainQuery, DomainReport,
    FORGOTTEN_AT_ONCE, FOUND_MAX, Found, HISTORY_KEPT, LastAnswer, ListedDomain, SORTED_MAX, Sample,
    TRAFFIC_INTERVAL, TRAFFIC_KEPT, Traffic, TrafficPoint, sort_found,
};
use crate::domains::DomainKey;
use crate::history::History;

impl ActivityStore for Sqlite {
    fn report_activity(&self, traffic: Traffic, domains: Vec<DomainReport>, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            tx.add_traffic(&traffic, now)?;
            domains.iter().try_for_each(|report| tx.report_domain(report, now))?;
            tx.forget_old_histories(now)
        })
    }

    fn page_domains(&self, query: DomainQuery) -> Reply<'_, DomainPage> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.page_domains(&liveness, &query))
    }

    fn domain_history(&self, domain: Domain) -> Reply<'_, Vec<Sample>> {
        self.read(move |tx| {
            let sql = "SELECT samples FROM history JOIN domains ON domains.id = domain_id WHERE domain = ?1";
            let mut statement = tx.sql.prepare_cached(sql)?;
            let bytes: Option<Vec<u8>> =
                statement.query_row([domain.as_str()], |row| row.get(0)).optional()?;
            Ok(bytes.map(|bytes| History::decode(&bytes).samples()).unwrap_or_default())
        })
    }

    fn traffic(&self, since: Timestamp, every: Span) -> Reply<'_, Vec<TrafficPoint>> {
        self.read(move |tx| tx.traffic(since, every))
    }

    fn count_waiting(&self, after: DomainKey, limit: u32) -> Reply<'_, Option<DomainKey>> {
        self.writer.run(move |tx| tx.count_waiting(after, limit))
    }

    fn waiting_for(&self, domain: Domain, most: u32) -> Reply<'_, u64> {
        self.read(move |tx| {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM domains JOIN lanes ON lanes.domain_id = domains.id
                JOIN tasks ON tasks.lane_id = lanes.id AND tasks.state = 'waiting' WHERE domain = ?1 LIMIT ?2)";
            let row = params![domain.as_str(), most];
            tx.sql.prepare_cached(sql)?.query_row(row, |row| row.get::<_, i64>(0)).map(|count| count.max(0) as u64)
        })
    }
}

impl Tx<'_> {
    fn add_traffic(&self, traffic: &Traffic, now: Timestamp) -> rusqlite::Result<()> {
        if traffic.is_empty() {
            return Ok(());
        }
        let from = us(now) - us(now).rem_euclid(TRAFFIC_INTERVAL.as_micros() as i64);
        let add = COLUMNS.map(|column| format!("{column} = {column} + excluded.{column}")).join(", ");
        let sql = format!(
            "INSERT INTO traffic (from_us, {}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
            ON CONFLICT (from_us) DO UPDATE SET {add}",
            COLUMNS.join(", ")
        );
        let mut row = vec![from];
        row.extend(numbers(traffic));
        self.sql.prepare_cached(&sql)?.execute(rusqlite::params_from_iter(row))?;
        let sql = "DELETE FROM traffic WHERE from_us < ?1 OR from_us > ?2";
        // After a clock was set back, what lies ahead would be kept for ever.
        self.sql.prepare_cached(sql)?.execute([us(now - TRAFFIC_KEPT), us(now + TRAFFIC_KEPT)])?;
        Ok(())
    }

    fn report_domain(&self, report: &DomainReport, now: Timestamp) -> rusqlite::Result<()> {
        let DomainReport { tenure, activity, samples } = report;
        let sql = "SELECT epoch FROM domains WHERE id = ?1";
        let epoch: Option<i64> =
            self.sql.prepare_cached(sql)?.query_row([tenure.key.0], |row| row.get(0)).optional()?;
        let Some(epoch) = epoch else { return Ok(()) };
        if epoch == tenure.epoch {
            self.write_activity(tenure.key, activity, now)?;
        }
        self.add_samples(tenure.key, samples, now)
    }

    fn write_activity(
        &self,
        key: DomainKey,
        activity: &DomainActivity,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO activity (domain_id, reported_us, delay_ms, learned_ms, held_until_us, bound_by,
                success_streak, error_streak, last_us, last_outcome, last_status)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
            ON CONFLICT (domain_id) DO UPDATE SET reported_us = ?2, delay_ms = ?3, learned_ms = ?4, held_until_us = ?5,
                bound_by = ?6, success_streak = ?7, error_streak = ?8, last_us = iif(?9 > 0, ?9, last_us),
                last_outcome = iif(?9 > 0, ?10, last_outcome), last_status = iif(?9 > 0, ?11, last_status)";
        self.sql.prepare_cached(sql)?.execute(params![
            key.0,
            us(now),
            activity.delay.as_millis_up() as i64,
            activity.learned.as_millis_up() as i64,
            activity.held_until.map_or(0, us),
            activity.limit,
            activity.success_streak,
            activity.error_streak,
            activity.last.map_or(0, |last| us(last.at)),
            activity.last.map(|last| last.outcome.as_str()),
            activity.last.and_then(|last| last.status),
        ])?;
        Ok(())
    }

    fn add_samples(&self, key: DomainKey, samples: &[Sample], now: Timestamp) -> rusqlite::Result<()> {
        if samples.is_empty() {
            return Ok(());
        }
        let sql = "SELECT samples FROM history WHERE domain_id = ?1";
        let known: Option<Vec<u8>> =
            self.sql.prepare_cached(sql)?.query_row([key.0], |row| row.get(0)).optional()?;
        let mut history = known.map(|bytes| History::decode(&bytes)).unwrap_or_default();
        history.add(samples, now);
        let sql = "INSERT INTO history (domain_id, until_us, samples) VALUES (?1, ?2, ?3)
            ON CONFLICT (domain_id) DO UPDATE SET until_us = ?2, samples = ?3";
        let until = history.until().map_or(0, us);
        self.sql.prepare_cached(sql)?.execute(params![key.0, until, history.encode()])?;
        Ok(())
    }

    fn forget_old_histories(&self, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "DELETE FROM history WHERE domain_id IN (SELECT domain_id FROM history WHERE until_us < ?1 LIMIT ?2)";
        self.sql.prepare_cached(sql)?.execute(params![us(now - HISTORY_KEPT), FORGOTTEN_AT_ONCE])?;
        Ok(())
    }

    fn traffic(&self, since: Timestamp, every: Span) -> rusqlite::Result<Vec<TrafficPoint>> {
        let sums = COLUMNS.map(|column| format!("sum({column})")).join(", ");
        let sql = format!(
            "SELECT from_us / ?2 * ?2 AS point, {sums} FROM traffic WHERE from_us >= ?1 GROUP BY point ORDER BY point"
        );
        let every = every.as_micros().clamp(TRAFFIC_INTERVAL.as_micros(), i64::MAX as u64) as i64;
        let mut statement = self.sql.prepare_cached(&sql)?;
        let points = statement.query_map([us(since), every], |row| {
            Ok(TrafficPoint { from: at(row.get(0)?), traffic: traffic_of(row)? })
        })?;
        points.collect()
    }

    fn count_waiting(&self, after: DomainKey, limit: u32) -> rusqlite::Result<Option<DomainKey>> {
        let sql = "SELECT id, coalesce(waiting, -1), (SELECT count(*) FROM (SELECT 1 FROM lanes
                    JOIN tasks ON tasks.lane_id = lanes.id AND tasks.state = 'waiting'
                    WHERE lanes.domain_id = domains.id LIMIT ?3))
            FROM domains LEFT JOIN activity ON domain_id = domains.id WHERE id > ?1 ORDER BY id LIMIT ?2";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found = params![after.0, limit, COUNTED_MAX as i64];
        let counted: Vec<(i64, i64, i64)> =
            self.sql.prepare_cached(sql)?.query_map(found, read)?.collect::<rusqlite::Result<_>>()?;
        let sql = "INSERT INTO activity (domain_id, waiting) VALUES (?1, ?2)
            ON CONFLICT (domain_id) DO UPDATE SET waiting = ?2";
        let mut update = self.sql.prepare_cached(sql)?;
        for (id, _, waiting) in counted.iter().filter(|(_, before, now)| before != now) {
            update.execute([id, waiting])?;
        }
        let last = counted.last().filter(|_| counted.len() == limit as usize);
        Ok(last.map(|(id, ..)| DomainKey(*id)))
    }

    fn page_domains(&mut self, liveness: &Liveness, query: &DomainQuery) -> rusqlite::Result<DomainPage> {
        let found = self.named(&query.like)?;
        let (count, limit) = (found.len(), query.limit as usize);
        let mut listed = match query.sort.column() {
            None => self.by_name(query, limit + 1)?,
            Some(column) if !query.like.is_empty() && count <= SORTED_MAX => {
                let mut sorted =
                    sort_found(self.with_values(found, column)?, query.order, query.after.as_ref());
                sorted.truncate(limit + 1);
                sorted
            }
            Some(column) => self.by_value(query, column, limit + 1)?,
        };
        let has_more = listed.len() > limit;
        listed.truncate(limit);
        let mut domains = Vec::with_capacity(listed.len());
        for (key, _) in &listed {
            domains.extend(self.listed_domain(liveness, *key)?);
        }
        let next = listed.last().filter(|_| has_more).map(|(key, value)| match query.sort.column() {
            None => {
                DomainCursor::Name(domains.last().map(|last| last.row.domain.clone()).unwrap_or_default())
            }
            Some(_) => DomainCursor::Value { value: *value, key: *key },
        });
        Ok(DomainPage { domains, next, found: count as u64 })
    }

    /// Domains whose name contains `like`, up to [`FOUND_MAX`]. Reads nothing but the index of names.
    fn named(&self, like: &str) -> rusqlite::Result<Vec<i64>> {
        let named = if like.is_empty() { "?1 = ''" } else { "instr(domain, ?1)" };
        let sql = format!("SELECT id FROM domains WHERE {named} LIMIT ?2");
        let found = params![like, FOUND_MAX as i64];
        self.sql.prepare_cached(&sql)?.query_map(found, |row| row.get(0))?.collect()
    }

    fn with_values(&self, ids: Vec<i64>, column: &str) -> rusqlite::Result<Vec<Found>> {
        let mut value =
            self.sql.prepare_cached(&format!("SELECT {column} FROM activity WHERE domain_id = ?1"))?;
        let of = |id: i64| Ok((DomainKey(id), value.query_row([id], |row| row.get(0)).optional()?));
        ids.into_iter().map(of).collect()
    }

    fn by_name(&self, query: &DomainQuery, limit: usize) -> rusqlite::Result<Vec<Found>> {
        let (beyond, direction) = query.order.sql();
        let (after, last) = match &query.after {
            Some(DomainCursor::Name(name)) => (format!("AND domain {beyond} ?2"), name.as_str()),
            _ => ("AND ?2 = ''".to_owned(), ""),
        };
        let named = if query.like.is_empty() { "?1 = ''" } else { "instr(domain, ?1)" };
        let sql =
            format!("SELECT id FROM domains WHERE {named} {after} ORDER BY domain {direction} LIMIT ?3");
        let read = |row: &Row<'_>| Ok((DomainKey(row.get(0)?), None));
        let rows = params![query.like, last, limit as i64];
        self.sql.prepare_cached(&sql)?.query_map(rows, read)?.collect()
    }

    /// Walks along the index of `column`. Domains of which nothing is known come last.
    fn by_value(&self, query: &DomainQuery, column: &str, limit: usize) -> rusqlite::Result<Vec<Found>> {
        let (beyond, direction) = query.order.sql();
        let by_value = format!("ORDER BY {column} {direction}, domain_id {direction}");
        let by_key = format!("ORDER BY domain_id {direction}");
        let (value, key, parts) = match &query.after {
            Some(DomainCursor::Value { value: None, key }) => (0, key.0, Vec::new()),
            Some(DomainCursor::Value { value: Some(value), key }) => (
                *value,
                key.0,
                vec![
                    format!("{column} = ?3 AND domain_id {beyond} ?4 {by_key}"),
                    format!("{column} {beyond} ?3 AND ?4 = ?4 {by_value}"),
                ],
            ),
            _ => (0, -1, vec![format!("?3 = 0 AND ?4 = -1 {by_value}")]),
        };
        let mut found: Vec<Found> = Vec::new();
        let join = match query.like.is_empty() {
            true => "WHERE ?1 = ''",
            false => "JOIN domains ON domains.id = domain_id WHERE instr(domain, ?1)",
        };
        let parts = parts
            .into_iter()
            .map(|part| format!("SELECT domain_id, {column} FROM activity {join} AND {part} LIMIT ?2"));
        let named = if query.like.is_empty() { "?1 = ''" } else { "instr(domain, ?1)" };
        // If the last one had a value, these have not been listed yet.
        let first =
            if matches!(query.after, Some(DomainCursor::Value { value: None, .. })) { "?4" } else { "-1" };
        let rest = format!(
            "SELECT id, NULL FROM domains WHERE {named} AND id > {first} AND ?3 = ?3 AND ?4 = ?4
                AND NOT EXISTS (SELECT 1 FROM activity WHERE domain_id = domains.id) ORDER BY id LIMIT ?2"
        );
        for sql in parts.chain([rest]) {
            let left = limit.saturating_sub(found.len());
            if left == 0 {
                break;
            }
            let read = |row: &Row<'_>| Ok((DomainKey(row.get(0)?), row.get(1)?));
            let mut statement = self.sql.prepare_cached(&sql)?;
            let rows = statement.query_map(params![query.like, left as i64, value, key], read)?;
            for row in rows {
                found.push(row?);
            }
        }
        Ok(found)
    }

    fn listed_domain(&self, liveness: &Liveness, key: DomainKey) -> rusqlite::Result<Option<ListedDomain>> {
        // An unreadable row is left out, as in other lists.
        let Some(row) = self.row_with_key(liveness, key)? else { return Ok(None) };
        let sql =
            "SELECT reported_us, delay_ms, learned_ms, held_until_us, bound_by, success_streak, error_streak,
            last_us, last_outcome, last_status, waiting FROM activity WHERE domain_id = ?1";
        let found = self.sql.prepare_cached(sql)?.query_row([key.0], activity_of).optional()?;
        let (reported, waiting) = found.unwrap_or_default();
        Ok(Some(ListedDomain { row, machine: None, reported, waiting }))
    }
}

/// What was reported and when, and how many tasks were counted.
type Reported = (Option<(DomainActivity, Timestamp)>, u64);

fn activity_of(row: &Row<'_>) -> rusqlite::Result<Reported> {
    let time = |nth: usize| row.get::<_, i64>(nth).map(|micros| Some(at(micros)).filter(|_| micros != 0));
    let millis = |nth: usize| row.get::<_, i64>(nth).map(|millis| Span::from_millis(millis.max(0) as u64));
    let last = match (time(7)?, outcome_of(row, 8)?) {
        (Some(at), Some(outcome)) => Some(LastAnswer { at, outcome, status: row.get(9)? }),
        _ => None,
    };
    let activity = DomainActivity {
        delay: millis(1)?,
        learned: millis(2)?,
        held_until: time(3)?,
        limit: row.get(4)?,
        success_streak: row.get(5)?,
        error_streak: row.get(6)?,
        last,
    };
    let reported_at = row.get::<_, Option<i64>>(0)?.map(at);
    Ok((reported_at.map(|reported_at| (activity, reported_at)), row.get::<_, i64>(10)?.max(0) as u64))
}

fn traffic_of(row: &Row<'_>) -> rusqlite::Result<Traffic> {
    let number = |nth: usize| row.get::<_, i64>(nth + 1).map(|number| number.max(0) as u64);
    let mut traffic = Traffic { retries: number(8)?, bytes: number(9)?, ..Traffic::default() };
    for (nth, count) in traffic.outcomes.iter_mut().enumerate() {
        *count = number(nth)?;
    }
    Ok(traffic)
}

/// The values of [`COLUMNS`].
fn numbers(traffic: &Traffic) -> impl Iterator<Item = i64> {
    let numbers = traffic.outcomes.into_iter().chain([traffic.retries, traffic.bytes]);
    numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// The columns of traffic: one per outcome, in the order of [`Outcome::ALL`], and two more.
const COLUMNS: [&str; Outcome::ALL.len() + 2] = [
    "success",
    "answered",
    "rate_limited",
    "blocked",
    "unavailable",
    "server_error",
    "timeout",
    "network_error",
    "retries",
    "bytes",
];

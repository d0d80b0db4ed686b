//! Stores what happens on domains, and lists domains in the orders that people ask for.
//!
//! Rows of activity are locked in the order of their domains. Rows of domains are only read: whoever reports on one holds it, so
//! that it is not deleted meanwhile.

use std::collections::{BTreeMap, HashMap};

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};
use tokio_postgres::Row;

use super::domains::{row_of, select_rows};
use super::failure::Result;
use super::param::{Param, opt_text, text};
use super::results::{outcome_of, status_of};
use super::tx::{Tx, by_key};
use super::{Postgres, at, us};
use crate::Reply;
use crate::activity::{
    ActivityStore, COUNTED_MAX, DomainActivity, DomainCursor, DomainPage, DomainQuery, DomainReport,
    FORGOTTEN_AT_ONCE, FOUND_MAX, Found, HISTORY_KEPT, LastAnswer, ListedDomain, SORTED_MAX, Sample,
    TRAFFIC_INTERVAL, TRAFFIC_KEPT, Traffic, TrafficPoint, sort_found,
};
use crate::domains::DomainKey;
use crate::history::History;

impl ActivityStore for Postgres {
    fn report_activity(&self, traffic: Traffic, domains: Vec<DomainReport>, now: Timestamp) -> Reply<'_, ()> {
        self.write(move |tx| {
            tx.report_domains(&domains, now)?;
            tx.forget_old_histories(now)?;
            tx.add_traffic(&traffic, now)
        })
    }

    fn page_domains(&self, query: DomainQuery) -> Reply<'_, DomainPage> {
        self.read(move |tx| tx.page_domains(&query))
    }

    fn domain_history(&self, domain: Domain) -> Reply<'_, Vec<Sample>> {
        self.read(move |tx| {
            let sql =
                "SELECT samples FROM domain_history JOIN domain ON domain.id = domain_id WHERE domain = $1";
            let row = tx.row(sql, &[&domain.as_str()])?;
            Ok(row.map(|row| History::decode(row.get(0)).samples()).unwrap_or_default())
        })
    }

    fn traffic(&self, since: Timestamp, every: Span) -> Reply<'_, Vec<TrafficPoint>> {
        self.read(move |tx| tx.traffic(since, every))
    }

    fn count_waiting(&self, after: DomainKey, limit: u32) -> Reply<'_, Option<DomainKey>> {
        self.write(move |tx| tx.count_waiting(after, limit))
    }

    fn waiting_for(&self, domain: Domain, most: u32) -> Reply<'_, u64> {
        self.read(move |tx| {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM domain JOIN lane ON lane.domain_id = domain.id
                JOIN task ON task.lane_id = lane.id AND task.state = 'waiting' WHERE domain = $1 LIMIT $2) AS counted";
            Ok(count(&tx.one(sql, &[&domain.as_str(), &i64::from(most)])?, 0))
        })
    }
}

impl Tx<'_> {
    fn add_traffic(&mut self, traffic: &Traffic, now: Timestamp) -> Result<()> {
        if traffic.is_empty() {
            return Ok(());
        }
        let from = us(now) - us(now).rem_euclid(TRAFFIC_INTERVAL.as_micros() as i64);
        let add =
            COLUMNS.map(|column| format!("{column} = ten_seconds.{column} + excluded.{column}")).join(", ");
        let sql = format!(
            "INSERT INTO ten_seconds (from_us, {}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
            ON CONFLICT (from_us) DO UPDATE SET {add} RETURNING xmax = 0",
            COLUMNS.join(", ")
        );
        let numbers: Vec<i64> = numbers(traffic).collect();
        let mut row: Vec<&dyn Param> = vec![&from];
        row.extend(numbers.iter().map(|number| number as &dyn Param));
        let added = self.change_rows(&sql, &row)?;
        if added.first().is_some_and(|row| row.get(0)) {
            // After a clock was set back, what lies ahead would be kept for ever. Several processes may delete the same rows.
            let sql = "DELETE FROM ten_seconds WHERE from_us IN (SELECT from_us FROM ten_seconds
                WHERE from_us < $1 OR from_us > $2 ORDER BY from_us FOR UPDATE SKIP LOCKED)";
            self.change(sql, &[&us(now - TRAFFIC_KEPT), &us(now + TRAFFIC_KEPT)])?;
        }
        Ok(())
    }

    fn report_domains(&mut self, domains: &[DomainReport], now: Timestamp) -> Result<()> {
        if domains.is_empty() {
            return Ok(());
        }
        let keys: Vec<i64> = domains.iter().map(|report| report.tenure.key.0).collect();
        // A domain that is being deleted has no history, and one that is not locked here might be.
        let sql = "SELECT id, epoch FROM domain WHERE id = ANY($1) ORDER BY id FOR KEY SHARE SKIP LOCKED";
        let epochs: HashMap<i64, i64> =
            self.rows(sql, &[&keys])?.iter().map(|row| (row.get(0), row.get(1))).collect();
        // Of several for one domain, the last one counts; their samples are added up.
        let (mut activities, mut histories) = (BTreeMap::new(), BTreeMap::<i64, Vec<Sample>>::new());
        for DomainReport { tenure, activity, samples } in domains {
            let Some(epoch) = epochs.get(&tenure.key.0) else { continue };
            if *epoch == tenure.epoch {
                activities.insert(tenure.key.0, activity);
            }
            if !samples.is_empty() {
                histories.entry(tenure.key.0).or_default().extend_from_slice(samples);
            }
        }
        self.write_activity(&activities, now)?;
        self.add_samples(&histories, now)
    }

    fn write_activity(&mut self, activities: &BTreeMap<i64, &DomainActivity>, now: Timestamp) -> Result<()> {
        if activities.is_empty() {
            return Ok(());
        }
        let column = |of: &dyn Fn(&DomainActivity) -> i64| -> Vec<i64> {
            activities.values().map(|activity| of(activity)).collect()
        };
        let ids: Vec<i64> = activities.keys().copied().collect();
        let delays = column(&|one| one.delay.as_millis_up() as i64);
        let learned = column(&|one| one.learned.as_millis_up() as i64);
        let held = column(&|one| one.held_until.map_or(0, us));
        let successes = column(&|one| i64::from(one.success_streak));
        let errors = column(&|one| i64::from(one.error_streak));
        let last = column(&|one| one.last.map_or(0, |last| us(last.at)));
        let activities = || activities.values().copied();
        let bound_by: Vec<_> = activities().map(|one| opt_text(one.limit.as_deref())).collect();
        let bound_by: Vec<Option<&str>> = bound_by.iter().map(Option::as_deref).collect();
        let outcomes: Vec<Option<&str>> =
            activities().map(|one| one.last.map(|last| last.outcome.as_str())).collect();
        let statuses: Vec<Option<i64>> =
            activities().map(|one| one.last.and_then(|last| last.status).map(i64::from)).collect();
        let sql = "INSERT INTO domain_activity AS known (domain_id, delay_ms, learned_ms, held_until_us, bound_by,
                success_streak, error_streak, last_us, last_outcome, last_status, reported_us)
            SELECT *, $11 FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS given
                (id, delay, learned, held, bound_by, successes, errors, last, outcome, status) ORDER BY id
            ON CONFLICT (domain_id) DO UPDATE SET reported_us = excluded.reported_us, delay_ms = excluded.delay_ms,
                learned_ms = excluded.learned_ms, held_until_us = excluded.held_until_us,
                bound_by = excluded.bound_by, success_streak = excluded.success_streak,
                error_streak = excluded.error_streak,
                last_us = CASE WHEN excluded.last_us > 0 THEN excluded.last_us ELSE known.last_us END,
                last_outcome = CASE WHEN excluded.last_us > 0 THEN excluded.last_outcome ELSE known.last_outcome END,
                last_status = CASE WHEN excluded.last_us > 0 THEN excluded.last_status ELSE known.last_status END";
        let now = us(now);
        self.change(
            sql,
            &[
                &ids, &delays, &learned, &held, &bound_by, &successes, &errors, &last, &outcomes, &statuses,
                &now,
            ],
        )
        .map(|_| ())
    }

    fn add_samples(&mut self, histories: &BTreeMap<i64, Vec<Sample>>, now: Timestamp) -> Result<()> {
        let ids: Vec<i64> = histories.keys().copied().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let sql = "SELECT domain_id, samples FROM domain_history WHERE domain_id = ANY($1)
            ORDER BY domain_id FOR NO KEY UPDATE";
        let known = by_key(self.rows(sql, &[&ids])?);
        let (mut until, mut bytes) = (Vec::new(), Vec::new());
        for (id, samples) in histories {
            let mut history = known.get(id).map(|row| History::decode(row.get(1))).unwrap_or_default();
            history.add(samples, now);
            until.push(history.until().map_or(0, us));
            bytes.push(history.encode());
        }
        let sql = "INSERT INTO domain_history (domain_id, until_us, samples)
            SELECT * FROM unnest($1, $2, $3) AS given (id, until, samples) ORDER BY id
            ON CONFLICT (domain_id) DO UPDATE SET until_us = excluded.until_us, samples = excluded.samples";
        self.change(sql, &[&ids, &until, &bytes]).map(|_| ())
    }

    fn forget_old_histories(&mut self, now: Timestamp) -> Result<()> {
        let sql = "DELETE FROM domain_history WHERE domain_id IN (SELECT domain_id FROM domain_history
            WHERE until_us < $1 ORDER BY domain_id LIMIT $2 FOR UPDATE SKIP LOCKED)";
        self.change(sql, &[&us(now - HISTORY_KEPT), &i64::from(FORGOTTEN_AT_ONCE)]).map(|_| ())
    }

    fn traffic(&mut self, since: Timestamp, every: Span) -> Result<Vec<TrafficPoint>> {
        let sums = COLUMNS.map(|column| format!("sum({column})::int8")).join(", ");
        let sql = format!(
            "SELECT from_us / $2 * $2 AS point, {sums} FROM ten_seconds WHERE from_us >= $1 GROUP BY point ORDER BY point"
        );
        let every = every.as_micros().clamp(TRAFFIC_INTERVAL.as_micros(), i64::MAX as u64) as i64;
        let rows = self.rows(&sql, &[&us(since), &every])?;
        Ok(rows.iter().map(|row| TrafficPoint { from: at(row.get(0)), traffic: traffic_of(row) }).collect())
    }

    fn count_waiting(&mut self, after: DomainKey, limit: u32) -> Result<Option<DomainKey>> {
        let sql = "SELECT domain.id, coalesce(waiting, -1), counted.n FROM (
                SELECT id FROM domain WHERE id > $1 ORDER BY id LIMIT $2) AS domain
            LEFT JOIN domain_activity ON domain_id = domain.id
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM lane
                JOIN task ON task.lane_id = lane.id AND task.state = 'waiting'
                WHERE lane.domain_id = domain.id LIMIT $3) AS found) AS counted ORDER BY domain.id";
        let rows = self.rows(sql, &[&after.0, &i64::from(limit), &(COUNTED_MAX as i64)])?;
        let changed = rows.iter().filter(|row| row.get::<_, i64>(1) != row.get::<_, i64>(2));
        let of = |row: &Row| (row.get::<_, i64>(0), row.get::<_, i64>(2));
        let (ids, waiting): (Vec<i64>, Vec<i64>) = changed.map(of).unzip();
        if !ids.is_empty() {
            // A domain may be deleted meanwhile; then its row here must not come back.
            let sql = "INSERT INTO domain_activity (domain_id, waiting)
                SELECT domain.id, given.waiting FROM unnest($1, $2) AS given (id, waiting)
                    JOIN domain ON domain.id = given.id ORDER BY domain.id FOR KEY SHARE OF domain SKIP LOCKED
                ON CONFLICT (domain_id) DO UPDATE SET waiting = excluded.waiting";
            self.change(sql, &[&ids, &waiting])?;
        }
        let last = rows.last().filter(|_| rows.len() == limit as usize);
        Ok(last.map(|row| DomainKey(row.get(0))))
    }

    fn page_domains(&mut self, query: &DomainQuery) -> Result<DomainPage> {
        let like = text(&query.like);
        let found = self.named(&like)?;
        let (total, limit) = (found.len(), query.limit as usize);
        let mut listed = match query.sort.column() {
            None => self.by_name(query, &like, limit + 1)?,
            Some(column) if !query.like.is_empty() && total <= SORTED_MAX => {
                let mut sorted =
                    sort_found(self.with_values(found, column)?, query.order, query.after.as_ref());
                sorted.truncate(limit + 1);
                sorted
            }
            Some(column) => self.by_value(query, &like, column, limit + 1)?,
        };
        let has_more = listed.len() > limit;
        listed.truncate(limit);
        let keys: Vec<i64> = listed.iter().map(|(key, _)| key.0).collect();
        let domains = self.listed_domains(&keys)?;
        let next = listed.last().filter(|_| has_more).map(|(key, value)| match query.sort.column() {
            None => {
                DomainCursor::Name(domains.last().map(|last| last.row.domain.clone()).unwrap_or_default())
            }
            Some(_) => DomainCursor::Value { value: *value, key: *key },
        });
        Ok(DomainPage { domains, next, found: total as u64 })
    }

    /// Domains whose name contains `like`, up to [`FOUND_MAX`].
    fn named(&mut self, like: &str) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM domain WHERE position($1 IN domain) > 0 LIMIT $2";
        let all = "SELECT id FROM domain WHERE $1 = '' LIMIT $2";
        let rows = self.rows(if like.is_empty() { all } else { sql }, &[&like, &(FOUND_MAX as i64)])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn with_values(&mut self, ids: Vec<i64>, column: &str) -> Result<Vec<Found>> {
        let sql = format!("SELECT domain_id, {column} FROM domain_activity WHERE domain_id = ANY($1)");
        let values: HashMap<i64, i64> =
            self.rows(&sql, &[&ids])?.iter().map(|row| (row.get(0), row.get(1))).collect();
        Ok(ids.into_iter().map(|id| (DomainKey(id), values.get(&id).copied())).collect())
    }

    fn by_name(&mut self, query: &DomainQuery, like: &str, limit: usize) -> Result<Vec<Found>> {
        let (beyond, direction) = query.order.sql();
        let (after, last) = match &query.after {
            Some(DomainCursor::Name(name)) => (format!("domain {beyond} $2"), text(name)),
            _ => ("$2 = ''".to_owned(), text("")),
        };
        let sql = format!(
            "SELECT id FROM domain WHERE {} AND {after} ORDER BY domain {direction} LIMIT $3",
            named_sql(like, "domain")
        );
        let rows = self.rows(&sql, &[&like, &last, &(limit as i64)])?;
        Ok(rows.iter().map(|row| (DomainKey(row.get(0)), None)).collect())
    }

    /// Walks along the index of `column`. Domains of which nothing is known come last.
    fn by_value(
        &mut self,
        query: &DomainQuery,
        like: &str,
        column: &str,
        limit: usize,
    ) -> Result<Vec<Found>> {
        let (beyond, direction) = query.order.sql();
        let order = format!("ORDER BY {column} {direction}, domain_id {direction}");
        let (value, key, condition) = match &query.after {
            Some(DomainCursor::Value { value: None, key }) => (0, key.0, None),
            Some(DomainCursor::Value { value: Some(value), key }) => {
                (*value, key.0, Some(format!("({column}, domain_id) {beyond} ($3, $4)")))
            }
            _ => (0, -1, Some("$3 = 0 AND $4 = -1".to_owned())),
        };
        let join = if like.is_empty() { "" } else { "JOIN domain ON domain.id = domain_id" };
        let known = condition.map(|condition| {
            format!(
                "SELECT domain_id, {column} FROM domain_activity {join} WHERE {} AND {condition} {order} LIMIT $2",
                named_sql(like, "domain.domain")
            )
        });
        // If the last one had a value, none of these has been listed yet.
        let first = if known.is_none() { "$4" } else { "-1" };
        let rest = format!(
            "SELECT id, NULL::int8 FROM domain WHERE {} AND id > {first} AND $3 = $3 AND $4 = $4 AND NOT EXISTS (
                SELECT 1 FROM domain_activity WHERE domain_id = domain.id) ORDER BY id LIMIT $2",
            named_sql(like, "domain.domain")
        );
        let mut found: Vec<Found> = Vec::new();
        for sql in known.into_iter().chain([rest]) {
            let left = limit.saturating_sub(found.len()) as i64;
            if left > 0 {
                let rows = self.rows(&sql, &[&like, &left, &value, &key])?;
                found.extend(rows.iter().map(|row| (DomainKey(row.get(0)), row.get(1))));
            }
        }
        Ok(found)
    }

    /// These domains, in the same order.
    fn listed_domains(&mut self, keys: &[i64]) -> Result<Vec<ListedDomain>> {
        let sql = "SELECT domain_id, reported_us, delay_ms, learned_ms, held_until_us, bound_by, success_streak,
            error_streak, last_us, last_outcome, last_status, waiting FROM domain_activity WHERE domain_id = ANY($1)";
        let activity = by_key(self.rows(sql, &[&keys])?);
        let sql = format!(
            "{} JOIN unnest($1) WITH ORDINALITY AS listed (id, nth) ON listed.id = domain.id
            ORDER BY listed.nth",
            select_rows()
        );
        let rows = self.rows(&sql, &[&keys])?;
        let listed = rows.iter().map(|row| {
            let key: i64 = row.get("id");
            let (reported, waiting) = activity.get(&key).map(activity_of).unwrap_or_default();
            let row_of = row_of(row);
            let machine = row.get::<_, Option<String>>("machine").filter(|_| row_of.holder.is_some());
            ListedDomain { row: row_of, machine, reported, waiting }
        });
        Ok(listed.collect())
    }
}

/// The condition for names that contain `$1`.
fn named_sql(like: &str, column: &str) -> String {
    if like.is_empty() { "$1 = ''".to_owned() } else { format!("position($1 IN {column}) > 0") }
}

/// What was reported and when, and how many tasks were counted.
type Reported = (Option<(DomainActivity, Timestamp)>, u64);

fn activity_of(row: &Row) -> Reported {
    let time = |nth: usize| Some(row.get::<_, i64>(nth)).filter(|micros| *micros != 0).map(at);
    let small = |nth: usize| u32::try_from(row.get::<_, i64>(nth).max(0)).unwrap_or(u32::MAX);
    let last = time(8).zip(outcome_of(row, 9));
    let activity = DomainActivity {
        delay: Span::from_millis(count(row, 2)),
        learned: Span::from_millis(count(row, 3)),
        held_until: time(4),
        limit: row.get(5),
        success_streak: small(6),
        error_streak: small(7),
        last: last.map(|(at, outcome)| LastAnswer { at, outcome, status: status_of(row, 10) }),
    };
    let reported_at = row.get::<_, Option<i64>>(1).map(at);
    (reported_at.map(|reported_at| (activity, reported_at)), count(row, 11))
}

fn traffic_of(row: &Row) -> Traffic {
    let mut traffic = Traffic { retries: count(row, 9), bytes: count(row, 10), ..Traffic::default() };
    for (nth, sum) in traffic.outcomes.iter_mut().enumerate() {
        *sum = count(row, nth + 1);
    }
    traffic
}

/// The values of [`COLUMNS`].
fn numbers(traffic: &Traffic) -> impl Iterator<Item = i64> {
    let numbers = traffic.outcomes.into_iter().chain([traffic.retries, traffic.bytes]);
    numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn count(row: &Row, nth: usize) -> u64 {
    row.get::<_, i64>(nth).max(0) as u64
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

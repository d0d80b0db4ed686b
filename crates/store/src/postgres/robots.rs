//! Stores robots.txt files.

use comity_core::time::{Span, Timestamp};

use super::param::text;
use super::{Postgres, at, micros, us};
use crate::Reply;
use crate::robots::{RobotsRow, RobotsStore};

impl RobotsStore for Postgres {
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>> {
        self.read(move |tx| {
            let sql = "SELECT fetched_us, status, body, crawl_delay_us FROM robots_file WHERE origin = $1";
            let Some(row) = tx.row(sql, &[&text(&origin)])? else { return Ok(None) };
            let Ok(status) = row.get::<_, i64>(1).try_into() else {
                tracing::warn!(
                    table = "robots",
                    key = origin,
                    "skipped a row of the store that could not be read"
                );
                return Ok(None);
            };
            Ok(Some(RobotsRow {
                origin: origin.clone(),
                fetched_at: at(row.get(0)),
                status,
                body: row.get(2),
                crawl_delay: delay(row.get(3)),
            }))
        })
    }

    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()> {
        self.write(move |tx| {
            let RobotsRow { origin, fetched_at, status, body, crawl_delay } = &row;
            let sql = "INSERT INTO robots_file (origin, fetched_us, status, body, crawl_delay_us) VALUES ($1, $2, $3, $4, $5)
                ON CONFLICT (origin) DO UPDATE SET fetched_us = excluded.fetched_us, status = excluded.status,
                    body = excluded.body, crawl_delay_us = excluded.crawl_delay_us";
            let (status, delay) = (i64::from(*status), micros(*crawl_delay));
            tx.change(sql, &[&text(origin), &us(*fetched_at), &status, body, &delay]).map(|_| ())
        })
    }

    fn long_crawl_delays(&self, above: Span) -> Reply<'_, Vec<(String, Span)>> {
        self.read(move |tx| {
            let sql =
                "SELECT origin, crawl_delay_us FROM robots_file WHERE crawl_delay_us > 0 AND crawl_delay_us > $1";
            let rows = tx.rows(sql, &[&micros(above)])?;
            Ok(rows.iter().map(|row| (row.get(0), delay(row.get(1)))).collect())
        })
    }

    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool> {
        self.write(move |tx| {
            // Twice a delay may be more than the type holds. Whoever prunes at the same time deletes others.
            let sql = "DELETE FROM robots_file WHERE origin = ANY (ARRAY(SELECT origin FROM robots_file
                WHERE fetched_us + 2 * crawl_delay_us::numeric < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))";
            let pruned = tx.change(sql, &[&us(before), &i64::from(limit)])?;
            Ok(pruned == u64::from(limit) && limit > 0)
        })
    }
}

/// A column value as a delay.
fn delay(micros: i64) -> Span {
    Span::from_micros(micros.max(0).unsigned_abs())
}

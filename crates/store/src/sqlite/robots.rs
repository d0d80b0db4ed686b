//! Stores robots.txt files.

use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, params};

use super::{Sqlite, at, us};
use crate::Reply;
use crate::robots::{RobotsRow, RobotsStore};

impl RobotsStore for Sqlite {
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>> {
        self.read(move |tx| {
            let sql = "SELECT fetched_us, status, body, crawl_delay_us FROM robots WHERE origin = ?1";
            let row = tx.sql.prepare_cached(sql)?.query_row([&origin], |row| {
                Ok(RobotsRow {
                    origin: origin.clone(),
                    fetched_at: at(row.get(0)?),
                    status: row.get(1)?,
                    body: row.get(2)?,
                    crawl_delay: delay(row.get(3)?),
                })
            });
            row.optional()
        })
    }

    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let RobotsRow { origin, fetched_at, status, body, crawl_delay } = &row;
            let sql = "INSERT OR REPLACE INTO robots (origin, fetched_us, status, body, crawl_delay_us)
                VALUES (?1, ?2, ?3, ?4, ?5)";
            let values = params![origin, us(*fetched_at), status, body, crawl_delay.as_micros() as i64];
            tx.sql.prepare_cached(sql)?.execute(values).map(|_| ())
        })
    }

    fn long_crawl_delays(&self, above: Span) -> Reply<'_, Vec<(String, Span)>> {
        self.read(move |tx| {
            let sql =
                "SELECT origin, crawl_delay_us FROM robots WHERE crawl_delay_us > 0 AND crawl_delay_us > ?1";
            tx.readable("robots", sql, [above.as_micros() as i64], |row| {
                Ok((row.get(0)?, delay(row.get(1)?)))
            })
        })
    }

    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool> {
        self.writer.run(move |tx| {
            let sql = "DELETE FROM robots WHERE origin IN
                (SELECT origin FROM robots WHERE fetched_us + 2 * crawl_delay_us < ?1 LIMIT ?2)";
            let pruned = tx.sql.prepare_cached(sql)?.execute(params![us(before), limit])?;
            Ok(pruned == limit as usize && limit > 0)
        })
    }
}

/// A column value as a delay.
fn delay(micros: i64) -> Span {
    Span::from_micros(micros.max(0).unsigned_abs())
}

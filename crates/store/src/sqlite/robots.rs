//! Stores robots.txt files.

use comity_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::{Sqlite, at, us};
use crate::Reply;
use crate::robots::{RobotsRow, RobotsStore};

impl RobotsStore for Sqlite {
    fn robots(&self, origin: String) -> Reply<'_, Option<RobotsRow>> {
        self.read(move |tx| {
            let sql = "SELECT fetched_us, status, body FROM robots WHERE origin = ?1";
            let row = tx
                .sql
                .prepare_cached(sql)?
                .query_row([&origin], |row| Ok((at(row.get(0)?), row.get(1)?, row.get(2)?)));
            Ok(row.optional()?.map(|(fetched_at, status, body)| RobotsRow {
                origin: origin.clone(),
                fetched_at,
                status,
                body,
            }))
        })
    }

    fn keep_robots(&self, row: RobotsRow) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let RobotsRow { origin, fetched_at, status, body } = &row;
            let sql =
                "INSERT OR REPLACE INTO robots (origin, fetched_us, status, body) VALUES (?1, ?2, ?3, ?4)";
            tx.sql.prepare_cached(sql)?.execute(params![origin, us(*fetched_at), status, body]).map(|_| ())
        })
    }

    fn prune_robots(&self, before: Timestamp, limit: u32) -> Reply<'_, bool> {
        self.writer.run(move |tx| {
            let sql = "DELETE FROM robots WHERE origin IN (SELECT origin FROM robots WHERE fetched_us < ?1 LIMIT ?2)";
            let pruned = tx.sql.prepare_cached(sql)?.execute(params![us(before), limit])?;
            Ok(pruned == limit as usize && limit > 0)
        })
    }
}

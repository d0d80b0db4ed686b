//! What processes are at, and how much is left for them.

use comity_core::task::JobId;
use comity_core::time::Timestamp;
use rusqlite::params;
use serde_json::Value;

use super::domains::domain_of;
use super::holders::{Living, Standing};
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::status::{Backlog, StatusStore, Working};

impl StatusStore for Sqlite {
    fn tell(&self, holder: HolderId, status: Value, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.tell(holder, &status, now))
    }

    fn working(&self, now: Timestamp) -> Reply<'_, Vec<Working>> {
        let living = self.living.clone();
        self.writer.run(move |tx| tx.working(&living, now))
    }

    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>> {
        self.writer.run(move |tx| tx.backlog(job, lanes, tasks))
    }
}

impl Tx<'_> {
    pub(super) fn tell(&self, holder: HolderId, status: &Value, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET status = ?2, told_us = ?3 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder.0, status.to_string(), us(now)]).map(|_| ())
    }

    pub(super) fn working(&mut self, living: &Living, now: Timestamp) -> rusqlite::Result<Vec<Working>> {
        let sql = "SELECT id, name, since_us, status, told_us FROM holders WHERE died_us IS NULL ORDER BY id";
        let rows: Vec<(i64, Working)> = self.readable("holders", sql, [], |row| {
            let status: Option<String> = row.get(3)?;
            // What another version wrote may not be understood; that it lives is still true.
            let status = status.and_then(|text| serde_json::from_str(&text).ok());
            let told = status.zip(row.get::<_, Option<i64>>(4)?.map(at));
            Ok((row.get(0)?, Working { name: row.get(1)?, since: at(row.get(2)?), told }))
        })?;
        let mut working = Vec::new();
        for (holder, row) in rows {
            if self.look_at(living, holder, now)? == Standing::Lives {
                working.push(row);
            }
        }
        Ok(working)
    }

    pub(super) fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> rusqlite::Result<Vec<Backlog>> {
        // Lanes that are served, and those that will be: the others are empty. Two indexes, so two halves.
        let sql = "SELECT domains.id, domains.domain, (SELECT count(*) FROM (SELECT 1 FROM tasks
                WHERE lane_id = open.id AND state = 'waiting' LIMIT ?3))
            FROM (SELECT id, domain_id FROM lanes WHERE holder IS NOT NULL AND job_id = ?1
                UNION ALL
                SELECT id, domain_id FROM lanes WHERE holder IS NULL AND due_us IS NOT NULL AND job_id = ?1
                LIMIT ?2) AS open
            JOIN domains ON domains.id = open.domain_id";
        self.readable("domains", sql, params![job.0 as i64, lanes, tasks], |row| {
            Ok(Backlog { domain: domain_of(row, 1)?, waiting: row.get::<_, i64>(2)?.max(0) as u64 })
        })
    }
}

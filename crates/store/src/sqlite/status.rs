//! What processes are at, and how much is left for them.

use comity_core::task::JobId;
use comity_core::time::Timestamp;
use rusqlite::params;
use serde_json::Value;

use super::domains::domain_of;
use super::holders::Living;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::status::{Backlog, StatusStore, Working};

impl StatusStore for Sqlite {
    fn tell(&self, holder: HolderId, status: Value, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.tell(holder, &status, now))
    }

    fn working(&self) -> Reply<'_, Vec<Working>> {
        let living = self.living.clone();
        self.read(move |tx| tx.working(&living))
    }

    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>> {
        self.read(move |tx| tx.backlog(job, lanes, tasks))
    }
}

impl Tx<'_> {
    pub(super) fn tell(&self, holder: HolderId, status: &Value, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET status = ?2, told_us = ?3 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder.0, status.to_string(), us(now)]).map(|_| ())
    }

    /// Who lives, as far as can be seen; that somebody died is noted by those who work.
    fn working(&self, living: &Living) -> rusqlite::Result<Vec<Working>> {
        let sql = "SELECT id, name, since_us, status, told_us, proof FROM holders WHERE died_us IS NULL ORDER BY id";
        let rows = self.readable("holders", sql, [], |row| {
            let (id, proof): (i64, Option<String>) = (row.get(0)?, row.get(5)?);
            if living.has_died(id, proof.as_deref()) {
                return Ok(None);
            }
            let status: Option<String> = row.get(3)?;
            // What another version wrote may not be understood; that it lives is still true.
            let status = status.and_then(|text| serde_json::from_str(&text).ok());
            let told = status.zip(row.get::<_, Option<i64>>(4)?.map(at));
            Ok(Some(Working { name: row.get(1)?, since: at(row.get(2)?), told }))
        })?;
        Ok(rows.into_iter().flatten().collect())
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

//! Stores status reports and snapshots of domains.

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, params};
use serde_json::Value;

use super::domains::domain_of;
use super::holders::Liveness;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::{DomainKey, HolderId};
use crate::status::{Backlog, DomainSnapshot, LiveProcess, OldTransaction, StatusStore};

impl StatusStore for Sqlite {
    fn old_transaction(&self, _age: Span) -> Reply<'_, Option<OldTransaction>> {
        Box::pin(async { Ok(None) })
    }

    fn report_status(&self, holder: HolderId, status: Value, sights: Value, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.report_status(holder, &status, &sights, now))
    }

    fn live_processes(&self) -> Reply<'_, Vec<LiveProcess>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.live_processes(&liveness))
    }

    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>> {
        self.read(move |tx| tx.backlog(job, lanes, tasks))
    }

    fn request_snapshots(&self, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.request_snapshots(&domains, now))
    }

    fn requested_snapshots(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>> {
        self.writer.run(move |tx| tx.requested_snapshots(holder))
    }

    fn publish_snapshots(
        &self,
        holder: HolderId,
        snapshots: Vec<DomainSnapshot>,
        now: Timestamp,
    ) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            snapshots.iter().try_for_each(|snapshot| tx.publish_snapshot(holder, snapshot, now))
        })
    }

    fn snapshots(&self, domains: Vec<Domain>) -> Reply<'_, Vec<Option<(Value, Timestamp)>>> {
        self.read(move |tx| domains.iter().map(|domain| tx.snapshot(domain)).collect())
    }
}

impl Tx<'_> {
    fn report_status(
        &self,
        holder: HolderId,
        status: &Value,
        sights: &Value,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET status = ?2, sights = ?3, told_us = ?4 WHERE id = ?1";
        let values = params![holder.0, status.to_string(), sights.to_string(), us(now)];
        self.sql.prepare_cached(sql)?.execute(values).map(|_| ())
    }

    fn request_snapshots(&self, domains: &[Domain], now: Timestamp) -> rusqlite::Result<()> {
        let sql = "DELETE FROM looks WHERE wished_us NOT BETWEEN ?1 AND ?2";
        self.sql
            .prepare_cached(sql)?
            .execute([us(now - SNAPSHOT_REQUESTS_KEPT), us(now + SNAPSHOT_REQUESTS_KEPT)])?;
        let sql = "INSERT INTO looks (domain_id, wished_us)
            SELECT id, ?2 FROM domains WHERE domain = ?1 AND holder IS NOT NULL
            ON CONFLICT (domain_id) DO UPDATE SET wished_us = excluded.wished_us, seen_us = NULL";
        let mut insert = self.sql.prepare_cached(sql)?;
        domains.iter().try_for_each(|domain| insert.execute(params![domain.as_str(), us(now)]).map(|_| ()))
    }

    fn requested_snapshots(&self, holder: HolderId) -> rusqlite::Result<Vec<DomainKey>> {
        let sql = "SELECT domains.id FROM looks JOIN domains ON domains.id = looks.domain_id
            WHERE domains.holder = ?1 AND looks.seen_us IS NULL";
        let key = |row: &rusqlite::Row<'_>| row.get(0).map(DomainKey);
        self.sql.prepare_cached(sql)?.query_map([holder.0], key)?.collect()
    }

    fn publish_snapshot(
        &self,
        holder: HolderId,
        snapshot: &DomainSnapshot,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let DomainSnapshot { tenure, value } = snapshot;
        if self.holds(holder, *tenure)? {
            let sql = "UPDATE looks SET epoch = ?2, sight = ?3, seen_us = ?4 WHERE domain_id = ?1";
            let values = params![tenure.key.0, tenure.epoch, value.to_string(), us(now)];
            self.sql.prepare_cached(sql)?.execute(values)?;
        }
        Ok(())
    }

    fn snapshot(&self, domain: &Domain) -> rusqlite::Result<Option<(Value, Timestamp)>> {
        let sql = "SELECT sight, seen_us FROM looks JOIN domains ON domains.id = looks.domain_id
            WHERE domains.domain = ?1 AND domains.holder IS NOT NULL AND domains.epoch = looks.epoch
                AND seen_us IS NOT NULL";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, at(row.get(1)?)));
        let shown = self.sql.prepare_cached(sql)?.query_row([domain.as_str()], read).optional()?;
        // A snapshot by another version may not be readable.
        Ok(shown.and_then(|(text, seen_at)| Some((serde_json::from_str(&text).ok()?, seen_at))))
    }

    /// Live processes, as far as can be seen. Deaths are recorded elsewhere, by processes that write.
    fn live_processes(&self, liveness: &Liveness) -> rusqlite::Result<Vec<LiveProcess>> {
        let sql = "SELECT id, name, since_us, status, told_us, proof, sights FROM holders WHERE died_us IS NULL ORDER BY id";
        let rows = self.readable("holders", sql, [], |row| {
            let (id, proof): (i64, Option<String>) = (row.get(0)?, row.get(5)?);
            if liveness.has_died(id, proof.as_deref()) {
                return Ok(None);
            }
            let status: Option<String> = row.get(3)?;
            // A status by another version may not be readable; the process is alive all the same.
            let status = status.and_then(|text| serde_json::from_str(&text).ok());
            let status = status.zip(row.get::<_, Option<i64>>(4)?.map(at));
            let sights = row.get::<_, Option<String>>(6)?.and_then(|text| serde_json::from_str(&text).ok());
            let sights = sights.unwrap_or_default();
            Ok(Some(LiveProcess { name: row.get(1)?, since: at(row.get(2)?), status, sights }))
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    pub(super) fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> rusqlite::Result<Vec<Backlog>> {
        // Lanes that are served, and lanes that will be; the others are empty. Each half uses its own index.
        let sql = "SELECT domains.id, domains.domain, (SELECT count(*) FROM (SELECT 1 FROM tasks
                WHERE lane_id = open.id AND state = 'waiting' LIMIT ?3)), open.due_us
            FROM (SELECT id, domain_id, NULL AS due_us FROM lanes WHERE holder IS NOT NULL AND job_id = ?1
                UNION ALL
                SELECT id, domain_id, due_us FROM lanes WHERE holder IS NULL AND due_us IS NOT NULL AND job_id = ?1
                LIMIT ?2) AS open
            JOIN domains ON domains.id = open.domain_id";
        self.readable("domains", sql, params![job.0 as i64, lanes, tasks], |row| {
            let due_at = row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros);
            Ok(Backlog { domain: domain_of(row, 1)?, waiting: row.get::<_, i64>(2)?.max(0) as u64, due_at })
        })
    }
}

/// A snapshot request that is not repeated expires after this time.
const SNAPSHOT_REQUESTS_KEPT: Span = Span::from_secs(60);

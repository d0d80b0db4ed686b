//! What processes are at, and how much is left for them.

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use rusqlite::{OptionalExtension, params};
use serde_json::Value;

use super::domains::domain_of;
use super::holders::Living;
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::Reply;
use crate::domains::{DomainKey, HolderId};
use crate::status::{Backlog, Sight, StatusStore, Working};

impl StatusStore for Sqlite {
    fn tell(&self, holder: HolderId, status: Value, sights: Value, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.tell(holder, &status, &sights, now))
    }

    fn working(&self) -> Reply<'_, Vec<Working>> {
        let living = self.living.clone();
        self.read(move |tx| tx.working(&living))
    }

    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>> {
        self.read(move |tx| tx.backlog(job, lanes, tasks))
    }

    fn wish(&self, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| tx.wish(&domains, now))
    }

    fn wished(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>> {
        self.writer.run(move |tx| tx.wished(holder))
    }

    fn show(&self, holder: HolderId, sights: Vec<Sight>, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| sights.iter().try_for_each(|sight| tx.show(holder, sight, now)))
    }

    fn shown(&self, domains: Vec<Domain>) -> Reply<'_, Vec<Option<(Value, Timestamp)>>> {
        self.read(move |tx| domains.iter().map(|domain| tx.shown(domain)).collect())
    }
}

impl Tx<'_> {
    fn tell(&self, holder: HolderId, status: &Value, sights: &Value, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET status = ?2, sights = ?3, told_us = ?4 WHERE id = ?1";
        let values = params![holder.0, status.to_string(), sights.to_string(), us(now)];
        self.sql.prepare_cached(sql)?.execute(values).map(|_| ())
    }

    fn wish(&self, domains: &[Domain], now: Timestamp) -> rusqlite::Result<()> {
        let sql = "DELETE FROM looks WHERE wished_us NOT BETWEEN ?1 AND ?2";
        self.sql.prepare_cached(sql)?.execute([us(now - WISHES_KEPT), us(now + WISHES_KEPT)])?;
        let sql = "INSERT INTO looks (domain_id, wished_us)
            SELECT id, ?2 FROM domains WHERE domain = ?1 AND holder IS NOT NULL
            ON CONFLICT (domain_id) DO UPDATE SET wished_us = excluded.wished_us, seen_us = NULL";
        let mut wish = self.sql.prepare_cached(sql)?;
        domains.iter().try_for_each(|domain| wish.execute(params![domain.as_str(), us(now)]).map(|_| ()))
    }

    fn wished(&self, holder: HolderId) -> rusqlite::Result<Vec<DomainKey>> {
        let sql = "SELECT domains.id FROM looks JOIN domains ON domains.id = looks.domain_id
            WHERE domains.holder = ?1 AND looks.seen_us IS NULL";
        let key = |row: &rusqlite::Row<'_>| row.get(0).map(DomainKey);
        self.sql.prepare_cached(sql)?.query_map([holder.0], key)?.collect()
    }

    fn show(&self, holder: HolderId, sight: &Sight, now: Timestamp) -> rusqlite::Result<()> {
        let Sight { hold, told } = sight;
        if self.holds(holder, *hold)? {
            let sql = "UPDATE looks SET epoch = ?2, sight = ?3, seen_us = ?4 WHERE domain_id = ?1";
            let values = params![hold.key.0, hold.epoch, told.to_string(), us(now)];
            self.sql.prepare_cached(sql)?.execute(values)?;
        }
        Ok(())
    }

    fn shown(&self, domain: &Domain) -> rusqlite::Result<Option<(Value, Timestamp)>> {
        let sql = "SELECT sight, seen_us FROM looks JOIN domains ON domains.id = looks.domain_id
            WHERE domains.domain = ?1 AND domains.holder IS NOT NULL AND domains.epoch = looks.epoch
                AND seen_us IS NOT NULL";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, at(row.get(1)?)));
        let shown = self.sql.prepare_cached(sql)?.query_row([domain.as_str()], read).optional()?;
        // What another version showed may not be understood.
        Ok(shown.and_then(|(text, seen_at)| Some((serde_json::from_str(&text).ok()?, seen_at))))
    }

    /// Who lives, as far as can be seen; that somebody died is noted by those who work.
    fn working(&self, living: &Living) -> rusqlite::Result<Vec<Working>> {
        let sql = "SELECT id, name, since_us, status, told_us, proof, sights FROM holders WHERE died_us IS NULL ORDER BY id";
        let rows = self.readable("holders", sql, [], |row| {
            let (id, proof): (i64, Option<String>) = (row.get(0)?, row.get(5)?);
            if living.has_died(id, proof.as_deref()) {
                return Ok(None);
            }
            let status: Option<String> = row.get(3)?;
            // What another version wrote may not be understood; that it lives is still true.
            let status = status.and_then(|text| serde_json::from_str(&text).ok());
            let told = status.zip(row.get::<_, Option<i64>>(4)?.map(at));
            let sights = row.get::<_, Option<String>>(6)?.and_then(|text| serde_json::from_str(&text).ok());
            let sights = sights.unwrap_or_default();
            Ok(Some(Working { name: row.get(1)?, since: at(row.get(2)?), told, sights }))
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    pub(super) fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> rusqlite::Result<Vec<Backlog>> {
        // Lanes that are served, and those that will be: the others are empty. Two indexes, so two halves.
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

/// A wish that nobody repeated for so long is forgotten.
const WISHES_KEPT: Span = Span::from_secs(60);

//! Stores status reports and snapshots of domains.

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use serde_json::Value;

use super::domains::domain_of;
use super::failure::Result;
use super::param::text;
use super::time::HOLDER_US;
use super::tx::Tx;
use super::{Postgres, at, micros, us};
use crate::Reply;
use crate::domains::{DomainKey, HolderId, Tenure};
use crate::status::{Backlog, DomainSnapshot, LiveProcess, OldTransaction, StatusStore};

impl StatusStore for Postgres {
    fn old_transaction(&self, age: Span) -> Reply<'_, Option<OldTransaction>> {
        self.read(move |tx| tx.old_transaction(age))
    }

    fn report_status(&self, holder: HolderId, status: Value, sights: Value, now: Timestamp) -> Reply<'_, ()> {
        self.write(move |tx| {
            let sql = "UPDATE holder SET status = $2, sights = $3, told_us = $4 WHERE id = $1";
            let (status, sights) = (status.to_string(), sights.to_string());
            tx.change(sql, &[&holder.0, &text(&status), &text(&sights), &us(now)]).map(|_| ())
        })
    }

    fn live_processes(&self) -> Reply<'_, Vec<LiveProcess>> {
        self.read(|tx| tx.live_processes())
    }

    fn backlog(&self, job: JobId, lanes: u32, tasks: u32) -> Reply<'_, Vec<Backlog>> {
        self.read(move |tx| tx.backlog(job, lanes, tasks))
    }

    fn request_snapshots(&self, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, ()> {
        self.write(move |tx| tx.request_snapshots(&domains, now))
    }

    fn requested_snapshots(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>> {
        self.write(move |tx| {
            let sql = "SELECT domain.id FROM look JOIN domain ON domain.id = look.domain_id
                WHERE domain.holder = $1 AND look.seen_us IS NULL ORDER BY domain.id";
            let rows = tx.rows(sql, &[&holder.0])?;
            Ok(rows.iter().map(|row| DomainKey(row.get(0))).collect())
        })
    }

    fn publish_snapshots(
        &self,
        holder: HolderId,
        snapshots: Vec<DomainSnapshot>,
        now: Timestamp,
    ) -> Reply<'_, ()> {
        self.write(move |tx| tx.publish_snapshots(holder, &snapshots, now))
    }

    fn snapshots(&self, domains: Vec<Domain>) -> Reply<'_, Vec<Option<(Value, Timestamp)>>> {
        self.read(move |tx| tx.snapshots(&domains))
    }
}

impl Tx<'_> {
    /// The oldest transaction that keeps rows from being vacuumed. Sessions of other users show when they began only to members of
    /// `pg_read_all_stats`; prepared transactions always do.
    fn old_transaction(&mut self, age: Span) -> Result<Option<OldTransaction>> {
        let sql = "SELECT micros, owner FROM (
                SELECT (extract(epoch FROM clock_timestamp() - xact_start) * 1000000)::bigint AS micros,
                    format('%s, pid %s%s', usename, pid, ', ' || nullif(application_name, '')) AS owner
                FROM pg_stat_activity
                WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
                    AND backend_type <> 'autovacuum worker' AND (datname IS NULL OR datname = current_database())
                UNION ALL
                SELECT (extract(epoch FROM clock_timestamp() - prepared) * 1000000)::bigint,
                    format('prepared transaction %s of %s', gid, owner)
                FROM pg_prepared_xacts WHERE database = current_database()
            ) AS open WHERE micros >= $1 ORDER BY micros DESC LIMIT 1";
        let row = self.row(sql, &[&micros(age)])?;
        Ok(row.map(|row| OldTransaction {
            age: Span::from_micros(row.get::<_, i64>(0).max(0) as u64),
            owner: row.get(1),
        }))
    }

    /// Live processes, as far as can be seen. Deaths are recorded elsewhere, by processes that write.
    fn live_processes(&mut self) -> Result<Vec<LiveProcess>> {
        let sql = format!(
            "SELECT name, since_us, status, told_us, sights FROM holder
            WHERE died_us IS NULL AND until_us > {HOLDER_US} ORDER BY since_us, id"
        );
        let rows = self.rows(&sql, &[])?;
        let live = rows.iter().map(|row| {
            // A status by another version may not be readable; the process is alive all the same.
            let json = |nth| row.get::<_, Option<&str>>(nth).and_then(|text| serde_json::from_str(text).ok());
            let status = json(2).zip(row.get::<_, Option<i64>>(3).map(at));
            LiveProcess {
                name: row.get(0),
                since: at(row.get(1)),
                status,
                sights: json(4).unwrap_or_default(),
            }
        });
        Ok(live.collect())
    }

    fn backlog(&mut self, job: JobId, lanes: u32, tasks: u32) -> Result<Vec<Backlog>> {
        // Lanes that are served, and lanes that will be; the others are empty.
        let sql = "SELECT domain.domain, waiting.n, open.due_us
            FROM (SELECT id, domain_id, CASE WHEN holder IS NULL THEN due_us END AS due_us FROM lane
                WHERE job_id = $1 AND (holder IS NOT NULL OR due_us IS NOT NULL) LIMIT $2) AS open
            JOIN domain ON domain.id = open.domain_id
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM task
                WHERE lane_id = open.id AND state = 'waiting' LIMIT $3) AS counted) AS waiting";
        let rows = self.rows(sql, &[&(job.0 as i64), &i64::from(lanes), &i64::from(tasks)])?;
        let backlog = rows.iter().filter_map(|row| {
            let due_at = row.get::<_, Option<i64>>(2).map(at);
            Some(Backlog { domain: domain_of(row, 0)?, waiting: row.get::<_, i64>(1).max(0) as u64, due_at })
        });
        Ok(backlog.collect())
    }

    fn request_snapshots(&mut self, domains: &[Domain], now: Timestamp) -> Result<()> {
        // Several observers may delete the same ones.
        let sql = "DELETE FROM look WHERE domain_id IN (
            SELECT domain_id FROM look WHERE wished_us NOT BETWEEN $1 AND $2 FOR UPDATE SKIP LOCKED)";
        self.change(sql, &[&us(now - SNAPSHOT_REQUESTS_KEPT), &us(now + SNAPSHOT_REQUESTS_KEPT)])?;
        if domains.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = domains.iter().map(Domain::as_str).collect();
        let sql = "INSERT INTO look (domain_id, wished_us)
            SELECT id, $2 FROM domain WHERE domain = ANY($1) AND holder IS NOT NULL ORDER BY id
            ON CONFLICT (domain_id) DO UPDATE SET wished_us = excluded.wished_us, seen_us = NULL";
        if self.change(sql, &[&names, &us(now)])? > 0 {
            self.tell();
        }
        Ok(())
    }

    fn publish_snapshots(
        &mut self,
        holder: HolderId,
        snapshots: &[DomainSnapshot],
        now: Timestamp,
    ) -> Result<()> {
        let tenures: Vec<Tenure> = snapshots.iter().map(|snapshot| snapshot.tenure).collect();
        let held = self.hold(holder, &tenures)?;
        let (mut ids, mut epochs, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (DomainSnapshot { tenure, value }, _) in
            snapshots.iter().zip(held).filter(|(_, is_held)| *is_held)
        {
            ids.push(tenure.key.0);
            epochs.push(tenure.epoch);
            values.push(text(&value.to_string()).into_owned());
        }
        if ids.is_empty() {
            return Ok(());
        }
        let sql = "UPDATE look SET epoch = shown.epoch, sight = shown.sight, seen_us = $4
            FROM unnest($1, $2, $3) AS shown (id, epoch, sight) WHERE look.domain_id = shown.id";
        self.change(sql, &[&ids, &epochs, &values, &us(now)]).map(|_| ())
    }

    fn snapshots(&mut self, domains: &[Domain]) -> Result<Vec<Option<(Value, Timestamp)>>> {
        let names: Vec<&str> = domains.iter().map(Domain::as_str).collect();
        let sql = "SELECT look.sight, look.seen_us FROM unnest($1) WITH ORDINALITY AS asked (name, nth)
            LEFT JOIN domain ON domain.domain = asked.name AND domain.holder IS NOT NULL
            LEFT JOIN look ON look.domain_id = domain.id AND look.epoch = domain.epoch
            ORDER BY asked.nth";
        let rows = self.rows(sql, &[&names])?;
        let shown = rows.iter().map(|row| {
            // A snapshot by another version may not be readable.
            let value = serde_json::from_str(row.get::<_, Option<&str>>(0)?).ok()?;
            Some((value, at(row.get::<_, Option<i64>>(1)?)))
        });
        Ok(shown.collect())
    }
}

/// A snapshot request that is not repeated expires after this time.
const SNAPSHOT_REQUESTS_KEPT: Span = Span::from_secs(60);

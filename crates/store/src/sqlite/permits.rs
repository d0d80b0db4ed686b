//! Stores lent permits.

use comity_core::intent::Intent;
use comity_core::pace::LentPermit;
use comity_core::time::Timestamp;
use rusqlite::params;

use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::domains::{HolderId, Tenure};
use crate::permits::PermitStore;
use crate::{Reply, StoreError};

impl PermitStore for Sqlite {
    fn lend(&self, holder: HolderId, tenure: Tenure, lent: LentPermit) -> Reply<'_, ()> {
        let written = self.writer.run(move |tx| tx.lend(holder, tenure, &lent));
        Box::pin(async move { if written.await? { Ok(()) } else { Err(StoreError::Lost) } })
    }

    fn forget_lent(&self, holder: HolderId, settled: Vec<(Tenure, u32)>) -> Reply<'_, ()> {
        self.writer
            .run(move |tx| settled.iter().try_for_each(|(tenure, id)| tx.forget_lent(holder, *tenure, *id)))
    }
}

impl Tx<'_> {
    /// Saves a permit; false if the tenure is no longer valid.
    fn lend(&self, holder: HolderId, tenure: Tenure, lent: &LentPermit) -> rusqlite::Result<bool> {
        if !self.is_holder(holder)? || !self.holds(holder, tenure)? {
            return Ok(false);
        }
        // Each expired row is deleted once, so there are never many more rows than permits in force.
        self.sql
            .prepare_cached("DELETE FROM permits WHERE until_us <= ?1")?
            .execute([us(lent.granted_at)])?;
        let sql =
            "INSERT INTO permits (domain_id, id, intent, granted_us, until_us) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT DO UPDATE SET granted_us = excluded.granted_us, until_us = excluded.until_us";
        let row = params![tenure.key.0, lent.id, lent.intent.as_str(), us(lent.granted_at), us(lent.until)];
        self.sql.prepare_cached(sql)?.execute(row)?;
        Ok(true)
    }

    fn forget_lent(&self, holder: HolderId, tenure: Tenure, id: u32) -> rusqlite::Result<()> {
        if self.holds(holder, tenure)? {
            let sql = "DELETE FROM permits WHERE domain_id = ?1 AND id = ?2";
            self.sql.prepare_cached(sql)?.execute(params![tenure.key.0, id])?;
        }
        Ok(())
    }

    /// The permits of a domain whose leases have not ended.
    pub(super) fn lent(&self, domain: i64, now: Timestamp) -> rusqlite::Result<Vec<LentPermit>> {
        let sql = "SELECT id, intent, granted_us, until_us FROM permits
            WHERE domain_id = ?1 AND until_us > ?2 ORDER BY granted_us, id LIMIT 1024";
        let mut statement = self.sql.prepare_cached(sql)?;
        let rows = statement.query_map([domain, us(now)], |row| {
            Ok(LentPermit {
                id: row.get(0)?,
                // Whatever its intent, the request is in flight.
                intent: row.get::<_, String>(1)?.parse().unwrap_or(Intent::Fetch),
                granted_at: at(row.get(2)?),
                until: at(row.get(3)?),
            })
        })?;
        rows.collect()
    }
}

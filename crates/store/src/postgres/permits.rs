//! Stores lent permits.

use comity_core::intent::Intent;
use comity_core::pace::LentPermit;
use comity_core::time::Timestamp;

use super::failure::{Failure, Result};
use super::tx::Tx;
use super::{Postgres, at, us};
use crate::Reply;
use crate::domains::{HolderId, Tenure};
use crate::permits::PermitStore;

impl PermitStore for Postgres {
    fn lend(&self, holder: HolderId, tenure: Tenure, lent: LentPermit) -> Reply<'_, ()> {
        self.write(move |tx| tx.lend(holder, tenure, &lent))
    }

    fn forget_lent(&self, holder: HolderId, settled: Vec<(Tenure, u32)>) -> Reply<'_, ()> {
        self.write(move |tx| tx.forget_lent(holder, &settled))
    }
}

impl Tx<'_> {
    fn lend(&mut self, holder: HolderId, tenure: Tenure, lent: &LentPermit) -> Result<()> {
        if self.hold(holder, &[tenure])? != [true] {
            return Err(Failure::Lost);
        }
        // Each expired row is deleted once, so there are never many more rows than permits in force. Somebody else may be
        // deleting the same ones.
        let sql = "DELETE FROM permit WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM permit WHERE until_us <= $1 LIMIT 1000 FOR UPDATE SKIP LOCKED))";
        self.change(sql, &[&us(lent.granted_at)])?;
        let sql =
            "INSERT INTO permit (domain_id, id, intent, granted_us, until_us) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (domain_id, id)
            DO UPDATE SET granted_us = excluded.granted_us, until_us = excluded.until_us";
        let id = i64::from(lent.id);
        let (intent, granted, until) = (lent.intent.as_str(), us(lent.granted_at), us(lent.until));
        self.change(sql, &[&tenure.key.0, &id, &intent, &granted, &until]).map(|_| ())
    }

    fn forget_lent(&mut self, holder: HolderId, settled: &[(Tenure, u32)]) -> Result<()> {
        let tenures: Vec<Tenure> = settled.iter().map(|(tenure, _)| *tenure).collect();
        let held = self.hold(holder, &tenures)?;
        let settled = settled.iter().zip(held).filter(|(_, is_held)| *is_held);
        let (domains, ids): (Vec<i64>, Vec<i64>) =
            settled.map(|((tenure, id), _)| (tenure.key.0, i64::from(*id))).unzip();
        let sql = "DELETE FROM permit USING unnest($1, $2) AS settled (domain_id, id)
            WHERE permit.domain_id = settled.domain_id AND permit.id = settled.id";
        self.change(sql, &[&domains, &ids]).map(|_| ())
    }

    /// The permits of these domains whose leases have not ended.
    pub(super) fn lent(&mut self, domains: &[i64], now: Timestamp) -> Result<Vec<(i64, LentPermit)>> {
        if domains.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT lent.domain_id, lent.id, lent.intent, lent.granted_us, lent.until_us
            FROM unnest($1) AS asked (id) CROSS JOIN LATERAL (SELECT * FROM permit
                WHERE permit.domain_id = asked.id AND until_us > $2 ORDER BY granted_us, id LIMIT 1024) AS lent
            ORDER BY lent.domain_id, lent.granted_us, lent.id";
        let rows = self.rows(sql, &[&domains, &us(now)])?;
        let lent = rows.iter().map(|row| {
            let lent = LentPermit {
                id: u32::try_from(row.get::<_, i64>(1)).unwrap_or(u32::MAX),
                // Whatever its intent, the request is in flight.
                intent: row.get::<_, &str>(2).parse().unwrap_or(Intent::Fetch),
                granted_at: at(row.get(3)),
                until: at(row.get(4)),
            };
            (row.get(0), lent)
        });
        Ok(lent.collect())
    }
}

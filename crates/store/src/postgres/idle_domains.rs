//! Finds and deletes domains with nothing worth keeping.
//!
//! This module checks the rows only; whether a pace would still delay anybody is decided by whoever knows the rules.
//! Rows are looked at a few at a time, by id, so that no transaction is long.

use comity_core::time::Timestamp;

use super::domains::{KEPT, domain_of, kept};
use super::failure::Result;
use super::tx::Tx;
use super::{at, us};
use crate::domains::{DomainKey, IdleDomain, IdleDomains, LastHolderBuf, Tenure};

impl Tx<'_> {
    pub(super) fn idle_domains(
        &mut self,
        after: DomainKey,
        before: Timestamp,
        limit: u32,
    ) -> Result<IdleDomains> {
        let sql =
            "SELECT max(id) FROM (SELECT id FROM domain WHERE id > $1 ORDER BY id LIMIT $2) AS looked_at";
        let last: Option<i64> = self.one(sql, &[&after.0, &i64::from(limit)])?.get(0);
        let Some(last) = last else { return Ok(IdleDomains::default()) };
        let sql = format!(
            "SELECT id, domain, epoch, left_as, pace,
                (SELECT died_us FROM holder WHERE holder.id = domain.holder), {KEPT}
            FROM domain WHERE id > $2 AND id <= $3 AND {IDLE} ORDER BY id"
        );
        let rows = self.rows(&sql, &[&us(before), &after.0, &last])?;
        let idle = rows.iter().filter_map(|row| {
            let (died, pace): (Option<i64>, Option<Vec<u8>>) = (row.get(5), row.get(4));
            let last_holder = match (died, row.get::<_, &str>(3), pace) {
                (Some(died), ..) => LastHolderBuf::Died { latest: at(died) },
                (None, "handed over", Some(pace)) => LastHolderBuf::HandedOver(pace),
                (None, "stopped", Some(pace)) => LastHolderBuf::Stopped(pace),
                (None, "new", _) => LastHolderBuf::None,
                (None, ..) => LastHolderBuf::Died { latest: Timestamp::MAX },
            };
            let tenure = Tenure { key: DomainKey(row.get(0)), epoch: row.get(2) };
            let (kept, _) = kept(row, 6);
            Some(IdleDomain { domain: domain_of(row, 1)?, tenure, kept, last_holder })
        });
        Ok(IdleDomains { domains: idle.collect(), next: Some(DomainKey(last)) })
    }

    pub(super) fn forget_domains(&mut self, idle: &[Tenure], before: Timestamp) -> Result<u64> {
        let ids: Vec<i64> = idle.iter().map(|tenure| tenure.key.0).collect();
        let epochs: Vec<i64> = idle.iter().map(|tenure| tenure.epoch).collect();
        // Whoever has locked a domain uses it. Once they are locked here, nobody can begin to; a lane that was added before is
        // seen by the next statement only.
        let sql = "SELECT domain.id FROM domain JOIN unnest($1, $2) AS idle (id, epoch)
                ON idle.id = domain.id AND idle.epoch = domain.epoch
            FOR UPDATE OF domain SKIP LOCKED";
        let locked: Vec<i64> = self.rows(sql, &[&ids, &epochs])?.iter().map(|row| row.get(0)).collect();
        if locked.is_empty() {
            return Ok(0);
        }
        self.change(&format!("DELETE FROM domain WHERE id = ANY($2) AND {IDLE}"), &[&us(before), &locked])
    }
}

/// The condition for a row with nothing worth keeping, not used since $1.
const IDLE: &str = "wanted_by IS NULL AND NOT pinned
    AND adaptive_delay_seconds = 0 AND adaptive_delay_floor_seconds = 0
    AND (server_until_us IS NULL OR server_until_us < $1)
    AND (paused_until_us IS NULL OR paused_until_us < $1)
    AND NOT EXISTS (SELECT 1 FROM lane WHERE lane.domain_id = domain.id)
    AND CASE WHEN holder IS NULL THEN left_as = 'new' OR released_us < $1
        ELSE (SELECT died_us FROM holder WHERE holder.id = domain.holder) < $1 END";

//! Finds and deletes domains with nothing worth keeping.
//!
//! This module checks the rows only; whether a pace would still delay anybody is decided by whoever knows the rules.
//! Rows are looked at a few at a time, by id, so that no transaction is long.

use comity_core::time::Timestamp;
use rusqlite::params;

use super::domains::{KEPT, domain_of, kept};
use super::writer::Tx;
use super::{at, us};
use crate::domains::{DomainKey, IdleDomain, IdleDomains, LastHolderBuf, Tenure};

impl Tx<'_> {
    pub(super) fn idle_domains(
        &self,
        after: DomainKey,
        before: Timestamp,
        limit: u32,
    ) -> rusqlite::Result<IdleDomains> {
        let sql = "SELECT max(id) FROM (SELECT id FROM domains WHERE id > ?1 ORDER BY id LIMIT ?2)";
        let last: Option<i64> =
            self.sql.prepare_cached(sql)?.query_row(params![after.0, limit], |row| row.get(0))?;
        let Some(last) = last else { return Ok(IdleDomains::default()) };
        let restored =
            self.sql.prepare_cached("SELECT restored_us FROM identity")?.query_row([], |row| row.get(0))?;
        let restored: Option<i64> = restored;
        let sql = format!(
            "SELECT id, domain, epoch, left_as, pace,
                (SELECT died_us FROM holders WHERE holders.id = domains.holder), {KEPT}
            FROM domains WHERE id > ?2 AND id <= ?3 AND {IDLE}"
        );
        let domains = self.readable("domains", &sql, params![us(before), after.0, last], |row| {
            let left_as: String = row.get(3)?;
            let last_holder = match (row.get::<_, Option<i64>>(5)?, left_as.as_str(), row.get(4)?) {
                // Until somebody records when the copy was restored, assume that it was just now.
                (_, "lost", _) => {
                    LastHolderBuf::Died { latest: restored.filter(|at| *at > 0).map_or(Timestamp::MAX, at) }
                }
                (Some(died), ..) => LastHolderBuf::Died { latest: at(died) },
                (None, "handed over", Some(pace)) => LastHolderBuf::HandedOver(pace),
                (None, "stopped", Some(pace)) => LastHolderBuf::Stopped(pace),
                (None, "new", _) => LastHolderBuf::None,
                (None, ..) => LastHolderBuf::Died { latest: Timestamp::MAX },
            };
            let tenure = Tenure { key: DomainKey(row.get(0)?), epoch: row.get(2)? };
            let (kept, _) = kept(row, 6)?;
            Ok(IdleDomain { domain: domain_of(row, 1)?, tenure, kept, last_holder })
        })?;
        Ok(IdleDomains { domains, next: Some(DomainKey(last)) })
    }

    pub(super) fn forget_domains(&mut self, idle: &[Tenure], before: Timestamp) -> rusqlite::Result<u64> {
        // Ids are never reused, so no tenure or permit of a deleted domain can match another domain.
        self.note_used_ids()?;
        let sql = format!("DELETE FROM domains WHERE id = ?2 AND epoch = ?3 AND {IDLE}");
        let mut forgotten = 0;
        for tenure in idle {
            let deleted =
                self.sql.prepare_cached(&sql)?.execute(params![us(before), tenure.key.0, tenure.epoch])?;
            forgotten += deleted as u64;
        }
        if forgotten > 0 {
            // Other processes cache ids too.
            self.sql.prepare_cached("UPDATE identity SET forgotten = forgotten + 1")?.execute([])?;
            self.cache.domain_ids.clear();
            self.cache.lane_ids.clear();
        }
        Ok(forgotten)
    }
}

/// The condition for a row with nothing worth keeping, not used since ?1.
const IDLE: &str = "wanted_by IS NULL AND pinned = 0
    AND adaptive_delay_seconds = 0 AND adaptive_delay_floor_seconds = 0
    AND (server_until_us IS NULL OR server_until_us < ?1)
    AND (paused_until_us IS NULL OR paused_until_us < ?1)
    AND NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.domain_id = domains.id)
    AND CASE WHEN holder IS NULL THEN left_as = 'new' OR released_us < ?1
        ELSE (SELECT died_us FROM holders WHERE holders.id = domains.holder) < ?1 END";

//! Domains of which nothing is worth keeping.
//!
//! Whether a pace would still hold anybody back is for whoever knows the rules; here is what the rows say. Rows are
//! looked at a few at a time in the order of their numbers, so that no transaction is long.

use comity_core::time::Timestamp;
use rusqlite::params;

use super::domains::{KEPT, domain_of, kept};
use super::writer::Tx;
use super::{at, us};
use crate::domains::{DomainKey, Hold, IdleDomain, IdleDomains, LeftBehind};

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
            let left = match (row.get::<_, Option<i64>>(5)?, left_as.as_str(), row.get(4)?) {
                // Before somebody knew when it was restored, it just happened.
                (_, "lost", _) => {
                    LeftBehind::Died { latest: restored.filter(|at| *at > 0).map_or(Timestamp::MAX, at) }
                }
                (Some(died), ..) => LeftBehind::Died { latest: at(died) },
                (None, "handed over", Some(pace)) => LeftBehind::HandedOver(pace),
                (None, "stopped", Some(pace)) => LeftBehind::Stopped(pace),
                (None, "new", _) => LeftBehind::New,
                (None, ..) => LeftBehind::Died { latest: Timestamp::MAX },
            };
            let hold = Hold { key: DomainKey(row.get(0)?), epoch: row.get(2)? };
            let (kept, _) = kept(row, 6)?;
            Ok(IdleDomain { domain: domain_of(row, 1)?, hold, kept, left })
        })?;
        Ok(IdleDomains { domains, next: Some(DomainKey(last)) })
    }

    pub(super) fn forget_domains(&mut self, idle: &[Hold], before: Timestamp) -> rusqlite::Result<u64> {
        // The latest row stays: the number after it is the next one to be given out, so that none is given out twice
        // and no hold or permit of a domain that is gone is taken for one of another.
        let sql = format!(
            "DELETE FROM domains WHERE id = ?2 AND epoch = ?3 AND id < (SELECT max(id) FROM domains) AND {IDLE}"
        );
        let mut forgotten = 0;
        for hold in idle {
            let deleted =
                self.sql.prepare_cached(&sql)?.execute(params![us(before), hold.key.0, hold.epoch])?;
            forgotten += deleted as u64;
        }
        if forgotten > 0 {
            // Other processes remember numbers too.
            self.sql.prepare_cached("UPDATE identity SET forgotten = forgotten + 1")?.execute([])?;
            self.memory.domain_ids.clear();
            self.memory.lane_ids.clear();
        }
        Ok(forgotten)
    }
}

/// What is true of a row of which nothing is worth keeping since ?1.
const IDLE: &str = "wanted_by IS NULL AND pinned = 0
    AND adaptive_delay_seconds = 0 AND adaptive_delay_floor_seconds = 0
    AND (server_until_us IS NULL OR server_until_us < ?1)
    AND (paused_until_us IS NULL OR paused_until_us < ?1)
    AND NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.domain_id = domains.id)
    AND CASE WHEN holder IS NULL THEN left_as = 'new' OR released_us < ?1
        ELSE (SELECT died_us FROM holders WHERE holders.id = domains.holder) < ?1 END";

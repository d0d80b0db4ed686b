//! Which processes hold domains, and which of them are still alive. Whoever declares a holder dead does so in its row, and
//! frees what it worked on in the same transaction.
//!
//! A holder that writes keeps its own row from being declared dead meanwhile (`FOR KEY SHARE`), which delays none of its own
//! heartbeats. A row that somebody has locked is not waited for: it belongs to a holder that is writing, or that another
//! process is declaring dead. So a heartbeat never waits for a process that is stopped in the middle of a transaction.

use std::collections::{HashMap, HashSet};

use comity_core::time::Timestamp;

use super::failure::{Failure, Result};
use super::param::text;
use super::time::DB_US;
use super::tx::Tx;
use super::{at, us};
use crate::LEASE;
use crate::domains::HolderId;

/// What others know of a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HolderRow {
    /// The name it registered with.
    pub(super) name: String,
    /// The latest time at which it may have sent a request, if it is dead.
    pub(super) died: Option<Timestamp>,
}

impl Tx<'_> {
    /// Assigns an id, and starts a lease.
    pub(super) fn register(&mut self, name: &str, now: Timestamp) -> Result<HolderId> {
        let id = super::random();
        let sql = format!(
            "INSERT INTO holder (id, name, machine, since_us, until_us, offset_us)
            VALUES ($1, $2, $3, $4, $5, $4 - {DB_US})"
        );
        self.change(&sql, &[&id, &text(name), &text(&machine()), &us(now), &us(now + LEASE)])?;
        Ok(HolderId(id))
    }

    /// Renews a lease from `now`, while the holder's clock shows `clock`. Returns how far that is from the database's clock; none
    /// if the holder has been declared dead. `best` is the best of the values before, which counts unless a clock was set.
    pub(super) fn renew(
        &mut self,
        holder: HolderId,
        now: Timestamp,
        clock: Timestamp,
        best: Option<i64>,
    ) -> Result<Option<i64>> {
        let sql = format!(
            "WITH renewed AS (
                UPDATE holder SET until_us = $2, beat = beat + 1,
                    offset_us = CASE WHEN abs($3 - {DB_US} - $4) < 1000000 THEN greatest($3 - {DB_US}, $4) ELSE $3 - {DB_US} END
                WHERE id = $1 AND died_us IS NULL RETURNING offset_us, $3 - {DB_US} AS measured
            ), noted AS (
                UPDATE timeline SET offset_us = renewed.offset_us FROM renewed
                WHERE abs(timeline.offset_us - renewed.offset_us) > 1000000
            )
            SELECT measured FROM renewed"
        );
        let renewed = self.change_rows(&sql, &[&holder.0, &us(now + LEASE), &us(clock), &best])?;
        Ok(renewed.first().map(|row| row.get(0)))
    }

    /// Declares a holder of this process dead: it stops, or its commits may be lost. Domains that it did not release count as
    /// left by a dead holder.
    pub(super) fn end(&mut self, holder: HolderId, now: Timestamp) -> Result<()> {
        let sql = "SELECT beat FROM holder WHERE id = $1 AND died_us IS NULL FOR UPDATE";
        let Some(row) = self.row(sql, &[&holder.0])? else { return Ok(()) };
        self.mark_dead(&[(holder.0, row.get(0))], now)
    }

    /// Whether a holder may still write. If so, nobody declares it dead before this transaction ends.
    pub(super) fn is_holder(&mut self, holder: HolderId) -> Result<bool> {
        if self.may_have_lost(holder) {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM holder WHERE id = $1 AND died_us IS NULL FOR KEY SHARE";
        self.exists(sql, &[&holder.0])
    }

    /// Like [`Self::is_holder`], for work that only a live holder may do.
    pub(super) fn require_holder(&mut self, holder: HolderId) -> Result<()> {
        if self.is_holder(holder)? { Ok(()) } else { Err(Failure::Lost) }
    }

    /// Those that are alive, as far as anybody has noticed.
    pub(super) fn live_holders(&mut self, ids: &[i64]) -> Result<HashSet<i64>> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let rows = self.rows("SELECT id FROM holder WHERE id = ANY($1) AND died_us IS NULL", &[&ids])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// What is known of these holders. Those that unregistered are missing.
    pub(super) fn holder_states(&mut self, ids: &[i64]) -> Result<HashMap<i64, HolderRow>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = self.rows("SELECT id, name, died_us FROM holder WHERE id = ANY($1)", &[&ids])?;
        let state = |row: &tokio_postgres::Row| {
            let died = row.get::<_, Option<i64>>(2).map(at);
            (row.get(0), HolderRow { name: row.get(1), died })
        };
        Ok(rows.iter().map(state).collect())
    }

    /// Declares those dead that were silent for a lease.
    pub(super) fn check_holders(&mut self, ids: &[i64], now: Timestamp) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let rows =
            self.rows("SELECT id, beat FROM holder WHERE id = ANY($1) AND died_us IS NULL", &[&ids])?;
        let beats: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        self.check_beats(&beats, now)
    }

    /// Declares all holders dead that were silent for a lease, except for `me`, and deletes what nobody needs of the dead.
    pub(super) fn check_others(&mut self, me: HolderId, now: Timestamp) -> Result<()> {
        let rows = self.rows("SELECT id, beat, died_us IS NULL FROM holder WHERE id <> $1", &[&me.0])?;
        let beats = rows.iter().filter(|row| row.get(2)).map(|row| (row.get(0), row.get(1)));
        let beats: Vec<(i64, i64)> = beats.collect();
        self.check_beats(&beats, now)?;
        if rows.iter().all(|row| row.get(2)) {
            return Ok(());
        }
        self.bury()
    }

    fn check_beats(&mut self, beats: &[(i64, i64)], now: Timestamp) -> Result<()> {
        let age = self.age();
        let silent = beats.iter().filter(|(id, beat)| self.watch.is_silent(*id, *beat, now, age));
        let silent: Vec<(i64, i64)> = silent.copied().collect();
        self.mark_dead(&silent, now)
    }

    /// Declares holders dead whose last heartbeat is still the one that was seen, and frees what they worked on.
    fn mark_dead(&mut self, silent: &[(i64, i64)], now: Timestamp) -> Result<()> {
        if silent.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = silent.iter().map(|(id, _)| *id).collect();
        let sql = "SELECT id, beat FROM holder WHERE id = ANY($1) AND died_us IS NULL
            ORDER BY id FOR UPDATE SKIP LOCKED";
        let locked = self.rows(sql, &[&ids])?;
        let locked = locked.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
        let dead: Vec<i64> = locked.filter(|locked| silent.contains(locked)).map(|(id, _)| id).collect();
        if dead.is_empty() {
            return Ok(());
        }
        // How far their clocks are from ours is unknown, so they may have sent requests until now.
        self.change("UPDATE holder SET died_us = $2 WHERE id = ANY($1)", &[&dead, &us(now)])?;
        let sql = "UPDATE lane SET holder = NULL, due_us = $2
            FROM (SELECT id FROM lane WHERE holder = ANY($1) ORDER BY id FOR NO KEY UPDATE) AS freed
            WHERE lane.id = freed.id";
        self.change(sql, &[&dead, &us(now)])?;
        let sql = "UPDATE domain SET wanted_by = NULL
            FROM (SELECT id FROM domain WHERE wanted_by IS NOT NULL AND wanted_by = ANY($1)
                ORDER BY id FOR NO KEY UPDATE) AS unwanted
            WHERE domain.id = unwanted.id";
        self.change(sql, &[&dead])?;
        dead.iter().for_each(|id| self.watch.forget(*id));
        self.tell();
        Ok(())
    }

    /// Deletes the rows of the dead. One stays while a domain refers to it, because it says when that was last used.
    pub(super) fn bury(&mut self) -> Result<()> {
        let sql = "DELETE FROM holder WHERE id IN (SELECT id FROM holder WHERE died_us IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM domain WHERE domain.holder = holder.id) FOR UPDATE SKIP LOCKED)";
        self.change(sql, &[])?;
        // Those of connections that ended; the others write theirs again.
        let sql = format!("DELETE FROM stamp WHERE at_us < {DB_US} - {STAMPS_KEPT_US}");
        self.change(&sql, &[]).map(|_| ())
    }
}

/// For how long a commit can be looked up.
const STAMPS_KEPT_US: i64 = 86_400_000_000;

/// The name of this machine, for people.
fn machine() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    name
}

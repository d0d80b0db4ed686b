//! After a failover: the promoted server may lack the last commits, so its rows may name the wrong holders. Nobody takes a domain
//! until every lease from before has ended, and domains that were not held since count as left by a dead holder.
//!
//! The table `server` says whose history the rows belong to. Whoever first finds another one notes when; that is how a process
//! that has never seen the server before knows.

use comity_core::time::{Span, Timestamp};

use super::failure::Result;
use super::shared::Shared;
use super::tx::Tx;
use super::{at, us};
use crate::LEASE;
use crate::domains::Stated;
use crate::machine::{Machine, ThisMachine};

/// What is known of the history that a server writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct History {
    pub(super) id: u32,
    /// Before this time, others may have used domains of which the rows know nothing; none if no server was replaced.
    pub(super) unknown_until: Option<Timestamp>,
    /// Until this uptime of the machine, leases from before may be in force.
    leases_until: Span,
}

impl History {
    /// Whether domains may be taken.
    pub(super) fn is_settled(&self, up: Span) -> bool {
        up >= self.leases_until
    }

    /// A history that was first noted at `since`, as seen at `now`.
    fn seen(id: u32, since: Option<Timestamp>, now: Timestamp, up: Span) -> Self {
        // Times of long ago are certain, whatever happened to the clocks; otherwise this machine's uptime counts.
        let is_old = since.is_none_or(|since| now.since(since) >= LONG_AGO);
        let leases_until = if is_old { Span::ZERO } else { up + LEASE };
        Self { id, unknown_until: since.map(|since| since + LEASE), leases_until }
    }

    /// The latest time at which somebody may have used a domain whose row was written in the history `written`.
    pub(super) fn last_use(&self, written: i64, now: Timestamp) -> Option<Timestamp> {
        // A domain that was added later was never taken, unless that is lost too.
        let matters = |until: &Timestamp| written != 0 || now.since(*until) < RECENTLY;
        self.unknown_until.filter(matters).filter(|_| written != i64::from(self.id))
    }
}

impl Tx<'_> {
    /// The history of this transaction's server. If it is another one than the rows are from, that is noted.
    pub(super) fn history(&mut self, now: Timestamp) -> Result<Option<History>> {
        let Some((shared, id)) = self.server() else { return Ok(None) };
        if let Some(known) = shared.known_history(id) {
            return Ok(Some(known));
        }
        let noted = self.row("SELECT history, changed_us FROM server", &[])?;
        let noted = noted.map(|row| (row.get::<_, i64>(0), row.get::<_, Option<i64>>(1)));
        let up = ThisMachine.up();
        match noted {
            Some((history, changed)) if history == i64::from(id) => {
                let seen = History::seen(id, changed.map(at), now, up);
                shared.know_history(seen);
                Ok(Some(seen))
            }
            _ => {
                // It is known only when this is committed.
                let sql = "UPDATE server SET history = $1, changed_us = $2 WHERE history <> $1";
                self.change(sql, &[&i64::from(id), &us(now)])?;
                self.tell();
                Ok(Some(History::seen(id, Some(now), now, up)))
            }
        }
    }
}

impl Tx<'_> {
    /// Saves deadlines that are later than those that are saved, whoever holds the domains.
    pub(super) fn restate(&mut self, stated: &[Stated]) -> Result<()> {
        let names: Vec<&str> = stated.iter().map(|stated| stated.domain.as_str()).collect();
        let ids = self.domain_ids(&names)?;
        // Sorted, so that two who save the same ones don't wait for each other.
        let sql = "SELECT 1 FROM domain WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE";
        self.rows(sql, &[&ids])?;
        let until: Vec<i64> = stated.iter().map(|stated| us(stated.until)).collect();
        let stated_at: Vec<i64> = stated.iter().map(|stated| us(stated.stated_at)).collect();
        let sql = "UPDATE domain SET server_until_us = stated.until_us, server_stated_us = stated.stated_us
            FROM unnest($1, $2, $3) AS stated (id, until_us, stated_us) WHERE domain.id = stated.id
                AND (domain.server_until_us IS NULL OR domain.server_until_us < stated.until_us)";
        self.change(sql, &[&ids, &until, &stated_at]).map(|_| ())
    }
}

impl Shared {
    fn known_history(&self, id: u32) -> Option<History> {
        let known = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.filter(|known| known.id == id)
    }

    fn know_history(&self, history: History) {
        *self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(history);
    }
}

/// For how long a failover affects domains that were never taken since.
const RECENTLY: Span = Span::from_hours(24);
/// After this long, leases from before have ended even if a clock was set meanwhile.
const LONG_AGO: Span = Span::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at_secs(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// B77: a holder that the promoted server knows nothing of sends for up to a lease.
    #[test]
    fn nobody_takes_domains_for_a_lease_after_a_server_was_replaced() {
        let up = Span::from_secs(500);
        let never = History::seen(1, None, at_secs(1_000), up);
        assert!(never.is_settled(up));
        assert_eq!(never.last_use(0, at_secs(1_000)), None);
        let just = History::seen(2, Some(at_secs(998)), at_secs(1_000), up);
        assert!(!just.is_settled(up + Span::from_millis(9_999)));
        assert!(just.is_settled(up + LEASE));
        // The clock of the new server is behind.
        let ahead = History::seen(2, Some(at_secs(2_000)), at_secs(1_000), up);
        assert!(!ahead.is_settled(up));
        assert!(History::seen(2, Some(at_secs(900)), at_secs(1_000), up).is_settled(up));
    }

    /// B77: who used a domain last is unknown if its row is from before.
    #[test]
    fn a_row_from_before_may_lack_uses_until_the_last_lease_ended() {
        let history = History::seen(2, Some(at_secs(1_000)), at_secs(1_020), Span::from_secs(5));
        assert_eq!(history.last_use(1, at_secs(999_999)), Some(at_secs(1_010)));
        assert_eq!(history.last_use(2, at_secs(1_020)), None);
        assert_eq!(history.last_use(0, at_secs(1_020)), Some(at_secs(1_010)));
        assert_eq!(history.last_use(0, at_secs(999_999)), None);
    }
}

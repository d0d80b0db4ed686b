//! Which processes are alive. Each changes its row with every heartbeat; one whose row did not change for a lease, on the
//! observer's own clock, is dead. So a step of the database's clock frees nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use comity_core::time::{Span, Timestamp};

use crate::LEASE;

/// The heartbeats last seen of other processes, and since when each is unchanged.
#[derive(Debug, Default)]
pub(super) struct LeaseWatch(Mutex<HashMap<i64, (i64, Timestamp)>>);

impl LeaseWatch {
    /// Whether a holder whose heartbeat is `beat` was silent for a lease before `now`, which is `age` ago.
    pub(super) fn is_silent(&self, holder: i64, beat: i64, now: Timestamp, age: Span) -> bool {
        // Counting from `now` would give a holder less than a lease if it took long to look.
        let looked_at = if age < LATE { now } else { now + age };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.entry(holder).or_insert((beat, looked_at));
        if seen.0 != beat {
            *seen = (beat, looked_at);
        }
        now.since(seen.1) >= LEASE
    }

    pub(super) fn forget(&self, holder: i64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&holder);
    }

    /// Nobody could renew its lease for a while, or the server is another one: nobody is declared dead for a whole lease.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A look that takes less than this counts as done at once: holders stop sending earlier than that before their leases end.
const LATE: Span = Span::from_secs(1);

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

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: i64 = 7;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// B74
    #[test]
    fn a_holder_is_silent_when_its_heartbeat_was_seen_unchanged_for_a_lease() {
        let watch = LeaseWatch::default();
        let looks = [(0, 1, false), (9, 1, false), (9, 2, false), (18, 2, false), (19, 2, true)];
        for (secs, beat, expected) in looks {
            assert_eq!(watch.is_silent(HOLDER, beat, at(secs), Span::ZERO), expected, "after {secs} s");
        }
    }

    /// B77: whoever looks late must not count the time before that as silence.
    #[test]
    fn a_look_that_took_long_counts_from_when_it_was_done() {
        let watch = LeaseWatch::default();
        assert!(!watch.is_silent(HOLDER, 1, at(0), Span::from_secs(5)));
        assert!(!watch.is_silent(HOLDER, 1, at(14), Span::ZERO), "seen for nine seconds");
        assert!(watch.is_silent(HOLDER, 1, at(15), Span::ZERO));
    }

    #[test]
    fn after_an_outage_everybody_has_a_whole_lease() {
        let watch = LeaseWatch::default();
        assert!(!watch.is_silent(HOLDER, 1, at(0), Span::ZERO));
        watch.clear();
        assert!(!watch.is_silent(HOLDER, 1, at(60), Span::ZERO));
        assert!(!watch.is_silent(HOLDER, 1, at(69), Span::ZERO));
        assert!(watch.is_silent(HOLDER, 1, at(70), Span::ZERO));
    }
}

//! Which processes are alive. Each changes its row with every heartbeat; one whose row did not change for a lease, on the
//! observer's own clock, is dead. So a step of the database's clock frees nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_core::time::{Span, Timestamp};

use crate::LEASE;
use crate::machine::{Machine, ThisMachine};

/// The heartbeats last seen of other processes, and since when each is unchanged.
#[derive(Debug, Default)]
pub(super) struct LeaseWatch {
    seen: Mutex<HashMap<i64, Seen>>,
    /// How long this machine must have been up meanwhile. Less than a lease only in tests, which have a time of their own.
    up_min: Span,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    beat: i64,
    /// On the clock of whoever asks.
    since: Timestamp,
    /// The machine's uptime.
    up: Span,
}

impl LeaseWatch {
    /// One that also goes by this machine's uptime. A caller's time may be from before it waited, and its clock may be set.
    pub(super) fn on_this_machine() -> Self {
        Self { up_min: LEASE, ..Self::default() }
    }

    /// Whether a holder whose heartbeat is `beat` was silent for a lease before `now`, which is `age` ago.
    pub(super) fn is_silent(&self, holder: i64, beat: i64, now: Timestamp, age: Span) -> bool {
        // Counting from `now` would give a holder less than a lease if it took long to look.
        let looked_at = if age < LATE { now } else { now + age };
        let up = ThisMachine.up();
        let now_seen = Seen { beat, since: looked_at, up };
        let mut seen = self.lock();
        let seen = seen.entry(holder).or_insert(now_seen);
        if seen.beat != beat {
            *seen = now_seen;
        }
        // The answer that is judged was given after this was asked for.
        now.since(seen.since) >= LEASE && up.less(age).less(seen.up) >= self.up_min
    }

    pub(super) fn forget(&self, holder: i64) {
        self.lock().remove(&holder);
    }

    /// Nobody could renew its lease for a while, or the server is another one: nobody is declared dead for a whole lease.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// B74: a time from before an outage used to count the whole outage as silence of everybody else.
    #[test]
    fn a_time_that_is_out_of_date_declares_nobody_dead() {
        let watch = LeaseWatch::on_this_machine();
        assert!(!watch.is_silent(HOLDER, 1, at(0), Span::ZERO));
        assert!(!watch.is_silent(HOLDER, 1, at(14), Span::ZERO));
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

//! Assertions on a server's log: when requests started, and whether one came too early.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// One request, as the server saw it. Times are microseconds since 1970.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub(crate) start: i64,
    /// When the server began to write the response.
    pub(crate) answered: i64,
    /// When the response was complete; `i64::MAX` before that.
    pub(crate) done: i64,
    pub(crate) path: String,
    pub(crate) status: u16,
    /// The connection it came on, if known.
    pub(crate) connection: u64,
}

#[expect(clippy::disallowed_methods, reason = "the clock of the tests")]
pub(crate) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_micros() as i64
}

/// Waits until `met` returns true; panics with `what` if that never happens.
#[expect(clippy::disallowed_methods, reason = "the clock of the tests")]
pub(crate) fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    let began = Instant::now();
    while !met() {
        assert!(began.elapsed() < TIMEOUT, "not met within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that no gap is shorter than `delay_ms` by more than max(10 ms, 1 %).
///
/// On a busy machine, a server notices a request late, but never early. So a request may seem to follow too closely on
/// one that was noticed late. That is tolerated if both together are at least two delays after the one before.
pub(crate) fn assert_spaced(hits: &[Hit], delay_ms: i64) {
    let delay = delay_ms * 1_000;
    let least = delay - TOLERANCE.max(delay / 100);
    let mut left = hits.first().map_or(0, |hit| hit.start);
    for (nth, pair) in hits.windows(2).enumerate() {
        let gap = pair[1].start - left;
        assert!(gap >= least, "request {} came {gap} µs after the one before:\n{}", nth + 1, to_text(hits));
        let late = pair[1].start - pair[0].start - delay;
        left = pair[1].start - if (0..=NOTICED_LATE).contains(&late) { late } else { 0 };
    }
}

/// How often each path was requested.
pub(crate) fn counts(hits: &[Hit]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    hits.iter().for_each(|hit| *counts.entry(hit.path.as_str()).or_insert(0) += 1);
    counts
}

/// Asserts that each of `/PREFIX0` … `/PREFIX{count - 1}` was requested once.
pub(crate) fn assert_each_once(hits: &[Hit], prefix: &str, count: usize) {
    let counts = counts(hits);
    for nth in 0..count {
        let path = format!("/{prefix}{nth}");
        assert_eq!(counts.get(path.as_str()), Some(&1), "{path}:\n{}", to_text(hits));
    }
}

/// A log as readable text.
pub(crate) fn to_text(hits: &[Hit]) -> String {
    let zero = hits.first().map_or(0, |hit| hit.start);
    let line = |hit: &Hit| {
        let Hit { start, path, status, connection, .. } = hit;
        format!("{:>9.3} ms  {status} {path} (connection {connection})\n", (start - zero) as f64 / 1e3)
    };
    hits.iter().map(line).collect()
}

/// How late a server may notice a request, in microseconds.
const NOTICED_LATE: i64 = 50_000;
/// How far off a server's log may be, in microseconds.
pub(crate) const TOLERANCE: i64 = 10_000;
/// Longer than anything takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

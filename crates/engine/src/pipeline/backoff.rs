//! The backoff of a failing source, and jitter, which only ever adds to a delay.

use comity_core::time::{Span, Timestamp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How long to wait after a failure that follows this many others: 5 minutes, doubling up to a day. `jitter`, from 0 to
/// 1, adds up to a tenth.
pub(super) fn backoff(failures_before: u32, jitter: f64) -> Span {
    let doubled = FIRST.times(1 << failures_before.min(9)).min(LONGEST);
    doubled.max(spread(doubled, jitter)).min(LONGEST)
}

/// The span plus up to a tenth of it.
fn spread(span: Span, jitter: f64) -> Span {
    Span::from_micros(span.as_micros() + (span.as_micros() as f64 * 0.1 * jitter) as u64)
}

/// How much later than due a source is fetched: up to a tenth of its cadence, at most five minutes.
pub(super) fn delay(every: Span, jitter: f64) -> Span {
    Span::from_micros((every.split(10).min(DELAY_MAX).as_micros() as f64 * jitter) as u64)
}

/// A number from 0 to 1 that is constant for one source and time, and differs between sources and processes.
pub(super) fn jitter(source: u64, at: Timestamp) -> f64 {
    let seed = u64::from(std::process::id());
    let mixed = xxh3_64_with_seed(&at.as_micros().to_le_bytes(), source ^ seed.rotate_left(32));
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

const FIRST: Span = Span::from_mins(5);
const LONGEST: Span = Span::from_hours(24);
const DELAY_MAX: Span = Span::from_mins(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// B63
    #[test]
    fn the_backoff_of_a_failing_source_doubles_up_to_a_day() {
        let minutes: Vec<u64> = (0..10).map(|n| backoff(n, 0.0).as_secs_up() / 60).collect();
        assert_eq!(minutes, [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 1_440]);
        assert_eq!(backoff(u32::MAX, 1.0), LONGEST);
        assert_eq!(backoff(0, 1.0), Span::from_secs(330));
    }

    /// B66
    #[test]
    fn jitter_only_adds() {
        for source in 0..1_000 {
            let share = jitter(source, Timestamp::from_secs(source as i64));
            assert!((0.0..1.0).contains(&share));
            assert!(backoff(0, share) >= backoff(0, 0.0));
        }
        assert_eq!(delay(Span::from_hours(24), 1.0), DELAY_MAX);
        assert_eq!(delay(Span::from_mins(10), 1.0), Span::from_mins(1));
    }
}

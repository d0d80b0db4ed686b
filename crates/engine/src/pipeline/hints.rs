//! When a feed may be fetched again according to its own hints: `ttl`, `sy:updatePeriod`, `skipHours` and `skipDays`.
//!
//! They are parsed in `connectors`, and the caller decides whether to use them. Like the headers in `caching`, they can
//! only delay a request that is due.

use comity_core::time::{Span, Timestamp};

use crate::connectors::Hints;

/// The earliest time at which the hints allow the next fetch after one at `fetched_at`; `None` without hints.
///
/// This is `fetched_at` plus the longer of `ttl` and `update_every`, at most [`WAIT_MAX`], moved out of skipped hours
/// and days. Skipping all 24 hours or all 7 days makes no sense and is ignored.
pub(super) fn next_at(hints: &Hints, fetched_at: Timestamp) -> Option<Timestamp> {
    let fetched_at = fetched_at.ever()?;
    let wait = hints.ttl.max(hints.update_every).unwrap_or_default().min(WAIT_MAX);
    let skipped = Skipped::read(hints);
    if wait.is_zero() && skipped.hours == 0 && skipped.days == 0 {
        return None;
    }
    Some(skipped.first_from(fetched_at + wait))
}

/// The skipped hours and days. At least one hour and one day are not skipped.
struct Skipped {
    hours: u32,
    days: u8,
}

impl Skipped {
    fn read(hints: &Hints) -> Self {
        let hours = (hints.skip_hours | hints.skip_hours >> 24) & ALL_HOURS;
        let days = hints.skip_days & ALL_DAYS;
        Self {
            hours: if hours == ALL_HOURS { 0 } else { hours },
            days: if days == ALL_DAYS { 0 } else { days },
        }
    }

    /// The earliest time from `from` on that is not skipped.
    fn first_from(&self, from: Timestamp) -> Timestamp {
        let mut micros = from.as_micros();
        // At most six days and then 23 hours are skipped.
        for _ in 0..DAYS_PER_WEEK + HOURS_PER_DAY {
            let (day, hour) = (micros.div_euclid(DAY), micros.div_euclid(HOUR));
            if self.days >> (day + THURSDAY).rem_euclid(DAYS_PER_WEEK) & 1 == 1 {
                micros = (day + 1) * DAY;
            } else if self.hours >> hour.rem_euclid(HOURS_PER_DAY) & 1 == 1 {
                micros = (hour + 1) * HOUR;
            } else {
                break;
            }
        }
        Timestamp::from_micros(micros)
    }
}

/// No hint delays a fetch by more than a week.
pub(super) const WAIT_MAX: Span = Span::from_hours(7 * 24);
const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;
const HOURS_PER_DAY: i64 = 24;
const DAYS_PER_WEEK: i64 = 7;
/// The weekday of 1970-01-01, counting from Monday.
const THURSDAY: i64 = 3;
const ALL_HOURS: u32 = (1 << 24) - 1;
const ALL_DAYS: u8 = (1 << 7) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// When a feed fetched on Sunday, 2026-11-15, at 12:30 may be fetched again.
    fn next(hints: Hints) -> String {
        let at = next_at(&hints, Timestamp::parse("2026-11-15T12:30:00Z").unwrap());
        at.map_or("any time".to_owned(), |at| at.to_string())
    }

    fn spans(ttl: Option<u64>, update_every: Option<u64>) -> Hints {
        let hours = |hours: Option<u64>| hours.map(Span::from_hours);
        Hints { ttl: hours(ttl), update_every: hours(update_every), ..Hints::default() }
    }

    #[test]
    fn the_longer_span_applies_up_to_a_week() {
        assert_eq!(next(spans(None, None)), "any time");
        assert_eq!(next(spans(Some(0), None)), "any time");
        assert_eq!(next(spans(Some(1), None)), "2026-11-15T13:30:00Z");
        assert_eq!(next(spans(Some(1), Some(3))), "2026-11-15T15:30:00Z");
        assert_eq!(next(spans(Some(3), Some(1))), "2026-11-15T15:30:00Z");
        assert_eq!(next(spans(Some(u64::MAX), None)), "2026-11-22T12:30:00Z");
    }

    #[test]
    fn the_next_fetch_is_after_skipped_hours_and_days() {
        let skip = |skip_hours, skip_days| next(Hints { skip_hours, skip_days, ..Hints::default() });
        assert_eq!(skip(1 << 12, 0), "2026-11-15T13:00:00Z");
        assert_eq!(skip(1 << 13, 0), "2026-11-15T12:30:00Z");
        assert_eq!(skip(0b11 << 12, 0), "2026-11-15T14:00:00Z");
        assert_eq!(skip(0, 1 << 6), "2026-11-16T00:00:00Z");
        assert_eq!(skip(1, 0b100_0001), "2026-11-17T01:00:00Z");
        // To the end of Sunday and past midnight, which some feeds call hour 24.
        assert_eq!(skip(0x0fff << 12 | 1 << 24, 0), "2026-11-16T01:00:00Z");
        // Only Saturday at 11 is left.
        assert_eq!(skip(ALL_HOURS & !(1 << 11), ALL_DAYS & !(1 << 5)), "2026-11-21T11:00:00Z");
        let both = Hints { skip_hours: 1 << 13, ..spans(Some(1), None) };
        assert_eq!(next(both), "2026-11-15T14:00:00Z");
    }

    #[test]
    fn skipping_everything_is_ignored() {
        assert_eq!(
            next(Hints { skip_hours: ALL_HOURS, skip_days: ALL_DAYS, ..Hints::default() }),
            "any time"
        );
        assert_eq!(next(Hints { skip_hours: u32::MAX, skip_days: u8::MAX, ..Hints::default() }), "any time");
        // All 24 hours, with midnight as hour 24.
        assert_eq!(next(Hints { skip_hours: ALL_HOURS << 1, ..Hints::default() }), "any time");
        let days = Hints { skip_hours: ALL_HOURS, skip_days: 1 << 6, ..Hints::default() };
        assert_eq!(next(days), "2026-11-16T00:00:00Z");
    }

    #[test]
    fn a_feed_that_was_never_fetched_does_not_wait() {
        assert_eq!(next_at(&Hints { skip_hours: 1, ..spans(Some(1), None) }, Timestamp::NEVER), None);
    }

    fn any_hints() -> impl Strategy<Value = Hints> {
        let span = || prop::option::of((0..u64::MAX).prop_map(Span::from_micros));
        let short = || prop::option::of((0..700_000_000_000_u64).prop_map(Span::from_micros));
        (prop_oneof![span(), short()], short(), any::<u32>(), any::<u8>()).prop_map(
            |(ttl, update_every, skip_hours, skip_days)| Hints { ttl, update_every, skip_hours, skip_days },
        )
    }

    proptest! {
        /// Days and hours are checked against the calendar here, not by the arithmetic above.
        #[test]
        fn the_result_is_the_earliest_allowed_time(
            hints in any_hints(),
            secs in -60_000_000_000_i64..200_000_000_000,
        ) {
            let fetched_at = Timestamp::from_secs(secs);
            let allowed = |at: Timestamp| {
                let text = at.to_string();
                let hour: u32 = text[text.len() - "00:00:00Z".len()..].split([':', '.']).next().unwrap().parse().unwrap();
                let skipped = Skipped::read(&hints);
                skipped.hours >> hour & 1 == 0 && skipped.days >> weekday(&text) & 1 == 0
            };
            if let Some(at) = next_at(&hints, fetched_at) {
                let at = Timestamp::from_micros(at.as_micros() / 1_000_000 * 1_000_000);
                let wait = hints.ttl.max(hints.update_every).unwrap_or_default().min(WAIT_MAX);
                prop_assert!(at + Span::from_secs(1) > fetched_at + wait);
                prop_assert!(allowed(at), "{at}");
                let mut before = fetched_at + wait;
                while before + Span::from_hours(1) <= at {
                    prop_assert!(!allowed(Timestamp::from_micros(before.as_micros() / 1_000_000 * 1_000_000)));
                    before = before + Span::from_hours(1);
                }
            }
        }

        #[test]
        fn the_result_is_never_in_the_past(hints in any_hints(), micros in any::<i64>()) {
            for fetched_at in [Timestamp::from_micros(micros), Timestamp::MIN, Timestamp::MAX] {
                prop_assert!(next_at(&hints, fetched_at).is_none_or(|at| at >= fetched_at));
            }
        }
    }

    /// The weekday of `year-month-day…` from Monday, by Sakamoto's method.
    fn weekday(text: &str) -> i64 {
        let number = |part: &str| part.parse::<i64>().unwrap();
        let (date, _) = text.split_once('T').unwrap();
        let sign = if date.starts_with('-') { -1 } else { 1 };
        let parts: Vec<i64> = date.trim_start_matches('-').split('-').map(number).collect();
        let (year, month, day) = (sign * parts[0] - i64::from(parts[1] < 3), parts[1], parts[2]);
        let offset = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][month as usize - 1];
        let from_sunday =
            year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + offset + day;
        (from_sunday + 6).rem_euclid(7)
    }
}

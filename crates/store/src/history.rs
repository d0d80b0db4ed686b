//! The history of one domain, packed into less than a kilobyte: short intervals for the last few hours, longer ones for about
//! a day. Backends store the bytes; what is in them is decided here, once for all.
//!
//! Nothing depends on it but what people are shown, so what cannot be read counts as no history.

use comity_core::time::{Span, Timestamp};

use crate::activity::{INTERVAL, Sample};

/// The history of a domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History(Vec<Interval>);

/// What happened during an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interval {
    /// Its number since 1970, counted in [`INTERVAL`]s.
    slot: u64,
    /// Its length in [`INTERVAL`]s: 1 or [`LONG`].
    slots: u64,
    requests: u64,
    rate_limited: u64,
    failed: u64,
    /// In tenths of a second.
    held: u64,
    /// In milliseconds.
    learned: u64,
}

impl History {
    /// Reads what [`Self::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self::read(bytes).unwrap_or_default()
    }

    /// Adds what happened, and forgets what is too old at `now`.
    pub(crate) fn add(&mut self, samples: &[Sample], now: Timestamp) {
        for sample in samples {
            self.add_one(Interval::of(sample));
        }
        self.compact(slot_of(now));
    }

    /// As bytes, at most [`BYTES_MAX`] of them: if necessary, the oldest intervals are left out.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut skipped = 0;
        loop {
            let bytes = self.write(skipped);
            if bytes.len() <= BYTES_MAX || skipped == self.0.len() {
                return bytes;
            }
            // An interval takes about ten bytes.
            skipped += ((bytes.len() - BYTES_MAX) / 16 + 1).min(self.0.len() - skipped);
        }
    }

    /// The intervals, oldest first.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.0.iter().map(|interval| interval.sample()).collect()
    }

    /// When the last interval ends.
    pub(crate) fn until(&self) -> Option<Timestamp> {
        self.0.last().map(|last| last.sample()).map(|last| last.from + last.span)
    }

    fn add_one(&mut self, new: Interval) {
        // A late report may belong to an interval that is part of a longer one by now.
        let nth = self.0.partition_point(|known| known.slot + known.slots <= new.slot);
        match self.0.get_mut(nth).filter(|known| known.slot <= new.slot) {
            Some(known) => known.add(&new),
            None => self.0.insert(nth, new),
        }
    }

    /// Joins old intervals to longer ones, and drops the oldest.
    fn compact(&mut self, now: u64) {
        let (short_from, from) = (now.saturating_sub(SHORT_KEPT), now.saturating_sub(KEPT));
        let mut kept: Vec<Interval> = Vec::with_capacity(self.0.len());
        for interval in self.0.iter().filter(|interval| interval.slot + interval.slots > from) {
            let start = interval.slot - interval.slot % LONG;
            // A whole long interval is joined at once, so that it never overlaps short ones.
            let is_old = start + LONG <= short_from;
            match kept.last_mut() {
                Some(last) if is_old && last.slot == start && last.slots == LONG => last.add(interval),
                _ if is_old => kept.push(Interval { slot: start, slots: LONG, ..*interval }),
                _ => kept.push(*interval),
            }
        }
        self.0 = kept;
    }

    fn write(&self, skipped: usize) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        let mut end = 0;
        for interval in &self.0[skipped..] {
            let Interval { slot, slots, requests, rate_limited, failed, held, learned } = *interval;
            let gap = slot.saturating_sub(end);
            push(&mut bytes, gap * 2 + u64::from(slots > 1));
            for number in [requests, rate_limited, failed, held, learned] {
                push(&mut bytes, number);
            }
            end = slot + slots;
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let (mut intervals, mut end) = (Vec::new(), 0_u64);
        while !rest.is_empty() {
            let first = pop(&mut rest)?;
            let slot = end.checked_add(first / 2).filter(|slot| *slot <= SLOTS_MAX)?;
            let slots = if first % 2 == 1 { LONG } else { 1 };
            let mut number = || pop(&mut rest);
            intervals.push(Interval {
                slot,
                slots,
                requests: number()?,
                rate_limited: number()?,
                failed: number()?,
                held: number()?,
                learned: number()?,
            });
            end = slot + slots;
        }
        Some(Self(intervals))
    }
}

impl Interval {
    fn of(sample: &Sample) -> Self {
        Self {
            slot: slot_of(sample.from),
            slots: 1,
            requests: sample.requests,
            rate_limited: sample.rate_limited,
            failed: sample.failed,
            held: sample.held.as_micros().div_ceil(TENTH_US),
            learned: sample.learned.as_millis_up(),
        }
    }

    fn sample(&self) -> Sample {
        Sample {
            from: Timestamp::from_micros((self.slot * INTERVAL.as_micros()) as i64),
            span: Span::from_micros(self.slots * INTERVAL.as_micros()),
            requests: self.requests,
            rate_limited: self.rate_limited,
            failed: self.failed,
            held: Span::from_micros(self.held.saturating_mul(TENTH_US)),
            learned: Span::from_micros(self.learned.saturating_mul(1_000)),
        }
    }

    /// Adds what happened later in the same interval.
    fn add(&mut self, later: &Self) {
        self.requests = self.requests.saturating_add(later.requests);
        self.rate_limited = self.rate_limited.saturating_add(later.rate_limited);
        self.failed = self.failed.saturating_add(later.failed);
        self.held = self.held.saturating_add(later.held);
        self.learned = later.learned;
    }
}

/// The interval that a time is in.
fn slot_of(at: Timestamp) -> u64 {
    (at.as_micros().max(0) as u64 / INTERVAL.as_micros()).min(SLOTS_MAX)
}

/// Appends a number, in groups of seven bits, the lowest first.
fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn pop(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(first & 0x7f);
        number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A row is little more than this.
pub(crate) const BYTES_MAX: usize = 960;
/// The first byte says how the rest is to be read.
const VERSION: u8 = 1;
/// How many short intervals are joined to a long one: half an hour.
const LONG: u64 = 6;
/// For how many short intervals they stay short: four hours.
const SHORT_KEPT: u64 = 48;
/// For how many short intervals anything is kept: a day.
const KEPT: u64 = 24 * 12;
/// Times after this are not plausible.
const SLOTS_MAX: u64 = i64::MAX as u64 / INTERVAL.as_micros() - LONG;
const TENTH_US: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(slot: u64, requests: u64) -> Sample {
        let interval =
            Interval { slot, slots: 1, requests, rate_limited: 1, failed: 2, held: 30, learned: 1_500 };
        interval.sample()
    }

    fn at(slot: u64) -> Timestamp {
        Timestamp::from_micros((slot * INTERVAL.as_micros()) as i64)
    }

    #[test]
    fn samples_of_one_interval_are_added_up_and_the_later_learned_delay_counts() {
        let mut history = History::default();
        history.add(&[sample(600, 2), sample(601, 3)], at(601));
        let later = Sample { learned: Span::from_secs(9), ..sample(601, 4) };
        history.add(&[later], at(601));
        // Another holder reports a little late.
        history.add(&[sample(600, 1)], at(601));
        let samples = History::decode(&history.encode()).samples();
        assert_eq!(samples.iter().map(|sample| sample.requests).collect::<Vec<_>>(), [3, 7]);
        assert_eq!((samples[1].learned, samples[1].held), (Span::from_secs(9), Span::from_secs(6)));
        assert_eq!((samples[1].from, samples[1].span, samples[1].failed), (at(601), INTERVAL, 4));
        assert_eq!(history.until(), Some(at(602)));
    }

    #[test]
    fn a_day_of_a_busy_domain_fits_into_a_kilobyte() {
        let mut history = History::default();
        let first = 5_800_000;
        for slot in first..first + 600 {
            let busy = Sample {
                requests: 9_000,
                rate_limited: 100,
                failed: 90,
                held: Span::from_secs(280),
                learned: Span::from_millis(12_345),
                ..sample(slot, 0)
            };
            history.add(&[busy], at(slot));
            assert!(history.encode().len() <= BYTES_MAX);
        }
        let samples = History::decode(&history.encode()).samples();
        let covered: u64 = samples.iter().map(|sample| sample.span.as_micros()).sum();
        assert!(covered >= Span::from_hours(20).as_micros(), "{covered}");
        assert_eq!(
            samples.iter().filter(|sample| sample.span > INTERVAL).map(|sample| sample.requests).max(),
            Some(54_000)
        );
        assert!(samples.windows(2).all(|pair| pair[0].from + pair[0].span == pair[1].from));
        let (last, size) = (samples.last().unwrap(), history.encode().len());
        assert_eq!((last.from, last.requests), (at(first + 599), 9_000));
        assert!(size > 700, "{size}");
    }

    #[test]
    fn old_intervals_are_joined_and_dropped_after_a_day() {
        let mut history = History::default();
        history.add(&[sample(1_000, 1), sample(1_001, 2), sample(1_005, 4)], at(1_005));
        history.add(&[sample(1_060, 8)], at(1_060));
        let spans = |history: &History| -> Vec<(u64, u64)> {
            history
                .samples()
                .iter()
                .map(|sample| (sample.span.as_micros() / INTERVAL.as_micros(), sample.requests))
                .collect()
        };
        assert_eq!(spans(&history), [(6, 3), (6, 4), (1, 8)]);
        // A report for an interval that is part of a longer one by now.
        history.add(&[sample(1_003, 16)], at(1_060));
        assert_eq!(spans(&history), [(6, 3), (6, 20), (1, 8)]);
        history.add(&[], at(1_005 + KEPT));
        assert_eq!(spans(&history), [(6, 20), (6, 8)]);
        history.add(&[], at(2_000));
        assert_eq!((spans(&history), history.until()), (vec![], None));
    }

    #[test]
    fn bytes_that_are_no_history_count_as_none() {
        let mut history = History::default();
        history.add(&[sample(600, 2), sample(601, 300)], at(601));
        let bytes = history.encode();
        assert_eq!(History::decode(&bytes), history);
        for length in 0..bytes.len() {
            let cut = History::decode(&bytes[..length]);
            assert!(cut.0.len() < 2, "{cut:?}");
        }
        for junk in [&[][..], &[0], &[2, 1, 1], &[1, 0xff], &[1; 300], &[0xff; 300]] {
            drop(History::decode(junk).samples());
        }
        let huge = [&[VERSION][..], &[0xff; 9], &[0x01]].concat();
        assert_eq!(History::decode(&huge), History::default());
    }
}

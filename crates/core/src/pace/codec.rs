//! The binary encoding of a pace for a database column.
//!
//! A version, then tagged fields, then a checksum. A missing field has its default value, so data of older versions can
//! be decoded as is; data of a newer version is an error. Tags are never reused.

use std::collections::VecDeque;

use super::cold::{ColdState, LATE_MAX, OPEN_MAX, QUOTAS_MAX, QuotaSpacing};
use super::lease::Lease;
use super::{Holds, OwnCause, Pace, ServerCause};
use crate::decision::Permit;
use crate::intent::Intent;
use crate::learn::{Bounds, Bracket, Phase};
use crate::time::{Span, Timestamp};
use crate::window::Window;

/// Bytes that aren't a pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("the saved pace is empty")]
    Empty,
    /// They were written by a newer version of Comity.
    #[error("the saved pace has version {0}, but this program supports at most version {VERSION}")]
    Newer(u8),
    /// They are damaged, or were never a pace.
    #[error("the saved pace is damaged at byte {0}")]
    Damaged(usize),
}

impl Pace {
    /// Encodes this pace.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(vec![VERSION]);
        out.time(1, self.latest_now);
        out.time(2, self.last_start);
        let holds = self.holds.as_deref().copied().unwrap_or_default();
        out.time(3, holds.server_until);
        out.time(4, holds.own_until);
        out.time(5, holds.penalty_at);
        out.time(6, self.last_success);
        out.number(7, self.penalties.into());
        out.number(8, self.next_id.into());
        out.number(9, holds.server_cause as u64);
        out.number(10, holds.own_cause as u64);
        let (learned, bounds) = (&self.learned, self.learned.bounds());
        out.number(11, learned.delay.as_micros());
        out.number(12, bounds.floor.as_micros());
        out.time(13, bounds.floor_at);
        out.number(14, bounds.probe_from.as_micros());
        out.number(15, learned.success_streak.into());
        out.number(16, learned.error_streak.into());
        out.number(17, learned.probe.into());
        out.number(18, u64::from(learned.pinned) | u64::from(learned.touched) << 1);
        out.number(LAST_ID, self.last_id.into());
        out.number(SERVER_MS, holds.server_ms.into());
        out.number(OWN_MS, holds.own_ms.into());
        for permit in self.opens() {
            out.permit(OPEN, permit);
        }
        if let Some(cold) = &self.cold {
            out.cold(cold);
        }
        out.finish()
    }

    /// Decodes a pace of this version or an older one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let version = *bytes.first().ok_or(DecodeError::Empty)?;
        if version > VERSION {
            return Err(DecodeError::Newer(version));
        }
        let body = bytes.len().checked_sub(4).filter(|body| *body > 0 && version > 0);
        let body = body.ok_or(DecodeError::Damaged(bytes.len()))?;
        let (form, sum) = bytes.split_at(body);
        if checksum(form).to_le_bytes() != sum {
            return Err(DecodeError::Damaged(body));
        }
        let mut reader = Reader { bytes: form, at: 1 };
        reader.pace().ok_or(DecodeError::Damaged(reader.at))
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, tag: u8, value: u64) {
        if value != 0 {
            self.0.push(tag);
            self.varint(value);
        }
    }

    fn time(&mut self, tag: u8, at: Timestamp) {
        if let Some(at) = at.ever() {
            self.0.push(tag);
            self.varint(zigzag(at.as_micros()));
        }
    }

    fn permit(&mut self, tag: u8, permit: &Permit) {
        self.0.push(tag);
        self.varint(zigzag(permit.started_at.as_micros()));
        self.varint(permit.spacing.as_micros());
        self.varint(permit.id.into());
        self.varint(permit.probe.into());
        self.varint(permit.intent.index() as u64 | u64::from(permit.departed) << 2);
    }

    fn cold(&mut self, cold: &ColdState) {
        for lent in &cold.lent {
            self.permit(LENT, &lent.permit);
            self.varint(zigzag(lent.until.as_micros()));
        }
        self.0.push(STARTS);
        for (start, id) in cold.starts.iter().zip(cold.start_ids) {
            self.varint(optional(*start));
            self.varint(id.into());
        }
        for (tag, window) in WINDOWS.into_iter().zip([&cold.window].into_iter().chain(&cold.windows)) {
            if window.iter().len() > 0 {
                self.0.push(tag);
                self.varint(window.iter().len() as u64);
                window.iter().for_each(|start| self.varint(zigzag(start.as_micros())));
            }
        }
        for quota in &cold.quotas {
            self.0.push(QUOTA);
            self.varint(quota.delay.as_micros());
            self.varint(zigzag(quota.until.as_micros()));
            self.varint(quota.length.as_micros());
        }
        self.numbers(DROPPED, &cold.dropped);
        self.numbers(REPORTED_LOST, &cold.reported_lost);
        self.time(PAUSED, cold.paused_until);
        self.time(LOST, cold.lost_at);
        if let Some(state) = &cold.bracket {
            self.bracket(state);
        }
    }

    fn bracket(&mut self, state: &Bracket) {
        self.0.push(BRACKET);
        self.varint(state.phase as u64);
        state.spans().into_iter().for_each(|span| self.varint(span.as_micros()));
        state.times().into_iter().for_each(|time| self.varint(optional(time)));
        state.numbers().into_iter().for_each(|number| self.varint(number.into()));
    }

    fn numbers(&mut self, tag: u8, numbers: &VecDeque<u32>) {
        for number in numbers {
            self.0.push(tag);
            self.varint((*number).into());
        }
    }

    /// Seven bits per byte, lowest bits first.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn finish(mut self) -> Vec<u8> {
        let sum = checksum(&self.0);
        self.0.extend(sum.to_le_bytes());
        self.0
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn pace(&mut self) -> Option<Pace> {
        let mut pace = Pace::default();
        let (mut holds, mut bounds) = (Holds::default(), Bounds::default());
        while self.at < self.bytes.len() {
            let tag = self.byte()?;
            let learned = &mut pace.learned;
            match tag {
                1 => pace.latest_now = self.time()?,
                2 => pace.last_start = self.time()?,
                3 => holds.server_until = self.time()?,
                4 => holds.own_until = self.time()?,
                5 => holds.penalty_at = self.time()?,
                6 => pace.last_success = self.time()?,
                7 => pace.penalties = self.small()?,
                8 => pace.next_id = self.small()?,
                9 => {
                    holds.server_cause =
                        *[ServerCause::RetryAfter, ServerCause::QuotaSpent].get(self.index()?)?
                }
                10 => {
                    holds.own_cause =
                        *[OwnCause::Backoff, OwnCause::WaitOn429, OwnCause::Learned].get(self.index()?)?
                }
                11 => learned.delay = self.span()?,
                12 => bounds.floor = self.span()?,
                13 => bounds.floor_at = self.time()?,
                14 => bounds.probe_from = self.span()?,
                15 => learned.success_streak = self.small()?,
                16 => learned.error_streak = self.small()?,
                17 => learned.probe = self.small()?,
                18 => {
                    let flags = self.index().filter(|flags| *flags < 4)?;
                    learned.pinned = flags & 1 != 0;
                    learned.touched = flags & 2 != 0;
                }
                SERVER_MS => holds.server_ms = self.small()?,
                OWN_MS => holds.own_ms = self.small()?,
                _ => self.list(tag, &mut pace)?,
            }
        }
        if holds != Holds::default() {
            pace.holds = Some(Box::new(holds));
        }
        pace.learned.bound(bounds);
        Some(pace)
    }

    /// The fields that may occur more than once, or that few domains have.
    fn list(&mut self, tag: u8, pace: &mut Pace) -> Option<()> {
        match tag {
            OPEN => {
                let permit = self.permit()?;
                if pace.open.is_none() {
                    pace.open = Some(permit);
                } else {
                    let more = &mut pace.cold_mut().open;
                    (more.len() < OPEN_MAX).then(|| more.push(permit))?;
                }
            }
            LENT => {
                let lease = Lease { permit: self.permit()?, until: self.time()? };
                let lent = &mut pace.cold_mut().lent;
                (lent.len() < OPEN_MAX).then(|| lent.push(lease))?;
            }
            STARTS => {
                for nth in 0..Intent::ALL.len() {
                    let (start, id) = (required(self.varint()?)?, self.small()?);
                    let cold = pace.cold_mut();
                    (cold.starts[nth], cold.start_ids[nth]) = (start, id);
                }
            }
            QUOTA => {
                let quota = QuotaSpacing { delay: self.span()?, until: self.time()?, length: self.span()? };
                let quotas = &mut pace.cold_mut().quotas;
                (quotas.len() < QUOTAS_MAX).then(|| quotas.push(quota))?;
            }
            // Older versions saved only the latest dropped permit, plus one.
            LATEST_DROPPED => {
                let id: u64 = self.varint()?;
                pace.cold_mut().drop_permit(u32::try_from(id.checked_sub(1)?).ok()?);
            }
            DROPPED => {
                let id = self.small()?;
                let dropped = &mut pace.cold_mut().dropped;
                (dropped.len() < LATE_MAX).then(|| dropped.push_back(id))?;
            }
            REPORTED_LOST => {
                let id = self.small()?;
                let reported = &mut pace.cold_mut().reported_lost;
                (reported.len() < LATE_MAX).then(|| reported.push_back(id))?;
            }
            LAST_ID => pace.last_id = self.small()?,
            PAUSED => pace.cold_mut().paused_until = self.time()?,
            LOST => pace.cold_mut().lost_at = self.time()?,
            BRACKET => pace.cold_mut().bracket = Some(Box::new(self.bracket()?)),
            _ => {
                let nth = WINDOWS.iter().position(|known| *known == tag)?;
                let count = self.index().filter(|count| *count <= self.bytes.len())?;
                let starts: Option<Vec<Timestamp>> = (0..count).map(|_| self.time()).collect();
                let window = Window::from_sorted(starts?.into_iter())?;
                let cold = pace.cold_mut();
                match nth {
                    0 => cold.window = window,
                    _ => cold.windows[nth - 1] = window,
                }
            }
        }
        Some(())
    }

    fn bracket(&mut self) -> Option<Bracket> {
        let phase = *Phase::ALL.get(self.index()?)?;
        let mut state = Bracket::new(Span::ZERO);
        state.phase = phase;
        for span in state.spans_mut() {
            *span = self.span()?;
        }
        for time in state.times_mut() {
            *time = required(self.varint()?)?;
        }
        let mut numbers = state.numbers();
        for number in &mut numbers {
            *number = self.small()?;
        }
        state.with_numbers(numbers)
    }

    fn permit(&mut self) -> Option<Permit> {
        let (started_at, spacing) = (self.time()?, self.span()?);
        let (id, probe) = (self.small()?, self.small()?);
        let flags = self.index().filter(|flags| *flags < 8)?;
        let (intent, departed) = (*Intent::ALL.get(flags & 3)?, flags & 4 != 0);
        Some(Permit { started_at, spacing, id, probe, intent, departed })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn time(&mut self) -> Option<Timestamp> {
        in_range(unzigzag(self.varint()?))
    }

    fn span(&mut self) -> Option<Span> {
        self.varint().filter(|micros| *micros <= Span::MAX.as_micros()).map(Span::from_micros)
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.varint()?.try_into().ok()
    }

    fn index(&mut self) -> Option<usize> {
        self.small()
    }
}

/// Maps small numbers of either sign to small unsigned numbers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Encodes [`Timestamp::NEVER`] as 0 and any other timestamp as its zigzag plus 1.
fn optional(at: Timestamp) -> u64 {
    at.ever().map_or(0, |at| zigzag(at.as_micros()) + 1)
}

fn required(value: u64) -> Option<Timestamp> {
    value.checked_sub(1).map_or(Some(Timestamp::NEVER), |value| in_range(unzigzag(value)))
}

fn in_range(micros: i64) -> Option<Timestamp> {
    let at = Timestamp::from_micros(micros);
    (at.as_micros() == micros).then_some(at)
}

/// FNV-1a, which is enough to detect damage.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

const VERSION: u8 = 1;
const OPEN: u8 = 19;
const STARTS: u8 = 20;
const WINDOWS: [u8; 4] = [21, 22, 23, 24];
const QUOTA: u8 = 25;
const PAUSED: u8 = 26;
const LOST: u8 = 27;
const LAST_ID: u8 = 28;
const SERVER_MS: u8 = 29;
const OWN_MS: u8 = 30;
const LATEST_DROPPED: u8 = 31;
const DROPPED: u8 = 32;
const REPORTED_LOST: u8 = 33;
const LENT: u8 = 34;
const BRACKET: u8 = 35;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{PacingHints, Quota};
    use crate::outcome::{Answer, Outcome};
    use crate::rule::{Fields, Rule};

    /// A pace with a value in every field.
    fn full() -> Pace {
        let fields = Fields { burst: Some(Some(3)), in_flight: Some(None), ..Fields::default() };
        let rule = Rule::new(&fields).unwrap();
        let mut pace = Pace::default();
        for (nth, intent) in
            [Intent::Fetch, Intent::Search, Intent::Api, Intent::Fetch].into_iter().enumerate()
        {
            pace.admit((&rule).into(), intent, Timestamp::from_secs(60 * nth as i64));
        }
        let hints = PacingHints {
            quota: Some(Quota { remaining: 4.try_into().unwrap(), reset: Span::from_secs(60) }),
            ..PacingHints::default()
        };
        let answer = Answer { hints, ..Outcome::RateLimited.into() };
        pace.record_unasked((&rule).into(), Intent::Fetch, &answer, Timestamp::from_secs(181));
        pace.lost(Timestamp::from_secs(3));
        pace.pause(None);
        let cold = pace.cold_mut();
        cold.drop_permit(7);
        pace.admit((&rule).into(), Intent::Fetch, Timestamp::from_secs(240));
        let id = pace.opens().last().unwrap().id;
        pace.lend(id, Span::from_secs(60), Timestamp::from_secs(240));
        let cold = pace.cold_mut();
        assert!(cold.first_report_of_lost(8, Timestamp::from_secs(2)));
        pace
    }

    #[test]
    fn encoding_round_trips_in_few_bytes() {
        let pace = full();
        assert_eq!(Pace::decode(&pace.encode()), Ok(pace.clone()));
        assert!(pace.encode().len() < 160, "{}", pace.encode().len());
        assert_eq!(Pace::decode(&Pace::default().encode()), Ok(Pace::default()));
        assert!(Pace::default().encode().len() <= 5);
    }

    #[test]
    fn bracket_learning_takes_few_bytes_and_round_trips() {
        let fields = Fields {
            min_delay: Some(Span::ZERO),
            learning: Some(crate::rule::LearningName::Bracket),
            ..Fields::default()
        };
        let rule = Rule::new(&fields).unwrap();
        let (mut pace, mut now) = (Pace::default(), Timestamp::from_secs(1_800_000_000));
        for nth in 0..200 {
            let crate::decision::Decision::Wait { until, .. } =
                pace.admit((&rule).into(), Intent::Fetch, now)
            else {
                let outcome = if nth % 40 == 39 { Outcome::RateLimited } else { Outcome::Success };
                pace.record_unasked((&rule).into(), Intent::Fetch, &outcome.into(), now);
                continue;
            };
            now = until;
        }
        assert!(pace.estimate().is_some_and(|estimate| estimate.refusals > 0));
        assert_eq!(Pace::decode(&pace.encode()), Ok(pace.clone()));
        assert!(pace.encode().len() < 240, "{}", pace.encode().len());
    }

    /// Data of version 1 has to stay readable forever: these bytes must never be changed.
    #[test]
    fn version_1_can_still_be_decoded() {
        let written =
            [1, 2, 128, 137, 122, 7, 2, 11, 192, 132, 61, 12, 160, 194, 30, 15, 19, 34, 104, 20, 184];
        let pace = Pace::decode(&written).unwrap();
        assert_eq!(pace.last_start(), Some(Timestamp::from_secs(1)));
        assert_eq!(pace.penalties(), 2);
        assert_eq!(pace.learned().delay(), Span::from_secs(1));
        assert_eq!(pace.learned().floor(), Span::from_millis(500));
        assert_eq!(pace.learned().success_streak(), 19);
    }

    #[test]
    fn damaged_data_is_a_clear_error() {
        assert_eq!(Pace::decode(&[]), Err(DecodeError::Empty));
        let newer = Pace::decode(&[2, 1, 1]).unwrap_err().to_string();
        assert_eq!(newer, "the saved pace has version 2, but this program supports at most version 1");
        assert_eq!(Pace::decode(b"\0\0\0\0\0\0"), Err(DecodeError::Damaged(6)));
        let whole = full().encode();
        for cut in 1..whole.len() {
            assert!(Pace::decode(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for index in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[index] ^= 0x10;
            assert!(Pace::decode(&flipped).is_err(), "flipped at {index}");
        }
    }

    #[test]
    fn invalid_fields_with_a_valid_checksum_are_refused() {
        let signed = |bytes: &[u8]| {
            let mut form = bytes.to_vec();
            form.extend(checksum(bytes).to_le_bytes());
            Pace::decode(&form)
        };
        assert!(signed(&[1]).is_ok());
        for form in [
            &[1, 99, 1][..],                                                     // an unknown tag
            &[1, 10, 3],                                                         // no such cause
            &[1, 18, 4],                                                         // no such flag
            &[1, 19, 0, 0, 0, 0, 3],                                             // no such intent
            &[1, 17, 0xff, 0xff, 0xff, 0x7f],                                    // a probe too many
            &[1, 21, 2, 4, 2],                                                   // starts out of order
            &[1, 21, 0xff, 0xff, 0xff, 0xff, 0x0f], // a window larger than the form
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], // a time past the end of time
            &[1, 1, 0xff],                                                       // a number that does not end
        ] {
            assert!(signed(form).is_err(), "{form:?}");
        }
    }
}

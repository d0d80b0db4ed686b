//! Timestamps and time spans in whole microseconds: saturating, and rounded up so that nobody is early.
//!
//! Nothing here reads a clock. A [`Timestamp`] is a point in UTC that the caller measured; a [`Span`] is a length of
//! time and never negative. Converting a span to a coarser unit rounds up, so that a caller who sleeps for it never
//! wakes early.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, SystemTime};

/// A point in time, in microseconds since 1970-01-01 UTC.
///
/// Arithmetic saturates at [`Timestamp::MIN`] and [`Timestamp::MAX`]. [`Timestamp::NEVER`] is earlier than every other
/// timestamp, and adding to it doesn't change it: it is the last request start of a domain that was never fetched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A length of time in whole microseconds, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// Text that isn't a span or a timestamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value}: expected {expected}")]
pub struct TimeError {
    /// The text that was given.
    pub value: String,
    /// What is accepted instead.
    pub expected: &'static str,
}

impl Timestamp {
    /// Earlier than every other timestamp. Adding a span to it changes nothing.
    pub const NEVER: Self = Self(i64::MIN);
    /// The earliest timestamp that can be represented.
    pub const MIN: Self = Self(-(LIMIT_MICROS as i64));
    /// The latest timestamp that can be represented.
    pub const MAX: Self = Self(LIMIT_MICROS as i64);

    /// `micros` microseconds after the start of 1970, limited to [`Self::MIN`]..=[`Self::MAX`].
    pub const fn from_micros(micros: i64) -> Self {
        if micros < Self::MIN.0 {
            Self::MIN
        } else if micros > Self::MAX.0 {
            Self::MAX
        } else {
            Self(micros)
        }
    }

    /// `millis` milliseconds after the start of 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// `secs` seconds after the start of 1970.
    pub const fn from_secs(secs: i64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Parses an RFC 3339 timestamp such as `2026-01-05T12:00:00Z`.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        text.trim()
            .parse::<jiff::Timestamp>()
            .map(|at| Self::from_micros(at.as_microsecond()))
            .map_err(|_| TimeError { value: format!("{text:?}"), expected: A_TIMESTAMP })
    }

    /// Microseconds since the start of 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it isn't later.
    pub const fn since(self, earlier: Self) -> Span {
        if self.0 <= earlier.0 { Span::ZERO } else { Span::from_micros(self.0.abs_diff(earlier.0)) }
    }

    /// This timestamp minus `span`; [`Self::NEVER`] doesn't change.
    pub(crate) const fn earlier_by(self, span: Span) -> Self {
        if self.0 == i64::MIN { self } else { Self::from_micros(self.0 - span.0 as i64) }
    }

    /// `None` if this is [`Self::NEVER`].
    pub const fn ever(self) -> Option<Self> {
        if self.0 == i64::MIN { None } else { Some(self) }
    }
}

impl Span {
    /// Zero length.
    pub const ZERO: Self = Self(0);
    /// The longest span that can be represented: tens of thousands of years.
    pub const MAX: Self = Self(LIMIT_MICROS);

    /// A span of `micros` microseconds, limited to [`Self::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros > LIMIT_MICROS { Self::MAX } else { Self(micros) }
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// A span of `minutes` minutes.
    pub const fn from_mins(minutes: u64) -> Self {
        Self::from_secs(minutes.saturating_mul(60))
    }

    /// A span of `hours` hours.
    pub const fn from_hours(hours: u64) -> Self {
        Self::from_mins(hours.saturating_mul(60))
    }

    /// A span of decimal seconds, rounded up. NaN, infinite, negative and too large values are errors.
    pub fn from_secs_f64(secs: f64) -> Result<Self, TimeError> {
        let micros = (secs * 1e6).ceil();
        if secs.is_finite() && secs >= 0.0 && micros <= LIMIT_MICROS as f64 {
            Ok(Self(micros as u64))
        } else {
            Err(TimeError { value: secs.to_string(), expected: "seconds, zero or more" })
        }
    }

    /// Parses plain decimal seconds as headers and robots.txt write them: digits, optionally with a point before, among
    /// or after them. Digits past the microsecond round up; a value that is too large becomes [`Self::MAX`].
    pub fn from_decimal_secs(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !digits(whole) || !digits(fraction) {
            return None;
        }
        let secs = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u64::MAX) };
        let (micros, rest) = fraction.split_at(fraction.len().min(6));
        let scale = 10_u64.pow(6 - micros.len() as u32);
        let micros = micros.parse::<u64>().unwrap_or(0) * scale;
        let up = u64::from(rest.bytes().any(|digit| digit != b'0'));
        Some(Self::from_secs(secs) + Self(micros + up))
    }

    /// Parses a duration as people write it: `3s`, `250ms`, `1.5s`, `2m`, `8h`, `7d`, `1h 30m`, or `0`.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let wrong = || TimeError { value: format!("{text:?}"), expected: A_DURATION };
        if text.trim() == "0" {
            return Ok(Self::ZERO);
        }
        let span: jiff::Span = text.trim().parse().map_err(|_| wrong())?;
        let days = jiff::SpanRelativeTo::days_are_24_hours();
        let nanos = span.to_duration(days).map_err(|_| wrong())?.as_nanos();
        let micros = u64::try_from(nanos).map_err(|_| wrong())?.div_ceil(1_000);
        if micros <= LIMIT_MICROS { Ok(Self(micros)) } else { Err(wrong()) }
    }

    /// Whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up.
    pub const fn as_millis_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Whole seconds, rounded up.
    pub const fn as_secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Decimal seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Whether the span has zero length.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `factor` times as long.
    pub const fn times(self, factor: u64) -> Self {
        Self::from_micros(self.0.saturating_mul(factor))
    }

    /// This span divided by `parts`, rounded up; dividing by zero gives [`Self::MAX`].
    pub const fn split(self, parts: u64) -> Self {
        if parts == 0 { Self::MAX } else { Self(self.0.div_ceil(parts)) }
    }

    /// This span minus `other`, or zero if `other` is longer.
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// How many whole times `other` fits into this span; zero if `other` is zero.
    pub const fn whole_times(self, other: Self) -> u64 {
        match self.0.checked_div(other.0) {
            Some(times) => times,
            None => 0,
        }
    }

    /// This span for countdowns and the live view: short and rounded up, as in `12.4s` or `3h 20m`.
    pub fn countdown(self) -> impl fmt::Display {
        Rounded { span: self, units: &COUNTDOWN }
    }

    /// This span for sentences: rounded up, as in `500 ms`, `12.4 s`, `2 min` or `3 h 20 min`.
    pub fn prose(self) -> impl fmt::Display {
        Rounded { span: self, units: &PROSE }
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        if self.0 == i64::MIN { self } else { Self::from_micros(self.0 + span.0 as i64) }
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::from_micros(self.0 + other.0)
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    fn sub(self, span: Span) -> Self {
        self.earlier_by(span)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        let micros = u64::from(duration.subsec_nanos().div_ceil(1_000));
        Self::from_micros(duration.as_secs().saturating_mul(1_000_000).saturating_add(micros))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Self::from_micros(micros(after)),
            Err(before) => Self::from_micros(-micros(before.duration())),
        }
    }
}

/// RFC 3339, or `never`. Times too far away to have a date are shown as microseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ever(), jiff::Timestamp::from_microsecond(self.0)) {
            (None, _) => f.write_str("never"),
            (_, Ok(at)) => write!(f, "{at}"),
            (_, Err(_)) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The exact value in the largest unit that fits, as in configuration files: `500ms`, `1.5s`, `24h`, `7d`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s")];
        let whole = |(size, _): &&(u64, &str)| self.0 >= *size * 2 && self.0.is_multiple_of(*size);
        match (UNITS.iter().find(whole), self.0) {
            (_, 0) => f.write_str("0s"),
            // People write 60s and 24h rather than 1m and 1d, so a unit is used from two on.
            (Some((size, unit)), micros) => write!(f, "{}{unit}", micros / size),
            (None, micros) if micros >= 1_000_000 => {
                write!(f, "{}s", decimal(micros, 1_000_000))
            }
            (None, micros) if micros >= 1_000 => write!(f, "{}ms", decimal(micros, 1_000)),
            (None, micros) => write!(f, "{micros}us"),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A span for people, rounded up. In configuration files it is exact: that is its own `Display`.
struct Rounded {
    span: Span,
    units: &'static Units,
}

/// How units are spelled, and when seconds are used.
struct Units {
    millis: &'static str,
    secs: &'static str,
    mins: &'static str,
    hours: &'static str,
    days: &'static str,
    /// Spans below this many seconds are shown in seconds.
    secs_below: u64,
    /// Multiples of this many microseconds are shown exactly, because they were set rather than measured. All others are
    /// rounded up to tenths of a second.
    exact: u64,
}

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { span, units } = self;
        let (micros, secs) = (span.0, span.as_secs_up());
        if micros == 0 {
            write!(f, "0{}", units.secs)
        } else if micros < 1_000_000 {
            write!(f, "{}{}", span.as_millis_up(), units.millis)
        } else if secs < units.secs_below {
            let shown = match micros.is_multiple_of(units.exact) {
                true => decimal(micros, 1_000_000),
                false => decimal(micros.div_ceil(100_000), 10),
            };
            write!(f, "{shown}{}", units.secs)
        } else if secs < 10_800 {
            pair(f, secs, (60, units.mins), (1, units.secs))
        } else if secs < 172_800 {
            pair(f, secs, (3_600, units.hours), (60, units.mins))
        } else {
            pair(f, secs, (86_400, units.days), (3_600, units.hours))
        }
    }
}

/// Writes `secs` in two units, as in `3m 20s`, rounded up to the smaller one.
fn pair(f: &mut fmt::Formatter<'_>, secs: u64, large: (u64, &str), small: (u64, &str)) -> fmt::Result {
    let smalls = secs.div_ceil(small.0);
    let per_large = large.0 / small.0;
    let (count, rest) = (smalls / per_large, smalls % per_large);
    write!(f, "{count}{}", large.1)?;
    if rest == 0 { Ok(()) } else { write!(f, " {rest}{}", small.1) }
}

/// `value / unit` as a decimal without trailing zeros.
fn decimal(value: u64, unit: u64) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let text = format!("{whole}.{rest:0width$}");
    text.trim_end_matches('0').to_owned()
}

/// A quarter of what fits, so that adding any span to any timestamp cannot overflow.
const LIMIT_MICROS: u64 = (i64::MAX / 4) as u64;
const COUNTDOWN: Units =
    Units { millis: "ms", secs: "s", mins: "m", hours: "h", days: "d", secs_below: 180, exact: 100_000 };
const PROSE: Units = Units {
    millis: " ms",
    secs: " s",
    mins: " min",
    hours: " h",
    days: " days",
    secs_below: 120,
    exact: 10_000,
};
const A_DURATION: &str = "a duration such as \"3s\" or \"250ms\"";
const A_TIMESTAMP: &str = "a timestamp such as \"2026-01-05T12:00:00Z\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_people_write_them() {
        for (text, micros) in [
            ("0", 0),
            ("0s", 0),
            ("3s", 3_000_000),
            ("250ms", 250_000),
            ("1.5s", 1_500_000),
            ("8h", 28_800_000_000),
            ("7d", 604_800_000_000),
            ("1h 30m", 5_400_000_000),
        ] {
            assert_eq!(Span::parse(text), Ok(Span(micros)), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_duration_is_an_error_with_an_example() {
        for text in ["", "fast", "3", "-3s", "NaN", "inf", "3 parsecs", "1mo", "9999999999h", "3s ago"] {
            let error = Span::parse(text).unwrap_err().to_string();
            assert_eq!(error, format!("{text:?}: expected a duration such as \"3s\" or \"250ms\""));
        }
        for secs in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.001, 1e300] {
            assert!(Span::from_secs_f64(secs).is_err(), "{secs}");
        }
    }

    /// B34
    #[test]
    fn decimal_seconds_round_up_and_saturate() {
        for half in ["0.5", ".5", "0.50", "00.5"] {
            assert_eq!(Span::from_decimal_secs(half), Some(Span::from_millis(500)), "{half:?}");
        }
        assert_eq!(Span::from_decimal_secs("5."), Some(Span::from_secs(5)));
        assert_eq!(Span::from_decimal_secs("1.0000001"), Some(Span(1_000_001)));
        assert_eq!(Span::from_decimal_secs("99999999999999999999999"), Some(Span::MAX));
        for text in ["", ".", "..5", "5..", "1.2.3", "-1", "-.5", "+1", "1e3", "1,5", "inf", " 1"] {
            assert_eq!(Span::from_decimal_secs(text), None, "{text:?}");
        }
    }

    #[test]
    fn coarser_units_round_up() {
        assert_eq!(Span(1).as_millis_up(), 1);
        assert_eq!(Span(1_000_001).as_secs_up(), 2);
        assert_eq!(Span::from(Duration::from_nanos(1)), Span(1));
        assert_eq!(Span(10).split(3), Span(4));
        assert_eq!(Span(10).split(0), Span::MAX);
    }

    #[test]
    fn time_saturates_and_never_stays_never() {
        assert_eq!(Timestamp::MAX + Span::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MIN - Span::MAX, Timestamp::MIN);
        assert_eq!(Timestamp::NEVER + Span::MAX, Timestamp::NEVER);
        assert_eq!(Timestamp::NEVER - Span::MAX, Timestamp::NEVER);
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(2)), Span::ZERO);
        assert_eq!(Timestamp::MAX.since(Timestamp::NEVER), Span::MAX);
        assert_eq!(Span::MAX.times(u64::MAX) + Span::MAX, Span::MAX);
    }

    #[test]
    fn spans_are_exact_in_config_and_short_for_people() {
        for (span, config, countdown, prose) in [
            (Span::ZERO, "0s", "0s", "0 s"),
            (Span(1), "1us", "1ms", "1 ms"),
            (Span(1_500), "1.5ms", "2ms", "2 ms"),
            (Span::from_millis(500), "500ms", "500ms", "500 ms"),
            (Span::from_millis(1_250), "1.25s", "1.3s", "1.25 s"),
            (Span(12_398_217), "12.398217s", "12.4s", "12.4 s"),
            (Span::from_secs(60), "60s", "60s", "60 s"),
            (Span::from_mins(2), "2m", "120s", "2 min"),
            (Span::from_secs(155), "155s", "155s", "2 min 35 s"),
            (Span::from_secs(200), "200s", "3m 20s", "3 min 20 s"),
            (Span::from_mins(10), "10m", "10m", "10 min"),
            (Span::from_secs(12_001), "12001s", "3h 21m", "3 h 21 min"),
            (Span::from_hours(24), "24h", "24h", "24 h"),
            (Span::from_hours(24 * 7), "7d", "7d", "7 days"),
        ] {
            let shown = [span.to_string(), span.countdown().to_string(), span.prose().to_string()];
            assert_eq!(shown, [config, countdown, prose]);
        }
    }

    #[test]
    fn timestamps_round_trip_as_text() {
        let at = Timestamp::parse("2026-01-05T12:00:00.25Z").unwrap();
        assert_eq!(Timestamp::parse(&at.to_string()), Ok(at));
        assert_eq!(Timestamp::parse("2026-01-05T13:00:00+01:00").unwrap() + Span::from_millis(250), at);
        assert!(Timestamp::parse("yesterday").unwrap_err().to_string().contains("expected a timestamp"));
        assert_eq!(Timestamp::NEVER.to_string(), "never");
        assert!(Timestamp::MAX.to_string().ends_with("us"));
        let system = SystemTime::UNIX_EPOCH + Duration::from_secs(3);
        assert_eq!(Timestamp::from(system), Timestamp::from_secs(3));
        assert_eq!(
            Timestamp::from(SystemTime::UNIX_EPOCH - Duration::from_secs(3)),
            Timestamp::from_secs(-3)
        );
    }
}

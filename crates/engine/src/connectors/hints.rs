//! Parses what a feed says about when to fetch it again. Invalid values and zero are ignored.

use comity_core::time::Span;

use super::Hints;

/// The hints as text, collected while a feed is parsed.
#[derive(Default)]
pub(super) struct RawHints {
    pub(super) ttl: Option<String>,
    pub(super) period: Option<String>,
    pub(super) frequency: Option<String>,
    pub(super) skip_hours: String,
    pub(super) skip_days: String,
}

impl RawHints {
    pub(super) fn parse(&self) -> Hints {
        Hints {
            ttl: self.ttl.as_deref().and_then(ttl),
            update_every: update_every(self.period.as_deref(), self.frequency.as_deref()),
            skip_hours: skip_hours(&self.skip_hours),
            skip_days: skip_days(&self.skip_days),
        }
    }
}

/// `ttl`, in whole minutes.
fn ttl(text: &str) -> Option<Span> {
    usable(Span::from_mins(text.trim().parse().ok()?))
}

/// The period divided by the frequency. Either may be missing; the defaults are daily and once.
fn update_every(period: Option<&str>, frequency: Option<&str>) -> Option<Span> {
    if period.is_none() && frequency.is_none() {
        return None;
    }
    let days = match period.unwrap_or("daily").trim().to_ascii_lowercase().as_str() {
        "hourly" => return usable(HOUR.split(times(frequency)?)),
        "daily" => 1,
        "weekly" => 7,
        "monthly" => 30,
        "yearly" => 365,
        _ => return None,
    };
    usable(Span::from_hours(24 * days).split(times(frequency)?))
}

fn times(frequency: Option<&str>) -> Option<u64> {
    frequency.unwrap_or("1").trim().parse().ok().filter(|times| *times > 0)
}

/// Hours from 0 to 23; old feeds write midnight as 24. Skipping every hour is ignored.
fn skip_hours(text: &str) -> u32 {
    let hours =
        text.split_whitespace().filter_map(|hour| hour.parse::<u32>().ok()).filter(|hour| *hour <= 24);
    let bits = hours.fold(0, |bits, hour| bits | 1 << (hour % 24));
    if bits == (1 << 24) - 1 { 0 } else { bits }
}

/// English names of days. Skipping every day is ignored.
fn skip_days(text: &str) -> u8 {
    let index = |word: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(word));
    let bits = text.split_whitespace().filter_map(index).fold(0, |bits, day| bits | 1 << day);
    if bits == (1 << DAYS.len()) - 1 { 0 } else { bits }
}

/// Less than a minute is too short to be useful, and more than 30 days is a mistake.
fn usable(span: Span) -> Option<Span> {
    (span >= Span::from_mins(1)).then_some(span.min(SPAN_MAX))
}

const HOUR: Span = Span::from_hours(1);
const SPAN_MAX: Span = Span::from_hours(24 * 30);
const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_parsed_and_limited() {
        for (text, expected) in [
            ("60", Some(Span::from_mins(60))),
            (" 5\n", Some(Span::from_mins(5))),
            ("0", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("99999999", Some(SPAN_MAX)),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(ttl(text), expected, "{text}");
        }
        for (period, frequency, hours) in [
            (Some("hourly"), Some("1"), Some(1)),
            (Some(" Hourly "), None, Some(1)),
            (Some("daily"), Some("4"), Some(6)),
            (None, Some("2"), Some(12)),
            (Some("weekly"), Some("7"), Some(24)),
            (Some("yearly"), None, Some(720)),
            (Some("fortnightly"), None, None),
            (Some("daily"), Some("0"), None),
            (Some("daily"), Some("x"), None),
            (Some("hourly"), Some("18446744073709551615"), None),
            (None, None, None),
        ] {
            assert_eq!(
                update_every(period, frequency),
                hours.map(Span::from_hours),
                "{period:?} {frequency:?}"
            );
        }
    }

    #[test]
    fn skipped_hours_and_days_become_bits() {
        assert_eq!(skip_hours(" 0 1\n23 24 25 -1 x"), 1 | 1 << 1 | 1 << 23);
        assert_eq!(skip_days(" Monday sunday Someday"), 1 | 1 << 6);
        let all: String = (0..24).map(|hour| format!("{hour} ")).collect();
        assert_eq!(skip_hours(&all), 0);
        assert_eq!(skip_days(&DAYS.join(" ")), 0);
    }
}

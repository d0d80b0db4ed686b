//! `Retry-After` (RFC 9110, section 10.2.3): delay-seconds, with decimals accepted, or an HTTP-date.

use super::parse_date;
use crate::time::{Span, Timestamp};

/// The `Retry-After` of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetryAfter {
    /// There was none.
    #[default]
    Absent,
    /// Wait this long, counted from receipt; never zero.
    After(Span),
    /// There was one, but it is malformed, negative, zero or past: the rule's own wait applies (B21).
    Unusable,
}

impl RetryAfter {
    /// Reads one header value; `date` is the moment the server wrote the answer.
    pub fn parse(text: &str, date: Timestamp) -> Self {
        let text = text.trim();
        let after = Span::from_decimal_secs(text).or_else(|| parse_date(text).map(|until| until.since(date)));
        match after {
            Some(span) if !span.is_zero() => Self::After(span),
            _ => Self::Unusable,
        }
    }
}

/// Of several values the longest usable one counts.
pub(super) fn read<'a>(values: impl Iterator<Item = &'a str>, date: Timestamp) -> RetryAfter {
    let longer = |a: RetryAfter, b: RetryAfter| match (a, b) {
        (RetryAfter::After(a), RetryAfter::After(b)) => RetryAfter::After(a.max(b)),
        (RetryAfter::After(_), _) => a,
        _ => b,
    };
    values.map(|value| RetryAfter::parse(value, date)).reduce(longer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::told;
    use super::*;

    /// B20
    #[test]
    fn seconds_decimals_and_dates_are_understood() {
        let after = |lines: &str| told(lines).retry_after;
        assert_eq!(after("Retry-After: 120"), RetryAfter::After(Span::from_secs(120)));
        assert_eq!(after("retry-after: 0.5"), RetryAfter::After(Span::from_millis(500)));
        assert_eq!(after("Retry-After: .5"), RetryAfter::After(Span::from_millis(500)));
        assert_eq!(after("Retry-After: 5."), RetryAfter::After(Span::from_secs(5)));
        assert_eq!(after("Retry-After:  7 "), RetryAfter::After(Span::from_secs(7)));
        let half_minute = RetryAfter::After(Span::from_secs(30));
        assert_eq!(after("Retry-After: Sun, 15 Nov 2026 12:00:30 GMT"), half_minute);
        assert_eq!(after("Retry-After: Sunday, 15-Nov-26 12:00:30 GMT"), half_minute);
        assert_eq!(after("Retry-After: Sun Nov 15 12:00:30 2026"), half_minute);
    }

    /// B20: the server's clock is an hour off, the wait is not.
    #[test]
    fn a_date_is_measured_against_the_answers_own_date() {
        let told = told("Date: Sun, 15 Nov 2026 11:00:00 GMT\nRetry-After: Sun, 15 Nov 2026 11:00:30 GMT");
        assert_eq!(told.retry_after, RetryAfter::After(Span::from_secs(30)));
    }

    /// B21
    #[test]
    fn what_makes_no_sense_is_kept_as_unusable() {
        for value in [
            "0",
            "0.0",
            ".0",
            "0.",
            ".",
            "-5",
            "soon",
            "1e9",
            "inf",
            "NaN",
            "5s",
            "Sat, 14 Nov 2026 12:00:00 GMT",
            "5, 6",
        ] {
            assert_eq!(told(&format!("Retry-After: {value}")).retry_after, RetryAfter::Unusable, "{value}");
        }
        assert_eq!(RetryAfter::parse("", Timestamp::from_secs(0)), RetryAfter::Unusable);
    }

    #[test]
    fn of_several_the_longest_usable_counts() {
        let several = told("Retry-After: soon\nRetry-After: 5\nRetry-After: 9\nRetry-After: 0");
        assert_eq!(several.retry_after, RetryAfter::After(Span::from_secs(9)));
    }
}

//! `Retry-After` (RFC 9110, section 10.2.3): seconds, decimals accepted, or an HTTP-date.

use super::parse_date;
use crate::time::{Span, Timestamp};

/// The `Retry-After` of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetryAfter {
    /// There was none.
    #[default]
    Absent,
    /// Wait this long after receiving the response; never zero.
    After(Span),
    /// It was malformed, negative, zero or in the past: the rule's own wait applies.
    Unusable,
}

impl RetryAfter {
    /// Parses one header value; `date` is when the server wrote the response.
    pub fn parse(text: &str, date: Timestamp) -> Self {
        let text = text.trim();
        let after = Span::from_decimal_secs(text).or_else(|| parse_date(text).map(|until| until.since(date)));
        match after {
            Some(span) if !span.is_zero() => Self::After(span),
            _ => Self::Unusable,
        }
    }
}

/// If there are several values, the longest usable one wins.
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
    use super::super::tests::hints;
    use super::*;

    /// B20
    #[test]
    fn seconds_decimals_and_dates_are_understood() {
        let after = |lines: &str| hints(lines).retry_after;
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
    fn a_date_is_relative_to_the_date_header() {
        let hints = hints("Date: Sun, 15 Nov 2026 11:00:00 GMT\nRetry-After: Sun, 15 Nov 2026 11:00:30 GMT");
        assert_eq!(hints.retry_after, RetryAfter::After(Span::from_secs(30)));
    }

    /// B21
    #[test]
    fn invalid_values_are_unusable() {
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
            assert_eq!(hints(&format!("Retry-After: {value}")).retry_after, RetryAfter::Unusable, "{value}");
        }
        assert_eq!(RetryAfter::parse("", Timestamp::from_secs(0)), RetryAfter::Unusable);
    }

    #[test]
    fn the_longest_usable_of_several_values_wins() {
        let several = hints("Retry-After: soon\nRetry-After: 5\nRetry-After: 9\nRetry-After: 0");
        assert_eq!(several.retry_after, RetryAfter::After(Span::from_secs(9)));
    }
}

//! Parses times and ages in flags.

use comity::core::time::{Span, Timestamp};

use crate::exit;

/// A time in the past: an RFC 3339 time, a date (midnight UTC), or an age such as `2d`.
pub(crate) fn since(flag: &str, text: &str, now: Timestamp) -> anyhow::Result<Timestamp> {
    let text = text.trim();
    let date = || Timestamp::parse(&format!("{text}T00:00:00Z")).ok();
    let age = || Span::parse(text).ok().map(|age| now - age);
    Timestamp::parse(text).ok().or_else(date).or_else(age).ok_or_else(|| {
        exit::usage(format!(
            "{flag} = {text:?}: expected a time such as 2026-01-05T12:00:00Z, a date such as 2026-01-05, or an age such as 2d or 12h"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_accepts_a_time_a_date_or_an_age() {
        let now = Timestamp::parse("2026-01-05T12:00:00Z").unwrap();
        for (text, expected) in [
            ("2026-01-03T01:02:03Z", "2026-01-03T01:02:03Z"),
            ("2026-01-03T01:02:03+01:00", "2026-01-03T00:02:03Z"),
            (" 2026-01-03 ", "2026-01-03T00:00:00Z"),
            ("2d", "2026-01-03T12:00:00Z"),
            ("90m", "2026-01-05T10:30:00Z"),
        ] {
            assert_eq!(since("--since", text, now).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", "yesterday", "2026-13-01", "-2d", "5"] {
            let error = since("--since", text, now).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--since = {text:?}: expected a time")), "{error}");
        }
    }
}

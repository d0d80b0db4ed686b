//! Numbers, times and lengths as people read them, and the marks with which the page's script counts down.
//!
//! What returns HTML says so; everything else is escaped by the templates.

use comity::core::time::{Span, Timestamp};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A number with separators: `1,240`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 site`, `1,240 sites`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{} {many}", count(number)),
    }
}

/// A share in percent: `0 %`, `0.4 %`, `12 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let share = 100.0 * part as f64 / whole as f64;
    match share {
        0.0 => "0 %".to_owned(),
        share if share < 0.1 => "< 0.1 %".to_owned(),
        share if share < 10.0 => format!("{share:.1} %"),
        share => format!("{share:.0} %"),
    }
}

/// A rate per second.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 0.005 => "0".to_owned(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    }
}

/// A delay; nothing is a dash.
pub(crate) fn delay(span: Span) -> String {
    if span.is_zero() { "–".to_owned() } else { span.prose().to_string() }
}

/// A size in bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut units = ["bytes", "KB", "MB", "GB", "TB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while size >= 1_000.0
        && let Some(next) = units.next()
    {
        (size, unit) = (size / 1_000.0, next);
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{size:.1} {unit}") }
}

/// The moment as HTML, with how long it takes until then; the page's script counts down.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    if at == Timestamp::MAX {
        return "until resumed".to_owned();
    }
    let left = at.since(now);
    let shown = if left.is_zero() { "now".to_owned() } else { left.countdown().to_string() };
    format!("<time datetime=\"{at}\" title=\"{at}\" data-until=\"{}\">{shown}</time>", at.as_micros() / 1_000)
}

/// The moment as HTML, with how long ago that was; the page's script counts on.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    let past = now.since(at);
    let shown = if past < Span::from_secs(1) {
        "now".to_owned()
    } else {
        format!("{} ago", Span::from_secs(past.as_micros() / 1_000_000).countdown())
    };
    format!("<time datetime=\"{at}\" title=\"{at}\" data-since=\"{}\">{shown}</time>", at.as_micros() / 1_000)
}

/// The moment as HTML: date and time to the second, in UTC.
pub(crate) fn moment(at: Timestamp) -> String {
    let text = at.to_string();
    let short: String = text.chars().take(19).collect::<String>().replace('T', " ");
    format!("<time datetime=\"{at}\" title=\"{at}\">{short}</time>")
}

/// How long something has been going on.
pub(crate) fn length(since: &Timestamp, now: &Timestamp) -> String {
    Span::from_secs(now.since(*since).as_micros() / 1_000_000).countdown().to_string()
}

/// The time of day in UTC, for an axis: `14:05`.
pub(crate) fn clock(at: Timestamp) -> String {
    at.to_string().get(11..16).unwrap_or_default().to_owned()
}

/// A text as part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

const UNRESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0, 999, 1_000, 1_234_567].map(count).as_slice());
        assert_eq!(
            (counted(1, "site", "sites"), counted(2_000, "site", "sites")),
            ("1 site".into(), "2,000 sites".into())
        );
        let shares = [(0, 0), (0, 9), (1, 2_000), (1, 50), (1, 3)].map(|(part, whole)| percent(part, whole));
        assert_eq!(shares, ["–", "0 %", "< 0.1 %", "2.0 %", "33 %"]);
        assert_eq!([0.0, 0.25, 12.34, 1_234.5].map(rate), ["0", "0.25", "12.3", "1,235"]);
        assert_eq!([12, 1_500, 2_000_000].map(bytes), ["12 bytes", "1.5 KB", "2.0 MB"]);
    }

    #[test]
    fn moments_are_relative_and_exact() {
        let now = Timestamp::from_secs(1_000_000);
        let soon = until(now + Span::from_secs(12), now);
        assert!(soon.contains("data-until=\"1000012000\"") && soon.contains(">12s<"), "{soon}");
        assert!(soon.contains("datetime=\"1970-01-12T13:46:52Z\""), "{soon}");
        assert!(until(now, now).contains(">now<"));
        assert_eq!(until(Timestamp::MAX, now), "until resumed");
        assert!(ago(now, now + Span::from_secs(90)).contains(">90s ago<"));
        assert!(moment(now).contains(">1970-01-12 13:46:40<"));
        assert_eq!(clock(now), "13:46");
    }

    #[test]
    fn anything_fits_into_a_path() {
        assert_eq!(encoded("group:a b/<c>?&"), "group:a%20b%2F%3Cc%3E%3F%26");
    }
}

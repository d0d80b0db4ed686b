//! Reading the dates that feeds and sitemaps write: RFC 3339 and its shorter forms, and RFC 822 with the
//! usual mistakes. What cannot be read is no date; no date is ever guessed.

use comity_core::time::Timestamp;
use jiff::civil;
use jiff::tz::Offset;

/// The moment `text` names, if it lies in the years 1970 to 2199. A time without a zone is taken as UTC.
pub(super) fn read(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text.len() > DATE_MAX {
        return None;
    }
    let at = numeric(text).or_else(|| worded(text))?;
    let at = Timestamp::from_micros(at.as_microsecond());
    (at >= Timestamp::from_micros(0) && at < END).then_some(at)
}

/// `2026-01-05T12:00:00Z`, and the same cut after the year, month, day, or without a zone.
fn numeric(text: &str) -> Option<jiff::Timestamp> {
    let at_utc = |time: civil::DateTime| Offset::UTC.to_timestamp(time).ok();
    let parts = || text.split('-').map(|part| part.parse().ok());
    match text.len() {
        4 => at_utc(civil::Date::new(text.parse().ok()?, 1, 1).ok()?.into()),
        7 => match parts().collect::<Option<Vec<i16>>>()?.as_slice() {
            [year, month] => at_utc(civil::Date::new(*year, i8::try_from(*month).ok()?, 1).ok()?.into()),
            _ => None,
        },
        _ => {
            let zoned = text.parse::<jiff::Timestamp>().ok();
            zoned.or_else(|| at_utc(text.parse::<civil::DateTime>().ok()?))
        }
    }
}

/// `Mon, 05 Jan 2026 12:00:00 GMT` in any order of day and month, with any words before it.
fn worded(text: &str) -> Option<jiff::Timestamp> {
    let (mut day, mut month, mut year, mut time, mut offset) = (None, None, None, None, None);
    for word in text.split(|letter: char| letter.is_whitespace() || matches!(letter, ',' | '(' | ')')) {
        let number = word.parse::<i16>().ok().filter(|_| word.bytes().all(|byte| byte.is_ascii_digit()));
        match number {
            Some(number) if day.is_none() && word.len() <= 2 => day = i8::try_from(number).ok(),
            Some(number) if year.is_none() => year = full_year(number, word.len()),
            _ if time.is_none() && word.contains(':') => time = Some(clock(word)?),
            _ if time.is_some() && offset.is_none() => offset = zone(word),
            _ => month = month.or_else(|| month_named(word)),
        }
    }
    let date = civil::Date::new(year?, month?, day?).ok()?;
    let (time, offset) = (time.unwrap_or(civil::Time::midnight()), offset.unwrap_or(0));
    Offset::from_seconds(offset).ok()?.to_timestamp(date.to_datetime(time)).ok()
}

/// Two-digit years are of the century that RFC 2822 says.
fn full_year(number: i16, digits: usize) -> Option<i16> {
    match digits {
        2 if number < 50 => Some(2000 + number),
        2 | 3 => Some(1900 + number),
        4 => Some(number),
        _ => None,
    }
}

/// `12:00` or `12:00:00`; the hour 24 and the second 60 are those just before.
fn clock(word: &str) -> Option<civil::Time> {
    let mut parts = word.split('.').next()?.split(':').map(|part| part.parse::<i8>().ok());
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().unwrap_or(Some(0))?;
    civil::Time::new(if hour == 24 { 0 } else { hour }, minute, second.min(59), 0).ok()
}

/// Seconds east of Greenwich.
fn zone(word: &str) -> Option<i32> {
    if let Some(hours) =
        ZONES.iter().find_map(|(name, hours)| name.eq_ignore_ascii_case(word).then_some(hours))
    {
        return Some(hours * 3_600);
    }
    let sign = if word.starts_with('-') { -1 } else { 1 };
    let digits = word.strip_prefix(['+', '-'])?.replace(':', "");
    if digits.len() != 4 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits: i32 = digits.parse().ok()?;
    Some(sign * (digits / 100 * 3_600 + digits % 100 * 60))
}

/// Short and long English names alike.
fn month_named(word: &str) -> Option<i8> {
    let start = word.get(..3)?.to_ascii_lowercase();
    let index = MONTHS.iter().position(|month| *month == start)?;
    i8::try_from(index + 1).ok()
}

const DATE_MAX: usize = 64;
/// 2200-01-01T00:00:00Z
const END: Timestamp = Timestamp::from_secs(7_258_118_400);
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const ZONES: [(&str, i32); 16] = [
    ("GMT", 0),
    ("UT", 0),
    ("UTC", 0),
    ("Z", 0),
    ("EST", -5),
    ("EDT", -4),
    ("CST", -6),
    ("CDT", -5),
    ("MST", -7),
    ("MDT", -6),
    ("PST", -8),
    ("PDT", -7),
    ("BST", 1),
    ("CET", 1),
    ("CEST", 2),
    ("JST", 9),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_feeds_write_them() {
        for text in [
            "2026-01-05T12:00:00Z",
            " 2026-01-05T13:00:00+01:00\n",
            "2026-01-05T13:00:00+0100",
            "2026-01-05T12:00Z",
            "2026-01-05 12:00:00",
            "2026-01-05T12:00:00.000000Z",
            "Mon, 05 Jan 2026 12:00:00 GMT",
            "Monday, 5 January 2026 12:00 UT",
            "Thu, 05 Jan 2026 07:00:00 EST",
            "05 Jan 26 12:00:00 Z",
            "Jan 5, 2026 12:00:00",
            "Mon, 05 Jan 2026 12:00:00 -0000",
            "lun., 05 Jan 2026 13:00:00 +01:00",
            "Mon, 05 Jan 2026 12:00:00 +0000 (UTC)",
        ] {
            assert_eq!(
                read(text).map(|at| at.to_string()).as_deref(),
                Some("2026-01-05T12:00:00Z"),
                "{text}"
            );
        }
        for (text, expected) in [
            ("2026", "2026-01-01T00:00:00Z"),
            ("2026-03", "2026-03-01T00:00:00Z"),
            ("2026-03-04", "2026-03-04T00:00:00Z"),
            ("04 Mar 2026", "2026-03-04T00:00:00Z"),
            ("Wed, 04 Mar 2026 24:00:00 GMT", "2026-03-04T00:00:00Z"),
        ] {
            assert_eq!(read(text).map(|at| at.to_string()).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_or_out_of_all_reason_is_dropped() {
        for text in [
            "",
            "yesterday",
            "2026-13-01",
            "0001-01-01T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "2200-01-01T00:00:00Z",
            "99 Jan 2026",
            "5 Jan",
            "12:00",
            "5 Foo 2026",
            "-999",
            "+2026-01",
            "5 Jan 2026 99:99:99",
            "٣ Jan 2026",
            "5 Jan 32767",
            "éé Jan",
            "5 Jan 2026 1:2:3:4 é",
        ] {
            let read = read(text);
            assert!(read.is_none() || text.contains("1:2:3"), "{text} {read:?}");
        }
        assert_eq!(read(&"1".repeat(100_000)), None);
        assert!(read("2199-12-31T23:59:59Z").is_some());
    }
}

//! Dates as feeds write them, and dates that must be rejected: a parsed date is always the one that was meant.

use jiff::civil::DateTime;
use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Option<String> {
    read(text).map(|at| at.to_string())
}

#[test]
fn dates_are_parsed_as_feeds_write_them() {
    for text in [
        "2026-01-05T12:00:00Z",
        " 2026-01-05T13:00:00+01:00\n",
        "2026-01-05T13:00:00+0100",
        "2026-01-05T13:00:00+01",
        "2026-01-05t12:00z",
        "2026-01-05 12:00:00",
        "2026-01-05 04:00:00 -0800",
        "2026-01-05 04:00:00 America/Los_Angeles",
        "2026-01-05T07:00:00[America/New_York]",
        "2026-01-05T13:00:00+01:00[Europe/Paris]",
        "2026-01-05T12:00:00.000000Z",
        "2026-01-05T12:00:00,0Z",
        "20260105T120000Z",
        "2026/01/05 12:00:00",
        "Mon, 05 Jan 2026 12:00:00 GMT",
        "Monday, 5 January 2026 12:00 UT",
        "Thu, 05 Jan 2026 07:00:00 EST",
        "Mon, 05 Jan 2026 05:00:00 GMT-07:00",
        "Mon, 05 Jan 2026 15:00:00 MSK",
        "Mon, 05 Jan 2026 14:00:00 MEST",
        "Mon, 5 Jan 2026 4:00 America/Los_Angeles",
        "05 Jan 26 12:00:00 Z",
        "05-Jan-26 12:00:00 UTC",
        "Jan 5, 2026 12:00:00",
        "January 5th, 2026 at 12:00 PM",
        "Mon Jan  5 12:00:00 2026",
        "Mon Jan 5 07:00:00 EST 2026",
        "Mon Jan 5 04:00:00 America/Los_Angeles 2026",
        "Mon Jan 05 13:00:00 +0100 2026",
        "Mon Jan 5 12:00:00 2026 UTC",
        "Mon Jan 05 2026 13:00:00 GMT+0100 (Central European Standard Time)",
        "Mon, 05 Jan 2026 12:00:00 -0000",
        "Mon, 05 Jan 2026 12:00:00 +0000 (UTC)",
        "Mon, 05 Jan 2026 07:00:00 -0500 EST",
        "Mon, 05 Jan 2026 07:00:00 (EST)",
        "lun., 05 Jan 2026 13:00:00 +01:00",
        "lun. 5 janv. 2026 13:00:00 CET",
        "Mo, 5. Januar 2026 um 13:00 MEZ",
        "lunes, 5 de enero de 2026 13:00 +01:00",
        "segunda-feira, 5 de janeiro de 2026 12:00",
        "Пн, 05 янв 2026 15:00:00 +0300",
        "Pzt, 05 Oca 2026 15:00:00 +0300",
        "Thứ Hai, 05 Jan 2026 12:00:00 GMT",
    ] {
        assert_eq!(parsed(text).as_deref(), Some("2026-01-05T12:00:00Z"), "{text}");
    }
}

#[test]
fn dates_without_a_time_mean_midnight() {
    for (text, expected) in [
        ("2026", "2026-01-01T00:00:00Z"),
        ("2026-03", "2026-03-01T00:00:00Z"),
        ("2026-03-04", "2026-03-04T00:00:00Z"),
        ("04 Mar 2026", "2026-03-04T00:00:00Z"),
        ("Mar 4, 2026", "2026-03-04T00:00:00Z"),
        ("4 Mar 99", "1999-03-04T00:00:00Z"),
    ] {
        assert_eq!(parsed(text).as_deref(), Some(expected), "{text}");
    }
}

/// Regression: `Mar` was taken for March, `PM` for an unknown zone, and unknown zones for UTC.
#[test]
fn ambiguous_words_are_understood_in_context() {
    for (text, expected) in [
        ("Mar, 05 Nov 2024 10:00:00 +0100", "2024-11-05T09:00:00Z"),
        ("mar 05 nov 2024", "2024-11-05T00:00:00Z"),
        ("mar., 05 nov. 2024 10:00:00 +0100", "2024-11-05T09:00:00Z"),
        ("Jun, 05 Nov 2024", "2024-11-05T00:00:00Z"),
        ("Tue, 05 Nov 2024 1:55 PM EST", "2024-11-05T18:55:00Z"),
        ("Nov 5, 2024 1:55 p.m. EST", "2024-11-05T18:55:00Z"),
        ("11 Jan 2006 12:05 AM PST", "2006-01-11T08:05:00Z"),
        ("Tue, 05 Nov 2024 10:00:00 GMT-07:00", "2024-11-05T17:00:00Z"),
        ("Tue, 05 Nov 2024 10:00:00 +01", "2024-11-05T09:00:00Z"),
        ("Thu, 05 Jul 2012 10:00:00 MSK", "2012-07-05T06:00:00Z"),
        ("Fri, 05 Jul 2024 10:00:00 MEST", "2024-07-05T08:00:00Z"),
        ("Fri, 05 Jul 2024 10:00:00 America/Los_Angeles", "2024-07-05T17:00:00Z"),
        ("2006-01-11 16:42:55 -0800", "2006-01-12T00:42:55Z"),
        ("5 Jan 2026 12:00:00.25 GMT", "2026-01-05T12:00:00.25Z"),
    ] {
        assert_eq!(parsed(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn a_date_that_is_not_understood_completely_is_rejected() {
    for text in [
        "",
        "yesterday",
        "2026-13-01",
        "2026-02-29",
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
        // Which is the day and which the month?
        "05/01/2026",
        "05.01.2026",
        "26-01-05",
        "Jan 05 26",
        // Which zone is that?
        "Mon, 05 Jan 2026 12:00:00 XYZ",
        "Mon, 05 Jan 2026 12:00:00 IST",
        "Mon, 05 Jan 2026 12:00:00 GMTX",
        "Mon, 05 Jan 2026 12:00:00 Mars/Olympus",
        "Mon, 05 Jan 2026 12:00:00 (XYZ)",
        "Mon Jan 5 12:00:00 XYZ 2026",
        "2026-01-05T12:00:00[Mars/Olympus]",
        "2026-01-05 12:00:00 -0800 EST",
        "2026-01-05T12:00:00+99:00",
        // Which hour is that?
        "5 Jan 2026 13:00 AM",
        "5 Jan 2026 0:30 PM",
        "Wed, 04 Mar 2026 24:00:00 GMT",
        "2026-03-04T24:00:00Z",
        "2024-03-10 02:30 America/New_York",
        "2024-11-03 01:30 America/New_York",
        // What is the rest?
        "5 Jan 2026 or 6 Jan 2026",
        "5 Jan 2026 12:00 GMT 7",
        "2026-01-05T",
        "2026-01-05T12",
        "2026-01-05 12:00 tomorrow",
        "2026-01-05-06",
        "not before the 5 Jan 2026",
    ] {
        assert_eq!(parsed(text), None, "{text}");
    }
    assert_eq!(read(&"1".repeat(100_000)), None);
    assert!(read("2199-12-31T23:59:59Z").is_some());
}

const DAYS: [[&str; 4]; 7] = [
    ["Mon", "lun.", "Mo", "пн"],
    ["Tue", "mar.", "Di", "вт"],
    ["Wed", "mer.", "Mi", "ср"],
    ["Thu", "jeu.", "Do", "чт"],
    ["Fri", "ven.", "Fr", "пт"],
    ["Sat", "sam.", "Sa", "сб"],
    ["Sun", "dim.", "So", "вс"],
];
const MONTHS: [[&str; 4]; 12] = [
    ["Jan", "janv.", "Januar", "января"],
    ["Feb", "févr.", "Feb.", "февраля"],
    ["Mar", "mars", "März", "марта"],
    ["Apr", "avr.", "April", "апреля"],
    ["May", "mai", "Mai", "мая"],
    ["Jun", "juin", "Juni", "июня"],
    ["Jul", "juil.", "Juli", "июля"],
    ["Aug", "août", "August", "августа"],
    ["Sep", "sept.", "Sept.", "сентября"],
    ["Oct", "oct.", "Okt.", "октября"],
    ["Nov", "nov.", "November", "ноября"],
    ["Dec", "déc.", "Dez.", "декабря"],
];
const PLACES: [&str; 4] = ["America/Los_Angeles", "Europe/Paris", "Asia/Kolkata", "Australia/Adelaide"];

/// The local time at an offset of this many minutes.
fn shown(at: i64, minutes: i32) -> DateTime {
    jiff::tz::Offset::from_seconds(minutes * 60)
        .unwrap()
        .to_datetime(jiff::Timestamp::from_second(at).unwrap())
}

/// A time of day in the format that `kind` selects.
fn clock_of(time: DateTime, kind: usize) -> String {
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    match kind % 3 {
        0 => format!("{hour:02}:{minute:02}:{second:02}"),
        1 => format!("{hour}:{minute:02}:{second:02}"),
        _ => {
            let half = if hour < 12 { "AM" } else { "PM" };
            format!("{}:{minute:02}:{second:02} {half}", (hour + 11) % 12 + 1)
        }
    }
}

fn offset_of(minutes: i32, kind: usize) -> String {
    let (sign, hours, rest) = (if minutes < 0 { '-' } else { '+' }, minutes.abs() / 60, minutes.abs() % 60);
    match kind % 5 {
        0 => format!("{sign}{hours:02}{rest:02}"),
        1 => format!("{sign}{hours:02}:{rest:02}"),
        2 => format!("GMT{sign}{hours:02}:{rest:02}"),
        3 if rest == 0 => format!("{sign}{hours:02}"),
        _ => format!("UTC{sign}{hours}:{rest:02}"),
    }
}

/// A date without its time, in the format that `kind` selects.
fn day_of(time: DateTime, language: usize, kind: usize) -> String {
    let (year, day) = (time.year(), time.day());
    let month = MONTHS[usize::try_from(time.month() - 1).unwrap()][language];
    let weekday = DAYS[usize::try_from(time.weekday().to_monday_zero_offset()).unwrap()][language];
    match kind % 7 {
        0 => format!("{weekday}, {day:02} {month} {year}"),
        1 => format!("{weekday} {day} {month} {year}"),
        2 => format!("{day}. {month} {year}"),
        3 => format!("{month} {day}, {year}"),
        4 => format!("{year}-{:02}-{day:02}", time.month()),
        5 => format!("{year}/{:02}/{day:02}", time.month()),
        _ => format!("{day} de {month} de {year}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// In every format, an instant is parsed as that instant.
    #[test]
    fn every_format_is_parsed_correctly(
        at in 0_i64..7_258_000_000,
        quarters in -48_i32..=56,
        language in 0_usize..4,
        kinds in (0_usize..7, 0_usize..3, 0_usize..5),
    ) {
        let time = shown(at, quarters * 15);
        let text = format!(
            "{} {} {}", day_of(time, language, kinds.0), clock_of(time, kinds.1), offset_of(quarters * 15, kinds.2)
        );
        let at = Timestamp::from_secs(at);
        prop_assert_eq!(read(&text), Some(at), "{}", &text);
        // With an unknown zone it is rejected.
        for zone in ["XYZ", "IST", "Here/There", "+2500", "- 1"] {
            let text = format!("{} {} {zone}", day_of(time, language, kinds.0), clock_of(time, kinds.1));
            prop_assert_eq!(read(&text), None, "{}", &text);
        }
    }

    /// A zone of the tz database is never an hour off: ambiguous local times are rejected.
    #[test]
    fn tz_database_zones_have_the_right_offset(at in 0_i64..7_258_000_000, place in 0_usize..4, kind in 0_usize..6) {
        let zone = jiff::tz::TimeZoneDatabase::bundled().get(PLACES[place]).unwrap();
        let time = zone.to_datetime(jiff::Timestamp::from_second(at).unwrap());
        let text = format!("{} {} {}", day_of(time, 0, kind), clock_of(time, 0), PLACES[place]);
        let read = read(&text);
        prop_assert!(read.is_none_or(|read| read == Timestamp::from_secs(at)), "{} {:?}", text, read);
        let is_ambiguous = zone.to_ambiguous_timestamp(time).is_ambiguous();
        prop_assert_eq!(read.is_none(), is_ambiguous, "{}", text);
    }

    /// Shuffled tokens never cause a panic, nor a date in a year that isn't among them.
    #[test]
    fn shuffled_tokens_never_produce_an_invented_date(words in prop::collection::vec(
        prop::sample::select(vec![
            "Mar", "05", "Nov", "2024", ",", "12:00", "PM", "EST", "-0800", "GMT", "+01", "24", "1:55", "/", "T", "Z", "-",
            "America/Los_Angeles", "11", ":", ".", "(", ")", "de", "é", "99",
        ]),
        0..9,
    ), gap in " ?") {
        let text = words.join(&gap);
        if let Some(at) = read(&text) {
            let year = at.to_string()[..4].to_owned();
            let near = ["2024", "2005", "2011", "2023", "2025", "2012", "1999", "2000", "2006"];
            prop_assert!(near.contains(&year.as_str()), "{text} {at}");
        }
    }
}

//! Parses time zones: offsets, unambiguous abbreviations, and names of the tz database.
//!
//! A date with an unknown or ambiguous zone (`IST` is India, Israel and Ireland) is rejected: a wrong hour is worse
//! than no date.

use std::sync::LazyLock;

use jiff::civil::{DateTime, date};
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};

use super::lex::Tokens;

/// A time zone.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Zone {
    /// A fixed offset in minutes, positive to the east.
    Minutes(i32),
    /// Moscow time: three hours, and four from spring 2011 to autumn 2014.
    Moscow,
    /// A zone of the tz database.
    Place(TimeZone),
}

impl Zone {
    /// The instant of a local time in this zone; `None` if it does not exist or is ambiguous.
    pub(super) fn instant(&self, time: DateTime) -> Option<jiff::Timestamp> {
        let minutes = match self {
            Self::Minutes(minutes) => *minutes,
            Self::Moscow
                if (date(2011, 3, 27).at(2, 0, 0, 0)..date(2014, 10, 26).at(2, 0, 0, 0)).contains(&time) =>
            {
                240
            }
            Self::Moscow => 180,
            Self::Place(place) => return place.to_ambiguous_timestamp(time).unambiguous().ok(),
        };
        Offset::from_seconds(minutes * 60).ok()?.to_timestamp(time).ok()
    }
}

/// Parses a zone in any form; `None` if it is unknown or contradicts itself.
pub(super) fn read(tokens: &mut Tokens<'_>, time: DateTime) -> Option<Zone> {
    if let Some(minutes) = tokens.take(offset) {
        // `-0800 PST`: the name has to agree.
        return match tokens.word() {
            None => Some(Zone::Minutes(minutes)),
            Some(name) => agreed(Zone::Minutes(minutes), named(name)?, time),
        };
    }
    let name = tokens.word()?;
    match (tokens.take(offset), is_utc(name)) {
        // `GMT-07:00` is an offset of seven hours.
        (Some(minutes), true) => Some(Zone::Minutes(minutes)),
        (Some(minutes), false) => agreed(Zone::Minutes(minutes), named(name)?, time),
        (None, _) => named(name),
    }
}

/// The offset, if the name means the same instant.
fn agreed(offset: Zone, named: Zone, time: DateTime) -> Option<Zone> {
    (offset.instant(time)? == named.instant(time)?).then_some(offset)
}

/// `+0100`, `+01:00`, `+01` or `+1`, in minutes.
fn offset(tokens: &mut Tokens<'_>) -> Option<i32> {
    let sign = match (tokens.sign('+'), tokens.sign('-')) {
        (Some(()), None) => 1,
        (None, Some(())) => -1,
        _ => return None,
    };
    let (hours, minutes) = match tokens.adjacent_number(1..=4)? {
        (number, 4) => (number / 100, number % 100),
        (hours, 1 | 2) => {
            let minutes = tokens.take(|tokens| {
                tokens.adjacent_sign(':')?;
                tokens.adjacent_number(2..=2)
            });
            // A colon that is not followed by minutes makes the offset invalid.
            if minutes.is_none() && tokens.adjacent_sign(':').is_some() {
                return None;
            }
            (hours, minutes.map_or(0, |(minutes, _)| minutes))
        }
        _ => return None,
    };
    let offset = hours * 60 + minutes;
    (minutes < 60 && offset <= OFFSET_MAX).then_some(sign * offset)
}

fn is_utc(name: &str) -> bool {
    ["GMT", "UTC", "UT"].iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn named(name: &str) -> Option<Zone> {
    if name.contains('/') {
        return PLACES.get(name).ok().map(Zone::Place);
    }
    if name.eq_ignore_ascii_case("MSK") {
        return Some(Zone::Moscow);
    }
    let known = |(names, _): &&(&str, i32)| names.split(' ').any(|known| known.eq_ignore_ascii_case(name));
    ZONES.iter().find(known).map(|(_, minutes)| Zone::Minutes(*minutes))
}

/// The database bundled with the program, so that a date means the same on every machine.
static PLACES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The largest offset in use.
const OFFSET_MAX: i32 = 14 * 60;

/// Abbreviations with a single meaning, by RFC 822 or by usage. Military letters other than `Z` are not included: RFC
/// 822 had their signs wrong, so their meaning is unclear.
const ZONES: [(&str, i32); 27] = [
    ("Z GMT UTC UT WET", 0),
    ("BST CET MET MEZ WEST WAT", 60),
    ("CEST MEST MESZ EET CAT SAST", 120),
    ("EEST EAT TRT", 180),
    ("MSD", 240),
    ("PKT", 300),
    ("NPT", 345),
    ("ICT WIB", 420),
    ("AWST HKT SGT PHT WITA", 480),
    ("JST KST WIT", 540),
    ("ACST", 570),
    ("AEST", 600),
    ("ACDT", 630),
    ("AEDT", 660),
    ("NZST", 720),
    ("NZDT", 780),
    ("NDT", -150),
    ("BRT ART", -180),
    ("NST", -210),
    ("EDT", -240),
    ("EST CDT", -300),
    ("CST MDT", -360),
    ("MST PDT", -420),
    ("PST AKDT", -480),
    ("AKST", -540),
    ("HST", -600),
    ("SST", -660),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The offset in hours at noon of a day, if `text` is a valid zone.
    fn hours(text: &str, day: &str) -> Option<f64> {
        let time: DateTime = format!("{day}T12:00").parse().unwrap();
        let mut tokens = Tokens::new(text);
        let zone = read(&mut tokens, time).filter(|_| tokens.is_over())?;
        let at_utc = Offset::UTC.to_timestamp(time).unwrap();
        Some((at_utc.as_second() - zone.instant(time)?.as_second()) as f64 / 3_600.0)
    }

    #[test]
    fn zones_are_parsed_in_every_form() {
        for (text, expected) in [
            ("Z", 0.0),
            ("gmt", 0.0),
            ("+0000", 0.0),
            ("-00:00", 0.0),
            ("+01", 1.0),
            ("+1", 1.0),
            ("-0800", -8.0),
            ("+05:30", 5.5),
            ("GMT-07:00", -7.0),
            ("UTC+1", 1.0),
            ("GMT +0530", 5.5),
            ("-0500 EST", -5.0),
            ("EST-0500", -5.0),
            ("MSK", 3.0),
            ("MEST", 2.0),
            ("NST", -3.5),
            ("America/Los_Angeles", -8.0),
            ("america/los_angeles", -8.0),
            ("Asia/Kathmandu", 5.75),
            ("+0100 Europe/Paris", 1.0),
        ] {
            assert_eq!(hours(text, "2024-11-05"), Some(expected), "{text}");
        }
        assert_eq!(hours("America/Los_Angeles", "2024-07-05"), Some(-7.0));
        assert_eq!(hours("MSK", "2012-07-05"), Some(4.0));
    }

    #[test]
    fn unknown_and_contradictory_zones_are_rejected() {
        for text in [
            "",
            "XYZ",
            "IST",
            "AST",
            "A",
            "Foo/Bar",
            "America/",
            "+",
            "+ 1",
            "+123",
            "+12345",
            "+1500",
            "+0160",
            "+01:6",
            "+01:00:00",
            "PST +0100",
            "-0800 EST",
            "EST-0800",
            "+0100 XYZ",
            "EST EDT",
            "Etc/GMT+5",
        ] {
            assert_eq!(hours(text, "2024-11-05"), None, "{text:?}");
        }
    }

    #[test]
    fn nonexistent_and_ambiguous_local_times_are_rejected() {
        let at = |time: &str| named("America/New_York").unwrap().instant(time.parse().unwrap());
        assert_eq!(at("2024-03-10T02:30"), None);
        assert_eq!(at("2024-11-03T01:30"), None);
        assert!(at("2024-11-03T03:30").is_some());
    }
}

//! Parses the dates in feeds and sitemaps: RFC 3339 and its shorter forms, RFC 822 with the usual mistakes, and dates
//! in other languages. A date that is not understood completely is rejected rather than guessed, because a wrong date
//! would hide an item or keep it at the top forever.
//!
//! `lex` splits a date into words and numbers, `names` knows months, `zone` offsets from UTC.

mod lex;
mod names;
mod zone;

use comity_core::time::Timestamp;
use jiff::civil::{Date, Time};

use lex::Tokens;
use zone::Zone;

/// Parses a date in the years 1970 to 2199. A date without a time means midnight, and a time without a zone is UTC.
pub(super) fn read(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text.len() > DATE_MAX {
        return None;
    }
    let mut tokens = Tokens::new(text);
    let at = tokens.take(numeric).or_else(|| worded(&mut tokens))?;
    let at = Timestamp::from_micros(at.as_microsecond());
    (at >= Timestamp::from_micros(0) && at < END).then_some(at)
}

/// `2026-01-05T12:00:00Z`, `2026-01-05 12:00:00 -0800`, also ending after the year, month or day.
fn numeric(tokens: &mut Tokens<'_>) -> Option<jiff::Timestamp> {
    let date = match tokens.number(4..=8)? {
        (year, 4) => match ['-', '/'].into_iter().find(|sign| tokens.adjacent_sign(*sign).is_some()) {
            None => date_of(year, 1, 1).filter(|_| tokens.is_over())?,
            Some(sign) => {
                let (month, _) = tokens.adjacent_number(1..=2)?;
                match tokens.adjacent_sign(sign) {
                    Some(()) => date_of(year, month, tokens.adjacent_number(1..=2)?.0)?,
                    None => date_of(year, month, 1).filter(|_| tokens.is_over() && sign == '-')?,
                }
            }
        },
        (digits, 8) => date_of(digits / 10_000, digits / 100 % 100, digits % 100)?,
        _ => return None,
    };
    let joined = tokens.take(|tokens| tokens.word()?.eq_ignore_ascii_case("T").then_some(()));
    finish(tokens, date, if joined.is_some() { TimeOfDay::Required } else { TimeOfDay::Optional })
}

/// `Mon, 05 Jan 2026 12:00:00 GMT`, `January 5, 2026 1:55 PM EST`, `Mon Jan 5 12:00:00 2026`, `5 de enero de 2026`.
fn worded(tokens: &mut Tokens<'_>) -> Option<jiff::Timestamp> {
    for _ in 0..=LEAD_MAX {
        let at =
            tokens.take(day_first).or_else(|| tokens.take(month_first)).or_else(|| tokens.take(year_last));
        if at.is_some() {
            return at;
        }
        // Skip the day of the week, in any language: `Mar` is a Tuesday if another month follows.
        tokens.word()?;
        let _ = tokens.sign('.');
        let _ = tokens.sign(',');
    }
    None
}

/// `05 Jan 2026`, `05-Jan-26`, `5. ledna 2026`.
fn day_first(tokens: &mut Tokens<'_>) -> Option<jiff::Timestamp> {
    let (day, _) = tokens.number(1..=2)?;
    ordinal(tokens);
    between(tokens);
    let month = tokens.word().and_then(names::month)?;
    between(tokens);
    let (year, digits) = tokens.number(2..=4)?;
    let date = date_of(full_year(year, digits), month.into(), day)?;
    finish(tokens, date, TimeOfDay::Optional)
}

/// `January 5, 2026`.
fn month_first(tokens: &mut Tokens<'_>) -> Option<jiff::Timestamp> {
    let (month, day) = month_day(tokens)?;
    let _ = tokens.sign(',');
    let (year, _) = tokens.number(4..=4)?;
    finish(tokens, date_of(year, month, day)?, TimeOfDay::Optional)
}

/// `Jan 5 12:00:00 2026`, perhaps with a zone before the year or after it.
fn year_last(tokens: &mut Tokens<'_>) -> Option<jiff::Timestamp> {
    let (month, day) = month_day(tokens)?;
    let time = clock(tokens)?;
    if let Some((year, _)) = tokens.number(4..=4) {
        return zoned(tokens, date_of(year, month, day)?.to_datetime(time));
    }
    // A zone with both a name and an offset is checked in an arbitrary year, because the year comes after it.
    let zone = zone::read(tokens, Date::constant(2000, 1, 1).to_datetime(time))?;
    let (year, _) = tokens.number(4..=4)?;
    zone.instant(date_of(year, month, day)?.to_datetime(time)).filter(|_| tokens.is_over())
}

fn month_day(tokens: &mut Tokens<'_>) -> Option<(i32, i32)> {
    let month = tokens.word().and_then(names::month)?;
    let _ = tokens.sign('.');
    let (day, _) = tokens.number(1..=2)?;
    ordinal(tokens);
    Some((month.into(), day))
}

/// Whether a date must be followed by a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeOfDay {
    Required,
    Optional,
}

/// Parses what follows a date: an optional time with an optional zone, and nothing else.
fn finish(tokens: &mut Tokens<'_>, date: Date, time: TimeOfDay) -> Option<jiff::Timestamp> {
    if tokens.is_over() && time == TimeOfDay::Optional {
        return Zone::Minutes(0).instant(date.to_datetime(Time::midnight()));
    }
    if time == TimeOfDay::Optional {
        let _ = tokens.sign(',').or_else(|| tokens.sign('-'));
        let _ = tokens.take(|tokens| AT.contains(&tokens.word()?.to_lowercase().as_str()).then_some(()));
    }
    let time = clock(tokens)?;
    zoned(tokens, date.to_datetime(time))
}

/// The instant of `time` in the zone that follows, or in UTC if none does.
fn zoned(tokens: &mut Tokens<'_>, time: jiff::civil::DateTime) -> Option<jiff::Timestamp> {
    if tokens.is_over() {
        return Zone::Minutes(0).instant(time);
    }
    // Text in brackets explains the offset before it, and has to be understood only if there is no offset.
    match tokens.take(|tokens| zone::read(tokens, time)) {
        Some(zone) => {
            let explained = tokens.sign('(').or_else(|| tokens.sign('[')).is_some();
            zone.instant(time).filter(|_| tokens.is_over() || explained && tokens.ends_with_bracket())
        }
        None => {
            tokens.sign('(').or_else(|| tokens.sign('['))?;
            let zone = zone::read(tokens, time)?;
            tokens.sign(')').or_else(|| tokens.sign(']'))?;
            zone.instant(time).filter(|_| tokens.is_over())
        }
    }
}

/// `12:00`, `12:00:00`, `12:00:00.5`, `1:55 PM`, `120000`. A leap second counts as second 59.
fn clock(tokens: &mut Tokens<'_>) -> Option<Time> {
    let (hour, minute, second, nanos) = match tokens.number(1..=6)? {
        (hour, 1 | 2) => {
            tokens.adjacent_sign(':')?;
            let (minute, _) = tokens.adjacent_number(2..=2)?;
            match tokens.adjacent_sign(':') {
                Some(()) => (hour, minute, tokens.adjacent_number(2..=2)?.0, fraction(tokens)?),
                None => (hour, minute, 0, 0),
            }
        }
        (digits, 6) => (digits / 10_000, digits / 100 % 100, digits % 100, fraction(tokens)?),
        _ => return None,
    };
    let hour = match tokens.take(half_of_day) {
        None => hour,
        Some(Half::Morning) if hour == 12 => 0,
        Some(Half::Morning) if hour < 12 => hour,
        Some(Half::Evening) if (1..12).contains(&hour) => hour + 12,
        Some(Half::Evening) if (12..24).contains(&hour) => hour,
        Some(_) => return None,
    };
    let small = |number: i32| i8::try_from(number).ok();
    if second > 60 {
        return None;
    }
    Time::new(small(hour)?, small(minute)?, small(second.min(59))?, nanos).ok()
}

/// The fraction of a second in nanoseconds; further digits are ignored.
fn fraction(tokens: &mut Tokens<'_>) -> Option<i32> {
    let digits = tokens.take(|tokens| {
        tokens.adjacent_sign('.').or_else(|| tokens.adjacent_sign(','))?;
        match tokens.next_adjacent()? {
            lex::Token::Number(digits) => Some(digits),
            _ => None,
        }
    });
    let digits = digits.unwrap_or("0");
    format!("{:0<9}", digits.get(..9).unwrap_or(digits)).parse().ok()
}

enum Half {
    Morning,
    Evening,
}

/// `AM`, `pm`, `a.m.`
fn half_of_day(tokens: &mut Tokens<'_>) -> Option<Half> {
    let mut word = tokens.word()?.to_ascii_lowercase();
    if word.len() == 1 {
        tokens.adjacent_sign('.')?;
        word.push_str(&tokens.word()?.to_ascii_lowercase());
        let _ = tokens.adjacent_sign('.');
    }
    match word.as_str() {
        "am" => Some(Half::Morning),
        "pm" => Some(Half::Evening),
        _ => None,
    }
}

/// Skips the ending of ordinals such as `1st`, `2nd`, `1er`, `3º`.
fn ordinal(tokens: &mut Tokens<'_>) {
    let _ = tokens.take(|tokens| match tokens.next_adjacent()? {
        lex::Token::Word(word) => ORDINALS.contains(&word.to_lowercase().as_str()).then_some(()),
        _ => None,
    });
}

/// Skips separators between day, month and year.
fn between(tokens: &mut Tokens<'_>) {
    let _ = tokens.sign('-').or_else(|| tokens.sign('.')).or_else(|| tokens.sign(','));
    let _ = tokens.take(|tokens| OF.contains(&tokens.word()?.to_lowercase().as_str()).then_some(()));
}

fn date_of(year: i32, month: i32, day: i32) -> Option<Date> {
    Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}

/// Expands years of two or three digits as RFC 2822 specifies.
fn full_year(number: i32, digits: usize) -> i32 {
    match digits {
        2 if number < 50 => 2000 + number,
        2 | 3 => 1900 + number,
        _ => number,
    }
}

const DATE_MAX: usize = 100;
/// How many words may precede a date; `Thứ Ba` is one weekday.
const LEAD_MAX: usize = 2;
const ORDINALS: [&str; 7] = ["st", "nd", "rd", "th", "er", "º", "ª"];
const OF: [&str; 4] = ["of", "de", "d", "del"];
const AT: [&str; 5] = ["at", "um", "kl", "a", "à"];
/// 2200-01-01T00:00:00Z
const END: Timestamp = Timestamp::from_secs(7_258_118_400);

#[cfg(test)]
mod tests;

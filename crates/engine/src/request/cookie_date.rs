//! Parses the dates in cookies, which come in many formats (RFC 6265, section 5.1.1).

/// Seconds since 1970; `None` if the date is invalid.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (mut time, mut day, mut month, mut year) = (None, None, None, None);
    let delimits = |c: char| !(c.is_ascii_alphanumeric() || c == ':' || !c.is_ascii());
    for token in text.split(delimits).filter(|token| !token.is_empty()) {
        if time.is_none()
            && let Some(found) = time_of(token)
        {
            time = Some(found);
        } else if day.is_none()
            && let Some(found) = number(token, 1..=2)
        {
            day = Some(found);
        } else if month.is_none()
            && let Some(found) = month_of(token)
        {
            month = Some(found);
        } else if year.is_none()
            && let Some(found) = number(token, 2..=4)
        {
            year = Some(found);
        }
    }
    let year = match year? {
        year @ 70..=99 => year + 1900,
        year @ 0..=69 => year + 2000,
        year => year,
    };
    let (hour, minute, second) = time?;
    let date = jiff::civil::Date::new(i16::try_from(year).ok()?, month?, i8::try_from(day?).ok()?).ok()?;
    let at = date.at(hour, minute, second, 0).to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    (year >= 1601).then(|| at.timestamp().as_second())
}

/// `hours:minutes:seconds`, ignoring what follows.
fn time_of(token: &str) -> Option<(i8, i8, i8)> {
    let mut parts = token.split(':').map(|part| number(part, 1..=2));
    let mut next =
        |max: u32| i8::try_from(parts.next()??).ok().filter(|value| u32::from(value.unsigned_abs()) <= max);
    Some((next(23)?, next(59)?, next(59)?))
}

/// The number at the start, if it has this many digits; what follows is ignored.
fn number(token: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let count = token.bytes().take_while(u8::is_ascii_digit).count();
    digits.contains(&count).then(|| token[..count].parse().ok()).flatten()
}

fn month_of(token: &str) -> Option<i8> {
    let start = token.get(..3)?.to_ascii_lowercase();
    let nth = MONTHS.iter().position(|month| *month == start)?;
    i8::try_from(nth + 1).ok()
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed_in_every_format() {
        for text in [
            "Wed, 21 Oct 2065 07:28:00 GMT",
            "Wed, 21-Oct-2065 07:28:00 GMT",
            "Wednesday, 21-Oct-65 07:28:00 GMT",
            "Wed Oct 21 07:28:00 2065",
            "21 oct 2065 07:28:00",
        ] {
            assert_eq!(parse(text), Some(3_023_335_680), "{text}");
        }
        for text in ["", "soon", "Wed, 32 Oct 2065 07:28:00 GMT", "21 Oct 2065", "21 Oct 2065 25:00:00", "0"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

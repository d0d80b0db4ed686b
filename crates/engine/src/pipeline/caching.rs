//! What the HTTP headers of an answer say about when it is worth asking again (RFC 9111).
//!
//! This is no cache: nothing is kept and nothing is served. A moment from here may only put off a request that
//! was due, never bring one forward, so whatever is unclear counts as nothing said.

use comity_core::time::{Span, Timestamp};
use http::HeaderMap;
use http::header::{AGE, CACHE_CONTROL, DATE, EXPIRES, HeaderName};

/// The moment before which the server says nothing new is to be had; `None` when it says nothing of the kind.
///
/// The headers are those of a 200 or 304 that was received at `now`. The moment is after `now`, and at most
/// [`FRESH_MAX`] after it.
pub(super) fn fresh_until(headers: &HeaderMap, now: Timestamp) -> Option<Timestamp> {
    let fresh = match cache_control(headers) {
        CacheControl::Refused => return None,
        CacheControl::MaxAge(span) => span.less(age(headers)),
        CacheControl::Silent => expires(headers, now)?,
    };
    Some(now + fresh.min(FRESH_MAX)).filter(|until| *until > now)
}

enum CacheControl {
    /// The server wants to be asked every time.
    Refused,
    MaxAge(Span),
    /// There is no `Cache-Control`, or none that can be understood.
    Silent,
}

/// All `Cache-Control` headers as one. Of several ages the least counts, for it is the one nearest to asking.
fn cache_control(headers: &HeaderMap) -> CacheControl {
    let mut least: Option<Span> = None;
    for directive in texts(headers, CACHE_CONTROL).flat_map(directives) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let name = name.trim();
        if ["no-cache", "no-store"].iter().any(|word| name.eq_ignore_ascii_case(word)) {
            return CacheControl::Refused;
        }
        if name.eq_ignore_ascii_case("max-age") {
            let span = seconds(value.trim().trim_matches(['"', '\'']).trim());
            least = least.into_iter().chain(span).min();
        }
    }
    least.map_or(CacheControl::Silent, CacheControl::MaxAge)
}

/// The directives of one header value, parted where no quotation marks are around.
fn directives(value: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    value.split(move |c: char| {
        quoted ^= c == '"';
        // Some servers part directives as they part parameters.
        !quoted && matches!(c, ',' | ';')
    })
}

/// How long the answer has been on its way, in other caches.
fn age(headers: &HeaderMap) -> Span {
    let value = texts(headers, AGE).next();
    value.and_then(|value| seconds(value.split(',').next()?.trim())).unwrap_or_default()
}

/// How long after `now` the answer expires.
fn expires(headers: &HeaderMap, now: Timestamp) -> Option<Span> {
    let date_of = |name| texts(headers, name).next().and_then(date);
    let expires_at = date_of(EXPIRES)?;
    // Both dates are by the server's clock, which need not be ours: only the time between them is certain.
    // A date years away tells of no clock at all.
    let is_sane = |date: &Timestamp| date.since(now).max(now.since(*date)) <= CLOCK_OFF_MAX;
    Some(match date_of(DATE).filter(is_sane) {
        Some(date) => expires_at.since(date).less(age(headers)),
        None => expires_at.since(now),
    })
}

/// The values of a header that are text.
fn texts(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| str::from_utf8(value.as_bytes()).ok())
}

/// Whole seconds; more than can be held is as long as can be told.
fn seconds(text: &str) -> Option<Span> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| Span::from_secs(text.parse().unwrap_or(u64::MAX)))
}

fn date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text.trim()).ok().map(Timestamp::from)
}

/// However fresh a server calls its answer, after a week it is asked again.
pub(super) const FRESH_MAX: Span = Span::from_hours(7 * 24);
const CLOCK_OFF_MAX: Span = Span::from_hours(366 * 24);

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// Reads `name: value` lines at 2026-11-15 12:00:00 UTC.
    fn told(lines: &str) -> String {
        let now = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in lines.split('\n').filter_map(|line| line.split_once(": ")) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        fresh_until(&headers, now).map_or("nothing".to_owned(), |until| until.since(now).to_string())
    }

    #[test]
    fn max_age_is_understood_however_it_is_written() {
        for value in [
            "max-age=90",
            "public, max-age=90, immutable",
            "MAX-AGE = \"90\" ,",
            "s-maxage=5,max-age='90'",
            ",,foo=\"max-age=1, no-store\", max-age=90",
            "public; max-age=90",
            "max-age=soon, max-age=90",
            "max-age=90\ncache-control: max-age=120",
            "public\nCache-Control: max-age=90\nExpires: Sun, 15 Nov 2026 13:00:00 GMT",
        ] {
            assert_eq!(told(&format!("Cache-Control: {value}")), "90s", "{value}");
        }
    }

    #[test]
    fn what_says_nothing_is_nothing() {
        for lines in [
            "",
            "Cache-Control: max-age=0",
            "Cache-Control: max-age=",
            "Cache-Control: max-age=-5",
            "Cache-Control: max-age=1e9",
            "Cache-Control: max-agex=5",
            "Cache-Control: s-maxage=600, immutable",
            "Cache-Control: max-age=60, No-Cache",
            "Cache-Control: max-age=60\nCache-Control: no-store",
            "Cache-Control: no-cache=\"set-cookie\", max-age=60",
            "Cache-Control: no-cache\nExpires: Sun, 15 Nov 2026 13:00:00 GMT",
            "Cache-Control: max-age=60\nAge: 60",
            "Cache-Control: max-age=60\nAge: 99999999999999999999999",
            "Cache-Control: max-age=0\nExpires: Sun, 15 Nov 2026 13:00:00 GMT",
            "Expires: 0",
            "Expires: Sun, 15 Nov 2026 11:00:00 GMT",
            "Expires: Sun, 15 Nov 2026 13:00:00 GMT\nDate: Sun, 15 Nov 2026 13:00:00 GMT",
        ] {
            assert_eq!(told(lines), "nothing", "{lines}");
        }
    }

    #[test]
    fn the_age_of_an_answer_is_taken_off() {
        assert_eq!(told("Cache-Control: max-age=60\nAge: 20"), "40s");
        assert_eq!(told("Cache-Control: max-age=60\nAge: 20, 30"), "40s");
        assert_eq!(told("Cache-Control: max-age=60\nAge: old"), "60s");
        let dates = "Expires: Sun, 15 Nov 2026 12:30:00 GMT\nDate: Sun, 15 Nov 2026 11:30:00 GMT";
        assert_eq!(told(&format!("{dates}\nAge: 1800")), "30m");
    }

    #[test]
    fn expiry_is_measured_against_the_servers_own_clock() {
        assert_eq!(told("Expires: Sun, 15 Nov 2026 12:30:00 GMT"), "30m");
        assert_eq!(told("Cache-Control: max-age=soon\nExpires: Sun, 15 Nov 2026 12:30:00 GMT"), "30m");
        let wrong_by_hours = "Date: Sun, 15 Nov 2026 02:00:00 GMT\nExpires: Sun, 15 Nov 2026 02:05:00 GMT";
        assert_eq!(told(wrong_by_hours), "5m");
        let no_clock = "Date: Thu, 01 Jan 1970 00:00:00 GMT\nExpires: Sun, 15 Nov 2026 12:30:00 GMT";
        assert_eq!(told(no_clock), "30m");
        assert_eq!(told("Date: today\nExpires: Sunday, 15-Nov-26 12:30:00 GMT"), "30m");
    }

    #[test]
    fn nothing_is_fresh_for_more_than_a_week() {
        for lines in [
            "Cache-Control: max-age=31536000",
            "Cache-Control: max-age=99999999999999999999999999",
            "Expires: Fri, 31 Dec 9999 23:59:59 GMT",
        ] {
            assert_eq!(told(lines), "7d", "{lines}");
        }
    }

    proptest! {
        #[test]
        fn any_headers_and_times_are_read(
            values in prop::collection::vec((0_usize..4, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            words in prop::collection::vec("(max-age|no-cache|,|;|=|\"|[0-9]{1,25}| ){0,9}", 0..3),
            micros in any::<i64>(),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in values {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append([CACHE_CONTROL, AGE, DATE, EXPIRES][name].clone(), value);
                }
            }
            for value in words {
                headers.append(CACHE_CONTROL, HeaderValue::from_str(&value)?);
            }
            for now in [Timestamp::from_micros(micros), Timestamp::NEVER, Timestamp::MIN, Timestamp::MAX] {
                if let Some(until) = fresh_until(&headers, now) {
                    prop_assert!(until > now && until.since(now) <= FRESH_MAX);
                }
            }
        }
    }
}

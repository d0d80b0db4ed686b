//! How long a response stays fresh according to its caching headers (RFC 9111).
//!
//! This is not a cache: nothing is stored or served. The result can only delay a request that is due, never bring one
//! forward, so anything unclear is ignored.

use comity_core::time::{Span, Timestamp};
use http::HeaderMap;
use http::header::{AGE, CACHE_CONTROL, DATE, EXPIRES, HeaderName};

/// Until when the response is fresh; `None` if the headers don't say.
///
/// The headers are those of a 200 or 304 that was received at `now`. The result is after `now`, by at most
/// [`FRESH_MAX`].
pub(super) fn fresh_until(headers: &HeaderMap, now: Timestamp) -> Option<Timestamp> {
    let fresh = match cache_control(headers) {
        CacheControl::NoCache => return None,
        CacheControl::MaxAge(span) => span.less(age(headers)),
        CacheControl::Unspecified => expires(headers, now)?,
    };
    Some(now + fresh.min(FRESH_MAX)).filter(|until| *until > now)
}

enum CacheControl {
    /// `no-cache` or `no-store`.
    NoCache,
    MaxAge(Span),
    /// There is no `Cache-Control`, or none that is understood.
    Unspecified,
}

/// All `Cache-Control` headers combined. Of several ages, the smallest counts.
fn cache_control(headers: &HeaderMap) -> CacheControl {
    let mut least: Option<Span> = None;
    for directive in texts(headers, CACHE_CONTROL).flat_map(directives) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let name = name.trim();
        if ["no-cache", "no-store"].iter().any(|word| name.eq_ignore_ascii_case(word)) {
            return CacheControl::NoCache;
        }
        if name.eq_ignore_ascii_case("max-age") {
            let span = seconds(value.trim().trim_matches(['"', '\'']).trim());
            least = least.into_iter().chain(span).min();
        }
    }
    least.map_or(CacheControl::Unspecified, CacheControl::MaxAge)
}

/// The directives of a header value, split outside of quotation marks.
fn directives(value: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    value.split(move |c: char| {
        quoted ^= c == '"';
        // Some servers separate directives by semicolons.
        !quoted && matches!(c, ',' | ';')
    })
}

/// How long the response has been in other caches.
fn age(headers: &HeaderMap) -> Span {
    let value = texts(headers, AGE).next();
    value.and_then(|value| seconds(value.split(',').next()?.trim())).unwrap_or_default()
}

/// How long after `now` the response expires.
fn expires(headers: &HeaderMap, now: Timestamp) -> Option<Span> {
    let date_of = |name| texts(headers, name).next().and_then(date);
    let expires_at = date_of(EXPIRES)?;
    // Both dates are from the server's clock, which may differ from ours, so only the difference between them is
    // reliable. If the date is years off, the server has no usable clock.
    let is_sane = |date: &Timestamp| date.since(now).max(now.since(*date)) <= CLOCK_OFF_MAX;
    Some(match date_of(DATE).filter(is_sane) {
        Some(date) => expires_at.since(date).less(age(headers)),
        None => expires_at.since(now),
    })
}

/// The values of a header that are valid UTF-8.
fn texts(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| str::from_utf8(value.as_bytes()).ok())
}

/// Parses whole seconds; values that are too large saturate.
fn seconds(text: &str) -> Option<Span> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| Span::from_secs(text.parse().unwrap_or(u64::MAX)))
}

fn date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text.trim()).ok().map(Timestamp::from)
}

/// No response counts as fresh for longer than a week.
pub(super) const FRESH_MAX: Span = Span::from_hours(7 * 24);
const CLOCK_OFF_MAX: Span = Span::from_hours(366 * 24);

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// How long a response with these `name: value` lines is fresh at 2026-11-15 12:00:00 UTC.
    fn fresh_for(lines: &str) -> String {
        let now = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in lines.split('\n').filter_map(|line| line.split_once(": ")) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        fresh_until(&headers, now).map_or("nothing".to_owned(), |until| until.since(now).to_string())
    }

    #[test]
    fn max_age_is_parsed_in_every_spelling() {
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
            assert_eq!(fresh_for(&format!("Cache-Control: {value}")), "90s", "{value}");
        }
    }

    #[test]
    fn headers_without_a_valid_lifetime_are_ignored() {
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
            assert_eq!(fresh_for(lines), "nothing", "{lines}");
        }
    }

    #[test]
    fn the_age_of_a_response_is_subtracted() {
        assert_eq!(fresh_for("Cache-Control: max-age=60\nAge: 20"), "40s");
        assert_eq!(fresh_for("Cache-Control: max-age=60\nAge: 20, 30"), "40s");
        assert_eq!(fresh_for("Cache-Control: max-age=60\nAge: old"), "60s");
        let dates = "Expires: Sun, 15 Nov 2026 12:30:00 GMT\nDate: Sun, 15 Nov 2026 11:30:00 GMT";
        assert_eq!(fresh_for(&format!("{dates}\nAge: 1800")), "30m");
    }

    #[test]
    fn expiry_is_measured_against_the_servers_own_clock() {
        assert_eq!(fresh_for("Expires: Sun, 15 Nov 2026 12:30:00 GMT"), "30m");
        assert_eq!(fresh_for("Cache-Control: max-age=soon\nExpires: Sun, 15 Nov 2026 12:30:00 GMT"), "30m");
        let wrong_by_hours = "Date: Sun, 15 Nov 2026 02:00:00 GMT\nExpires: Sun, 15 Nov 2026 02:05:00 GMT";
        assert_eq!(fresh_for(wrong_by_hours), "5m");
        let no_clock = "Date: Thu, 01 Jan 1970 00:00:00 GMT\nExpires: Sun, 15 Nov 2026 12:30:00 GMT";
        assert_eq!(fresh_for(no_clock), "30m");
        assert_eq!(fresh_for("Date: today\nExpires: Sunday, 15-Nov-26 12:30:00 GMT"), "30m");
    }

    #[test]
    fn nothing_is_fresh_for_more_than_a_week() {
        for lines in [
            "Cache-Control: max-age=31536000",
            "Cache-Control: max-age=99999999999999999999999999",
            "Expires: Fri, 31 Dec 9999 23:59:59 GMT",
        ] {
            assert_eq!(fresh_for(lines), "7d", "{lines}");
        }
    }

    proptest! {
        #[test]
        fn no_headers_or_times_cause_a_panic(
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

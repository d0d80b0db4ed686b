//! Reads `Retry-After` and rate limit headers from one response.
//!
//! Headers are passed as pairs of name and raw value, so that any HTTP library can be used. What follows from them
//! (clamps, holds, spacing) is decided in [`crate::pace`]. An invalid `Retry-After` is reported as such, so that it can
//! be logged.

mod rate_limit;
mod retry_after;

pub use rate_limit::Quota;
pub use retry_after::RetryAfter;

use crate::time::{Span, Timestamp};

/// What the headers of one response say about when to send the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacingHints {
    /// The `Retry-After` header.
    pub retry_after: RetryAfter,
    /// Time until the last exhausted quota resets; `None` if no quota is exhausted, and never zero.
    pub exhausted_for: Option<Span>,
    /// The tightest quota with requests remaining.
    pub quota: Option<Quota>,
}

impl PacingHints {
    /// Reads the headers of a response received at `now`. Names may be in any case.
    ///
    /// Dates are relative to the response's own `Date` header, because the server's clock may differ from ours.
    pub fn read<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>, now: Timestamp) -> Self {
        let (mut date, mut relevant) = (None, Vec::new());
        for (name, value) in headers {
            // Oversized or binary values aren't usable, but an invalid Retry-After still has to be logged.
            let usable = || {
                let value = std::str::from_utf8(value).ok().filter(|value| value.len() <= VALUE_MAX);
                value.map_or("(unreadable)", str::trim)
            };
            if name.eq_ignore_ascii_case("date") {
                date = date.or_else(|| Some(usable()));
                continue;
            }
            if !is_relevant(name) {
                continue;
            }
            let name = name.to_ascii_lowercase();
            if relevant.len() < HEADERS_MAX || (name == "retry-after" && !has_header(&relevant, &name)) {
                relevant.push((name, usable()));
            }
        }
        // A date alone says nothing, and nearly all responses have one.
        if relevant.is_empty() {
            return Self::default();
        }
        let headers = RateHeaders { headers: &relevant };
        let date = date.and_then(parse_date).unwrap_or(now);
        let (exhausted_for, quota) = rate_limit::read(&headers, date);
        Self { retry_after: retry_after::read(headers.all("retry-after"), date), exhausted_for, quota }
    }

    /// The same hints some time after they were received: deadlines stay at the same point in time, and the quota,
    /// which has already been applied, is dropped.
    pub fn aged(self, by: Span) -> Self {
        // A span of zero would mean that there is no deadline.
        let left = |span: Span| span.less(by).max(Span::from_micros(1));
        let retry_after = match self.retry_after {
            RetryAfter::After(asked) => RetryAfter::After(left(asked)),
            other => other,
        };
        Self { retry_after, exhausted_for: self.exhausted_for.map(left), quota: None }
    }

    /// Whether the server stated when to come back.
    pub fn has_deadline(&self) -> bool {
        matches!(self.retry_after, RetryAfter::After(_)) || self.exhausted_for.is_some()
    }

    /// Whether the response said nothing about waiting.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self { retry_after: RetryAfter::Absent, exhausted_for: None, quota: None })
    }

    /// Hints with nothing but a `Retry-After` of this length.
    pub fn retry_after(span: Span) -> Self {
        Self { retry_after: RetryAfter::After(span), ..Self::default() }
    }
}

/// The headers of a response that concern waiting, with names in lower case.
struct RateHeaders<'a> {
    headers: &'a [(String, &'a str)],
}

impl<'a> RateHeaders<'a> {
    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| *value)
    }

    fn first(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// All values of a list header, joined by commas as in RFC 9110.
    fn joined(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self.all(name).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}

fn has_header(headers: &[(String, &str)], name: &str) -> bool {
    headers.iter().any(|(known, _)| known == name)
}

fn is_relevant(name: &str) -> bool {
    let starts_with = |prefix: &str| {
        name.as_bytes().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    name.eq_ignore_ascii_case("retry-after") || starts_with("ratelimit") || starts_with("x-rate")
}

/// Parses an HTTP-date in any of the three formats of RFC 9110. The day of the week may be a wrong one.
fn parse_date(text: &str) -> Option<Timestamp> {
    let parse = |text: &str| httpdate::parse_http_date(text).ok().map(Timestamp::from);
    let with = |rest: &str| WEEKDAYS.iter().find_map(|day| parse(&format!("{day},{rest}")));
    parse(text).or_else(|| text.split_once(',').and_then(|(_, rest)| with(rest)))
}

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// Longer values are noise or an attack.
const VALUE_MAX: usize = 4_096;
/// More headers than this are noise or an attack.
const HEADERS_MAX: usize = 64;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Reads `name: value` lines at 2026-11-15 12:00:00 UTC.
    pub(crate) fn hints(lines: &str) -> PacingHints {
        let pairs = lines.lines().filter_map(|line| line.split_once(": "));
        let pairs = pairs.map(|(name, value)| (name, value.as_bytes()));
        PacingHints::read(pairs, Timestamp::parse("2026-11-15T12:00:00Z").unwrap())
    }

    #[test]
    fn responses_without_rate_headers_give_no_hints() {
        assert_eq!(hints("Content-Type: text/html\nServer: nginx"), PacingHints::default());
        assert_eq!(hints(""), PacingHints::default());
    }

    #[test]
    fn binary_and_oversized_values_are_unusable() {
        let headers = [("retry-after", &b"\xff\xfe"[..]), ("RateLimit", &b"\x80"[..])];
        let hints = PacingHints::read(headers.into_iter(), Timestamp::from_secs(0));
        assert_eq!(hints, PacingHints { retry_after: RetryAfter::Unusable, ..PacingHints::default() });
        let many = "X-RateLimit-Foo: 1\n".repeat(100);
        assert_eq!(
            self::hints(&format!("{many}Retry-After: 5")),
            PacingHints::retry_after(Span::from_secs(5))
        );
        let long = "9".repeat(VALUE_MAX + 1);
        assert_eq!(self::hints(&format!("Retry-After: {long}")).retry_after, RetryAfter::Unusable);
        assert_eq!(self::hints(&format!("X-RateLimit-Reset: {long}\nX-RateLimit-Remaining: 0")).quota, None);
    }
}
